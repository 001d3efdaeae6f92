/* User namespaces of sandboxes: root inside, nobody outside.
 *
 * A user namespace is created by a process whose euid is its range's base, because the kernel charges inotify instances,
 * timers, queued signals and message queues to the creator: created by root, one sandbox could deny them to all. That
 * process keeps its capabilities (SECBIT_NO_SETUID_FIXUP), so hosts that forbid unprivileged user namespaces do not matter. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maker.h"

#define HELPER_STACK 65536

static const char *const kinds[] = {"user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time"};

static int write_file(int dir, const char *path, const char *text) {
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return -errno;
    ssize_t n = write(fd, text, strlen(text));
    int error = n < 0 ? errno : 0;
    close(fd);
    return -error;
}

/* Shares our memory and descriptors; all that it does is to be there until it is let go. */
static int helper(void *arg) {
    char go;
    return read(*(const int *)arg, &go, 1) < 0;
}

static int map(const struct host *host, pid_t pid, uid_t base) {
    char path[48], text[48];
    snprintf(text, sizeof text, "0 %u %u", base, RANGE_SIZE);
    snprintf(path, sizeof path, "%d/uid_map", pid);
    int error = write_file(host->proc_fd, path, text);
    if (error) return error;
    snprintf(path, sizeof path, "%d/gid_map", pid);
    return write_file(host->proc_fd, path, text);
}

int identity_make(const struct host *host, uid_t base, const char **stage) {
    static _Alignas(16) char stack[HELPER_STACK];
    int go[2], error = 0, fd = -1;
    char path[48];

    *stage = "identity: pipe";
    if (pipe2(go, O_CLOEXEC) < 0) return -errno;
    *stage = "identity: become the range's uid";
    if (syscall(SYS_setresuid, -1, base, -1) < 0) error = -errno;
    *stage = "identity: user namespace";
    pid_t pid = error ? -1 : clone(helper, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | CLONE_FILES | SIGCHLD, &go[0]);
    if (!error && pid < 0) error = -errno;
    if (syscall(SYS_setresuid, -1, 0, -1) < 0) die("cannot return to root");
    /* A change of credentials has undone both. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) die("prctl");
    if (pid > 0) {
        *stage = "identity: map";
        error = map(host, pid, base);
        if (!error) {
            *stage = "identity: open";
            snprintf(path, sizeof path, "%d/ns/user", pid);
            fd = openat(host->proc_fd, path, O_RDONLY | O_CLOEXEC);
            if (fd < 0) error = -errno;
        }
    }
    close(go[1]);  /* the order to end: descriptors are shared, this was the only write end */
    if (pid > 0) while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {}
    close(go[0]);
    return error ? error : fd;
}

/* Written by PID 1 through its own /proc: one mount of /proc keeps the names of all user namespaces in one chain. */
static int forbid_namespaces(int limits) {
    char name[32];
    int error = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !error && !without("maxns"); i++) {
        snprintf(name, sizeof name, "max_%s_namespaces", kinds[i]);
        error = write_file(limits, name, "0");
        if (error == -ENOENT) error = 0;  /* a kernel without that kind */
    }
    return error;
}

int identity_become_root(int userns, int limits, const char **stage) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}, {0}};

    *stage = "identity: join";
    if (setns(userns, CLONE_NEWUSER) < 0) return -errno;
    *stage = "identity: forbid namespaces";
    int error = forbid_namespaces(limits);
    if (error) return error;
    *stage = "identity: drop the bounding set";
    for (int cap = 0; prctl(PR_CAPBSET_DROP, cap) == 0; cap++) {}
    if (errno != EINVAL) return -errno;  /* EINVAL: past the last one that this kernel knows */
    *stage = "identity: groups";
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, 0, 0, 0) < 0) return -errno;
    *stage = "identity: become root inside";
    if (syscall(SYS_setresuid, 0, 0, 0) < 0) return -errno;
    *stage = "identity: drop capabilities";
    if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED) < 0) return -errno;
    if (syscall(SYS_capset, &header, none) < 0) return -errno;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -errno;
    /* Last: a change of credentials sets it to what fs.suid_dumpable says. */
    if (prctl(PR_SET_DUMPABLE, without("dumpable") ? 1 : 0, 0, 0, 0) < 0) return -errno;
    return 0;
}
