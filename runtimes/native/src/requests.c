/* Requests that name one command, and the table of all requests. Every field is checked here or where the request is handled. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "broker.h"

struct ask { struct process *process; uint32_t signal, target, mode, rows, columns; };

/* Reads what these requests share; answers EINVAL or ESRCH itself and returns false. */
static bool read_ask(struct broker *b, const struct request *r, struct ask *a) {
    char id[SKH_ID_MAX + 1] = "";
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    *a = (struct ask){.mode = 1, .rows = 24, .columns = 80};
    skh_reader_init(&in, r->payload, r->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_PROC: good = skh_id(&f, id); break;
        case T_SIGNAL: good = skh_u32(&f, &a->signal) && a->signal >= 1 && a->signal <= 64; break;
        case T_TARGET: good = skh_u32(&f, &a->target) && a->target <= 2; break;
        case T_MODE: good = skh_u32(&f, &a->mode); break;
        case T_ROWS: good = skh_u32(&f, &a->rows) && a->rows <= 10000; break;
        case T_COLUMNS: good = skh_u32(&f, &a->columns) && a->columns <= 10000; break;
        default: break;
        }
    if (!good || in.broken || !id[0]) {
        link_reply(b, r, EINVAL, "a field is missing or wrong");
        return false;
    }
    a->process = process_find(b, id);
    if (!a->process) link_reply(b, r, ESRCH, NULL);
    return a->process != NULL;
}

void process_signal(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    struct process *p = a.process;
    if (!a.signal) link_reply(b, r, EINVAL, "SIGNAL");
    else if (!p->pid || p->reaped) link_reply(b, r, ESRCH, NULL);
    else link_reply(b, r, kill(p->pid, (int)a.signal) ? errno : 0, NULL);  /* our own child, not reaped: the pid is its own */
}

void process_end(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    process_kill(b, a.process, E_KILLED);
    link_reply(b, r, 0, NULL);
}

void process_open(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    struct process *p = a.process;
    struct skh_buf out = {0};
    int fd;
    if (a.target == 0) {
        if (p->input < 0) {
            link_reply(b, r, EBADF, "no open stdin");
            return;
        }
        fd = fcntl(p->input, F_DUPFD_CLOEXEC, 3);
    } else {
        struct stream *st = &p->streams[a.target - 1];
        if (!st->used) {
            link_reply(b, r, EBADF, "not collected");
            return;
        }
        int ring = ring_open(&st->ring);
        if (ring < 0) {
            link_reply(b, r, -ring, NULL);
            return;
        }
        if (st->watch.fd < 0 && p->state == P_ENDED) ring_close(&st->ring);
        char path[32];
        snprintf(path, sizeof path, "self/fd/%d", ring);
        fd = openat(b->host->proc_fd, path, O_RDONLY | O_CLOEXEC);
        skh_put_u64(&out, T_HEAD, st->ring.head);
        skh_put_u64(&out, T_TAIL, st->ring.tail);
    }
    if (fd < 0) {
        int error = errno;
        skh_buf_free(&out);
        link_reply(b, r, error, NULL);
        return;
    }
    skh_put_u32(&out, T_CODE, 0);
    link_send(b, SKH_OPEN | SKH_REPLY, r->seq, &out, fd);
}

void process_watch(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    if (a.target < 1 || !a.process->streams[a.target - 1].used) {
        link_reply(b, r, EBADF, "not collected");
        return;
    }
    struct stream *st = &a.process->streams[a.target - 1];
    st->watched = a.mode != 0;
    link_reply(b, r, 0, NULL);
    if (st->watched) stream_tell(b, st);
}

void process_close_input(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    if (a.process->input >= 0) close(a.process->input);
    a.process->input = -1;
    link_reply(b, r, 0, NULL);
}

void process_resize(struct broker *b, const struct request *r) {
    struct ask a;
    if (!read_ask(b, r, &a)) return;
    struct winsize size = {.ws_row = (unsigned short)a.rows, .ws_col = (unsigned short)a.columns};
    if (!a.process->terminal || a.process->input < 0) link_reply(b, r, ENOTTY, NULL);
    else link_reply(b, r, ioctl(a.process->input, TIOCSWINSZ, &size) ? errno : 0, NULL);
}

void process_ack(struct broker *b, const struct request *r) {
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    skh_reader_init(&in, r->payload, r->length);
    while (good && skh_next(&in, &f)) {
        char id[SKH_ID_MAX + 1];
        if (f.tag != T_PROC) continue;
        good = skh_id(&f, id);
        struct process *p = good ? process_find(b, id) : NULL;
        if (p) process_forget(b, p);
    }
    link_reply(b, r, good && !in.broken ? 0 : EINVAL, NULL);
}

static void stats(struct broker *b, const struct request *r) {
    char text[512];
    snprintf(text, sizeof text,
             "sandboxes %zu\nprocesses %zu\nmade %llu\nunmade %llu\nstarted %llu\nended %llu\nfaults %llu\nranges_free %u\n",
             b->sandboxes.used, b->processes.used, (unsigned long long)b->made, (unsigned long long)b->unmade,
             (unsigned long long)b->started, (unsigned long long)b->ended, (unsigned long long)b->faults, b->free_count);
    link_reply(b, r, 0, text);
}

void dispatch(struct broker *b, const struct request *r) {
    switch (r->op) {
    case SKH_CREATE: sandbox_create(b, r); break;
    case SKH_CLAIM: sandbox_claim(b, r); break;
    case SKH_DESTROY: sandbox_destroy(b, r); break;
    case SKH_FREEZE: sandbox_freeze(b, r); break;
    case SKH_LIST: sandbox_list(b, r); break;
    case SKH_START: process_start(b, r); break;
    case SKH_SIGNAL: process_signal(b, r); break;
    case SKH_END: process_end(b, r); break;
    case SKH_OPEN: process_open(b, r); break;
    case SKH_WATCH: process_watch(b, r); break;
    case SKH_CLOSE: process_close_input(b, r); break;
    case SKH_RESIZE: process_resize(b, r); break;
    case SKH_ACK: process_ack(b, r); break;
    case SKH_FILE: file_request(b, r); break;
    case SKH_FILE_COMMIT: file_commit(b, r); break;
    case SKH_FILE_CANCEL: file_cancel(b, r); break;
    case SKH_STATS: stats(b, r); break;
    default: link_reply(b, r, EOPNOTSUPP, "unknown operation"); break;
    }
}
