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

struct helper { const struct host *host; int ready, go; };

static int write_file(int dir, const char *path, const char *text) {
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return -errno;
    ssize_t n = write(fd, text, strlen(text));
    int error = n < 0 ? errno : 0;
    close(fd);
    return -error;
}

/* Shares our memory and descriptors. It and its creator never run at the same time but in system calls that succeed (errno is one). */
static int helper(void *arg) {
    const struct helper *h = arg;
    char path[64], go;
    int error = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !error && !without("maxns"); i++) {
        snprintf(path, sizeof path, "sys/user/max_%s_namespaces", kinds[i]);
        error = write_file(h->host->proc_fd, path, "0");
        if (error == -ENOENT) error = 0;  /* a kernel without that kind */
    }
    if (write(h->ready, &error, sizeof error) < 0 || read(h->go, &go, 1) < 0) return 1;
    return 0;
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
    int ready[2], go[2], error = 0, told = 0, fd = -1;
    char path[48];

    *stage = "identity: pipes";
    if (pipe2(ready, O_CLOEXEC) < 0) return -errno;
    if (pipe2(go, O_CLOEXEC) < 0) {
        error = -errno;
        close(ready[0]);
        close(ready[1]);
        return error;
    }
    struct helper h = {host, ready[1], go[0]};
    *stage = "identity: become the range's uid";
    if (syscall(SYS_setresuid, -1, base, -1) < 0) error = -errno;
    *stage = "identity: user namespace";
    pid_t pid = error ? -1 : clone(helper, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | CLONE_FILES | SIGCHLD, &h);
    if (!error && pid < 0) error = -errno;
    if (syscall(SYS_setresuid, -1, 0, -1) < 0) die("cannot return to root");
    /* A change of credentials has undone both. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) die("prctl");
    if (pid > 0) {
        *stage = "identity: forbid namespaces";
        if (read(ready[0], &told, sizeof told) != sizeof told) error = -EIO;
        else error = told;
        if (!error) {
            *stage = "identity: map";
            error = map(host, pid, base);
        }
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
    close(ready[0]);
    close(ready[1]);
    return error ? error : fd;
}

int identity_become_root(int userns, const char **stage) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}, {0}};

    *stage = "identity: join";
    if (setns(userns, CLONE_NEWUSER) < 0) return -errno;
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
