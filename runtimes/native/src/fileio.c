/* Reading, writing, moving and extracting, for the file helper. A written file appears whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

#define LINKS_MAX 20

/* The new file under its temporary name: removed if we are told to stop. */
static struct { int dir; char name[32]; } temporary = {.dir = -1};

static void undo(void) {
    if (temporary.dir >= 0) unlinkat(temporary.dir, temporary.name, 0);
}

static void cancelled(int signal) {
    (void)signal;
    undo();
    _exit(1);
}

static int regular_only(int fd, struct stat *st) {
    if (!paths_ordinary(fd)) return -EACCES;
    if (fstat(fd, st) < 0) return -errno;
    return S_ISREG(st->st_mode) ? 0 : S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL;
}

/* Looked at first and opened then: opening a FIFO or a device does something. Looked at again, since it may be another by now. */
static int open_regular(int root, const char *path, int flags, struct stat *st) {
    int fd = paths_open(root, path, O_PATH, 0, RESOLVE_IN_ROOT), e;
    if (fd < 0) return fd;
    e = regular_only(fd, st);
    close(fd);
    if (e && !without("look")) return e;
    fd = paths_open(root, path, flags, 0, RESOLVE_IN_ROOT);
    if (fd < 0) return fd;
    if ((e = regular_only(fd, st))) {
        close(fd);
        return e;
    }
    return fd;
}

int fileio_read(const struct fileop_child *f, struct shown *entry) {
    struct stat st;
    uint64_t copied;
    off_t at = (off_t)f->ask->offset;
    if (f->ask->offset > INT64_MAX) return -EINVAL;
    int fd = open_regular(f->root, f->ask->path, O_RDONLY, &st);
    if (fd < 0) return fd;
    int e = files_describe(fd, "", f->ask->path, entry, &st);
    if (e) return e;
    files_answer(f, 0, (uint64_t)st.st_size, entry); /* before the data: the gateway's headers need it */
    paths_copy(fd, &at, f->data, f->ask->length, &copied);
    _exit(0);
}

/* The broker's leave to let the file appear; without it we vanish and nothing was written. */
static void await_commit(const struct fileop_child *f) {
    char byte = 0;
    ssize_t n;
    do n = recv(f->talk, &byte, 1, 0);
    while (n < 0 && errno == EINTR);
    if (n != 1 || byte != 'C') {
        undo();
        _exit(1);
    }
}

/* Where `path` really is: its directory and last name, links followed by hand because the new file will take the place of the old one.
 * `st` describes what is there (st_mode 0: nothing). */
static int find_place(const struct fileop_child *f, char path[PATH_ROOM], const char **name, struct stat *st) {
    for (int links = 0; links < LINKS_MAX; links++) {
        char target[PATH_ROOM], next[2 * PATH_ROOM];
        int dir = paths_parent(f->root, path, f->ask->flags & FF_MKDIRS, RESOLVE_IN_ROOT, name);
        if (dir < 0) return dir;
        if (fstatat(dir, *name, st, AT_SYMLINK_NOFOLLOW) < 0) {
            int e = errno;
            st->st_mode = 0;
            if (e == ENOENT) return dir;
            close(dir);
            return -e;
        }
        if (!S_ISLNK(st->st_mode)) return dir;
        ssize_t n = readlinkat(dir, *name, target, sizeof target - 1);
        int e = errno;
        close(dir);
        if (n < 0) return -e;
        target[n] = 0;
        int length = target[0] == '/' ? snprintf(next, sizeof next, "%s", target)
                                      : snprintf(next, sizeof next, "%.*s%s", (int)(*name - path), path, target);
        if (length >= PATH_ROOM) return -ENAMETOOLONG;
        strcpy(path, next);
    }
    return -ELOOP;
}

static int replaceable(const struct stat *st) {
    return !st->st_mode || S_ISREG(st->st_mode) ? 0 : S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL;
}

static int open_temporary(int dir) {
    uint64_t random;
    for (int tries = 0; tries < 16; tries++) {
        if (getrandom(&random, sizeof random, 0) != sizeof random) return -EIO;
        snprintf(temporary.name, sizeof temporary.name, ".stokehold-%016llx", (unsigned long long)random);
        int fd = openat(dir, temporary.name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            temporary.dir = dir;
            return fd;
        }
        if (errno != EEXIST) return -errno;
    }
    return -EEXIST;
}

/* Collected beside the file first: what came of an append that broke off must not be in it. */
static int append(const struct fileop_child *f, int dir, const char *name, int collected, uint64_t *size, struct shown *entry) {
    const struct fileop_ask *a = f->ask;
    struct stat st;
    off_t at = 0;
    uint64_t copied;
    int fd = openat(dir, name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd < 0) return -errno;
    int e = regular_only(fd, &st);
    if (!e && a->flags & FF_HAS_MODE && fchmod(fd, a->mode & 07777) < 0) e = -errno;
    if (!e && collected < 0) return paths_copy(f->data, NULL, fd, UINT64_MAX, size); /* a test build's: straight from the gateway */
    if (!e && (e = paths_copy(collected, &at, fd, *size, &copied)) && ftruncate(fd, st.st_size) < 0) e = -errno;
    return e ? e : files_describe(fd, "", a->path, entry, NULL);
}

int fileio_write(const struct fileop_child *f, struct shown *entry, uint64_t *size) {
    static char path[PATH_ROOM];
    const char *name;
    struct stat st;
    const struct fileop_ask *a = f->ask;
    struct sigaction stop = {.sa_handler = cancelled};
    strcpy(path, a->path);
    int dir = find_place(f, path, &name, &st), e;
    if (dir < 0) return dir;
    if ((e = replaceable(&st))) return e;
    if (a->flags & FF_APPEND && without("beside")) return append(f, dir, name, -1, size, entry);
    sigaction(SIGTERM, &stop, NULL);
    int fd = open_temporary(dir);
    if (fd < 0) return fd;
    mode_t mode = a->flags & FF_HAS_MODE ? a->mode & 07777 : st.st_mode ? st.st_mode & 0777 : 0644;
    e = paths_copy(f->data, NULL, fd, UINT64_MAX, size);
    if (!e && fchmod(fd, mode) < 0) e = -errno;
    if (!e) await_commit(f);
    if (!e && a->flags & FF_APPEND) {
        e = append(f, dir, name, fd, size, entry);
        undo();
        temporary.dir = -1;
        close(fd);
        return e;
    }
    if (!e && renameat(dir, temporary.name, dir, name) < 0) e = -errno;
    if (e) undo();
    temporary.dir = -1;
    if (e) close(fd); /* what it took of the disk is free again before the answer goes out */
    return e ? e : files_describe(fd, "", a->path, entry, NULL);
}

/* Across the sandbox's file systems (/usr has its own): a copy takes the place of what was there, then the source goes. */
static int move_by_copy(int from, const char *name, int to, const char *new_name, const struct stat *st) {
    uint64_t copied;
    struct stat now;
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (!S_ISREG(st->st_mode)) return -EXDEV;
    int source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (source < 0) return -errno;
    int e = regular_only(source, &now), fd = e ? e : open_temporary(to);
    if (fd < 0) return fd;
    e = paths_copy(source, NULL, fd, UINT64_MAX, &copied);
    if (!e && fchown(fd, st->st_uid, st->st_gid) < 0 && errno != EPERM) e = -errno;
    if (!e && (fchmod(fd, st->st_mode & 07777) < 0 || futimens(fd, times) < 0)) e = -errno;
    if (!e && renameat(to, temporary.name, to, new_name) < 0) e = -errno;
    if (e) undo();
    temporary.dir = -1;
    close(fd);
    return e ? e : unlinkat(from, name, 0) < 0 ? -errno : 0;
}

int fileio_move(const struct fileop_child *f) {
    const char *name, *new_name;
    struct stat st;
    int from = paths_parent(f->root, f->ask->path, false, RESOLVE_IN_ROOT, &name);
    if (from < 0) return from;
    int to = paths_parent(f->root, f->ask->path2, f->ask->flags & FF_MKDIRS, RESOLVE_IN_ROOT, &new_name);
    if (to < 0) return to;
    if (renameat(from, name, to, new_name) == 0) return 0;
    if (errno != EXDEV) return -errno;
    return fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : move_by_copy(from, name, to, new_name, &st);
}

int fileio_extract(const struct fileop_child *f) {
    static char rest[4096];
    struct tar_in in = {.fd = f->data};
    const char *path = f->ask->path;
    int target = paths_open(f->root, path, O_PATH | O_DIRECTORY, 0, RESOLVE_IN_ROOT), e;
    if (target == -ENOENT) {
        if ((e = paths_make(f->root, path, 0755, RESOLVE_IN_ROOT))) return e;
        target = paths_open(f->root, path, O_PATH | O_DIRECTORY, 0, RESOLVE_IN_ROOT);
    }
    if (target < 0) return target;
    if (!paths_ordinary(target)) return -EACCES;
    /* At the root, absolute links on the way (/bin → /usr/bin) are to be followed; elsewhere they lead out of the directory. */
    e = untar(&in, target, !strcmp(path, "/") ? RESOLVE_IN_ROOT : RESOLVE_BENEATH);
    if (e) return e;
    while (paths_read(f->data, NULL, rest, sizeof rest) > 0) {} /* the padding after the end */
    await_commit(f);
    return 0;
}
