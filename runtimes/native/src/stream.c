/* A command's collected output: from its pipe (or terminal) to its ring, counted byte by byte; the first byte over a limit that
 * kills ends the command. What is left behind after a command's end is still read, so that it never blocks on us. */
#include <errno.h>
#include <unistd.h>

#include "broker.h"

#define PIECE 65536u
#define PIECES 16  /* in one go, so that one loud program does not hold up the others */

void stream_tell(struct broker *b, struct stream *st) {
    struct skh_buf out = {0};
    skh_put_text(&out, T_PROC, st->process->id);
    skh_put_u32(&out, T_TARGET, st->target);
    skh_put_u64(&out, T_TOTAL, st->ring.total);
    skh_put_u32(&out, T_CLOSED, st->watch.fd < 0 && (st->process->executed || st->process->state == P_ENDED));
    link_send(b, SKH_EV_OUTPUT, 0, &out, -1);
}

void stream_close(struct broker *b, struct stream *st) {
    if (st->watch.fd < 0) return;
    loop_unwatch(&b->loop, &st->watch);
    close(st->watch.fd);
    st->watch.fd = -1;
    ring_close(&st->ring);
    if (st->watched) stream_tell(b, st);
}

static void take(struct broker *b, struct stream *st, const uint8_t *data, size_t length) {
    struct process *p = st->process;
    uint64_t room = st->kill_on_full && st->ring.total < st->limit ? st->limit - st->ring.total : 0;
    size_t keep = !st->kill_on_full || length <= room ? length : (size_t)room;
    if (keep && ring_put(&st->ring, data, keep)) process_kill(b, p, E_FAULT);
    if (keep < length) {
        ring_count(&st->ring, length - keep);
        if (p->ended == E_EXIT && p->state != P_ENDED && !without("output")) {
            p->ended = E_OUTPUT;
            if (!p->reaped) process_kill(b, p, E_OUTPUT);
        }
    }
}

void stream_drain(struct broker *b, struct stream *st) {
    static uint8_t piece[PIECE];
    struct process *p = st->process;
    uint64_t before = st->ring.total;
    if (st->watch.fd < 0) return;
    for (int i = 0; i < PIECES || p->reaped; i++) {
        ssize_t n = read(st->watch.fd, piece, sizeof piece);
        if (n > 0) {
            if (!(p->acknowledged && p->state == P_ENDED)) take(b, st, piece, (size_t)n);
            if (p->reaped && i > 64) break;  /* something left behind writes faster than we read */
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || errno != EAGAIN) stream_close(b, st);  /* EIO: a terminal's last user is gone */
        break;
    }
    if (st->ring.total == before) return;
    p->output_ns = now_ns();
    if (st->watched && st->watch.fd >= 0) stream_tell(b, st);
}
