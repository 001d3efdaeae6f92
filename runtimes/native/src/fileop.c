/* File operations under way: each is a helper inside its sandbox with the gateway's pipe, and a control socket to us that
 * brings the answer and carries the leave to commit. A gateway that goes away undoes what was not committed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker.h"

#define PAYLOAD_MAX 16384u  /* two paths and a few numbers */

struct fileop {
    struct watch control;      /* first: the watch is the operation */
    struct fileop *next;
    uint64_t seq;
    uint64_t sandbox;
    pid_t pid;
    bool answered, cancelled;
};

static void unlink_op(struct broker *b, struct fileop *o) {
    struct fileop **at = &b->files;
    while (*at != o) at = &(*at)->next;
    *at = o->next;
    table_drop(&b->file_seqs, o->seq);
}

static void close_op(struct broker *b, struct fileop *o) {
    loop_unwatch(&b->loop, &o->control);
    close(o->control.fd);
    unlink_op(b, o);
    free(o);
}

static void control_ready(struct broker *b, struct watch *w, uint32_t events) {
    struct fileop *o = (struct fileop *)w;
    uint8_t data[SKH_INLINE_MAX];
    (void)events;
    for (;;) {
        ssize_t n = recv(w->fd, data, sizeof data, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        /* It ended before it had read the leave to commit. Reported once and before its answer, which still waits. */
        if (n < 0 && errno == ECONNRESET) continue;
        if (n < (ssize_t)sizeof(struct f_result)) {
            if (!o->answered && !o->cancelled)
                link_reply_seq(b, SKH_FILE, o->seq, 1000 + ECONNABORTED, "the file helper ended without an answer");
            close_op(b, o);
            return;
        }
        struct f_result result;
        memcpy(&result, data, sizeof result);
        if (o->answered || o->cancelled || result.entry_length > (size_t)n - sizeof result) continue;
        o->answered = true;
        struct skh_buf out = {0};
        skh_put_u32(&out, T_CODE, (uint32_t)result.error);
        if (result.entry_length) skh_put_field(&out, T_ENTRY, data + sizeof result, result.entry_length);
        skh_put_u64(&out, T_SIZE, result.size);
        link_send(b, SKH_FILE | SKH_REPLY, o->seq, &out, -1);
    }
}

static void entered(struct broker *b, struct job *j, const struct w_answer *a) {
    struct fileop *o = table_get(&b->file_seqs, j->owner);
    struct sandbox *s = sandbox_by_id(b, o ? o->sandbox : 0);
    if (!o) return;
    if (s) s->entering--;
    if (a->error) {
        if (!o->cancelled) link_reply_seq(b, SKH_FILE, o->seq, 1000 + a->error, a->stage);
        close_op(b, o);
    } else {
        o->pid = a->pid;
    }
    if (s) sandbox_idle(b, s);
}

void file_request(struct broker *b, const struct request *r) {
    char name[SKH_ID_MAX + 1] = "";
    uint32_t fop = 0;
    int control[2];
    struct skh_reader in;
    struct skh_field f;
    bool good = r->length <= PAYLOAD_MAX && r->fds_count <= 1 && !table_get(&b->file_seqs, r->seq);
    skh_reader_init(&in, r->payload, r->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_NAME: good = skh_id(&f, name); break;
        case T_FOP: good = skh_u32(&f, &fop); break;
        case T_PATH: case T_PATH2: good = f.length >= 1 && f.length < 4096 && !memchr(f.data, 0, f.length); break;
        case T_USER: good = f.length < 256 && !memchr(f.data, 0, f.length); break;
        default: break;
        }
    if (!good || in.broken || !name[0] || fop < FOP_STAT || fop > FOP_EXTRACT) {
        link_reply(b, r, EINVAL, "FILE: a field is missing or wrong");
        return;
    }
    struct sandbox *s = sandbox_find(b, name);
    if (!s || s->state != SB_READY) {
        link_reply(b, r, 1000 + ENOENT, "no such sandbox");
        return;
    }
    int pidfd = pidfd_open(s->pid1, 0);
    if (pidfd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0) {
        int error = errno;
        if (pidfd >= 0) close(pidfd);
        link_reply(b, r, 1000 + error, "descriptors");
        return;
    }
    struct fileop *o = calloc(1, sizeof *o);
    if (!o) abort();
    *o = (struct fileop){.control = {control[0], control_ready}, .next = b->files, .seq = r->seq, .sandbox = s->id};
    b->files = o;
    table_set(&b->file_seqs, o->seq, o);
    loop_watch(&b->loop, &o->control, EPOLLIN);
    struct job *j = job_new(b, sizeof(struct w_file) + r->length);
    struct w_file *m = j->message;
    m->op = W_FILE;
    m->token = j->token;
    memcpy(m->sandbox, name, sizeof m->sandbox);
    m->role = s->role;
    m->range = s->range;
    m->has_data = r->fds_count;
    m->payload_length = (uint32_t)r->length;
    if (r->length) memcpy(m + 1, r->payload, r->length);
    job_pass(j, pidfd);
    job_pass(j, control[1]);
    if (r->fds_count) {
        job_pass(j, r->fds[0]);
        r->fds[0] = -1;
    }
    j->owner = o->seq;
    j->done = entered;
    s->used = true;
    s->entering++;
    workers_submit(b, ENTERER, j);
}

static struct fileop *named(struct broker *b, const struct request *r) {
    struct skh_reader in;
    struct skh_field f;
    uint64_t seq = 0;
    skh_reader_init(&in, r->payload, r->length);
    while (skh_next(&in, &f))
        if (f.tag == T_SIZE) skh_u64(&f, &seq);
    return table_get(&b->file_seqs, seq);
}

void file_commit(struct broker *b, const struct request *r) {
    struct fileop *o = named(b, r);
    if (!o || o->cancelled) {
        link_reply(b, r, ESRCH, NULL);
        return;
    }
    link_reply(b, r, send(o->control.fd, "C", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : EPIPE, NULL);
}

/* The end of the control socket is the order to undo; the helper's own end is then seen and frees the operation. */
static void cancel(struct fileop *o) {
    o->cancelled = true;
    shutdown(o->control.fd, SHUT_WR);
    if (!o->pid) return;
    kill(o->pid, SIGTERM);
    kill(o->pid, SIGCONT);  /* a process inside may have stopped it */
}

void file_cancel(struct broker *b, const struct request *r) {
    struct fileop *o = named(b, r);
    if (o) cancel(o);
    link_reply(b, r, 0, NULL);
}

void files_drop(struct broker *b) {
    for (struct fileop *o = b->files; o; o = o->next) cancel(o);
}

bool file_reaped(struct broker *b, pid_t pid) {
    for (struct fileop *o = b->files; o; o = o->next) {
        if (o->pid != pid) continue;
        o->pid = 0;
        return true;
    }
    return false;
}
