/* The bounded reader and the writer of the message protocol. Everything read here comes from outside: no field is trusted
 * before its length was checked against what is left, and nothing is read twice. */
#include "proto.h"

#include <stdlib.h>
#include <string.h>

static uint16_t le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t le32(const uint8_t *p) { return (uint32_t)le16(p) | (uint32_t)le16(p + 2) << 16; }
static uint64_t le64(const uint8_t *p) { return (uint64_t)le32(p) | (uint64_t)le32(p + 4) << 32; }

void skh_reader_init(struct skh_reader *r, const void *data, size_t length) {
    r->at = data;
    r->end = r->at + length;
    r->broken = false;
}

bool skh_next(struct skh_reader *r, struct skh_field *f) {
    if (r->broken || r->at == r->end) return false;
    if ((size_t)(r->end - r->at) < 8) { r->broken = true; return false; }
    f->tag = le16(r->at);
    f->length = le32(r->at + 4);
    r->at += 8;
    if ((size_t)(r->end - r->at) < f->length) { r->broken = true; return false; }
    f->data = r->at;
    r->at += f->length;
    return true;
}

bool skh_u32(const struct skh_field *f, uint32_t *out) {
    if (f->length != 4) return false;
    *out = le32(f->data);
    return true;
}

bool skh_u64(const struct skh_field *f, uint64_t *out) {
    if (f->length != 8) return false;
    *out = le64(f->data);
    return true;
}

bool skh_text(const struct skh_field *f, char *out, size_t size) {
    if (f->length >= size || memchr(f->data, 0, f->length)) return false;
    memcpy(out, f->data, f->length);
    out[f->length] = 0;
    return true;
}

bool skh_id(const struct skh_field *f, char out[SKH_ID_MAX + 1]) {
    if (f->length < 8 || f->length > SKH_ID_MAX) return false;
    for (uint32_t i = 0; i < f->length; i++) {
        uint8_t c = f->data[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) return false;
        out[i] = (char)c;
    }
    out[f->length] = 0;
    return true;
}

bool skh_packet_open(struct skh_walk *w, const void *data, size_t length, unsigned fds) {
    const uint8_t *p = data;
    w->broken = true;
    if (length < sizeof(struct skh_packet) || length > SKH_PACKET_MAX) return false;
    if (le32(p) != SKH_MAGIC || le16(p + 4) != SKH_VERSION || le32(p + 8) != length) return false;
    w->left = le16(p + 6);
    w->at = p + sizeof(struct skh_packet);
    w->end = p + length;
    w->fds_left = fds;
    w->broken = false;
    return true;
}

bool skh_packet_next(struct skh_walk *w, struct skh_frame *f, const uint8_t **payload) {
    if (w->broken) return false;
    if (w->left == 0) {
        w->broken = w->at != w->end || w->fds_left != 0;
        return false;
    }
    if ((size_t)(w->end - w->at) < sizeof *f) { w->broken = true; return false; }
    f->op = le16(w->at);
    f->flags = le16(w->at + 2);
    f->length = le32(w->at + 4);
    f->seq = le64(w->at + 8);
    f->fds = le16(w->at + 16);
    f->reserved = 0;
    f->reserved2 = 0;
    w->at += sizeof *f;
    bool memfd = f->flags & SKH_F_MEMFD;
    if ((size_t)(w->end - w->at) < f->length || f->fds > w->fds_left || (memfd && (f->fds == 0 || f->length != 0))) {
        w->broken = true;
        return false;
    }
    *payload = w->at;
    w->at += f->length;
    w->fds_left -= f->fds;
    w->left--;
    return true;
}

void skh_buf_free(struct skh_buf *b) {
    free(b->data);
    *b = (struct skh_buf){0};
}

void skh_put(struct skh_buf *b, const void *data, size_t length) {
    if (b->length + length > b->size) {
        size_t size = b->size ? b->size : 256;
        while (size < b->length + length) size *= 2;
        uint8_t *grown = realloc(b->data, size);
        if (!grown) abort();
        b->data = grown;
        b->size = size;
    }
    if (length) memcpy(b->data + b->length, data, length);
    b->length += length;
}

static void put_head(struct skh_buf *b, uint16_t tag, uint32_t length) {
    uint8_t head[8] = {(uint8_t)tag, (uint8_t)(tag >> 8), 0, 0,
                       (uint8_t)length, (uint8_t)(length >> 8), (uint8_t)(length >> 16), (uint8_t)(length >> 24)};
    skh_put(b, head, sizeof head);
}

void skh_put_field(struct skh_buf *b, uint16_t tag, const void *data, size_t length) {
    put_head(b, tag, (uint32_t)length);
    skh_put(b, data, length);
}

void skh_put_u32(struct skh_buf *b, uint16_t tag, uint32_t v) {
    uint8_t le[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    skh_put_field(b, tag, le, sizeof le);
}

void skh_put_u64(struct skh_buf *b, uint16_t tag, uint64_t v) {
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(v >> (8 * i));
    skh_put_field(b, tag, le, sizeof le);
}

void skh_put_text(struct skh_buf *b, uint16_t tag, const char *text) { skh_put_field(b, tag, text, strlen(text)); }

size_t skh_nest(struct skh_buf *b, uint16_t tag) {
    put_head(b, tag, 0);
    return b->length;
}

void skh_unnest(struct skh_buf *b, size_t mark) {
    uint32_t length = (uint32_t)(b->length - mark);
    for (int i = 0; i < 4; i++) b->data[mark - 4 + i] = (uint8_t)(length >> (8 * i));
}
