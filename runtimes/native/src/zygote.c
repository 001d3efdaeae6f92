/* The zygote: a process from which workers are forked, so that none of them holds a copy of the broker's memory, where
 * tenants' data passes. It answers nothing but fork requests from the broker. */
#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "maker.h"

static char *title;
static size_t title_size;

void title_keep(int argc, char **argv) {
    title = argv[0];
    title_size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
}

void title_set(const char *text) {
    if (title) {
        memset(title, 0, title_size);
        snprintf(title, title_size, "%s", text);
    }
    prctl(PR_SET_NAME, text);
}

static void die_with_broker(const struct host *host) {
    struct pollfd broker = {host->broker_pidfd, POLLIN, 0};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || poll(&broker, 1, 0) != 0) _exit(1);
}

/* The new process is the broker's child, as the zygote is. */
static pid_t fork_sibling(void) {
    struct clone_args args = {.flags = CLONE_PARENT};
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static _Noreturn void zygote_main(const struct host *host, int socket) {
    die_with_broker(host);
    title_set("stokehold-zygote");
    for (;;) {
        struct z_request ask;
        struct z_answer answer = {0};
        int worker = -1;
        unsigned count = 1;
        ssize_t n = recv_with_fds(socket, &ask, sizeof ask, &worker, &count);
        if (n != sizeof ask || count != 1 || ask.kind > 1) _exit(n != 0);
        pid_t pid = fork_sibling();
        if (pid == 0) {
            close(socket);
            die_with_broker(host);
            title_set(ask.kind ? "stokehold-enterer" : "stokehold-maker");
            if (ask.kind) enterer_main(host, worker);
            maker_main(host, worker);
        }
        answer.error = pid < 0 ? errno : 0;
        answer.pid = pid < 0 ? 0 : pid;
        close(worker);
        if (send_with_fds(socket, &answer, sizeof answer, NULL, 0)) _exit(1);
    }
}

int zygote_start(const struct host *host, int listen_socket) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) die("socketpair");
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        close(pair[0]);
        close(listen_socket);
        setpriority(PRIO_PROCESS, 0, 0);
        zygote_main(host, pair[1]);
    }
    close(pair[1]);
    return pair[0];
}
