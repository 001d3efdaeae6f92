/* Attacks a process that is coming in: it waits until one appears that is neither PID 1 nor its own, then tries every way to
 * look into it, steer it or take what it holds. What it finds it only counts: harmless. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "attack.h"

static int arrived(void) {
    DIR *proc = opendir("/proc");
    int found = 0;
    for (struct dirent *e; proc && (e = readdir(proc));) {
        int pid = atoi(e->d_name);
        if (pid > 1 && pid != getpid()) found = pid;
    }
    closedir(proc);
    return found;
}

static int wait_for_one(void) {
    time_t end = time(NULL) + 10;
    printf("WAITING\n");
    fflush(stdout);
    for (int pid; time(NULL) < end;) {
        if ((pid = arrived())) return pid;
        usleep(1000);
    }
    broken("nobody came");
}

static bool readable(int pid, const char *name) {
    char path[64], data[4096];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, data, sizeof data);
    if (fd >= 0) close(fd);
    return n > 0;
}
static bool link_of(int pid, const char *name) {
    char path[64], target[256];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return readlink(path, target, sizeof target) > 0;
}
/* Through its root, and what its descriptors name. */
static bool descends(int pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s/.", pid, name);
    DIR *d = opendir(path);
    bool any = false;
    for (struct dirent *e; d && (e = readdir(d));) any |= e->d_name[0] != '.';
    if (d) closedir(d);
    return any;
}

/* attack SECONDS: once it is there, for so long at most or until something works. */
static void attack_one(int argc, char **argv) {
    int pid = wait_for_one();
    char memory[64];
    time_t end = time(NULL) + (argc ? atoi(argv[0]) : 1);
    struct iovec here = {memory, sizeof memory}, there = {(void *)attack_one, sizeof memory};
    struct rlimit cpu = {1, 1};
    usleep(200000); /* let it come to where it stops */
    do {
        if (descends(pid, "root")) harm("its root");
        if (descends(pid, "cwd")) harm("its working directory");
        if (descends(pid, "fd")) harm("its descriptors");
        static const char *const links[] = {"exe", "root", "cwd", "ns/mnt", "ns/user", "fd/0", "fd/300", "fd/301"};
        for (size_t i = 0; i < sizeof links / sizeof *links; i++)
            if (link_of(pid, links[i])) harm("link %s", links[i]);
        static const char *const files[] = {"environ", "maps", "auxv", "syscall", "stack", "io", "personality", "pagemap", "mountinfo", "map_files"};
        for (size_t i = 0; i < sizeof files / sizeof *files - 2; i++)
            if (readable(pid, files[i])) harm("file %s", files[i]);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        if (open(path, O_RDWR) >= 0) harm("its memory");
        if (process_vm_readv(pid, &here, 1, &there, 1, 0) > 0 || (errno != EPERM && errno != ESRCH)) harm("process_vm_readv: %m");
        int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        for (int target = 0; fd >= 0 && target < 310; target++) {
            int got = (int)syscall(SYS_pidfd_getfd, fd, target, 0);
            if (got >= 0) harm("its descriptor %d", target);
        }
        if (fd >= 0) close(fd);
        if (prlimit(pid, RLIMIT_CPU, &cpu, NULL) == 0 && argc > 1) harm("prlimit");
        if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
            ptrace(PTRACE_INTERRUPT, pid, 0, 0);
            ptrace(PTRACE_DETACH, pid, 0, 0);
            harm("traces it");
        }
    } while (time(NULL) < end && kill(pid, 0) == 0);
    safe("process %d gave nothing away", pid);
}

/* signal NUMBER: to whoever comes in, once. */
static void signal_one(int argc, char **argv) {
    int pid = wait_for_one();
    (void)argc;
    usleep(200000);
    if (kill(pid, atoi(argv[0])) == 0) harm("signalled process %d", pid);
    refused("kill");
}

/* signal_all NUMBER SECONDS: everybody who comes, again and again. */
static void signal_all(int argc, char **argv) {
    time_t end = time(NULL) + atoi(argv[1]);
    (void)argc;
    printf("WAITING\n");
    fflush(stdout);
    while (time(NULL) < end) {
        int pid = arrived();
        if (pid) kill(pid, atoi(argv[0]));
    }
    safe("done");
}

const struct attack attacks[] = {{"attack", attack_one}, {"signal", signal_one}, {"signal_all", signal_all}, {NULL, NULL}};
