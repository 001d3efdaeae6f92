/* Takes as much of one thing as it is given, up to an amount that hurts nobody: the second argument, beyond the limit that is
 * tested and far below what the machine has. Then, if there is a third, holds it until its input ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>

#include "attack.h"

/* Each takes number `i` and says whether it got it. */
static bool take_process(long i) {
    (void)i;
    pid_t pid = fork();
    if (pid == 0) for (;;) pause();
    return pid > 0;
}
static int idle(void *arg) {
    while (!arg) pause();
    return 0;
}
static bool take_thread(long i) {
    (void)i;
    char *stack = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return clone(idle, stack + 16384, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, NULL) > 0;
}
static bool touch(void *memory, size_t size) {
    if (!memory || memory == MAP_FAILED) return false;
    for (size_t at = 0; at < size; at += 4096) ((volatile char *)memory)[at] = 1;
    return true;
}
static bool take_memory(long i) {
    (void)i;
    return touch(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
}
static bool take_shared(long i) {
    (void)i;
    int id = shmget(IPC_PRIVATE, 1 << 20, 0600);
    return id >= 0 && touch(shmat(id, NULL, 0), 1 << 20);
}
static bool take_memfd(long i) {
    (void)i;
    static char data[1 << 20];
    int fd = memfd_create("m", 0);
    return fd >= 0 && write(fd, data, sizeof data) == sizeof data;
}
static bool take_disk(long i) {
    static char data[1 << 20];
    static int fd;
    if (i == 0) fd = open("/tmp/large", O_WRONLY | O_CREAT, 0600);
    return write(fd, data, sizeof data) == sizeof data;
}
static bool take_hole(long i) {
    static int fd;
    if (i == 0) fd = open("/dev/shm/large", O_WRONLY | O_CREAT, 0600);
    return fallocate(fd, 0, i << 20, 1 << 20) == 0;
}
static bool take_inode(long i) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/f%ld", i);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    return fd >= 0 && close(fd) == 0;
}
static bool take_inotify(long i) { (void)i; return inotify_init() >= 0; }
static bool take_timer(long i) {
    (void)i;
    timer_t timer;
    return timer_create(CLOCK_MONOTONIC, &(struct sigevent){.sigev_notify = SIGEV_NONE}, &timer) == 0;
}
static bool take_signal(long i) {
    static bool blocked;
    if (!blocked) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN);
        blocked = sigprocmask(SIG_BLOCK, &set, NULL) == 0;
    }
    return sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = (int)i}) == 0;
}
static bool take_queue(long i) {
    char name[32];
    snprintf(name, sizeof name, "/queue%ld", i);
    return mq_open(name, O_RDWR | O_CREAT, 0600, &(struct mq_attr){.mq_maxmsg = 4, .mq_msgsize = 1024}) >= 0;
}
static bool take_message(long i) {
    static int queue;
    struct { long type; char text[8000]; } message = {1, ""};
    if (i % 2 == 0) queue = msgget(IPC_PRIVATE, 0600);
    return queue >= 0 && msgsnd(queue, &message, sizeof message.text, IPC_NOWAIT) == 0;
}
static bool take_file(long i) { (void)i; return open("/dev/null", O_RDONLY) >= 0; }
/* Kernel memory that no page of the program's shows: full pipes, sockets, attributes, names that do not exist. */
static bool take_pipe(long i) {
    static char data[65536];
    int ends[2];
    (void)i;
    if (pipe2(ends, O_NONBLOCK) < 0) return false;
    return write(ends[1], data, sizeof data) > 0;
}
static bool take_socket(long i) {
    static char data[65536];
    int ends[2];
    (void)i;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0) return false;
    while (write(ends[0], data, sizeof data) > 0) {}
    return true;
}
/* A megabyte that stands between two ends of a loopback connection: the kernel's buffers, not the program's memory. */
static bool take_tcp(long i) {
    static char data[65536];
    static int out, listener;
    static long room;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    for (long want = (i + 1) * 1048576; room < want;) {
        ssize_t n = out ? write(out, data, sizeof data) : -1;
        if (n > 0) {
            room += n;
            continue;
        }
        if (!listener && ((listener = socket(AF_INET, SOCK_STREAM, 0)) < 0 || listen(listener, 512) < 0)) return false;
        if (getsockname(listener, (void *)&address, &length) < 0) return false;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        out = socket(AF_INET, SOCK_STREAM, 0);
        if (out < 0 || connect(out, (void *)&address, sizeof address) < 0 || accept(listener, NULL, NULL) < 0) return false;
        fcntl(out, F_SETFL, O_NONBLOCK);
    }
    return true;
}
static bool take_flight(long i) { /* descriptors that are nowhere but in messages */
    static int ends[2];
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (i % 100 == 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) < 0) return false;
    control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(&control.header), &ends[0], sizeof(int));
    return sendmsg(ends[0], &message, 0) == 1 || errno == EAGAIN;
}
static bool take_name(long i) {
    char path[256];
    for (int n = 0; n < 100; n++) {
        snprintf(path, sizeof path, "/tmp/%0200ld", i * 100 + n);
        if (access(path, F_OK) == 0) return false;
    }
    return true;
}
static bool take_lock(long i) {
    static int fd;
    if (i == 0) fd = open("/tmp/lock", O_RDWR | O_CREAT, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock) == 0;
}
static bool take_terminal(long i) { (void)i; return open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0; }
static bool take_core(long i) { /* a crash that leaves its memory behind */
    struct rlimit limit;
    int status;
    (void)i;
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    pid_t pid = setrlimit(RLIMIT_CORE, &limit) < 0 || chdir("/tmp") < 0 ? -1 : fork();
    if (pid == 0) abort();
    errno = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WCOREDUMP(status);
}
static bool take_output(long i) {
    static char data[4096];
    (void)i;
    memset(data, 'y', sizeof data);
    return write(1, data, sizeof data) == sizeof data;
}
static const struct { const char *name; bool (*take)(long i); } things[] = {
    {"process", take_process}, {"thread", take_thread}, {"memory", take_memory}, {"shared", take_shared}, {"memfd", take_memfd},
    {"disk", take_disk}, {"hole", take_hole}, {"inode", take_inode}, {"inotify", take_inotify}, {"timer", take_timer},
    {"signal", take_signal}, {"queue", take_queue}, {"message", take_message}, {"file", take_file}, {"pipe", take_pipe},
    {"socket", take_socket}, {"tcp", take_tcp}, {"flight", take_flight}, {"name", take_name}, {"lock", take_lock}, {"terminal", take_terminal},
    {"output", take_output}, {"core", take_core}};

/* take THING COUNT [hold]: harm if it got them all. */
static void take(int argc, char **argv) {
    char wait;
    if (argc < 2) broken("usage");
    long want = atol(argv[1]), got = 0;
    for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
        if (strcmp(things[i].name, argv[0]) != 0) continue;
        while (got < want && things[i].take(got)) got++;
        int error = errno;
        if (argc > 2) {
            printf("HELD %ld\n", got);
            fflush(stdout);
            if (read(0, &wait, 1) < 0) broken("stdin: %m");
        }
        if (got < want) safe("%ld of %ld: %s", got, want, strerrorname_np(error));
        harm("got all %ld", want);
    }
    broken("no such thing");
}

/* crowd THING COUNT USERS: as many users of the sandbox, each taking COUNT; held until the input ends. */
static void crowd(int argc, char **argv) {
    int ready[2], total = 0;
    char wait_for;
    if (argc != 3 || pipe(ready) < 0) broken("usage");
    for (int user = 0; user < atoi(argv[2]); user++) {
        int got = 0;
        pid_t pid = fork();
        if (pid == 0) {
            if (setresgid(2000 + user, 2000 + user, 2000 + user) < 0 || setresuid(2000 + user, 2000 + user, 2000 + user) < 0) broken("user: %m");
            for (size_t i = 0; i < sizeof things / sizeof *things; i++)
                while (!strcmp(things[i].name, argv[0]) && got < atol(argv[1]) && things[i].take(user * 100000 + got)) got++;
            if (write(ready[1], &got, sizeof got) < 0) _exit(3);
            for (;;) pause();
        }
        if (pid < 0 || read(ready[0], &got, sizeof got) != sizeof got) broken("fork: %m");
        total += got;
    }
    printf("HELD %d\n", total);
    fflush(stdout);
    if (read(0, &wait_for, 1) < 0) broken("stdin: %m");
    safe("held %d", total);
}

/* neighbour: a little of everything, as an honest program needs it. Harm, if anything is missing. */
static void neighbour(int argc, char **argv) {
    static const struct { const char *name; long count; } needs[] = {
        {"signal", 32}, {"process", 8}, {"thread", 8}, {"memory", 8}, {"shared", 1}, {"memfd", 1}, {"disk", 2}, {"inode", 64},
        {"inotify", 4}, {"timer", 32}, {"queue", 4}, {"message", 4}, {"file", 64}, {"pipe", 8}, {"socket", 8}, {"flight", 8},
        {"lock", 8}};
    (void)argc, (void)argv;
    for (size_t n = 0; n < sizeof needs / sizeof *needs; n++)
        for (size_t i = 0; i < sizeof things / sizeof *things; i++)
            if (!strcmp(things[i].name, needs[n].name))
                for (long k = 0; k < needs[n].count; k++)
                    if (!things[i].take(k)) harm("the neighbour lacks %s %ld: %s", needs[n].name, k, strerrorname_np(errno));
    safe("the neighbour notices nothing");
}

/* spin: eight processes that compute for a second */
static void spin(int argc, char **argv) {
    time_t end = time(NULL) + 2;
    (void)argc, (void)argv;
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            while (time(NULL) < end) {}
            _exit(0);
        }
    while (wait(NULL) > 0) {}
    safe("done");
}

const struct attack attacks[] = {{"spin", spin}, {"take", take}, {"crowd", crowd}, {"neighbour", neighbour}, {NULL, NULL}};
