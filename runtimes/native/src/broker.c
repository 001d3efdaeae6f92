/* The broker: accepts the gateway, reaps every child, and runs the loop. Nothing it does waits for anybody. */
#include "broker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child may end before its worker's answer tells us who it is. A pid that is still our child was not reaped, whatever an
 * old entry says: pids come round again. */
bool early_take(struct broker *b, pid_t pid, struct early *out) {
    siginfo_t info;
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD) return false;
    *out = (struct early){.pid = pid, .status = SIGKILL};
    for (unsigned i = 0; i < 1024; i++)
        if (b->early[i].pid == pid) {
            *out = b->early[i];
            b->early[i].pid = 0;
            break;
        }
    return true;
}

static void reap(struct broker *b) {
    int status;
    struct rusage usage;
    pid_t pid;
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        if (process_reaped(b, pid, status, &usage) || sandbox_reaped(b, pid) || file_reaped(b, pid) ||
            workers_reaped(b, pid)) continue;
        b->early[b->early_next++ % 1024] = (struct early){pid, status, usage};
    }
}

static void stop(struct broker *b) {
    b->stopping = true;
    link_drop(b);
    sandboxes_end_all(b, "destroyed");
}

static void signalled(struct broker *b, struct watch *w, uint32_t events) {
    struct signalfd_siginfo info[8];
    (void)events;
    ssize_t n = read(w->fd, info, sizeof info);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *info; i++)
        if (info[i].ssi_signo != SIGCHLD) stop(b);
    reap(b);
}

static void group_changed(struct broker *b, struct watch *w, uint32_t events) {
    char data[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    (void)events;
    for (;;) {
        ssize_t n = read(w->fd, data, sizeof data);
        if (n <= 0) return;
        for (char *at = data; at < data + n;) {
            struct inotify_event *e = (struct inotify_event *)at;
            struct process *p = table_get(&b->by_wd, (uint64_t)e->wd);
            if (p && (e->mask & IN_MODIFY)) process_settle(b, p);
            at += sizeof *e + e->len;
        }
    }
}

static void connected(struct broker *b, struct watch *w, uint32_t events) {
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) link_accept(b, fd);
}

static void orphaned(struct broker *b, struct timer *t) {
    (void)t;
    sandboxes_end_all(b, "orphaned");
}

void broker_main(const struct host *host, int listen_socket, int zygote_socket, const struct broker_settings *settings) {
    struct broker *b = calloc(1, sizeof *b);
    sigset_t mask;
    if (!b) abort();
    b->host = host;
    b->settings = *settings;
    if (getrandom(&b->instance, sizeof b->instance, 0) != sizeof b->instance) die("getrandom");
    if (fchdir(host->cg.v2_fd) < 0) die("fchdir to the control group root");
    loop_init(&b->loop);
    link_init(&b->link);
    b->pending.fd = -1;
    b->free_ranges = calloc(host->ranges, sizeof *b->free_ranges);
    if (!b->free_ranges) abort();
    for (uint32_t i = 0; i < host->ranges; i++) b->free_ranges[i] = host->ranges - 1 - i;
    b->free_count = host->ranges;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    b->signals = (struct watch){signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC), signalled};
    b->inotify = (struct watch){inotify_init1(IN_NONBLOCK | IN_CLOEXEC), group_changed};
    b->listener = (struct watch){listen_socket, connected};
    if (b->signals.fd < 0 || b->inotify.fd < 0) die("signalfd or inotify");
    loop_watch(&b->loop, &b->signals, EPOLLIN);
    loop_watch(&b->loop, &b->inotify, EPOLLIN);
    loop_watch(&b->loop, &b->listener, EPOLLIN);
    b->workers.zygote = zygote_socket;
    workers_start(b);
    b->orphan.fire = orphaned;
    loop_at(&b->loop, &b->orphan, now_ns() + b->settings.orphan_s * 1000000000ull);
    while (!b->stopping || b->sandboxes.used) {
        loop_once(b, &b->loop);
        link_flush(b);
    }
    workers_end(b);
    cg_remove_roots(&host->cg);
    exit(0);
}
