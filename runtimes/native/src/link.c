/* The gateway's connection: packets in, frames out. Bounds what waits to be sent; never blocks. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker.h"

#define QUEUE_MAX 8192  /* above it requests are not read: the gateway's own backlog is its credit */

struct frame_out { struct frame_out *next; struct skh_frame head; struct skh_buf payload; int fd; };

void link_init(struct link *l) {
    *l = (struct link){.watch.fd = -1};
    l->last = &l->first;
}

static void frame_free(struct frame_out *f) {
    if (f->fd >= 0) close(f->fd);
    skh_buf_free(&f->payload);
    free(f);
}

void link_drop(struct broker *b) {
    struct link *l = &b->link;
    if (l->watch.fd < 0) return;
    loop_unwatch(&b->loop, &l->watch);
    close(l->watch.fd);
    while (l->first) {
        struct frame_out *f = l->first;
        l->first = f->next;
        frame_free(f);
    }
    uint64_t epoch = l->epoch;
    link_init(l);
    l->epoch = epoch;
    files_drop(b);
    processes_orphaned(b);
    sandboxes_disconnected(b);
    loop_at(&b->loop, &b->orphan, now_ns() + b->settings.orphan_s * 1000000000ull);
}

void link_send(struct broker *b, uint16_t op, uint64_t seq, struct skh_buf *payload, int fd) {
    struct link *l = &b->link;
    if (l->watch.fd < 0) {
        if (payload) skh_buf_free(payload);
        if (fd >= 0) close(fd);
        return;
    }
    struct frame_out *f = calloc(1, sizeof *f);
    if (!f) abort();
    if (payload) f->payload = *payload, *payload = (struct skh_buf){0};
    f->fd = fd;
    f->head = (struct skh_frame){.op = op, .length = (uint32_t)f->payload.length, .seq = seq, .fds = fd >= 0};
    *l->last = f;
    l->last = &f->next;
    l->queued++;
}

void link_reply_seq(struct broker *b, uint16_t op, uint64_t seq, int code, const char *detail) {
    struct skh_buf out = {0};
    skh_put_u32(&out, T_CODE, (uint32_t)code);
    if (detail && *detail) skh_put_text(&out, T_DETAIL, detail);
    link_send(b, op | SKH_REPLY, seq, &out, -1);
}

void link_reply(struct broker *b, const struct request *r, int code, const char *detail) {
    link_reply_seq(b, r->op, r->seq, code, detail);
}

static void interest(struct broker *b) {
    struct link *l = &b->link;
    uint32_t events = (l->queued < QUEUE_MAX ? EPOLLIN : 0u) | (l->blocked ? EPOLLOUT : 0u);
    loop_rewatch(&b->loop, &l->watch, events);
}

/* One packet of as many waiting frames as fit. Returns false when nothing more can be sent now. */
static bool send_packet(struct broker *b) {
    static uint8_t packet[SKH_PACKET_MAX];
    int fds[SKH_FDS_MAX];
    struct link *l = &b->link;
    size_t length = sizeof(struct skh_packet), count = 0, fds_count = 0;
    struct frame_out *stop = l->first;
    for (; stop; stop = stop->next) {
        size_t need = sizeof stop->head + stop->payload.length;
        if (length + need > sizeof packet || (stop->fd >= 0 && fds_count == SKH_FDS_MAX)) break;
        memcpy(packet + length, &stop->head, sizeof stop->head);
        if (stop->payload.length) memcpy(packet + length + sizeof stop->head, stop->payload.data, stop->payload.length);
        length += need;
        if (stop->fd >= 0) fds[fds_count++] = stop->fd;
        count++;
    }
    if (!count) return false;
    struct skh_packet head = {SKH_MAGIC, SKH_VERSION, (uint16_t)count, (uint32_t)length, 0};
    memcpy(packet, &head, sizeof head);
    int e = send_with_fds(l->watch.fd, packet, length, fds, (unsigned)fds_count);
    if (e == -EAGAIN || e == -ENOBUFS) {
        l->blocked = true;
        return false;
    }
    if (e) {
        link_drop(b);
        return false;
    }
    while (l->first != stop) {
        struct frame_out *f = l->first;
        l->first = f->next;
        l->queued--;
        frame_free(f);
    }
    if (!l->first) l->last = &l->first;
    return l->first != NULL;
}

void link_flush(struct broker *b) {
    struct link *l = &b->link;
    if (l->watch.fd < 0 || l->blocked || !l->first) return;
    size_t before = l->queued;
    while (send_packet(b)) {}
    if (l->watch.fd >= 0 && (l->blocked || before >= QUEUE_MAX)) interest(b);
}

static void hello(struct broker *b, const struct request *r) {
    struct skh_buf out = {0};
    skh_put_u32(&out, T_CODE, 0);
    skh_put_u32(&out, T_VERSION, SKH_VERSION);
    skh_put_u64(&out, T_INSTANCE, b->instance);
    skh_put_u32(&out, T_PID, (uint32_t)getpid());
    skh_put_u32(&out, T_ORPHAN_S, b->settings.orphan_s);
    link_send(b, SKH_HELLO | SKH_REPLY, r->seq, &out, -1);
}

/* A payload in a memfd is read only if it is sealed against writing and shrinking: its bytes cannot change under us. */
static bool map_payload(struct request *r, void **map) {
    int fd = r->fds[0];
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK)) return false;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > SKH_PAYLOAD_MAX) return false;
    *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*map == MAP_FAILED) return false;
    r->payload = *map;
    r->length = (size_t)st.st_size;
    r->fds++, r->fds_count--;
    return true;
}

static bool handle(struct broker *b, const uint8_t *packet, size_t length, int *fds, unsigned count) {
    struct skh_walk walk;
    struct skh_frame f;
    const uint8_t *payload;
    unsigned taken = 0;
    skh_packet_open(&walk, packet, length, count);
    while (skh_packet_next(&walk, &f, &payload)) {
        struct request r = {f.op, f.seq, payload, f.length, fds + taken, f.fds};
        void *map = NULL;
        taken += f.fds;
        if ((f.flags & SKH_F_MEMFD) && !map_payload(&r, &map)) return false;
        if (f.op == SKH_HELLO) hello(b, &r);
        else dispatch(b, &r);
        if (map) munmap(map, r.length);
        if (b->link.watch.fd < 0) return true;
    }
    return !walk.broken;
}

static void link_ready(struct broker *b, struct watch *w, uint32_t events) {
    static uint8_t packet[SKH_PACKET_MAX];
    struct link *l = &b->link;
    if (events & EPOLLOUT) {
        l->blocked = false;
        link_flush(b);
        if (l->watch.fd < 0) return;
        if (!l->blocked) interest(b);
    }
    for (int i = 0; i < 16 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && l->queued < QUEUE_MAX; i++) {
        int fds[253];
        unsigned count = 253;
        ssize_t n = recv_with_fds(w->fd, packet, sizeof packet, fds, &count);
        if (n == -EAGAIN) return;
        bool good = n > 0 && handle(b, packet, (size_t)n, fds, count);
        for (unsigned k = 0; k < count; k++)
            if (fds[k] >= 0) close(fds[k]);
        if (l->watch.fd < 0) return;
        if (!good) {
            link_drop(b);
            return;
        }
    }
    if (l->queued >= QUEUE_MAX) interest(b);
}

/* What a first packet must be: HELLO of a version that we speak and of an epoch that is not behind us. 0, or the errno to
 * refuse it with; -1: not a HELLO at all. */
static int greeting(struct broker *b, const uint8_t *packet, size_t length, unsigned fds, uint64_t *seq, uint64_t *epoch) {
    struct skh_walk walk;
    struct skh_frame frame;
    struct skh_reader in;
    struct skh_field f;
    const uint8_t *payload;
    uint32_t min = 0, max = 0;
    skh_packet_open(&walk, packet, length, fds);
    if (!skh_packet_next(&walk, &frame, &payload) || frame.op != SKH_HELLO || frame.flags) return -1;
    skh_reader_init(&in, payload, frame.length);
    while (skh_next(&in, &f)) {
        if (f.tag == T_VERSION_MIN) skh_u32(&f, &min);
        if (f.tag == T_VERSION_MAX) skh_u32(&f, &max);
        if (f.tag == T_EPOCH) skh_u64(&f, epoch);
    }
    *seq = frame.seq;
    if (in.broken) return -1;
    if (min > SKH_VERSION || max < SKH_VERSION) return EPROTONOSUPPORT;
    return *epoch < b->link.epoch ? ESTALE : 0;
}

static void refuse(int fd, uint64_t seq, int code) {
    struct skh_buf out = {0};
    skh_put_u32(&out, T_CODE, (uint32_t)code);
    struct skh_frame frame = {.op = SKH_HELLO | SKH_REPLY, .length = (uint32_t)out.length, .seq = seq};
    struct skh_packet head = {SKH_MAGIC, SKH_VERSION, 1, (uint32_t)(sizeof head + sizeof frame + out.length), 0};
    uint8_t packet[128];
    memcpy(packet, &head, sizeof head);
    memcpy(packet + sizeof head, &frame, sizeof frame);
    memcpy(packet + sizeof head + sizeof frame, out.data, out.length);
    send(fd, packet, head.length, MSG_DONTWAIT | MSG_NOSIGNAL);
    skh_buf_free(&out);
}

/* A connection becomes the gateway's only by its HELLO: until then the one that stands is left alone. */
static void pending_ready(struct broker *b, struct watch *w, uint32_t events) {
    static uint8_t packet[SKH_PACKET_MAX];
    int fds[253], fd = w->fd;
    unsigned count = 253;
    uint64_t seq = 0, epoch = 0;
    (void)events;
    ssize_t n = recv_with_fds(fd, packet, sizeof packet, fds, &count);
    if (n == -EAGAIN) return;
    loop_unwatch(&b->loop, w);
    w->fd = -1;
    int code = n > 0 ? greeting(b, packet, (size_t)n, count, &seq, &epoch) : -1;
    if (code) {
        if (code > 0) refuse(fd, seq, code);
        close(fd);
    } else {
        int room = 4 << 20;
        link_drop(b);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
        b->link.watch = (struct watch){fd, link_ready};
        b->link.epoch = epoch;
        loop_watch(&b->loop, &b->link.watch, EPOLLIN);
        loop_cancel(&b->loop, &b->orphan);
        if (!handle(b, packet, (size_t)n, fds, count)) link_drop(b);
    }
    for (unsigned k = 0; k < count; k++)
        if (fds[k] >= 0) close(fds[k]);
}

void link_accept(struct broker *b, int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        (peer.uid != b->host->gateway_uid && peer.uid != 0)) {
        close(fd);
        return;
    }
    if (b->pending.fd >= 0) {
        loop_unwatch(&b->loop, &b->pending);
        close(b->pending.fd);
    }
    b->pending = (struct watch){fd, pending_ready};
    loop_watch(&b->loop, &b->pending, EPOLLIN);
}
