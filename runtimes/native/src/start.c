/* START: check every field of every command, make its pipes and files, and hand it to an enterer. All commands or none. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker.h"

#define COMMANDS_MAX 16
#define PIPES_MAX 16
#define COLLECT_MAX (1ull << 30)

struct desc { uint32_t target, kind, index; uint64_t limit; struct skh_field data; };
struct parsed {
    struct skh_field body;
    char name[SKH_ID_MAX + 1], id[SKH_ID_MAX + 1];
    uint32_t flags, args, pids, cpu_milli, rows, columns, desc_count;
    uint64_t cpu, wall, silence, memory, stack, fsize;
    struct desc desc[DESC_MAX];
    struct sandbox *sandbox;
    struct process *process;
};
struct start { struct parsed commands[COMMANDS_MAX]; unsigned count, pipes; int pipe[PIPES_MAX][2]; };

static bool parse_desc(const struct skh_field *field, struct parsed *c, const struct request *r, unsigned pipes) {
    struct skh_reader in;
    struct skh_field f;
    bool good = c->desc_count < DESC_MAX;
    struct desc d = {.target = UINT32_MAX, .kind = UINT32_MAX};
    skh_reader_init(&in, field->data, field->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_TARGET: good = skh_u32(&f, &d.target); break;
        case T_KIND: good = skh_u32(&f, &d.kind); break;
        case T_INDEX: good = skh_u32(&f, &d.index); break;
        case T_LIMIT: good = skh_u64(&f, &d.limit); break;
        case T_ROWS: good = skh_u32(&f, &c->rows) && c->rows <= 10000; break;
        case T_COLUMNS: good = skh_u32(&f, &c->columns) && c->columns <= 10000; break;
        case T_DATA: d.data = f; break;
        default: break;
        }
    if (!good || in.broken || d.target > 255) return false;
    for (uint32_t i = 0; i < c->desc_count; i++)
        if (c->desc[i].target == d.target) return false;
    switch (d.kind) {
    case D_NULL: case D_DATA: break;
    case D_PASSED: good = d.index < r->fds_count; break;
    case D_COLLECT_KILL: case D_COLLECT_TRUNCATE: good = (d.target == 1 || d.target == 2) && d.limit <= COLLECT_MAX; break;
    case D_INPUT: good = d.target == 0; break;
    case D_SAME: good = d.index != d.target && d.index <= 255; break;
    case D_TERMINAL: good = d.target <= 2 && d.limit <= COLLECT_MAX; break;
    case D_PIPE_READ: case D_PIPE_WRITE: good = d.index < pipes; break;
    default: good = false;
    }
    if (good) c->desc[c->desc_count++] = d;
    return good;
}

static bool parse_command(const struct skh_field *field, struct parsed *c, const struct request *r, unsigned pipes) {
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    *c = (struct parsed){.body = *field, .memory = UINT64_MAX, .stack = UINT64_MAX, .fsize = UINT64_MAX, .pids = UINT32_MAX,
                         .cpu_milli = UINT32_MAX, .rows = 24, .columns = 80};
    skh_reader_init(&in, field->data, field->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_NAME: good = skh_id(&f, c->name); break;
        case T_PROC: good = skh_id(&f, c->id); break;
        case T_FLAGS: good = skh_u32(&f, &c->flags) && c->flags < 16; break;
        case T_CPU_NS: good = skh_u64(&f, &c->cpu); break;
        case T_WALL_NS: good = skh_u64(&f, &c->wall); break;
        case T_SILENCE_NS: good = skh_u64(&f, &c->silence); break;
        case T_MEMORY: good = skh_u64(&f, &c->memory); break;
        case T_STACK: good = skh_u64(&f, &c->stack); break;
        case T_FSIZE: good = skh_u64(&f, &c->fsize); break;
        case T_PIDS: good = skh_u32(&f, &c->pids); break;
        case T_CPU_MILLI: good = skh_u32(&f, &c->cpu_milli) && c->cpu_milli; break;
        case T_ARG: good = !memchr(f.data, 0, f.length); c->args++; break;
        case T_ENV: good = !memchr(f.data, 0, f.length) && memchr(f.data, '=', f.length); break;
        case T_CWD: case T_USER: good = f.length < 4096 && !memchr(f.data, 0, f.length); break;
        case T_DESC: good = parse_desc(&f, c, r, pipes); break;
        default: break;
        }
    return good && !in.broken && c->name[0] && c->id[0] && c->args && c->args < 65536;
}

static int sealed(const struct skh_field *data) {
    int fd = memfd_create("stdin", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    for (size_t done = 0; done < data->length;) {
        ssize_t n = pwrite(fd, data->data + done, data->length - done, (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { close(fd); return -1; }
        done += (size_t)n;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) { close(fd); return -1; }
    return fd;
}

/* A pipe whose far end a program holds: it may open /dev/stdin or /dev/stdout again, as the user that it is. */
static bool pipe_for_program(int ends[2]) {
    return pipe2(ends, O_CLOEXEC) == 0 && fchmod(ends[0], 0666) == 0;
}

static void stream_ready(struct broker *b, struct watch *w, uint32_t events) {
    (void)events;
    stream_drain(b, (struct stream *)w);
}

static void status_ready(struct broker *b, struct watch *w, uint32_t events) {
    (void)events;
    status_drain(b, (struct process *)((char *)w - offsetof(struct process, status_watch)));
}

static void collect(struct broker *b, struct process *p, uint32_t target, bool kill_on_full, uint64_t limit, int fd) {
    struct stream *st = &p->streams[target - 1];
    st->used = true;
    st->kill_on_full = kill_on_full;
    st->limit = limit;
    ring_init(&st->ring, kill_on_full ? limit : limit / 2, kill_on_full ? 0 : limit - limit / 2);
    st->watch = (struct watch){fd, stream_ready};
    if (fd < 0) return;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    loop_watch(&b->loop, &st->watch, EPOLLIN);
}

/* One descriptor of the program: the w_desc that tells the enterer, with what it needs passed in the job. */
static bool add_desc(struct broker *b, struct start *start, struct parsed *c, struct desc *d, struct job *j, struct w_desc *out) {
    struct process *p = c->process;
    int ends[2];
    *out = (struct w_desc){.target = d->target, .index = W_NULL};
    switch (d->kind) {
    case D_NULL: return true;
    case D_PASSED: out->index = (int32_t)(2 + d->index); return true;
    case D_SAME: out->index = W_SAME; out->same = d->index; return true;
    case D_DATA: {
        if (!d->data.length) return true;
        int fd = sealed(&d->data);
        if (fd < 0) return false;
        out->index = (int32_t)j->fds_count;
        job_pass(j, fd);
        return true;
    }
    case D_COLLECT_KILL: case D_COLLECT_TRUNCATE:
        if (!pipe_for_program(ends)) return false;
        collect(b, p, d->target, d->kind == D_COLLECT_KILL, d->limit, ends[0]);
        out->index = (int32_t)j->fds_count;
        job_pass(j, ends[1]);
        return true;
    case D_INPUT:
        if (!pipe_for_program(ends)) return false;
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        p->input = ends[1];
        out->index = (int32_t)j->fds_count;
        job_pass(j, ends[0]);
        return true;
    case D_TERMINAL:
        out->index = W_TTY;
        if (!p->terminal) collect(b, p, 1, false, d->limit, -1);
        p->terminal = true;
        return true;
    default: {
        int fd = fcntl(start->pipe[d->index][d->kind == D_PIPE_WRITE], F_DUPFD_CLOEXEC, 3);
        if (fd < 0) return false;
        out->index = (int32_t)j->fds_count;
        job_pass(j, fd);
        return true;
    }
    }
}

static void entered(struct broker *b, struct job *j, const struct w_answer *a) { process_entered(b, j->owner, a); }

static void enter(struct broker *b, struct start *start, struct parsed *c, const struct request *r) {
    bool large = c->body.length > SKH_INLINE_MAX, last = c == &start->commands[start->count - 1];
    struct job *j = job_new(b, sizeof(struct w_enter) + (large ? 0 : c->body.length));
    struct w_enter *m = j->message;
    struct process *p = c->process;
    int status[2] = {-1, -1}, pidfd = pidfd_open(c->sandbox->pid1, 0);
    bool good = pidfd >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) == 0;
    if (pidfd >= 0) job_pass(j, pidfd);
    if (good) job_pass(j, status[1]);
    for (unsigned i = 0; good && i < r->fds_count; i++) {
        int fd = last ? r->fds[i] : fcntl(r->fds[i], F_DUPFD_CLOEXEC, 3);
        if (last) r->fds[i] = -1;
        good = fd >= 0;
        if (good) job_pass(j, fd);
    }
    for (uint32_t i = 0; good && i < c->desc_count; i++) good = add_desc(b, start, c, &c->desc[i], j, &m->desc[i]);
    m->payload_index = -1;
    if (good && large) {
        int fd = sealed(&c->body);
        good = fd >= 0;
        m->payload_index = (int32_t)j->fds_count;
        if (good) job_pass(j, fd);
    } else if (good && c->body.length) {
        memcpy(m + 1, c->body.data, c->body.length);
    }
    if (!good) {
        int error = errno;
        for (unsigned i = 0; i < j->fds_count; i++) close(j->fds[i]);
        free(j->message);
        free(j);
        if (status[0] >= 0) close(status[0]);
        process_fault(b, p, "descriptors", error);
        return;
    }
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    p->status_watch = (struct watch){status[0], status_ready};
    loop_watch(&b->loop, &p->status_watch, EPOLLIN);
    m->op = W_ENTER;
    m->token = j->token;
    memcpy(m->sandbox, c->name, sizeof m->sandbox);
    memcpy(m->proc, c->id, sizeof m->proc);
    m->flags = c->flags;
    m->role = c->sandbox->role;
    m->range = c->sandbox->range;
    m->rows = (uint16_t)c->rows;
    m->columns = (uint16_t)c->columns;
    m->limits = (struct w_limits){c->memory, c->stack, c->fsize, c->pids, c->cpu_milli};
    m->desc_count = c->desc_count;
    m->passed_offset = 2;
    m->payload_length = c->body.length;
    j->owner = p->serial;
    j->done = entered;
    c->sandbox->entering++;
    workers_submit(b, ENTERER, j);
}

static const char *parse(struct broker *b, const struct request *r, struct start *start, int *code) {
    struct skh_reader in;
    struct skh_field f;
    *code = EINVAL;
    skh_reader_init(&in, r->payload, r->length);
    while (skh_next(&in, &f)) {
        if (f.tag == T_PIPES && (!skh_u32(&f, &start->pipes) || start->pipes > PIPES_MAX)) return "PIPES";
        if (f.tag != T_COMMAND) continue;
        if (start->count == COMMANDS_MAX) return "too many commands";
        if (!parse_command(&f, &start->commands[start->count], r, start->pipes)) return "COMMAND: a field is missing or wrong";
        start->count++;
    }
    if (in.broken || !start->count || r->fds_count > PASSED_MAX) return "START";
    for (unsigned i = 0; i < start->count; i++) {
        struct parsed *c = &start->commands[i];
        for (unsigned k = 0; k < i; k++)
            if (!strcmp(start->commands[k].id, c->id)) return "the same PROC twice";
        c->process = process_find(b, c->id);
        c->sandbox = sandbox_find(b, c->name);
        if (c->process && strcmp(c->process->sandbox->name, c->name) != 0) { *code = EEXIST; return "PROC names a command elsewhere"; }
        if (!c->sandbox || c->sandbox->state != SB_READY) { *code = ENOENT; return "no such sandbox"; }
        if (!c->process != !start->commands[0].process) { *code = EEXIST; return "some of these commands exist"; }
    }
    return NULL;
}

void process_start(struct broker *b, const struct request *r) {
    struct start *start = calloc(1, sizeof *start);
    int code;
    if (!start) abort();
    const char *wrong = parse(b, r, start, &code);
    if (wrong) {
        link_reply(b, r, code, wrong);
        free(start);
        return;
    }
    bool exists = start->commands[0].process != NULL;
    struct skh_buf out = {0};
    skh_put_u32(&out, T_CODE, 0);
    skh_put_u32(&out, T_EXISTS, exists);
    link_send(b, SKH_START | SKH_REPLY, r->seq, &out, -1);
    if (exists) {
        for (unsigned i = 0; i < start->count; i++) {
            struct process *p = start->commands[i].process;
            if (p->executed) process_send_started(b, p);
            if (p->state == P_ENDED) process_send_exit(b, p);
        }
        free(start);
        return;
    }
    unsigned pipes = 0;
    while (pipes < start->pipes && pipe_for_program(start->pipe[pipes])) pipes++;
    for (unsigned i = 0; i < start->count; i++) {
        struct parsed *c = &start->commands[i];
        struct process *p = c->process = process_new(b, c->sandbox, c->id);
        p->flags = c->flags;
        p->cpu_limit = c->cpu, p->wall_limit = c->wall, p->silence_limit = c->silence;
        p->memory_limit = c->memory == UINT64_MAX ? 0 : c->memory;
        p->cpu_milli = c->cpu_milli == UINT32_MAX ? 0 : c->cpu_milli;
        p->own_memory = (c->flags & CMD_EXCLUSIVE) || p->memory_limit;
    }
    for (unsigned i = 0; i < start->count; i++) {
        if (pipes < start->pipes) process_fault(b, start->commands[i].process, "pipe", EMFILE);
        else enter(b, start, &start->commands[i], r);
    }
    for (unsigned i = 0; i < pipes; i++) close(start->pipe[i][0]), close(start->pipe[i][1]);
    free(start);
}
