/* Workers and the jobs they are given: one job at a time each, the rest wait in order. A worker that dies fails its job and
 * is replaced; what it had begun is found by its control group. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.h"

static void give(struct broker *b, struct worker *w);

static void job_close(struct job *j) {
    for (unsigned i = 0; i < j->fds_count; i++) close(j->fds[i]);
    j->fds_count = 0;
}

static void finish(struct broker *b, struct worker *w, const struct w_answer *a) {
    struct job *j = w->job;
    w->job = NULL;
    give(b, w);
    j->done(b, j, a);
    free(j->message);
    free(j);
}

static void fail(struct broker *b, struct worker *w, int error, const char *stage) {
    struct w_answer a = {.token = w->job->token, .error = error};
    strncpy(a.stage, stage, sizeof a.stage - 1);
    finish(b, w, &a);
}

static void give(struct broker *b, struct worker *w) {
    struct workers *all = &b->workers;
    struct job *j = all->first[w->kind];
    if (w->job || w->watch.fd < 0 || !j) return;
    all->first[w->kind] = j->next;
    if (!j->next) all->last[w->kind] = &all->first[w->kind];
    w->job = j;
    int e = send_with_fds(w->watch.fd, j->message, j->length, j->fds, j->fds_count);
    job_close(j);
    if (e) fail(b, w, -e, "send to worker");
}

static void answered(struct broker *b, struct watch *watch, uint32_t events) {
    struct worker *w = (struct worker *)watch;
    struct w_answer a;
    (void)events;
    ssize_t n = recv(w->watch.fd, &a, sizeof a, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != sizeof a || !w->job || a.token != w->job->token) {
        loop_unwatch(&b->loop, &w->watch);  /* it is dying: its end is reaped, then it is replaced */
        close(w->watch.fd);
        w->watch.fd = -1;
        kill(w->pid, SIGKILL);
        return;
    }
    a.stage[sizeof a.stage - 1] = 0;
    finish(b, w, &a);
}

static void spawn(struct broker *b, struct worker *w) {
    int pair[2];
    struct z_request ask = {w->kind};
    struct z_answer got;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) die("socketpair");
    int room = 1 << 20;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    if (send_with_fds(b->workers.zygote, &ask, sizeof ask, &pair[1], 1)) die("zygote");
    if (recv(b->workers.zygote, &got, sizeof got, 0) != sizeof got || got.error) die("zygote");
    close(pair[1]);
    w->pid = got.pid;
    w->watch = (struct watch){pair[0], answered};
    loop_watch(&b->loop, &w->watch, EPOLLIN);
}

void workers_start(struct broker *b) {
    struct workers *all = &b->workers;
    all->count = b->settings.makers + b->settings.enterers;
    all->all = calloc(all->count, sizeof *all->all);
    if (!all->all) abort();
    for (int k = 0; k < 2; k++) all->last[k] = &all->first[k];
    for (unsigned i = 0; i < all->count; i++) {
        all->all[i].kind = i < b->settings.makers ? MAKER : ENTERER;
        spawn(b, &all->all[i]);
    }
}

bool workers_reaped(struct broker *b, pid_t pid) {
    for (unsigned i = 0; i < b->workers.count; i++) {
        struct worker *w = &b->workers.all[i];
        if (w->pid != pid) continue;
        if (w->watch.fd >= 0) {
            loop_unwatch(&b->loop, &w->watch);
            close(w->watch.fd);
        }
        w->watch.fd = -1;
        b->faults++;
        spawn(b, w);
        if (w->job) fail(b, w, EIO, "the worker died");
        else give(b, w);
        return true;
    }
    return false;
}

struct job *job_new(struct broker *b, size_t length) {
    struct job *j = calloc(1, sizeof *j);
    if (!j || !(j->message = calloc(1, length))) abort();
    j->length = length;
    j->token = ++b->workers.token;
    return j;
}

void job_pass(struct job *j, int fd) {
    if (j->fds_count == sizeof j->fds / sizeof *j->fds) abort();
    j->fds[j->fds_count++] = fd;
}

void workers_submit(struct broker *b, enum worker_kind kind, struct job *j) {
    struct workers *all = &b->workers;
    *all->last[kind] = j;
    all->last[kind] = &j->next;
    for (unsigned i = 0; i < all->count; i++)
        if (all->all[i].kind == kind && !all->all[i].job && all->all[i].watch.fd >= 0) {
            give(b, &all->all[i]);
            return;
        }
}

/* At an orderly end: the zygote goes with its socket, and nobody is left for init to find. */
void workers_end(struct broker *b) {
    close(b->workers.zygote);
    for (unsigned i = 0; i < b->workers.count; i++) kill(b->workers.all[i].pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
}
