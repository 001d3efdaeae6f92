/* One collected stream: counts every byte, keeps a head and a tail. Small outputs stay in the process's memory; larger ones,
 * and those that the gateway opens, live in a memfd laid out as PROTOCOL.md says. Knows nothing of pipes or processes. */
#ifndef STOKEHOLD_RING_H
#define STOKEHOLD_RING_H

#include <stddef.h>
#include <stdint.h>

#define RING_SMALL 4096u

struct ring {
    uint64_t total;            /* bytes seen */
    uint64_t head, tail;       /* capacities */
    int fd;                    /* memfd, or -1 while `small` holds everything */
    uint64_t *header;          /* the memfd's first page, mapped once it was opened by a reader */
    uint8_t *small;
};

void ring_init(struct ring *r, uint64_t head, uint64_t tail);
void ring_free(struct ring *r);
int ring_put(struct ring *r, const void *data, size_t length);   /* 0 or -errno (no memory for the memfd) */
void ring_count(struct ring *r, size_t length);                  /* seen, not kept: only when past the head of a ring without tail */
void ring_close(struct ring *r);                                 /* tells readers that nothing follows */
int ring_open(struct ring *r);                                   /* a read-only descriptor for a reader, or -errno */
uint64_t ring_kept_head(const struct ring *r);
uint64_t ring_kept_tail(const struct ring *r);
int ring_copy(const struct ring *r, uint8_t *out);               /* head then tail, as kept; 0 or -errno */

#endif
