#include "table.h"

#include <stdlib.h>
#include <string.h>

#define GONE ((void *)-1)

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static uint64_t hash_text(const char *s) {
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
    return mix(h);
}

static struct table_slot *find(const struct table *t, uint64_t hash, uint64_t number, const char *text) {
    if (!t->size) return NULL;
    for (size_t i = hash & (t->size - 1);; i = (i + 1) & (t->size - 1)) {
        struct table_slot *s = &t->slots[i];
        if (!s->value) return NULL;
        if (s->value == GONE || s->hash != hash) continue;
        if (text ? s->text && !strcmp(s->text, text) : s->number == number) return s;
    }
}

static void put(struct table *t, struct table_slot new) {
    size_t i = new.hash & (t->size - 1);
    while (t->slots[i].value && t->slots[i].value != GONE) i = (i + 1) & (t->size - 1);
    if (!t->slots[i].value) t->filled++;
    t->slots[i] = new;
    t->used++;
}

static void grow(struct table *t) {
    struct table old = *t;
    size_t size = 64;
    while (size < old.used * 4) size *= 2;
    *t = (struct table){.slots = calloc(size, sizeof *t->slots), .size = size};
    if (!t->slots) abort();
    for (size_t i = 0; i < old.size; i++)
        if (old.slots[i].value && old.slots[i].value != GONE) put(t, old.slots[i]);
    free(old.slots);
}

static void set(struct table *t, struct table_slot new) {
    struct table_slot *s = find(t, new.hash, new.number, new.text);
    if (s) { *s = new; return; }
    if ((t->filled + 1) * 4 > t->size * 3) grow(t);
    put(t, new);
}

static void *drop(struct table *t, struct table_slot *s) {
    if (!s) return NULL;
    void *value = s->value;
    s->value = GONE;
    s->text = NULL;
    t->used--;
    return value;
}

void *table_get(const struct table *t, uint64_t n) {
    struct table_slot *s = find(t, mix(n), n, NULL);
    return s ? s->value : NULL;
}
void table_set(struct table *t, uint64_t n, void *value) { set(t, (struct table_slot){mix(n), NULL, n, value}); }
void *table_drop(struct table *t, uint64_t n) { return drop(t, find(t, mix(n), n, NULL)); }
void *table_get_text(const struct table *t, const char *text) {
    struct table_slot *s = find(t, hash_text(text), 0, text);
    return s ? s->value : NULL;
}
void table_set_text(struct table *t, const char *text, void *value) {
    set(t, (struct table_slot){hash_text(text), text, 0, value});
}
void *table_drop_text(struct table *t, const char *text) { return drop(t, find(t, hash_text(text), 0, text)); }
