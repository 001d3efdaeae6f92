/* stokehold-spawner: the only part that touches namespaces. This file reads the command line and puts the roles together.
 *
 * serve   the broker, with its zygote and workers
 * launch  start another program without privileges (launch.c)
 * floor   how fast this kernel makes and ends sandboxes (floor.c) */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker.h"
#include "maker.h"
#include "options.h"

#define BROKER_NICE (-10)      /* limits are judged on time although sandboxes take every CPU */
#define BROKER_OOM "-900"
#define BACKLOG 16

static const char usage_text[] =
    "usage: stokehold-spawner serve --socket PATH --gateway-uid U --cgroup NAME --slot N --layer NAME=DIR...\n"
    "                               [--makers 4] [--enterers 2] [--orphan-s 900]\n"
    "       stokehold-spawner launch --uid U --gid G [--expose DIR]... -- PROGRAM [ARG]...\n"
    "       stokehold-spawner floor --layer NAME=DIR --seconds S --workers W --cgroup NAME --slot N\n"
    "                               [--role lease|call] [--exec PROGRAM]\n";

_Noreturn void usage(const char *problem) {
    fprintf(stderr, "stokehold-spawner: %s\n%s", problem, usage_text);
    exit(2);
}

unsigned long option_number(const char *name, const char *text, unsigned long least, unsigned long most) {
    char *end, problem[128];
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > most) {
        snprintf(problem, sizeof problem, "--%s must be a number from %lu to %lu", name, least, most);
        usage(problem);
    }
    return value;
}

const char *option_cgroup(const char *text) {
    size_t length = strlen(text);
    if (strncmp(text, "stokehold", 9) || length > 40 ||
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != length) usage("--cgroup must be stokehold or stokehold-NAME");
    return text;
}

struct layer_option option_layer(char *text) {
    char *equals = strchr(text, '=');
    if (!equals || equals == text || equals[1] != '/') usage("--layer must be NAME=/DIRECTORY");
    *equals = 0;
    return (struct layer_option){text, equals + 1};
}

void raise_files(void) {
    struct rlimit limit;
    char text[24] = {0};
    int fd = open("/proc/sys/fs/nr_open", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) die("/proc/sys/fs/nr_open");
    close(fd);
    limit.rlim_cur = limit.rlim_max = strtoul(text, NULL, 10);
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) die("getrlimit");  /* without CAP_SYS_RESOURCE: as far as it goes */
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) die("setrlimit");
}

static int listen_at(const char *path, uid_t owner) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat s;
    if (strlen(path) >= sizeof address.sun_path) usage("--socket is too long a path");
    strcpy(address.sun_path, path);
    if (lstat(path, &s) == 0) {
        if (!S_ISSOCK(s.st_mode)) usage("--socket names something that is not a socket");
        if (unlink(path) < 0) die(path);
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) die("socket");
    mode_t mask = umask(0177);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) die(path);
    umask(mask);
    if (chown(path, owner, (gid_t)-1) < 0 || listen(fd, BACKLOG) < 0) die(path);
    return fd;
}

static void protect_broker(const struct host *host) {
    setpriority(PRIO_PROCESS, 0, BROKER_NICE);
    int fd = openat(host->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || (write(fd, BROKER_OOM, strlen(BROKER_OOM)) < 0 && errno != EACCES)) warn_errno("oom_score_adj", NULL);
    if (fd >= 0) close(fd);
}

static _Noreturn void serve(int argc, char **argv) {
    enum { SOCKET = 1, GATEWAY, CGROUP, SLOT, LAYER, MAKERS, ENTERERS, ORPHAN };
    static const struct option options[] = {
        {"socket", 1, 0, SOCKET}, {"gateway-uid", 1, 0, GATEWAY}, {"cgroup", 1, 0, CGROUP}, {"slot", 1, 0, SLOT}, {"layer", 1, 0, LAYER},
        {"makers", 1, 0, MAKERS}, {"enterers", 1, 0, ENTERERS}, {"orphan-s", 1, 0, ORPHAN}, {0}};
    struct broker_settings settings = {.makers = 4, .enterers = 2, .orphan_s = 900};
    struct layer_option layers[LAYERS_MAX];
    const char *path = NULL, *cgroup = NULL;
    unsigned long gateway = ~0ul, slot = ~0ul;
    int count = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (c) {
        case SOCKET: path = optarg; break;
        case GATEWAY: gateway = option_number("gateway-uid", optarg, 0, UINT32_MAX - 1); break;
        case CGROUP: cgroup = option_cgroup(optarg); break;
        case SLOT: slot = option_number("slot", optarg, 0, SLOTS - 1); break;
        case LAYER:
            if (count == LAYERS_MAX) usage("too many layers");
            layers[count++] = option_layer(optarg);
            break;
        case MAKERS: settings.makers = (unsigned)option_number("makers", optarg, 1, 64); break;
        case ENTERERS: settings.enterers = (unsigned)option_number("enterers", optarg, 1, 64); break;
        case ORPHAN: settings.orphan_s = (unsigned)option_number("orphan-s", optarg, 1, 86400 * 365); break;
        default: usage("unknown option");
    }
    if (optind != argc || !path || !cgroup || gateway == ~0ul || slot == ~0ul || !count) usage("serve: an option is missing");

    struct host host;
    raise_files();
    host_open(&host, cgroup, (unsigned)slot, layers, count);
    host.gateway_uid = (uid_t)gateway;
    int listener = listen_at(path, host.gateway_uid);
    host_leave(&host);
    host_probe(&host);
    int zygote = zygote_start(&host, listener);
    protect_broker(&host);
    if (puts("ready") < 0 || fflush(stdout)) die("stdout");
    broker_main(&host, listener, zygote, &settings);
}

int main(int argc, char **argv) {
    if (argc < 2) usage("which subcommand?");
    title_keep(argc, argv);
    if (!strcmp(argv[1], "launch")) launch_main(argc - 1, argv + 1);
    if (geteuid() != 0) {
        fputs("stokehold-spawner: must be started by root (sudo)\n", stderr);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) die("dumpable");
    if (!strcmp(argv[1], "serve")) serve(argc - 1, argv + 1);
    if (!strcmp(argv[1], "floor")) floor_main(argc - 1, argv + 1);
    usage("unknown subcommand");
}
