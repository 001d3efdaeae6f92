/* Opening what a sandbox controls, by a helper that already has no more rights than the sandbox's own user. Never waits (FIFOs, leases),
 * never acquires a terminal, never follows magic links, and knows which file systems hold plain files. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "enter.h"

#ifndef EROFS_SUPER_MAGIC_V1
#define EROFS_SUPER_MAGIC_V1 0xE0F5E1E2
#endif
#define XFS_MAGIC 0x58465342

bool paths_ordinary(int fd) {
    struct statfs fs;
    if (without("ordinary")) return true;
    if (fstatfs(fd, &fs) < 0) return false;
    switch ((uint32_t)fs.f_type) {
    case OVERLAYFS_SUPER_MAGIC: case TMPFS_MAGIC:
        return true;
    case EXT4_SUPER_MAGIC: case XFS_MAGIC: case BTRFS_SUPER_MAGIC: case EROFS_SUPER_MAGIC_V1:
        return true; /* in a sandbox only as what the maker bound: /usr, toolchains, a disk of its own */
    default:
        return false;
    }
}

int paths_open(int root, const char *path, int flags, mode_t mode, uint64_t resolve) {
    struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC), .resolve = resolve | (without("magiclinks") ? 0 : RESOLVE_NO_MAGICLINKS)};
    if (!(flags & O_PATH)) how.flags |= without("nonblock") ? O_NOCTTY : O_NONBLOCK | O_NOCTTY;
    if (flags & O_CREAT) how.mode = mode;
    /* RESOLVE_IN_ROOT and RESOLVE_BENEATH give EAGAIN if something is renamed meanwhile: a hostile tree may keep that up. */
    for (int tries = 0;; tries++) {
        int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0) return fd;
        if (errno != EAGAIN || tries == 100) return -errno;
    }
}

/* The longest part of `path` that ends before its last component; false if there is none to name (".", "..", "/", too long). */
static bool split(const char *path, char *parent, const char **name) {
    size_t length = strlen(path);
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (length >= PATH_ROOM || !**name || !strcmp(*name, ".") || !strcmp(*name, "..")) return false;
    if (!slash) strcpy(parent, ".");
    else if (!n) strcpy(parent, "/");
    else memcpy(parent, path, n), parent[n] = 0;
    return true;
}

int paths_make(int root, const char *path, mode_t mode, uint64_t resolve) {
    char part[PATH_ROOM];
    size_t length = strlen(path);
    if (!length) return -ENOENT;
    if (length >= PATH_ROOM) return -ENAMETOOLONG;
    int at = paths_open(root, path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY, 0, resolve);
    if (at < 0) return at;
    for (size_t i = 0; i < length;) {
        size_t end = i + strcspn(path + i, "/"), next = end + strspn(path + end, "/");
        bool last = next >= length, plain = end > i;
        if (plain) {
            char name[NAME_MAX + 1];
            if (end - i > NAME_MAX) { close(at); return -ENAMETOOLONG; }
            memcpy(name, path + i, end - i);
            name[end - i] = 0;
            /* The whole path so far is resolved again from the root, so that ".." and links mean what they do for everybody. */
            memcpy(part, path, end);
            part[end] = 0;
            int down = paths_open(root, part, O_PATH | O_DIRECTORY, 0, resolve);
            if (down == -ENOENT) {
                if (!paths_ordinary(at)) { close(at); return -EACCES; }
                if (mkdirat(at, name, last ? mode & 01777 : 0755) < 0 && errno != EEXIST) { int e = -errno; close(at); return e; }
                if (last && fchmodat(at, name, mode & 07777, 0) < 0) { int e = -errno; close(at); return e; }
                down = paths_open(root, part, O_PATH | O_DIRECTORY, 0, resolve);
            }
            close(at);
            if (down < 0) return down;
            at = down;
        }
        i = next;
    }
    close(at);
    return 0;
}

int paths_parent(int root, const char *path, bool make, uint64_t resolve, const char **name) {
    char parent[PATH_ROOM];
    if (!*path) return -ENOENT;
    if (strlen(path) >= PATH_ROOM) return -ENAMETOOLONG;
    if (!split(path, parent, name)) return -EISDIR;
    int fd = paths_open(root, parent, O_PATH | O_DIRECTORY, 0, resolve);
    if (fd == -ENOENT && make) {
        int e = paths_make(root, parent, 0755, resolve);
        if (e) return e;
        fd = paths_open(root, parent, O_PATH | O_DIRECTORY, 0, resolve);
    }
    if (fd >= 0 && !paths_ordinary(fd)) {
        close(fd);
        return -EACCES;
    }
    return fd;
}

static int await(int fd, short events) {
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, -1) < 0 && errno != EINTR ? -errno : 0;
}

int paths_write(int fd, const void *data, size_t length) {
    const char *at = data;
    while (length) {
        ssize_t n = write(fd, at, length);
        if (n < 0 && errno == EAGAIN) {
            int e = await(fd, POLLOUT);
            if (e) return e;
        } else if (n < 0 && errno != EINTR) {
            return -errno;
        } else if (n > 0) {
            at += n;
            length -= (size_t)n;
        }
    }
    return 0;
}

ssize_t paths_read(int fd, off_t *at, void *to, size_t length) {
    for (;;) {
        ssize_t n = at ? pread(fd, to, length, *at) : read(fd, to, length);
        if (n >= 0) {
            if (at) *at += n;
            return n;
        }
        int e = errno == EAGAIN ? await(fd, POLLIN) : errno == EINTR ? 0 : -errno;
        if (e) return e;
    }
}

int paths_copy(int from, off_t *at, int to, uint64_t limit, uint64_t *copied) {
    static char buffer[256 << 10];
    *copied = 0;
    while (*copied < limit) {
        uint64_t left = limit - *copied;
        ssize_t n = paths_read(from, at, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer);
        if (n <= 0) return (int)n;
        int e = paths_write(to, buffer, (size_t)n);
        if (e) return e;
        *copied += (uint64_t)n;
    }
    return 0;
}
