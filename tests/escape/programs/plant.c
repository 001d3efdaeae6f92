/* Plants what a client then reads, writes, lists, archives and deletes: links out, FIFOs, sockets, odd names and times, deep trees,
 * and things that change under the client's hands. Harmless: all of it lies in the sandbox. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "attack.h"

static void put(const char *name, const char *text) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) broken("%s: %m", name);
    close(fd);
}

/* traps: in the working directory */
static void traps(int argc, char **argv) {
    static const char *const links[][2] = {
        {"to_sys", "/proc/sys/kernel/hostname"}, {"to_setting", "/proc/sys/vm/overcommit_memory"}, {"to_environ", "/proc/self/environ"},
        {"to_status", "/proc/self/status"}, {"to_mem", "/proc/self/mem"}, {"to_init", "/proc/1/environ"}, {"to_fd", "/proc/self/fd/0"},
        {"to_talk", "/proc/self/fd/301"}, {"to_exe", "/proc/self/exe"}, {"to_zero", "/dev/zero"}, {"to_random", "/dev/random"},
        {"to_tty", "/dev/tty"}, {"to_full", "/dev/full"}, {"to_fifo", "fifo"}, {"loop", "loop"}, {"to_mqueue", "/dev/mqueue"},
        {"dir_sys", "/proc/sys/kernel"}, {"dir_self", "/proc/self"}, {"dir_root", "/proc/self/root"}, {"dir_cwd", "/proc/self/cwd"},
        {"dir_proc", "/proc"}, {"dir_fd", "/proc/self/fd"}, {"dir_ns", "/proc/self/ns"}};
    (void)argc, (void)argv;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][1], links[i][0]) < 0) broken("%s: %m", links[i][0]);
    if (mkfifo("fifo", 0666) < 0) broken("fifo: %m");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    if (bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address) < 0) broken("socket: %m");
    if (mknod("whiteout", S_IFREG | 0644, 0) < 0) broken("whiteout: %m");
    put("plain", "plain");
    safe("planted");
}

/* odd: names, times, sizes, links */
static void odd(int argc, char **argv) {
    char name[256];
    static const struct timespec times[][2] = {
        {{0, 0}, {4000000000000, 999999999}}, {{0, 0}, {-4000000000000, 1}}, {{0, 0}, {INT64_MAX, 0}}, {{0, 0}, {INT64_MIN, 0}},
        {{0, 0}, {9223372036, 999999999}}, {{0, 0}, {-9223372037, 0}}};
    (void)argc, (void)argv;
    memset(name, 'n', 255);
    name[255] = 0;
    put(name, "long");
    put("new\nline", "newline");
    put("not-\xff\xfe-utf8", "bytes");
    put(" ", "blank");
    put("..hidden", "dots");
    put("-rf", "option");
    put("tab\there \x1b[31m\x07", "escape");
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        snprintf(name, sizeof name, "time%zu", i);
        put(name, "time");
        utimensat(AT_FDCWD, name, times[i], 0);
    }
    int fd = open("hole", O_RDWR | O_CREAT, 0644);
    if (ftruncate(fd, 1ll << 40) < 0) broken("hole: %m");
    if (link("plain", "hard") < 0) broken("hard link: %m");
    if (mkdir("closed", 0) < 0) broken("closed: %m");
    safe("planted");
}

/* deep LEVELS */
static void deep(int argc, char **argv) {
    (void)argc;
    for (long i = 0; i < atol(argv[0]); i++)
        if ((mkdir("d", 0755) < 0 && errno != EEXIST) || chdir("d") < 0) broken("level %ld: %m", i);
    put("bottom", "bottom");
    safe("planted");
}

/* many COUNT */
static void many(int argc, char **argv) {
    char name[32];
    (void)argc;
    for (long i = 0; i < atol(argv[0]); i++) {
        snprintf(name, sizeof name, "many%ld", i);
        put(name, "");
    }
    safe("planted");
}

static bool told_to_stop(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) != 0;
}

/* swap A B: exchanges two names until its input ends */
static void swap(int argc, char **argv) {
    (void)argc;
    printf("SWAPPING\n");
    fflush(stdout);
    while (!told_to_stop())
        for (int i = 0; i < 100; i++)
            if (syscall(SYS_renameat2, AT_FDCWD, argv[0], AT_FDCWD, argv[1], 2) < 0) broken("exchange: %m");
    safe("done");
}

/* churn FILE: a file that grows and shrinks, and a name that comes and goes, until its input ends */
static void churn(int argc, char **argv) {
    static char data[100000];
    (void)argc;
    int fd = open(argv[0], O_RDWR | O_CREAT, 0644);
    printf("CHURNING\n");
    fflush(stdout);
    for (unsigned i = 0; !told_to_stop(); i++) {
        if (pwrite(fd, data, sizeof data, 0) < 0 || ftruncate(fd, i * 7919 % sizeof data) < 0) broken("churn: %m");
        if (mkfifo("comes-and-goes", 0666) == 0) unlink("comes-and-goes");
        put("comes-and-goes", "x");
        unlink("comes-and-goes");
    }
    safe("done");
}

const struct attack attacks[] = {
    {"traps", traps}, {"odd", odd}, {"deep", deep}, {"many", many}, {"swap", swap}, {"churn", churn}, {NULL, NULL}};
