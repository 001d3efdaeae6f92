/* A hash table from a 64-bit number or a short text to a pointer. Open addressing, grows; aborts when memory is gone. */
#ifndef STOKEHOLD_TABLE_H
#define STOKEHOLD_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct table_slot { uint64_t hash; const char *text; /* points into the value, or NULL for numbers */ uint64_t number; void *value; };
struct table { struct table_slot *slots; size_t size, used, filled; };

void *table_get(const struct table *t, uint64_t number);
void table_set(struct table *t, uint64_t number, void *value);
void *table_drop(struct table *t, uint64_t number);
void *table_get_text(const struct table *t, const char *text);
void table_set_text(struct table *t, const char *text, void *value);
void *table_drop_text(struct table *t, const char *text);

#endif
