/* Makes and unmakes sandboxes, one at a time. Everything of a sandbox hangs on its PID 1: when that ends, its namespaces
 * and mounts go, and only its control groups remain to be removed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "maker.h"

#define EMPTY_MS 5000          /* for the killed processes of a sandbox to be gone */

const char *const lease_plan[] = {
    "cgroup: v2 group with init and c, and memory, pids and cpu groups where v1 has them",
    "user namespace under its range's uid, mapped, no namespaces inside",
    "idmapped mounts of the root layer, /usr, /dev and each bind",
    "network namespace, lo up",
    "PID 1 in new mount, PID, IPC and UTS namespaces, in the init group",
    "tmpfs (size, inodes)", "overlay /", "overlay /usr", "/dev, /dev/shm, /tmp", "binds", "/sys", "/proc, masked",
    "root inside without capabilities",
    "kill, wait, remove the groups", NULL};

struct report { int32_t error; char stage[48]; };

static _Noreturn void fail(int pipe, int error, const char *stage) {
    struct report r = {.error = error < 0 ? -error : error};
    strncpy(r.stage, stage, sizeof r.stage - 1);
    if (write(pipe, &r, sizeof r) < 0) _exit(2);
    _exit(1);
}

/* The last to be killed when the host lacks memory; a host that does not let us (no CAP_SYS_RESOURCE) makes it less sure. */
static int keep_alive(const struct host *host) {
    int fd = openat(host->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    int error = write(fd, "-1000", 5) < 0 && errno != EACCES ? -errno : 0;
    close(fd);
    /* Without CAP_SYS_RESOURCE it stays as it is: PID 1 is outside its sandbox's memory group, only the host's own lack of
     * memory could choose it, and then the sandbox is lost, not wrong. */
    return error == -EACCES ? 0 : error;
}

/* A lease's share of the processors, so that `nproc` inside tells it: as many as its CPU limit rounds up to, taken in turn. */
static void share_processors(const struct w_make *ask) {
    cpu_set_t host, share;
    if (ask->role != 1 || !ask->cpu_milli || ask->cpu_milli == UINT32_MAX || sched_getaffinity(0, sizeof host, &host) < 0) return;
    unsigned online = (unsigned)CPU_COUNT(&host), want = (ask->cpu_milli + 999) / 1000, seen = 0;
    if (want >= online) return;
    CPU_ZERO(&share);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &host) && (seen++ + online - ask->range % online) % online < want) CPU_SET(cpu, &share);
    sched_setaffinity(0, sizeof share, &share);
}

/* PID 1. The end of the pipe without a report means: stands, and holds no descriptor. */
static _Noreturn void pid_one(const struct host *host, const struct w_make *ask, const struct tree *tree, int userns, int net,
                              uid_t base, int pipe) {
    const char *stage = "pid 1";
    int error;
    char hostname[13];
    int limits = -1;
    title_set("stokehold-init");
    setsid();
    stage = "net: join";
    if (setns(net, CLONE_NEWNET) < 0) fail(pipe, errno, stage);
    stage = "hostname";
    snprintf(hostname, sizeof hostname, "%.12s", ask->name);
    if (sethostname(hostname, strlen(hostname)) < 0) fail(pipe, errno, stage);
    stage = "oom_score_adj";
    if ((error = keep_alive(host))) fail(pipe, error, stage);
    share_processors(ask);
    if ((error = mounts_build(ask, tree, base, &limits, &stage))) fail(pipe, error, stage);
    if ((error = identity_become_root(userns, limits, &stage))) fail(pipe, error, stage);

    /* Orphans are reaped without a handler: no code of ours runs here again. */
    const struct sigaction reap = {.sa_handler = SIG_IGN, .sa_flags = SA_NOCLDWAIT}, usual = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &reap, NULL);
    sigaction(SIGPIPE, &usual, NULL);
    stage = "parent";
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) fail(pipe, errno, stage);
    struct pollfd broker = {host->broker_pidfd, POLLIN, 0};  /* it may have died before that call */
    if (poll(&broker, 1, 0) != 0) _exit(1);
    stage = "close";
    if (close_range(0, ~0u, 0) < 0) fail(pipe, errno, stage);
    for (;;) pause();
}

static pid_t clone_pid_one(int cgroup, int *pidfd) {
    struct clone_args args = {
        .flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_PARENT | CLONE_PIDFD | CLONE_INTO_CGROUP,
        .pidfd = (uint64_t)(uintptr_t)pidfd, .cgroup = (uint64_t)cgroup};
    if (!without("pidns")) args.flags |= CLONE_NEWPID;
    if (!without("ipcns")) args.flags |= CLONE_NEWIPC;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static const struct layer *find_layer(const struct host *host, const char *name) {
    for (int i = 0; i < host->layers_count; i++)
        if (!strcmp(host->layers[i].name, name)) return &host->layers[i];
    return NULL;
}

/* Wait until PID 1 stands. */
static int await(int pipe, int pidfd, struct report *report) {
    ssize_t n;
    do n = read(pipe, report, sizeof *report);
    while (n < 0 && errno == EINTR);
    if (n == sizeof *report) return report->error ? -report->error : -EIO;
    struct pollfd ended = {pidfd, POLLIN, 0};
    snprintf(report->stage, sizeof report->stage, "pid 1 ended");
    return n == 0 && poll(&ended, 1, 0) == 0 ? 0 : -EIO;
}

/* Its namespaces are there; clone PID 1 into them. */
static int start(const struct host *host, const struct w_make *ask, const struct tree *tree, int userns, int net, uid_t base,
                 struct made *made, const char **stage) {
    static struct report report;  /* *stage may point into it */
    int ends[2], error;
    *stage = "cgroup: open";
    int group = cg_sandbox_init_fd(&host->cg, ask->name);
    if (group < 0) return group;
    *stage = "pid 1: pipe";
    if (pipe2(ends, O_CLOEXEC) < 0) {
        error = -errno;
        close(group);
        return error;
    }
    *stage = "pid 1: clone";
    made->pid = clone_pid_one(group, &made->pidfd);
    if (made->pid == 0) pid_one(host, ask, tree, userns, net, base, ends[1]);
    error = made->pid < 0 ? -errno : 0;
    close(group);
    close(ends[1]);
    if (!error && (error = await(ends[0], made->pidfd, &report))) {
        *stage = report.stage;
        syscall(SYS_pidfd_send_signal, made->pidfd, SIGKILL, NULL, 0);
        close(made->pidfd);
    }
    close(ends[0]);
    return error;
}

int sandbox_make(const struct host *host, const struct w_make *ask, struct made *made, const char **stage) {
    const struct layer *layer = find_layer(host, ask->base);
    struct tree tree;
    *made = (struct made){0, -1};
    *stage = "request";
    if (!layer || ask->role > 1 || ask->range >= host->ranges) return -EINVAL;
    uid_t base = without("rootmap") ? 0 : host->uid_base + (without("identity") ? 0 : ask->range * RANGE_SIZE);

    struct cg_limits limits = {UINT64_MAX, UINT32_MAX, UINT32_MAX};
    if (ask->memory) limits.memory = ask->memory;
    if (ask->pids) limits.pids = ask->pids;
    if (ask->cpu_milli) limits.cpu_milli = ask->cpu_milli;
    *stage = "cgroup: make";
    int error = cg_sandbox_make(&host->cg, ask->name, &limits);
    if (error) return error;

    int userns = identity_make(host, base, stage), net = -1;
    if (userns < 0) {
        error = userns;
        goto no_identity;
    }
    if ((error = mounts_open(host, layer, userns, &tree, stage))) goto no_tree;
    net = net_make(host, stage);
    error = net < 0 ? net : start(host, ask, &tree, userns, net, base, made, stage);
    if (net >= 0) close(net);
    mounts_close(&tree);
no_tree:
    close(userns);
no_identity:
    if (error) {
        const char *ignored;
        sandbox_unmake(host, ask->name, &ignored);
    }
    return error;
}

int sandbox_unmake(const struct host *host, const char *name, const char **stage) {
    *stage = "cgroup: kill";
    int error = cg_kill_all(&host->cg, name);
    if (error && error != -ENOENT) return error;
    uint64_t end = now_ns() + EMPTY_MS * 1000000ull;
    for (;;) {
        *stage = "cgroup: remove";
        error = cg_sandbox_remove(&host->cg, name);
        if (error != -EBUSY || now_ns() >= end) return error;
        /* What is not dead yet; then what is dead and still counted (v1 is told a little later). */
        if (cg_wait_empty(&host->cg, name, 100) == 0) usleep(500);
        cg_kill_all(&host->cg, name);
    }
}

void maker_begin(const struct host *host) {
    umask(0);
    /* A change of our effective uid must not cost us our capabilities (identity.c). */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0) die("securebits");
    mounts_learn(host);
}

static bool name_ok(const char *name) {
    size_t length = strnlen(name, SKH_ID_MAX + 1);
    return length >= 8 && length <= SKH_ID_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == length;
}

void maker_main(const struct host *host, int socket) {
    union { uint32_t op; struct w_make make; struct w_unmake unmake; } m;
    maker_begin(host);
    for (;;) {
        ssize_t n = recv_with_fds(socket, &m, sizeof m, NULL, NULL);
        struct w_answer answer = {0};
        const char *stage = "request";
        int error = -EINVAL;
        if (n <= 0) _exit(n < 0);
        if (n == sizeof m.make && m.op == W_MAKE && name_ok(m.make.name)) {
            struct made made;
            answer.token = m.make.token;
            m.make.base[sizeof m.make.base - 1] = 0;
            error = sandbox_make(host, &m.make, &made, &stage);
            if (!error) {
                answer.pid = made.pid;
                close(made.pidfd);
            }
        } else if (n == sizeof m.unmake && m.op == W_UNMAKE && name_ok(m.unmake.name)) {
            answer.token = m.unmake.token;
            error = sandbox_unmake(host, m.unmake.name, &stage);
        } else _exit(1);  /* not from our broker */
        answer.error = -error;
        if (error) strncpy(answer.stage, stage, sizeof answer.stage - 1);
        if (send_with_fds(socket, &answer, sizeof answer, NULL, 0)) _exit(1);
    }
}
