#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto.h"
#include "spawner.h"

void ring_init(struct ring *r, uint64_t head, uint64_t tail) {
    *r = (struct ring){.head = head, .tail = tail, .fd = -1};
}

void ring_free(struct ring *r) {
    if (r->header) munmap(r->header, SKH_RING_HEADER);
    if (r->fd >= 0) close(r->fd);
    free(r->small);
    *r = (struct ring){.fd = -1};
}

static int write_at(int fd, const uint8_t *data, size_t length, uint64_t at) {
    while (length) {
        ssize_t n = pwrite(fd, data, length, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? -errno : -EIO;
        data += n, at += (uint64_t)n, length -= (size_t)n;
    }
    return 0;
}

/* Put bytes [from, from + length) of the stream where the layout wants them; what the tail would overwrite within this
 * very piece is not written at all. */
static int place(struct ring *r, const uint8_t *data, size_t length, uint64_t from) {
    if (from < r->head) {
        size_t n = length < r->head - from ? length : (size_t)(r->head - from);
        int e = write_at(r->fd, data, n, SKH_RING_HEADER + from);
        if (e) return e;
        data += n, length -= n, from += n;
    }
    if (!length || !r->tail) return 0;
    if (length > r->tail) {
        size_t skip = length - (size_t)r->tail;
        data += skip, length -= skip, from += skip;
    }
    while (length) {
        uint64_t at = (from - r->head) % r->tail;
        size_t n = length < r->tail - at ? length : (size_t)(r->tail - at);
        int e = write_at(r->fd, data, n, SKH_RING_HEADER + r->head + at);
        if (e) return e;
        data += n, length -= n, from += n;
    }
    return 0;
}

static int spill(struct ring *r) {
    if (r->fd >= 0) return 0;
    int fd = memfd_create("stokehold-stream", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -errno;
    if (ftruncate(fd, (off_t)(SKH_RING_HEADER + r->head + r->tail)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        int e = -errno;
        close(fd);
        return e;
    }
    r->fd = fd;
    int e = r->total ? place(r, r->small, (size_t)r->total, 0) : 0;
    free(r->small);
    r->small = NULL;
    return e;
}

int ring_put(struct ring *r, const void *data, size_t length) {
    if (r->fd < 0 && r->total + length <= RING_SMALL && r->total + length <= r->head + r->tail) {
        if (!r->small && !(r->small = malloc(RING_SMALL))) return -ENOMEM;
        memcpy(r->small + r->total, data, length);
        r->total += length;
        return 0;
    }
    int e = spill(r);
    if (r->header) {  /* a reader must know which bytes are about to change before the first of them does */
        __atomic_store_n(&r->header[4], r->total + length, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    if (!e) e = place(r, data, length, r->total);
    r->total += length;
    if (r->header) __atomic_store_n(&r->header[0], r->total, __ATOMIC_RELEASE);
    return e;
}

void ring_count(struct ring *r, size_t length) {
    r->total += length;
    if (r->header) __atomic_store_n(&r->header[0], r->total, __ATOMIC_RELEASE);
}

void ring_close(struct ring *r) {
    if (r->header) __atomic_store_n(&r->header[1], 1, __ATOMIC_RELEASE);
}

int ring_open(struct ring *r) {
    int e = spill(r);
    if (e) return e;
    if (!r->header) {
        void *page = mmap(NULL, SKH_RING_HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
        if (page == MAP_FAILED) return -errno;
        r->header = page;
        r->header[2] = r->head;
        r->header[3] = r->tail;
        r->header[4] = r->total;
        __atomic_store_n(&r->header[0], r->total, __ATOMIC_RELEASE);
    }
    return r->fd;
}

uint64_t ring_kept_head(const struct ring *r) { return r->total < r->head ? r->total : r->head; }

uint64_t ring_kept_tail(const struct ring *r) {
    uint64_t rest = r->total - ring_kept_head(r);
    return rest < r->tail ? rest : r->tail;
}

int ring_copy(const struct ring *r, uint8_t *out) {
    uint64_t head = ring_kept_head(r), tail = ring_kept_tail(r);
    if (r->fd < 0) {
        if (head + tail) memcpy(out, r->small, (size_t)(head + tail));
        return 0;
    }
    uint64_t done = 0;
    while (done < head + tail) {
        uint64_t at, room;
        if (done < head) {
            at = done, room = head - done;
        } else {
            uint64_t in_tail = (r->total - tail - r->head + (done - head)) % r->tail;
            at = r->head + in_tail, room = r->tail - in_tail;
        }
        if (room > head + tail - done) room = head + tail - done;
        ssize_t n = pread(r->fd, out + done, (size_t)room, (off_t)(SKH_RING_HEADER + at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? -errno : -EIO;
        done += (uint64_t)n;
    }
    return 0;
}
