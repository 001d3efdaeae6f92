/* Going through a sandbox's directory tree, for the file helper: list, archive, delete. The tree may be hostile and may change meanwhile: no link
 * is followed, nothing recurses, depth, names and counts are bounded, and ".." is never used. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

#define DEPTH_MAX 200u         /* one descriptor each */
#define LIST_MAX 100000u
#define ARCHIVE_MAX 1000000u
#define DELETE_DEPTH 64
#define PASSES_MAX 4096        /* of a delete that still makes progress */

struct level { int fd; char **names; size_t count, next, prefix; };
struct walk {
    struct level levels[DEPTH_MAX];
    unsigned depth;
    char path[PATH_ROOM];      /* relative to where it began, of the entry at hand */
    uint64_t seen, seen_max;
};

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

static void leave(struct walk *w) {
    struct level *l = &w->levels[--w->depth];
    for (size_t i = 0; i < l->count; i++) free(l->names[i]);
    free(l->names);
    close(l->fd);
}

/* Read all names of the directory `fd` (taken over), sorted. */
static int into(struct walk *w, int fd, size_t prefix) {
    struct level *l = &w->levels[w->depth];
    size_t room = 0;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0), e = 0;
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        e = -errno;
        if (copy >= 0) close(copy);
        close(fd);
        return e;
    }
    *l = (struct level){.fd = fd, .prefix = prefix};
    w->depth++;
    for (struct dirent *d; errno = 0, (d = readdir(dir));) {
        if (dots(d->d_name)) continue;
        if (++w->seen > w->seen_max) { e = -E2BIG; break; }
        if (l->count == room) {
            char **more = realloc(l->names, (room = room ? 2 * room : 64) * sizeof *more);
            if (!more) abort();
            l->names = more;
        }
        if (!(l->names[l->count++] = strdup(d->d_name))) abort();
    }
    if (!e && errno) e = -errno;
    closedir(dir);
    if (l->count) qsort(l->names, l->count, sizeof *l->names, by_name);
    return e;
}

/* The next entry in order, parents before children: its directory and name, and w->path. False at the end. */
static bool next_entry(struct walk *w, int *dir, const char **name) {
    while (w->depth) {
        struct level *l = &w->levels[w->depth - 1];
        if (l->next == l->count) {
            leave(w);
            continue;
        }
        const char *n = l->names[l->next++];
        size_t length = strlen(n);
        if (l->prefix + length + 1 >= sizeof w->path) continue; /* no path names it */
        memcpy(w->path + l->prefix, n, length + 1);
        *dir = l->fd;
        *name = n;
        return true;
    }
    return false;
}

/* Into the directory that next_entry just gave. 0 if it is not to be entered: gone, another file system, too deep. */
static int descend(struct walk *w, int dir, const char *name) {
    size_t length = strlen(w->path);
    if (w->depth == DEPTH_MAX || length + 2 >= sizeof w->path) return -ENAMETOOLONG;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
    if (!paths_ordinary(fd)) {
        close(fd);
        return 0;
    }
    memcpy(w->path + length, "/", 2);
    return into(w, fd, length + 1);
}

static int begin(struct walk *w, const struct fileop_child *f, uint64_t seen_max) {
    int fd = paths_open(f->root, f->ask->path, O_RDONLY | O_DIRECTORY, 0, RESOLVE_IN_ROOT);
    if (fd < 0) return fd;
    if (!paths_ordinary(fd)) return -EACCES;
    w->seen_max = seen_max;
    return into(w, fd, 0);
}

int walk_list(const struct fileop_child *f, uint64_t *size) {
    static struct walk w;
    static char buffer[128 << 10];
    static struct shown entry;
    size_t fill = 0;
    int dir, e = begin(&w, f, LIST_MAX);
    for (const char *name; !e && next_entry(&w, &dir, &name);) {
        if ((e = files_describe(dir, name, w.path, &entry, NULL)) == -ENOENT) {
            e = 0;
            continue;
        }
        if (e) break;
        if (fill + shown_length(&entry) > sizeof buffer) {
            e = paths_write(f->data, buffer, fill);
            fill = 0;
        }
        memcpy(buffer + fill, &entry, shown_length(&entry));
        fill += shown_length(&entry);
        ++*size;
        if (!e && S_ISDIR(entry.entry.type) && w.depth < f->ask->depth) {
            e = descend(&w, dir, name);
            if (e == -EACCES || e == -ENAMETOOLONG) e = 0; /* what it holds is not for this user, or has no name */
        }
    }
    return e ? e : paths_write(f->data, buffer, fill);
}

static int archive_file(struct tar_out *out, int dir, const char *name, const char *path) {
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ELOOP ? 0 : -errno;
    int e = fstat(fd, &st) < 0 ? -errno : 0;
    if (!e && S_ISREG(st.st_mode)) {
        e = tar_entry(out, path, &st, "");
        if (!e) e = tar_data(out, fd, (uint64_t)st.st_size);
    }
    close(fd);
    return e;
}

static int archive_one(struct walk *w, struct tar_out *out, int dir, const char *name) {
    static struct shown entry;
    struct stat st;
    int e = files_describe(dir, name, w->path, &entry, &st);
    if (e) return e == -ENOENT ? 0 : e;
    if (S_ISREG(st.st_mode)) return archive_file(out, dir, name, w->path);
    if (S_ISLNK(st.st_mode)) {
        entry.text[entry.entry.path_length + entry.entry.target_length] = 0;
        return tar_entry(out, w->path, &st, entry.text + entry.entry.path_length);
    }
    if (!S_ISDIR(st.st_mode)) return 0; /* FIFOs, sockets and devices are not content */
    e = tar_entry(out, w->path, &st, "");
    return e ? e : descend(w, dir, name);
}

int walk_archive(const struct fileop_child *f, uint64_t *size) {
    static struct walk w;
    static struct tar_out out;
    int dir, e = begin(&w, f, ARCHIVE_MAX);
    const char *name;
    out.fd = f->data;
    out.limit = f->ask->limit;
    if (e == -ENOTDIR) { /* one file, under its own name */
        struct stat st;
        dir = paths_parent(f->root, f->ask->path, false, RESOLVE_IN_ROOT, &name);
        if (dir < 0) return dir;
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return -errno;
        e = S_ISREG(st.st_mode) ? archive_file(&out, dir, name, name) : -EINVAL;
    }
    while (!e && next_entry(&w, &dir, &name)) e = archive_one(&w, &out, dir, name);
    if (!e) e = tar_end(&out);
    *size = out.written;
    return e;
}

static int set_aside(int dir, const char *name, int top) {
    uint64_t random;
    char aside[32];
    if (getrandom(&random, sizeof random, 0) != sizeof random) return -EIO;
    snprintf(aside, sizeof aside, ".stokehold-%016llx", (unsigned long long)random);
    return renameat(dir, name, top, aside) < 0 ? -errno : 0;
}

struct below { int fd; DIR *dir; char name[256]; };

/* One pass over the tree: everything that can go goes; what lies too deep is moved up for the next pass. */
static int delete_pass(struct below *stack, int depth_max, uint64_t *progress) {
    int depth = 1, e = 0;
    while (depth && !e) {
        struct below *b = &stack[depth - 1];
        struct dirent *d = readdir(b->dir);
        if (!d) {
            if (--depth == 0) break;
            closedir(b->dir);
            if (unlinkat(stack[depth - 1].fd, b->name, AT_REMOVEDIR) == 0) ++*progress;
            else if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) e = -errno;
            continue;
        }
        if (dots(d->d_name)) continue;
        if (unlinkat(b->fd, d->d_name, 0) == 0) {
            ++*progress;
        } else if (errno == ENOENT) {
            continue;
        } else if (errno != EISDIR) {
            e = -errno;
        } else if (depth == depth_max) {
            e = set_aside(b->fd, d->d_name, stack[0].fd);
            ++*progress;
        } else {
            struct below *next = &stack[depth];
            next->fd = openat(b->fd, d->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
            if (next->fd < 0) e = errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
            else if (!paths_ordinary(next->fd)) e = -EBUSY;
            else if (!(next->dir = fdopendir(next->fd))) e = -errno;
            else strcpy(next->name, d->d_name), depth++;
        }
    }
    return e;
}

int walk_delete(int dir, const char *name) {
    static struct below stack[DELETE_DEPTH];
    for (int pass = 0; pass < PASSES_MAX; pass++) {
        uint64_t progress = 0;
        stack[0].fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (stack[0].fd < 0) return -errno;
        if (!paths_ordinary(stack[0].fd)) return -EBUSY;
        if (!(stack[0].dir = fdopendir(stack[0].fd))) return -errno;
        int e = delete_pass(stack, DELETE_DEPTH, &progress);
        if (e) return e; /* the process ends: so do its descriptors */
        closedir(stack[0].dir);
        if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return 0;
        if (errno != ENOTEMPTY && errno != EEXIST) return -errno;
        if (!progress) return -ENOTEMPTY;
    }
    return -ENOTEMPTY;
}
