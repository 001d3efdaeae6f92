/* Throws bytes at the message decoder. With libFuzzer (`make fuzz`), or alone (`make fuzz-check`: -DSTANDALONE) with mutations of
 * packets that are well-formed, from a fixed seed, so that a failure repeats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto.h"

#define CHECK(what) do { if (!(what)) abort(); } while (0)
#define NESTED_MAX 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every way in which the spawner looks at fields: nothing may lie outside the payload, and a broken reader says no more. */
static void read_fields(const uint8_t *data, size_t length, int depth) {
    struct skh_reader r;
    struct skh_field f;
    uint32_t u32;
    uint64_t u64;
    char text[64], id[SKH_ID_MAX + 1];
    size_t used = 0;
    skh_reader_init(&r, data, length);
    while (skh_next(&r, &f)) {
        CHECK(f.data >= data && f.data + f.length <= data + length);
        CHECK(skh_u32(&f, &u32) == (f.length == 4) && skh_u64(&f, &u64) == (f.length == 8));
        if (skh_text(&f, text, sizeof text)) CHECK(strlen(text) == f.length);
        if (skh_id(&f, id)) CHECK(strlen(id) >= 8 && strlen(id) == f.length);
        if (depth < NESTED_MAX) read_fields(f.data, f.length, depth + 1);
        used += 8 + f.length;
    }
    CHECK(r.broken || used == length);
    CHECK(!skh_next(&r, &f));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct skh_walk w;
    struct skh_frame f;
    const uint8_t *payload;
    if (!size) return 0;
    unsigned fds = data[0], taken = 0;
    /* A copy that ends where the packet ends, so that a byte too far is seen. */
    uint8_t *packet = malloc(size);
    CHECK(packet);
    memcpy(packet, data + 1, size - 1);
    if (skh_packet_open(&w, packet, size - 1, fds)) {
        while (skh_packet_next(&w, &f, &payload)) {
            CHECK(payload >= packet && payload + f.length <= packet + size - 1);
            CHECK(!(f.flags & SKH_F_MEMFD) || (f.fds && !f.length));
            taken += f.fds;
            read_fields(payload, f.length, 0);
        }
        CHECK(taken <= fds && (w.broken || taken == fds));
        CHECK(!skh_packet_next(&w, &f, &payload));
    }
    read_fields(packet, size - 1, 0);
    free(packet);
    return 0;
}

#ifdef STANDALONE
static uint64_t state = 0x9e3779b97f4a7c15u;
static uint32_t any(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

static void put_fields(struct skh_buf *b, int depth) {
    for (uint32_t n = any(6); n; n--) {
        uint8_t bytes[48];
        uint16_t tag = (uint16_t)any(70);
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)any(256);
        switch (any(depth < NESTED_MAX ? 5 : 4)) {
        case 0: skh_put_u32(b, tag, any(UINT32_MAX)); break;
        case 1: skh_put_u64(b, tag, (uint64_t)any(UINT32_MAX) << 13); break;
        case 2: skh_put_text(b, tag, "abcdefgh0123"); break;
        case 3: skh_put_field(b, tag, bytes, any(sizeof bytes)); break;
        default: {
            size_t mark = skh_nest(b, tag);
            put_fields(b, depth + 1);
            skh_unnest(b, mark);
        }
        }
    }
}

/* One packet as the gateway would send it, behind the byte that says how many descriptors came along. */
static void put_packet(struct skh_buf *out) {
    struct skh_packet head = {SKH_MAGIC, SKH_VERSION, (uint16_t)any(5), 0, 0};
    uint8_t fds = 0;
    out->length = 0;
    skh_put(out, &fds, 1);
    skh_put(out, &head, sizeof head);
    for (unsigned i = 0; i < head.frames; i++) {
        struct skh_buf fields = {0};
        bool memfd = any(4) == 0;
        if (!memfd) put_fields(&fields, 0);
        struct skh_frame f = {.op = (uint16_t)any(20), .flags = memfd ? SKH_F_MEMFD : 0, .length = (uint32_t)fields.length, .seq = i,
                              .fds = (uint16_t)(memfd + any(3))};
        fds = (uint8_t)(fds + f.fds);
        skh_put(out, &f, sizeof f);
        skh_put(out, fields.data, fields.length);
        skh_buf_free(&fields);
    }
    head.length = (uint32_t)(out->length - 1);
    out->data[0] = fds;
    memcpy(out->data + 1, &head, sizeof head);
}

static void mutate(struct skh_buf *b) {
    for (uint32_t n = any(4); n && b->length > 1; n--) {
        size_t at = any((uint32_t)b->length);
        switch (any(4)) {
        case 0: b->data[at] ^= (uint8_t)(1u << any(8)); break;
        case 1: b->data[at] = (uint8_t)any(256); break;
        case 2: memset(b->data + at, any(2) ? 0xff : 0, b->length - at < 4 ? b->length - at : 4); break;
        default: b->length = at + 1; break;
        }
    }
}

/* fuzz [ROUNDS [FILE]...] */
int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 200000;
    struct skh_buf b = {0};
    for (int i = 2; i < argc; i++) {
        static uint8_t file[SKH_PACKET_MAX + 2];
        FILE *in = fopen(argv[i], "rb");
        if (!in) return perror(argv[i]), 1;
        LLVMFuzzerTestOneInput(file, fread(file, 1, sizeof file, in));
        fclose(in);
    }
    for (unsigned long i = 0; i < rounds; i++) {
        put_packet(&b);
        if (i % 8) mutate(&b);
        LLVMFuzzerTestOneInput(b.data, b.length);
    }
    skh_buf_free(&b);
    printf("%lu packets\n", rounds);
    return 0;
}
#endif
