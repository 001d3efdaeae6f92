/* The life of a command: entering → running → (draining) → ended, until it is acknowledged and its tree is gone. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.h"

#define INLINE_OUTPUT 16384u
#define ENTRY_NS 20000000000ull  /* an entering helper that was stopped from inside does not hold a command for ever */
#define DRAIN_NS 10000000ull

static void drain_again(struct broker *b, struct timer *t) {
    process_settle(b, (struct process *)((char *)t - offsetof(struct process, drain)));
}

struct process *process_find(struct broker *b, const char *id) { return table_get_text(&b->processes, id); }

struct process *process_new(struct broker *b, struct sandbox *s, const char *id) {
    struct process *p = calloc(1, sizeof *p);
    if (!p) abort();
    snprintf(p->id, sizeof p->id, "%s", id);
    p->serial = ++b->serial;
    p->sandbox = s;
    p->next = s->processes;
    s->processes = p;
    s->used = true;
    s->active_ns = p->start_ns = p->output_ns = now_ns();
    p->input = p->status_watch.fd = p->events_wd = -1;
    for (int i = 0; i < 2; i++) {
        p->streams[i] = (struct stream){.watch.fd = -1, .process = p, .target = (uint32_t)i + 1};
        p->streams[i].ring.fd = -1;
    }
    p->kills_base = s->kills;
    p->timer.fire = limits_fire;
    p->drain.fire = drain_again;
    table_set_text(&b->processes, p->id, p);
    table_set(&b->process_serials, p->serial, p);
    loop_at(&b->loop, &p->timer, p->start_ns + ENTRY_NS);
    b->started++;
    return p;
}

static void unwatch_group(struct broker *b, struct process *p) {
    if (p->events_wd < 0) return;
    inotify_rm_watch(b->inotify.fd, p->events_wd);
    table_drop(&b->by_wd, (uint64_t)p->events_wd);
    p->events_wd = -1;
}

static void close_status(struct broker *b, struct process *p) {
    if (p->status_watch.fd < 0) return;
    loop_unwatch(&b->loop, &p->status_watch);
    close(p->status_watch.fd);
    p->status_watch.fd = -1;
}

void process_free(struct broker *b, struct process *p) {
    struct process **at = &p->sandbox->processes;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    table_drop_text(&b->processes, p->id);
    table_drop(&b->process_serials, p->serial);
    if (p->pid && !p->reaped) table_drop(&b->by_pid, (uint64_t)p->pid);
    loop_cancel(&b->loop, &p->timer);
    loop_cancel(&b->loop, &p->drain);
    unwatch_group(b, p);
    close_status(b, p);
    for (int i = 0; i < 2; i++) {
        stream_close(b, &p->streams[i]);
        ring_free(&p->streams[i].ring);
    }
    if (p->input >= 0) close(p->input);
    free(p);
}

/* Gone for good once nobody asks for it any more and nothing of it runs. */
static void release(struct broker *b, struct process *p) {
    if (p->state == P_ENDED && p->acknowledged && !p->lingering) process_free(b, p);
}

void process_forget(struct broker *b, struct process *p) {
    p->acknowledged = true;
    release(b, p);
}

void process_send_started(struct broker *b, struct process *p) {
    struct skh_buf out = {0};
    skh_put_text(&out, T_NAME, p->sandbox->name);
    skh_put_text(&out, T_PROC, p->id);
    skh_put_u32(&out, T_PID, (uint32_t)p->inner_pid);
    link_send(b, SKH_EV_STARTED, 0, &out, -1);
}

void process_send_exit(struct broker *b, struct process *p) {
    struct skh_buf out = {0};
    skh_put_text(&out, T_NAME, p->sandbox->name);
    skh_put_text(&out, T_PROC, p->id);
    skh_put_u32(&out, T_ENDED, p->ended);
    if (p->executed && p->reaped && WIFEXITED(p->status)) skh_put_u32(&out, T_EXIT, (uint32_t)WEXITSTATUS(p->status));
    if (p->executed && p->reaped && WIFSIGNALED(p->status)) skh_put_u32(&out, T_SIGNAL, (uint32_t)WTERMSIG(p->status));
    if (p->error[0]) skh_put_text(&out, T_DETAIL, p->error);
    skh_put_u64(&out, T_CPU_NS, p->cpu_ns);
    skh_put_u64(&out, T_WALL_NS, p->exec_ns && p->end_ns > p->exec_ns ? p->end_ns - p->exec_ns : 0);
    skh_put_u64(&out, T_PEAK, p->peak);
    skh_put_u32(&out, T_PIDS_PEAK, p->pids_peak);
    uint64_t kept = 0;
    for (int i = 0; i < 2; i++) kept += ring_kept_head(&p->streams[i].ring) + ring_kept_tail(&p->streams[i].ring);
    for (int i = 0; i < 2; i++) {
        struct stream *st = &p->streams[i];
        if (!st->used) continue;
        uint8_t data[INLINE_OUTPUT];
        uint64_t head = ring_kept_head(&st->ring), tail = ring_kept_tail(&st->ring);
        size_t mark = skh_nest(&out, T_STREAM);
        skh_put_u32(&out, T_TARGET, st->target);
        skh_put_u64(&out, T_TOTAL, st->ring.total);
        skh_put_u64(&out, T_HEAD, head);
        skh_put_u64(&out, T_TAIL, tail);
        if (kept <= INLINE_OUTPUT && ring_copy(&st->ring, data) == 0) skh_put_field(&out, T_DATA, data, (size_t)(head + tail));
        skh_unnest(&out, mark);
    }
    link_send(b, SKH_EV_EXIT, 0, &out, -1);
}

static void ended(struct broker *b, struct process *p) {
    p->state = P_ENDED;
    loop_cancel(&b->loop, &p->timer);
    close_status(b, p);
    if (p->input >= 0 && !p->lingering) {
        close(p->input);
        p->input = -1;
    }
    b->ended++;
    if (p->ended == E_FAULT) b->faults++;
    if (p->sandbox->state == SB_READY) process_send_exit(b, p);
    release(b, p);
}

void process_fault(struct broker *b, struct process *p, const char *stage, int error) {
    p->ended = E_FAULT;
    snprintf(p->error, sizeof p->error, "%s: %s", stage, strerror(error));
    for (int i = 0; i < 2; i++) stream_close(b, &p->streams[i]);
    ended(b, p);
}

static void kill_tree(struct broker *b, struct process *p) {
    if (!without("kill")) cg_kill(&b->host->cg, p->sandbox->name, p->id);
    else if (p->pid && !p->reaped) kill(p->pid, SIGKILL);
}

void process_entered(struct broker *b, uint64_t serial, const struct w_answer *a) {
    struct process *p = table_get(&b->process_serials, serial);
    struct sandbox *s = p->sandbox;
    struct early e;
    s->entering--;
    if (a->error) {
        cg_kill(&b->host->cg, s->name, p->id);  /* of a worker that died: what it may have begun */
        process_fault(b, p, a->stage, a->error);
        sandbox_idle(b, s);
        return;
    }
    p->pid = a->pid;
    table_set(&b->by_pid, (uint64_t)p->pid, p);
    if (early_take(b, a->pid, &e)) {
        process_reaped(b, a->pid, e.status, &e.usage);
        return;
    }
    if (s->state != SB_READY) kill(p->pid, SIGKILL);
    else if (p->ended != E_EXIT) kill_tree(b, p);
}

void process_kill(struct broker *b, struct process *p, enum skh_ended why) {
    if (p->state == P_ENDED) {
        if (p->lingering) kill_tree(b, p);
        return;
    }
    if (p->ended == E_EXIT && !p->reaped) p->ended = why;
    kill_tree(b, p);
    if (p->pid && !p->reaped && !p->executed) kill(p->pid, SIGKILL);
}

void status_drain(struct broker *b, struct process *p) {
    while (p->status_watch.fd >= 0) {
        struct st_message m;
        int fd = -1;
        unsigned count = 1;
        ssize_t n = recv_with_fds(p->status_watch.fd, &m, sizeof m, &fd, &count);
        if (n == -EAGAIN) return;
        if (n <= 0) {
            close_status(b, p);
            if (!p->exec_ns || p->error[0]) return;
            p->executed = true;
            if (p->state == P_ENTERING) p->state = P_RUNNING;
            if (!(p->flags & CMD_EXCLUSIVE)) process_send_started(b, p);
            return;
        }
        if (n != sizeof m) continue;
        m.stage[sizeof m.stage - 1] = 0;
        if (m.kind == ST_EXEC) {
            p->exec_ns = m.at_ns;
            p->inner_pid = (int)m.reserved;
            limits_begin(b, p);
        } else if (m.kind == ST_FAIL) {
            if (p->ended == E_EXIT) p->ended = m.fault ? E_FAULT : E_EXEC;
            snprintf(p->error, sizeof p->error, "%s: %s", m.stage, strerrorname_np(m.error) ? strerrorname_np(m.error) : "?");
        } else if (m.kind == ST_MASTER && count == 1 && p->input < 0 && p->terminal) {
            p->input = fd;
            fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
            if (fd < 0) continue;
            fcntl(fd, F_SETFL, O_NONBLOCK);
            p->streams[0].watch.fd = fd;
            loop_watch(&b->loop, &p->streams[0].watch, EPOLLIN);
            continue;
        }
        if (count == 1 && fd >= 0 && fd != p->input) close(fd);
    }
}

static void watch_group(struct broker *b, struct process *p) {
    char path[160];
    if (p->events_wd >= 0) return;
    /* Relative: the broker stands in our v2 root. */
    if (cg_events_path(&b->host->cg, p->sandbox->name, p->id, path, sizeof path) < 0) return;
    p->events_wd = inotify_add_watch(b->inotify.fd, path, IN_MODIFY);
    if (p->events_wd >= 0) table_set(&b->by_wd, (uint64_t)p->events_wd, p);
}

/* A PID 1 that dies takes everything along by SIGKILL, and can itself be reaped only after all of it. */
static bool init_is_dying(const struct broker *b, const struct sandbox *s) {
    char path[32], text[256];
    unsigned flags = 0;
    snprintf(path, sizeof path, "%d/stat", (int)s->pid1);
    int fd = openat(b->host->proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *name_end = strrchr(text, ')');
    if (!name_end || sscanf(name_end, ") %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return false;
    return flags & 0x4; /* PF_EXITING */
}

void process_settle(struct broker *b, struct process *p) {
    const struct cgroups *cg = &b->host->cg;
    struct sandbox *s = p->sandbox;
    if (s->state != SB_READY || !p->reaped) return;
    bool killed = p->executed && WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL;
    if (killed && p->state != P_ENDED && p->ended == E_EXIT && init_is_dying(b, s)) return; /* it ends with its sandbox */
    bool tree_must_go = (p->flags & (CMD_EXCLUSIVE | CMD_END_BACKGROUND)) || p->ended != E_EXIT;
    bool populated = !without("kill") && cg_populated(cg, s->name, p->id) == 1;
    if (populated && (tree_must_go || p->state == P_ENDED)) watch_group(b, p);
    if (populated && tree_must_go && p->state != P_ENDED) {
        if (p->state != P_DRAINING) cg_kill(cg, s->name, p->id);
        p->state = P_DRAINING;
        if (cg_populated(cg, s->name, p->id) == 1) {
            loop_at(&b->loop, &p->drain, now_ns() + DRAIN_NS);
            return;
        }
        populated = false;
    }
    if (!populated) {
        loop_cancel(&b->loop, &p->drain);
        unwatch_group(b, p);
    }
    for (int i = 0; i < 2; i++) {
        stream_drain(b, &p->streams[i]);
        if (!populated) stream_close(b, &p->streams[i]);
    }
    p->lingering = populated;
    if (p->state != P_ENDED) {
        limits_final(b, p);
        if (!populated && !(p->flags & CMD_EXCLUSIVE)) cg_command_remove(cg, s->name, p->id);
        if (populated) watch_group(b, p);
        ended(b, p);
        return;
    }
    if (populated) return;
    cg_command_remove(cg, s->name, p->id);
    release(b, p);
}

bool process_reaped(struct broker *b, pid_t pid, int status, const struct rusage *usage) {
    struct process *p = table_get(&b->by_pid, (uint64_t)pid);
    if (!p || p->pid != pid) return false;
    table_drop(&b->by_pid, (uint64_t)pid);
    p->reaped = true;
    p->status = status;
    p->end_ns = now_ns();
    p->max_rss = (uint64_t)usage->ru_maxrss * 1024;
    status_drain(b, p);
    /* The socket's end may be held up by the enterer's own copy; a child that said ST_EXEC and reported no failure got there. */
    if (p->exec_ns && !p->error[0]) p->executed = true;
    if (p->sandbox->state != SB_READY) {
        sandbox_idle(b, p->sandbox);
        return true;
    }
    loop_cancel(&b->loop, &p->timer);
    process_settle(b, p);
    return true;
}

void processes_orphaned(struct broker *b) {
    for (size_t i = 0; i < b->processes.size; i++) {
        struct process *p = b->processes.slots[i].value;
        if (!p || p == (void *)-1) continue;
        p->streams[0].watched = p->streams[1].watched = false;
        if (p->flags & CMD_ORPHAN_KEEP) continue;
        bool running = p->state != P_ENDED;
        process_forget(b, p);
        if (running) process_kill(b, p, E_KILLED);
    }
}

void process_list(struct broker *b, struct sandbox *s) {
    for (struct process *p = s->processes; p; p = p->next) {
        if (p->acknowledged) continue;
        if (p->executed) process_send_started(b, p);
        if (p->state == P_ENDED) process_send_exit(b, p);
    }
}
