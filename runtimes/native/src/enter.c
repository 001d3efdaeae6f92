/* The enterer: a worker that clones the broker's next child into a sandbox, for a command or a file helper. It makes the command's group,
 * forks and answers; everything that could wait for the sandbox happens in the child. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "enter.h"
#include "seccomp.h"

#define FDS_MAX (PASSED_MAX + 2 * DESC_MAX + 8)

static int fail_at(struct w_answer *a, int error, const char *stage) {
    a->error = error < 0 ? -error : error;
    snprintf(a->stage, sizeof a->stage, "%s", stage);
    return -1;
}

/* A child of the broker, in the sandbox's PID namespace and in a v2 group from birth. Returns 0 in the child, else its pid, or -1. */
static pid_t clone_into(const struct enterer *e, int pidfd, int group, struct w_answer *a) {
    struct clone_args args = {.flags = CLONE_PARENT | CLONE_INTO_CGROUP, .cgroup = (uint64_t)group};
    if (setns(pidfd, CLONE_NEWPID) < 0) return fail_at(a, errno, "setns pid");
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) return 0;
    int error = errno;
    /* Were it not undone, the next child would be born in this sandbox. */
    if (setns(e->own_pid_namespace, CLONE_NEWPID) < 0) die("setns back");
    if (pid < 0) return fail_at(a, error, "clone3");
    a->pid = pid;
    return pid;
}

static struct child child_of(const struct enterer *e, const char *sandbox, uint32_t role, uint32_t range, const int *fds) {
    return (struct child){.enterer = e, .sandbox = sandbox, .role = role, .pidfd = fds[0], .talk = fds[1], .terminal_lock = -1,
                          .base_uid = e->host->uid_base + range * RANGE_SIZE, .broker_pidfd = e->host->broker_pidfd};
}

/* Limits of the command: on the sandbox's own groups for a call, else on groups of its own. */
static int make_group(const struct cgroups *cg, const struct w_enter *ask, const struct cg_limits *limits, struct w_answer *a) {
    bool exclusive = ask->flags & CMD_EXCLUSIVE;
    if (exclusive) {
        int error = cg_sandbox_limits(cg, ask->sandbox, limits);
        if (error < 0) return fail_at(a, error, "sandbox's limits");
    }
    int error = cg_command_make(cg, ask->sandbox, ask->proc, exclusive ? NULL : limits);
    if (error < 0) return fail_at(a, error, "command's group");
    int group = cg_command_fd(cg, ask->sandbox, ask->proc);
    return group < 0 ? fail_at(a, group, "command's group") : group;
}

/* The sandbox's v2 directory, opened so that it can be locked. */
static int lockable(const struct cgroups *cg, const char *sandbox) {
    int path = cg_sandbox_init_fd(cg, sandbox);
    int fd = path < 0 ? -1 : openat(path, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (path >= 0) close(path);
    else errno = -path;
    return fd;
}

static void enter_command(const struct enterer *e, const struct w_enter *ask, const int *fds, unsigned fds_count, struct w_answer *a) {
    const struct cgroups *cg = &e->host->cg;
    const struct cg_limits limits = {ask->limits.memory, ask->limits.pids, ask->limits.cpu_milli};
    unsigned own = ask->flags & CMD_EXCLUSIVE ? 0 : cg_own(&limits);
    bool terminal = false;
    int group = make_group(cg, ask, &limits, a);
    pid_t pid = group < 0 ? -1 : clone_into(e, fds[0], group, a);
    if (group >= 0) close(group);
    if (pid < 0) cg_command_remove(cg, ask->sandbox, ask->proc);
    if (pid) return;
    struct child c = child_of(e, ask->sandbox, ask->role, ask->range, fds);
    for (uint32_t i = 0; i < ask->desc_count && i < DESC_MAX; i++) terminal |= ask->desc[i].index == W_TTY;
    c.join_count = cg_join_fds(cg, ask->sandbox, ask->proc, own, c.join);
    if (terminal) c.terminal_lock = lockable(cg, ask->sandbox);
    if (c.join_count < 0 || (terminal && c.terminal_lock < 0)) {
        int error = c.join_count < 0 ? -c.join_count : errno;
        struct st_message m = {.kind = ST_FAIL, .error = error, .fault = 1, .stage = "control groups"};
        send_with_fds(c.talk, &m, sizeof m, NULL, 0);
        _exit(127);
    }
    command_child(&c, ask, fds, fds_count, (const uint8_t *)(ask + 1));
}

/* A helper lives in PID 1's group: it ends with the sandbox, and no command's end touches it. */
static void enter_file(const struct enterer *e, const struct w_file *ask, const int *fds, unsigned fds_count, struct w_answer *a) {
    int group = cg_sandbox_init_fd(&e->host->cg, ask->sandbox);
    if (group < 0) {
        fail_at(a, group, "sandbox's group");
        return;
    }
    pid_t pid = clone_into(e, fds[0], group, a);
    close(group);
    if (pid) return;
    struct child c = child_of(e, ask->sandbox, ask->role, ask->range, fds);
    file_child(&c, ask, fds_count > 2 ? fds[2] : -1, (const uint8_t *)(ask + 1));
}

static void serve(const struct enterer *e, uint8_t *message, size_t length, const int *fds, unsigned fds_count) {
    struct w_answer a = {0};
    uint32_t op = 0;
    if (length >= sizeof op) memcpy(&op, message, sizeof op);
    if (op == W_ENTER && length >= sizeof(struct w_enter)) {
        struct w_enter *ask = (struct w_enter *)message;
        a.token = ask->token;
        if (fds_count < 2 || (ask->payload_index < 0 && length - sizeof *ask < ask->payload_length)) fail_at(&a, EINVAL, "message");
        else enter_command(e, ask, fds, fds_count, &a);
    } else if (op == W_FILE && length >= sizeof(struct w_file)) {
        struct w_file *ask = (struct w_file *)message;
        a.token = ask->token;
        if (fds_count < 2u + !!ask->has_data || length - sizeof *ask < ask->payload_length) fail_at(&a, EINVAL, "message");
        else enter_file(e, ask, fds, fds_count, &a);
    } else {
        errno = EPROTO;
        die("message to enterer");
    }
    if (send_with_fds(e->socket, &a, sizeof a, NULL, 0)) exit(0);
}

void enterer_main(const struct host *host, int socket) {
    static struct enterer e;
    static uint64_t message[(SKH_PACKET_MAX + sizeof(struct w_enter)) / sizeof(uint64_t) + 1];
    int fds[FDS_MAX];
    e = (struct enterer){.host = host, .socket = socket};
    prctl(PR_SET_DUMPABLE, without("dumpable") ? 1 : 0);
    signal(SIGPIPE, SIG_IGN);
    e.filter = seccomp_build(false);
    e.killing_filter = seccomp_build(true);
    e.own_pid_namespace = openat(host->proc_fd, "self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (e.own_pid_namespace < 0) die("own PID namespace");
    for (;;) {
        unsigned count = FDS_MAX;
        ssize_t n = recv_with_fds(socket, message, sizeof message, fds, &count);
        if (n <= 0) exit(n < 0);
        serve(&e, (uint8_t *)message, (size_t)n, fds, count);
        for (unsigned i = 0; i < count; i++) close(fds[i]);
    }
}
