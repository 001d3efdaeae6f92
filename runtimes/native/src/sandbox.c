/* Sandboxes: made by a maker, claimed with a record, ended by their groups, unmade by a maker. Nothing here waits. */
#include "broker.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FROM_TIMER(t, field) ((struct sandbox *)((char *)(t) - offsetof(struct sandbox, field)))

struct sandbox *sandbox_find(struct broker *b, const char *name) { return table_get_text(&b->sandboxes, name); }
struct sandbox *sandbox_by_id(struct broker *b, uint64_t id) { return table_get(&b->sandbox_ids, id); }

static void wait_for(struct waiter **list, const struct request *r) {
    struct waiter *w = calloc(1, sizeof *w);
    if (!w) abort();
    *w = (struct waiter){*list, r->op, r->seq};
    *list = w;
}

static void tell(struct broker *b, struct waiter **list, int code, const char *detail) {
    while (*list) {
        struct waiter *w = *list;
        *list = w->next;
        link_reply_seq(b, w->op, w->seq, code, detail);
        free(w);
    }
}

static void send_lost(struct broker *b, struct sandbox *s, const char *reason) {
    struct skh_buf out = {0};
    skh_put_text(&out, T_NAME, s->name);
    skh_put_text(&out, T_REASON, reason);
    link_send(b, SKH_EV_LOST, 0, &out, -1);
}

static void forget(struct broker *b, struct sandbox *s) {
    table_drop_text(&b->sandboxes, s->name);
    table_drop(&b->sandbox_ids, s->id);
    loop_cancel(&b->loop, &s->expiry);
    loop_cancel(&b->loop, &s->sampling);
    b->free_ranges[b->free_count++] = s->range;
    tell(b, &s->creating, ECANCELED, "ended while it was made");
    tell(b, &s->destroying, 0, NULL);
    skh_buf_free(&s->spec);
    skh_buf_free(&s->record);
    free(s);
}

static void unmade(struct broker *b, struct job *j, const struct w_answer *a) {
    struct sandbox *s = sandbox_by_id(b, j->owner);
    if (a->error) {
        b->faults++;
        fprintf(stderr, "spawner: unmake %s: %s: %s\n", s->name, a->stage, strerror(a->error));
    }
    b->unmade++;
    forget(b, s);
}

static void unmake(struct broker *b, struct sandbox *s) {
    s->state = SB_UNMAKING;
    struct job *j = job_new(b, sizeof(struct w_unmake));
    struct w_unmake *m = j->message;
    m->op = W_UNMAKE;
    m->token = j->token;
    memcpy(m->name, s->name, sizeof m->name);
    j->owner = s->id;
    j->done = unmade;
    workers_submit(b, MAKER, j);
}

/* The ending of a sandbox goes on once nothing of it runs and no job of an enterer is about it. */
void sandbox_idle(struct broker *b, struct sandbox *s) {
    if (s->state != SB_ENDING || s->pid1 || s->entering) return;
    for (struct process *p = s->processes; p; p = p->next)
        if (p->pid && !p->reaped) return;
    while (s->processes) process_free(b, s->processes);
    unmake(b, s);
}

void sandbox_end(struct broker *b, struct sandbox *s, const char *reason) {
    if (s->state == SB_MAKING) {
        s->doomed = true;
        snprintf(s->reason, sizeof s->reason, "%s", reason);
        return;
    }
    if (s->state != SB_READY) return;
    s->state = SB_ENDING;
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    loop_cancel(&b->loop, &s->expiry);
    loop_cancel(&b->loop, &s->sampling);
    cg_freeze(&b->host->cg, s->name, false);
    cg_kill_all(&b->host->cg, s->name);
    if (s->pid1) kill(s->pid1, SIGKILL);
    if (strcmp(reason, "destroyed") != 0) send_lost(b, s, reason);
    sandbox_idle(b, s);
}

static void drop_waiters(struct waiter **list) {
    while (*list) {
        struct waiter *w = *list;
        *list = w->next;
        free(w);
    }
}

/* The gateway is gone. Nobody waits for answers any more (the next one's numbers are its own), and what was being made for it
 * would stand without an owner. */
void sandboxes_disconnected(struct broker *b) {
    for (size_t i = 0; i < b->sandboxes.size; i++) {
        struct sandbox *s = b->sandboxes.slots[i].value;
        if (!s || s == (void *)-1) continue;
        drop_waiters(&s->creating);
        drop_waiters(&s->destroying);
        if (s->state == SB_MAKING) sandbox_end(b, s, "orphaned");
    }
}

void sandboxes_end_all(struct broker *b, const char *reason) {
    for (size_t i = 0; i < b->sandboxes.size; i++) {
        void *v = b->sandboxes.slots[i].value;
        if (v && v != (void *)-1) sandbox_end(b, v, reason);
    }
}

bool sandbox_reaped(struct broker *b, pid_t pid) {
    struct sandbox *s = table_get(&b->by_pid, (uint64_t)pid);
    if (!s || s->pid1 != pid) return false;
    table_drop(&b->by_pid, (uint64_t)pid);
    s->pid1 = 0;
    if (s->state == SB_READY) sandbox_end(b, s, "failed");
    else sandbox_idle(b, s);
    return true;
}

static void expired(struct broker *b, struct timer *t) {
    struct sandbox *s = FROM_TIMER(t, expiry);
    uint64_t now = boot_ns();
    if (s->expires > now) loop_at(&b->loop, t, now_ns() + (s->expires - now));
    else sandbox_end(b, s, "ttl");
}

static void made(struct broker *b, struct job *j, const struct w_answer *a) {
    struct sandbox *s = sandbox_by_id(b, j->owner);
    struct early e;
    bool early = a->pid && early_take(b, a->pid, &e);
    if (a->error || early) {
        int error = a->error ? a->error : ECHILD;
        char detail[96];
        snprintf(detail, sizeof detail, "%s: %s", a->error ? a->stage : "PID 1 ended", strerror(error));
        b->faults++;
        tell(b, &s->creating, error, detail);
        cg_kill_all(&b->host->cg, s->name);
        s->state = SB_ENDING;
        sandbox_idle(b, s);
        return;
    }
    s->state = SB_READY;
    s->pid1 = a->pid;
    table_set(&b->by_pid, (uint64_t)a->pid, s);
    b->made++;
    if (s->doomed || b->stopping) {
        sandbox_end(b, s, s->doomed ? s->reason : "orphaned");
        return;
    }
    tell(b, &s->creating, 0, NULL);
}

void sandbox_create(struct broker *b, const struct request *r) {
    struct job *j = job_new(b, sizeof(struct w_make));
    struct w_make *m = j->message;
    struct skh_buf spec = {0};
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    m->op = W_MAKE;
    m->token = j->token;
    m->role = UINT32_MAX;
    m->memory = UINT64_MAX;
    m->pids = m->cpu_milli = UINT32_MAX;
    skh_reader_init(&in, r->payload, r->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_NAME: good = skh_id(&f, m->name); break;
        case T_ROLE: good = skh_u32(&f, &m->role); break;
        case T_BASE: good = skh_text(&f, m->base, sizeof m->base); break;
        case T_DISK: good = skh_u64(&f, &m->disk); break;
        case T_INODES: good = skh_u64(&f, &m->inodes); break;
        case T_MEMORY: good = skh_u64(&f, &m->memory); break;
        case T_PIDS: good = skh_u32(&f, &m->pids); break;
        case T_CPU_MILLI: good = skh_u32(&f, &m->cpu_milli); break;
        case T_SPEC: good = !spec.length && f.length <= 1024; if (good) skh_put(&spec, f.data, f.length); break;
        default: break;
        }
    bool known = false;
    for (int i = 0; i < b->host->layers_count; i++) known |= !strcmp(b->host->layers[i].name, m->base);
    good = good && !in.broken && m->name[0] && m->role <= 1 && known && m->disk && m->disk <= (1ull << 40) && !b->stopping;
    struct sandbox *s = good ? sandbox_find(b, m->name) : NULL;
    if (!good || s || !b->free_count) {
        if (!good) link_reply(b, r, EINVAL, b->stopping ? "stopping" : known ? "CREATE: a field is missing or wrong" : "unknown base layer");
        else if (!s) link_reply(b, r, ENOSPC, "no range of uids is free");
        else if (s->state == SB_MAKING) wait_for(&s->creating, r);
        else link_reply(b, r, s->state == SB_READY ? EEXIST : ECANCELED, NULL);
        skh_buf_free(&spec);
        free(j->message);
        free(j);
        return;
    }
    s = calloc(1, sizeof *s);
    if (!s) abort();
    memcpy(s->name, m->name, sizeof s->name);
    s->id = ++b->serial;
    s->role = m->role;
    s->disk = m->disk;
    s->memory = m->memory == UINT64_MAX || !m->memory ? 0 : m->memory;
    s->spec = spec;
    s->expiry.fire = expired;
    s->sampling.fire = limits_sample;
    s->range = m->range = b->free_ranges[--b->free_count];
    /* Files of a lease are paid for beside its memory, and its tmpfs is charged to the same group: the group's own limit is
     * their sum; limits_sample holds memory alone to its share. */
    m->shown_memory = s->memory;
    m->memory = s->memory ? s->memory + m->disk : UINT64_MAX;
    if (!m->pids) m->pids = UINT32_MAX;
    if (!m->cpu_milli) m->cpu_milli = UINT32_MAX;
    table_set_text(&b->sandboxes, s->name, s);
    table_set(&b->sandbox_ids, s->id, s);
    wait_for(&s->creating, r);
    j->owner = s->id;
    j->done = made;
    workers_submit(b, MAKER, j);
}

void sandbox_claim(struct broker *b, const struct request *r) {
    char name[SKH_ID_MAX + 1] = "";
    struct skh_reader in;
    struct skh_field f, record = {0};
    uint64_t expires = 0;
    bool good = true;
    skh_reader_init(&in, r->payload, r->length);
    while (good && skh_next(&in, &f)) {
        if (f.tag == T_NAME) good = skh_id(&f, name);
        if (f.tag == T_RECORD) record = f, good = f.length <= SKH_RECORD_MAX;
        if (f.tag == T_EXPIRES) good = skh_u64(&f, &expires);
    }
    if (!good || in.broken || !name[0]) {
        link_reply(b, r, EINVAL, "CLAIM: a field is missing or wrong");
        return;
    }
    struct sandbox *s = sandbox_find(b, name);
    if (!s || s->state != SB_READY) {
        link_reply(b, r, ENOENT, NULL);
        return;
    }
    s->used = true;
    s->record.length = 0;
    skh_put(&s->record, record.data, record.length);
    s->expires = expires;
    loop_cancel(&b->loop, &s->expiry);
    if (expires) expired(b, &s->expiry);
    link_reply(b, r, 0, NULL);
}

static struct sandbox *named(struct broker *b, const struct request *r, bool *good) {
    char name[SKH_ID_MAX + 1] = "";
    struct skh_reader in;
    struct skh_field f;
    skh_reader_init(&in, r->payload, r->length);
    while (skh_next(&in, &f))
        if (f.tag == T_NAME && !skh_id(&f, name)) break;
    *good = name[0] && !in.broken;
    return *good ? sandbox_find(b, name) : NULL;
}

void sandbox_destroy(struct broker *b, const struct request *r) {
    bool good;
    struct sandbox *s = named(b, r, &good);
    if (!s) {
        link_reply(b, r, good ? 0 : EINVAL, NULL);
        return;
    }
    wait_for(&s->destroying, r);
    sandbox_end(b, s, "destroyed");
}

void sandbox_freeze(struct broker *b, const struct request *r) {
    bool good;
    struct sandbox *s = named(b, r, &good);
    struct skh_reader in;
    struct skh_field f;
    uint32_t mode = 1;
    skh_reader_init(&in, r->payload, r->length);
    while (skh_next(&in, &f))
        if (f.tag == T_MODE && !skh_u32(&f, &mode)) good = false;
    if (!good || !s || s->state != SB_READY) link_reply(b, r, good ? ENOENT : EINVAL, NULL);
    else link_reply(b, r, -cg_freeze(&b->host->cg, s->name, mode != 0), NULL);
}

void sandbox_list(struct broker *b, const struct request *r) {
    for (size_t i = 0; i < b->sandboxes.size; i++) {
        struct sandbox *s = b->sandboxes.slots[i].value;
        if (!s || s == (void *)-1 || s->state != SB_READY) continue;
        struct skh_buf out = {0};
        skh_put_text(&out, T_NAME, s->name);
        skh_put_field(&out, T_SPEC, s->spec.data, s->spec.length);
        skh_put_field(&out, T_RECORD, s->record.data, s->record.length);
        skh_put_u64(&out, T_EXPIRES, s->expires);
        skh_put_u32(&out, T_USED, s->used);
        skh_put_u32(&out, T_PID, (uint32_t)s->pid1);
        skh_put_u32(&out, T_STATE, s->state);
        link_send(b, SKH_EV_ITEM, r->seq, &out, -1);
        process_list(b, s);
    }
    link_reply(b, r, 0, NULL);
}
