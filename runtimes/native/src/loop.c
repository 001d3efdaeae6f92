/* Readiness by epoll and time by a binary heap of embedded timers. Decides nothing. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "broker.h"

#define BATCH 256

void loop_init(struct loop *l) {
    *l = (struct loop){.epoll = epoll_create1(EPOLL_CLOEXEC), .batch = calloc(BATCH, sizeof *l->batch)};
    if (l->epoll < 0 || !l->batch) die("epoll");
}

static void control(struct loop *l, int op, struct watch *w, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(l->epoll, op, w->fd, &e) < 0) die("epoll_ctl");
}

void loop_watch(struct loop *l, struct watch *w, uint32_t events) { control(l, EPOLL_CTL_ADD, w, events); }
void loop_rewatch(struct loop *l, struct watch *w, uint32_t events) { control(l, EPOLL_CTL_MOD, w, events); }

void loop_unwatch(struct loop *l, struct watch *w) {
    control(l, EPOLL_CTL_DEL, w, 0);
    for (int i = 0; i < l->batch_left; i++)
        if (l->batch[i].data.ptr == w) l->batch[i].data.ptr = NULL;
}

static void place(struct loop *l, size_t slot, struct timer *t) {
    l->heap[slot] = t;
    t->slot = slot;
}

static void up(struct loop *l, size_t slot, struct timer *t) {
    for (; slot > 1 && l->heap[slot / 2]->at > t->at; slot /= 2) place(l, slot, l->heap[slot / 2]);
    place(l, slot, t);
}

static void down(struct loop *l, size_t slot, struct timer *t) {
    for (;;) {
        size_t child = slot * 2;
        if (child > l->timers) break;
        if (child < l->timers && l->heap[child + 1]->at < l->heap[child]->at) child++;
        if (l->heap[child]->at >= t->at) break;
        place(l, slot, l->heap[child]);
        slot = child;
    }
    place(l, slot, t);
}

void loop_at(struct loop *l, struct timer *t, uint64_t at) {
    if (t->slot) loop_cancel(l, t);
    if (l->timers + 2 > l->room) {
        l->room = l->room ? l->room * 2 : 64;
        l->heap = realloc(l->heap, l->room * sizeof(struct timer *));
        if (!l->heap) abort();
    }
    t->at = at;
    up(l, ++l->timers, t);
}

void loop_cancel(struct loop *l, struct timer *t) {
    if (!t->slot) return;
    struct timer *last = l->heap[l->timers--];
    size_t slot = t->slot;
    t->slot = 0;
    if (last == t) return;
    if (slot > 1 && l->heap[slot / 2]->at > last->at) up(l, slot, last);
    else down(l, slot, last);
}

void loop_once(struct broker *b, struct loop *l) {
    struct timespec wait = {0}, *patience = NULL;
    if (l->timers) {
        uint64_t now = now_ns(), at = l->heap[1]->at;
        uint64_t left = at > now ? at - now : 0;
        wait = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        patience = &wait;
    }
    int n = epoll_pwait2(l->epoll, l->batch, BATCH, patience, NULL);
    if (n < 0 && errno != EINTR) die("epoll_pwait2");
    l->batch_left = n > 0 ? n : 0;
    for (int i = 0; i < l->batch_left; i++) {
        struct watch *w = l->batch[i].data.ptr;
        if (w) w->ready(b, w, l->batch[i].events);
    }
    l->batch_left = 0;
    uint64_t now = now_ns();
    while (l->timers && l->heap[1]->at <= now) {
        struct timer *t = l->heap[1];
        loop_cancel(l, t);
        t->fire(b, t);
    }
}
