/* What the files of the file helper share: one operation, asked for and answered. */
#ifndef STOKEHOLD_FILES_H
#define STOKEHOLD_FILES_H

#include "enter.h"

struct fileop_ask {
    uint32_t fop, flags, mode, depth;
    uint64_t offset, length, limit;
    char path[PATH_ROOM], path2[PATH_ROOM], user[128];
};
struct fileop_child {
    const struct fileop_ask *ask;
    int talk, data, root;      /* data -1: the operation has no pipe */
};
struct shown { struct skh_entry entry; char text[2 * PATH_ROOM]; }; /* an entry as it goes out: length by shown_length() */

size_t shown_length(const struct shown *s);
/* `name` in `dir`, never followed ("" is `dir` itself), called `path`. 0 or -errno. `st` may be NULL. */
int files_describe(int dir, const char *name, const char *path, struct shown *out, struct stat *st);
void files_answer(const struct fileop_child *f, int error, uint64_t size, const struct shown *entry /* or NULL */);

/* All: 0 or -errno, and `size` and `entry` of the answer. Those that have answered already exit. */
int fileio_read(const struct fileop_child *f, struct shown *entry);
int fileio_write(const struct fileop_child *f, struct shown *entry, uint64_t *size);
int fileio_move(const struct fileop_child *f);
int fileio_extract(const struct fileop_child *f);
int walk_list(const struct fileop_child *f, uint64_t *size);
int walk_archive(const struct fileop_child *f, uint64_t *size);
int walk_delete(int dir, const char *name);

#endif
