/* Looks for what belongs to others: processes, files, memory, secrets of whoever made the sandbox. Harmless: it only reads,
 * and what it finds was put there by the test. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <mqueue.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "attack.h"

static size_t read_file(const char *path, char *data, size_t size) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, data, size - 1);
    if (fd >= 0) close(fd);
    data[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

/* processes: any but PID 1 and this program's own line */
static void processes(int argc, char **argv) {
    DIR *proc = opendir("/proc");
    char path[64], text[4096];
    int others = 0;
    (void)argc, (void)argv;
    if (!proc) broken("/proc: %m");
    for (struct dirent *e; (e = readdir(proc));) {
        int pid = atoi(e->d_name);
        if (pid <= 1 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/status", pid);
        if (read_file(path, text, sizeof text)) others++;
    }
    if (others) harm("sees %d processes of others", others);
    for (int pid = 2; pid < 40000; pid++)
        if (pid != getpid() && (kill(pid, 0) == 0 || errno == EPERM)) harm("process %d exists for kill()", pid);
    safe("only PID 1 and itself");
}

/* file PATH TEXT: by its path, by ever more "..", and through every process's root, working directory and descriptors */
static void file(int argc, char **argv) {
    char path[PATH_MAX], text[256];
    if (argc != 2) broken("usage");
    static const char *const starts[] = {"", "/..", "/../../../../../../../..", "/proc/1/root", "/proc/self/root/..", "/proc/1/cwd/..",
                                         "/proc/self/cwd/../../../../..", "/dev/fd/../../../..", "/host", "/mnt", "/skel", "/w", "/tmp/.."};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        snprintf(path, sizeof path, "%s%s", starts[i], argv[0]);
        if (read_file(path, text, sizeof text) && strstr(text, argv[1])) harm("read the host's file as %s", path);
    }
    for (int pid = 1; pid < 400; pid++)
        for (int fd = 0; fd < 400; fd += pid == getpid() ? 1 : 400) {
            snprintf(path, sizeof path, pid == getpid() ? "/proc/%d/fd/%d/../../../../../..%s" : "/proc/%d/root%.0d%s", pid, fd, argv[0]);
            if (read_file(path, text, sizeof text) && strstr(text, argv[1])) harm("read the host's file as %s", path);
        }
    safe("no way to the file");
}

/* readable PATH: a file of /proc tells something. One that is masked is the null device or an empty directory. */
static void readable(int argc, char **argv) {
    struct stat st;
    char text[256];
    (void)argc;
    if (stat(argv[0], &st) < 0) refused(argv[0]);
    if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)) safe("%s is masked", argv[0]);
    if (S_ISDIR(st.st_mode)) {
        int entries = 0;
        DIR *d = opendir(argv[0]);
        if (!d) refused(argv[0]);
        while (readdir(d)) entries++;
        if (entries > 2) harm("%s has %d entries", argv[0], entries - 2);
        safe("%s is empty", argv[0]);
    }
    int fd = open(argv[0], O_RDONLY | O_NONBLOCK);
    if (fd < 0) refused(argv[0]);
    if (read(fd, text, sizeof text) > 0) harm("read %s", argv[0]);
    refused("read");
}

/* writable PATH TEXT: TEXT "=" writes back what is there, so nothing changes. */
static void writable(int argc, char **argv) {
    struct stat st;
    char text[256];
    if (argc != 2) broken("usage");
    if (stat(argv[0], &st) < 0) refused(argv[0]);
    if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)) safe("%s is masked", argv[0]);
    snprintf(text, sizeof text, "%s", argv[1]);
    if (!strcmp(text, "=") && !read_file(argv[0], text, sizeof text)) refused("read before the write");
    int fd = open(argv[0], O_WRONLY);
    if (fd < 0) refused(argv[0]);
    if (write(fd, text, strlen(text)) < 0) refused("write");
    harm("wrote to %s", argv[0]);
}

/* init TEXT: PID 1's environment, memory, descriptors and root, and tracing it. TEXT is in our maker's environment. */
static void init(int argc, char **argv) {
    char text[65536];
    struct stat st;
    (void)argc;
    size_t n = read_file("/proc/1/environ", text, sizeof text);
    if (n && memmem(text, n, argv[0], strlen(argv[0]))) harm("read the environment of our maker");
    if (n) harm("read PID 1's environment");
    if (read_file("/proc/1/maps", text, sizeof text)) harm("read PID 1's maps");
    if (read_file("/proc/1/auxv", text, sizeof text)) harm("read PID 1's auxv");
    if (read_file("/proc/1/syscall", text, sizeof text)) harm("read PID 1's registers");
    if (readlink("/proc/1/root", text, sizeof text) >= 0) harm("followed PID 1's root");
    if (readlink("/proc/1/exe", text, sizeof text) >= 0) harm("followed PID 1's program");
    if (opendir("/proc/1/fd")) harm("listed PID 1's descriptors");
    if (open("/proc/1/mem", O_RDWR) >= 0) harm("opened PID 1's memory");
    if (stat("/proc/1/ns/mnt", &st) == 0) harm("reached PID 1's namespaces");
    if (ptrace(PTRACE_SEIZE, 1, 0, 0) == 0) harm("traces PID 1");
    if (ptrace(PTRACE_ATTACH, 1, 0, 0) == 0) harm("traces PID 1");
    int fd = (int)syscall(SYS_pidfd_open, 1, 0);
    for (int target = 0; fd >= 0 && target < 16; target++)
        if (syscall(SYS_pidfd_getfd, fd, target, 0) >= 0 || errno != EPERM) harm("pidfd_getfd of PID 1: %m");
    refused("ptrace");
}

/* kill_init: every signal. PID 1 must stand afterwards: a new process needs it. */
static void kill_init(int argc, char **argv) {
    (void)argc, (void)argv;
    for (int s = 1; s < 65; s++) kill(1, s);
    kill(-1, SIGURG);
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        if (pid < 0 || waitpid(pid, NULL, 0) != pid) harm("no process can be made any more: %m");
    }
    safe("PID 1 stands");
}

/* ---- between sandboxes: one leaves, the other looks ---- */

#define KEY 0x53746f6b
#define NAME "/stokehold-test"

static void leave(int argc, char **argv) {
    (void)argc;
    int id = shmget(KEY, 4096, IPC_CREAT | 0666), queue = msgget(KEY, IPC_CREAT | 0666);
    char *memory = id < 0 ? NULL : shmat(id, NULL, 0);
    struct { long type; char text[32]; } message = {1, ""};
    if (!memory || queue < 0) broken("System V: %m");
    snprintf(memory, 64, "%s", argv[0]);
    snprintf(message.text, sizeof message.text, "%s", argv[0]);
    if (msgsnd(queue, &message, sizeof message.text, IPC_NOWAIT) < 0) broken("msgsnd: %m");
    mqd_t posix = mq_open(NAME, O_RDWR | O_CREAT, 0666, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 32});
    if (posix < 0 || mq_send(posix, argv[0], strlen(argv[0]), 0) < 0) broken("mq_open: %m");
    int fd = open("/dev/shm" NAME, O_WRONLY | O_CREAT, 0666), tmp = open("/tmp" NAME, O_WRONLY | O_CREAT, 0666);
    if (write(fd, argv[0], strlen(argv[0])) < 0 || write(tmp, argv[0], strlen(argv[0])) < 0) broken("files: %m");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "\0stokehold-test"};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, sizeof address) < 0 || listen(listener, 1) < 0) broken("abstract socket: %m");
    printf("LEFT\n");
    fflush(stdout);
    char wait;
    if (read(0, &wait, 1) < 0) broken("stdin: %m");
    shmctl(id, IPC_RMID, NULL);
    msgctl(queue, IPC_RMID, NULL);
    mq_unlink(NAME);
    safe("taken away");
}

static void look(int argc, char **argv) {
    char text[256];
    (void)argc, (void)argv;
    if (shmget(KEY, 0, 0) >= 0) harm("another sandbox's System V memory");
    if (msgget(KEY, 0) >= 0) harm("another sandbox's System V queue");
    if (mq_open(NAME, O_RDONLY) >= 0) harm("another sandbox's POSIX queue");
    if (read_file("/dev/shm" NAME, text, sizeof text) || read_file("/tmp" NAME, text, sizeof text)) harm("another sandbox's file");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "\0stokehold-test"};
    if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address) == 0) harm("another sandbox's abstract socket");
    if (read_file("/proc/net/unix", text, sizeof text) && strchr(text, '@')) harm("another sandbox's sockets");
    safe("alone");
}

/* clean TEXT: what the program itself can find of the one who started it: descriptors, files, environment, limits. */
static void clean(int argc, char **argv) {
    char path[PATH_MAX], text[PATH_MAX];
    (void)argc;
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(path, text, sizeof text - 1);
            text[n > 0 ? n : 0] = 0;
            harm("descriptor %d is open: %s", fd, text);
        }
    size_t n = read_file("/proc/self/environ", text, sizeof text);
    if (memmem(text, n, argv[0], strlen(argv[0]))) harm("our maker's environment");
    if (prctl(PR_GET_DUMPABLE) != 1) harm("not dumpable: debuggers would not work");
    static const char *const places[] = {"/box", "/tmp", "/dev/shm"};
    for (size_t i = 0; i < 3; i++) {
        DIR *d = opendir(places[i]);
        if (!d) refused(places[i]);
        for (struct dirent *e; (e = readdir(d));)
            if (e->d_name[0] != '.' && strcmp(e->d_name, "see") != 0) harm("%s/%s is there", places[i], e->d_name);
            else if (e->d_name[0] == '.' && e->d_name[1] && strcmp(e->d_name, "..") != 0) harm("%s/%s is there", places[i], e->d_name);
    }
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(text, sizeof text, status))
        if (!strncmp(text, "Cap", 3) && strspn(strchr(text, '\t') + 1, "0") != 16) harm("a capability: %s", text);
        else if (!strncmp(text, "Groups", 6) && strpbrk(text, "123456789")) harm("groups: %s", text);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int s = 1; s < 32; s++) {
        struct sigaction action;
        if (sigismember(&mask, s) == 1) harm("signal %d is blocked", s);
        if (s != SIGKILL && s != SIGSTOP && sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_DFL) harm("signal %d is ignored", s);
    }
    if (syscall(SYS_getpgid, 0) != getpid() || getsid(0) != getpid()) harm("in another's session");
    safe("nothing of ours");
}

/* stdin: the program's input is its own; it cannot be written to, so another run of it cannot be fed. */
static void input(int argc, char **argv) {
    (void)argc, (void)argv;
    int fd = open("/proc/self/fd/0", O_RDWR);
    if (fd < 0) fd = 0;
    if (pwrite(fd, "forged", 6, 0) > 0) harm("wrote to its own input");
    if (ftruncate(fd, 0) == 0) harm("cut its own input");
    if (fcntl(fd, F_ADD_SEALS, 0) == 0) harm("the input can be sealed further");
    refused("write");
}

/* devices: any device node that opens and is none of the harmless ones. */
static int device_seen(const char *path, const struct stat *st, int type, struct FTW *walk) {
    static const unsigned good[][2] = {{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}};
    (void)type, (void)walk;
    if (!S_ISCHR(st->st_mode) && !S_ISBLK(st->st_mode)) return 0;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (S_ISCHR(st->st_mode) && st->st_rdev == makedev(good[i][0], good[i][1])) return 0;
    harm("device %s (%u, %u)", path, major(st->st_rdev), minor(st->st_rdev));
}
static void devices(int argc, char **argv) {
    (void)argc, (void)argv;
    nftw("/dev", device_seen, 16, FTW_PHYS);
    if (access("/sys/kernel", F_OK) == 0 || access("/sys/fs/cgroup", F_OK) == 0) harm("the host's /sys");
    safe("no device but the harmless ones");
}

const struct attack attacks[] = {
    {"processes", processes}, {"file", file}, {"readable", readable}, {"writable", writable}, {"init", init},
    {"kill_init", kill_init}, {"leave", leave}, {"look", look}, {"clean", clean}, {"input", input}, {"devices", devices},
    {NULL, NULL},
};
