/* Extracts a tar (ustar, pax, GNU long names) below a directory of a sandbox, as one of its users. The archive may be hostile and so may
 * the tree: no name leaves the directory, links are made last and never followed on the way, devices are left out. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enter.h"

#define BLOCK 512u
#define EXTENDED_MAX (64u << 10)
#define LATER_MAX (64u << 20)      /* bytes of names kept for the end */

struct member { char path[PATH_ROOM], target[PATH_ROOM]; uint64_t size; bool has_path, has_target, has_size; char type; mode_t mode; time_t mtime; };
struct later { struct later *next; char type; mode_t mode; time_t mtime; char *target; char path[]; };
struct state {
    struct tar_in *in;
    int target;
    uint64_t resolve;
    char parent[PATH_ROOM];        /* of the last member, and its directory: most members follow their siblings */
    int parent_fd;
    struct later *links, *hard_links, *directories;
    size_t kept;
};

static int take(struct tar_in *in, void *to, size_t length, size_t *got) {
    *got = 0;
    if (in->fd < 0) {
        *got = in->left < length ? in->left : length;
        memcpy(to, in->data, *got);
        in->data += *got;
        in->left -= *got;
        return 0;
    }
    while (*got < length) {
        ssize_t n = paths_read(in->fd, in->at, (char *)to + *got, length - *got);
        if (n <= 0) return (int)n;
        *got += (size_t)n;
    }
    return 0;
}

static int take_all(struct tar_in *in, void *to, size_t length) {
    size_t got;
    int e = take(in, to, length, &got);
    return e ? e : got == length ? 0 : -EBADMSG;
}

/* `size` bytes of data and their padding, written to `fd` unless that is -1. */
static int pass(struct tar_in *in, int fd, uint64_t size) {
    static char buffer[256 << 10];
    uint64_t padded = (size + BLOCK - 1) & ~(uint64_t)(BLOCK - 1);
    if (padded < size) return -EBADMSG;
    while (padded) {
        size_t n = padded < sizeof buffer ? (size_t)padded : sizeof buffer, data = size < n ? (size_t)size : n;
        int e = take_all(in, buffer, n);
        if (!e && fd >= 0) e = paths_write(fd, buffer, data);
        if (e) return e;
        padded -= n;
        size -= data;
    }
    return 0;
}

/* Octal with blanks around it, or GNU's big-endian binary with the top bit set. */
static bool number(const unsigned char *field, size_t size, uint64_t *out) {
    uint64_t v = 0;
    size_t i = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80) return false; /* negative, or beyond 64 bits */
        for (i = 1; i < size; i++) {
            if (v >> 56) return false;
            v = v << 8 | field[i];
        }
        *out = v;
        return true;
    }
    while (i < size && field[i] == ' ') i++;
    for (; i < size && field[i] && field[i] != ' '; i++) {
        if (field[i] < '0' || field[i] > '7' || v >> 60) return false;
        v = v << 3 | (uint64_t)(field[i] - '0');
    }
    *out = v;
    return true;
}

static bool checksum(const unsigned char *block) {
    uint64_t wanted;
    unsigned sum = 0;
    for (size_t i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : block[i];
    return number(block + 148, 8, &wanted) && sum == wanted;
}

static bool copy(char to[PATH_ROOM], const char *from, size_t length) {
    if (length >= PATH_ROOM || memchr(from, 0, length)) return false;
    memcpy(to, from, length);
    to[length] = 0;
    return true;
}

static bool extended(const char *data, size_t length, struct member *m) {
    while (length) {
        size_t n = 0, digits = 0;
        while (digits < length && data[digits] >= '0' && data[digits] <= '9' && digits < 8) n = n * 10 + (size_t)(data[digits++] - '0');
        if (!digits || digits == length || data[digits] != ' ' || n <= digits + 2 || n > length || data[n - 1] != '\n') return false;
        const char *key = data + digits + 1, *end = data + n - 1, *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals) return false;
        size_t key_length = (size_t)(equals - key), value_length = (size_t)(end - equals - 1);
        if (key_length == 4 && !memcmp(key, "path", 4)) {
            if (!(m->has_path = copy(m->path, equals + 1, value_length))) return false;
        } else if (key_length == 8 && !memcmp(key, "linkpath", 8)) {
            if (!(m->has_target = copy(m->target, equals + 1, value_length))) return false;
        } else if (key_length == 4 && !memcmp(key, "size", 4)) {
            m->size = 0;
            if (!value_length || value_length > 19) return false;
            for (const char *c = equals + 1; c < end; c++) {
                if (*c < '0' || *c > '9') return false;
                m->size = m->size * 10 + (uint64_t)(*c - '0');
            }
            m->has_size = true;
        }
        data += n;
        length -= n;
    }
    return true;
}

/* The next member's header, with what precedes it. 1: there is one, 0: the end. */
static int next_member(struct tar_in *in, struct member *m) {
    unsigned char b[BLOCK];
    static char data[EXTENDED_MAX + BLOCK];
    size_t got;
    memset(m, 0, sizeof *m);
    for (;;) {
        uint64_t size, mode, mtime;
        int e = take(in, b, BLOCK, &got);
        if (e) return e;
        if (!got) return 0;
        if (got < BLOCK) return -EBADMSG;
        bool zero = true;
        for (size_t i = 0; i < BLOCK && zero; i++) zero = !b[i];
        if (zero) return 0;
        if (!checksum(b) || !number(b + 124, 12, &size) || !number(b + 100, 8, &mode)) return -EBADMSG;
        char type = (char)b[156];
        if (type == 'x' || type == 'L' || type == 'K') {
            if (size > EXTENDED_MAX) return -EBADMSG;
            if ((e = take_all(in, data, (size_t)((size + BLOCK - 1) & ~(uint64_t)(BLOCK - 1))))) return e;
            size_t text = strnlen(data, (size_t)size);
            if (type == 'x' && !extended(data, (size_t)size, m)) return -EBADMSG;
            if (type == 'L' && !(m->has_path = copy(m->path, data, text))) return -EBADMSG;
            if (type == 'K' && !(m->has_target = copy(m->target, data, text))) return -EBADMSG;
            continue;
        }
        if (type == 'g') {
            if ((e = pass(in, -1, size))) return e;
            continue;
        }
        const char *name = (const char *)b, *prefix = (const char *)b + 345;
        size_t at = 0;
        if (!m->has_path) {
            if (!memcmp(b + 257, "ustar\0", 6) && *prefix) {
                at = strnlen(prefix, 155);
                memcpy(m->path, prefix, at);
                m->path[at++] = '/';
            }
            size_t n = strnlen(name, 100);
            memcpy(m->path + at, name, n);
            m->path[at + n] = 0;
        }
        if (!m->has_target) copy(m->target, (const char *)b + 157, strnlen((const char *)b + 157, 100));
        if (!m->has_size) m->size = size;
        m->type = type == 0 || type == '7' ? '0' : type;
        if (m->type == '0' && *m->path && m->path[strlen(m->path) - 1] == '/') m->type = '5'; /* before ustar */
        m->mode = (mode_t)mode & 0777;
        m->mtime = number(b + 136, 12, &mtime) && mtime <= INT64_MAX ? (time_t)mtime : 0;
        return 1;
    }
}

/* Relative, without "." and empty components; false if it climbs. "" is the directory itself. */
static bool normalize(char *path) {
    char *to = path;
    for (const char *at = path; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 2 && at[0] == '.' && at[1] == '.') return false;
        if (n && !(n == 1 && at[0] == '.')) {
            if (to != path) *to++ = '/';
            memmove(to, at, n);
            to += n;
        }
        at += n;
        at += strspn(at, "/");
    }
    *to = 0;
    return true;
}

/* The directory that holds `path`, and the last name. The descriptor belongs to the state. */
static int parent(struct state *s, const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    *name = slash ? slash + 1 : path;
    if (strlen(*name) > NAME_MAX) return -ENAMETOOLONG;
    if (s->parent_fd >= 0 && strlen(s->parent) == n && !memcmp(s->parent, path, n)) return s->parent_fd;
    if (s->parent_fd >= 0) close(s->parent_fd);
    memcpy(s->parent, path, n);
    s->parent[n] = 0;
    s->parent_fd = paths_parent(s->target, path, true, s->resolve, name);
    return s->parent_fd;
}

/* Anything but a directory makes way. */
static int make_way(int dir, const char *name) { return unlinkat(dir, name, 0) < 0 && errno != ENOENT ? -errno : 0; }

static int regular(struct state *s, const struct member *m) {
    const char *name;
    int dir = parent(s, m->path, &name), flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, e;
    if (dir < 0) return dir;
    int fd = openat(dir, name, flags, 0600);
    if (fd < 0 && errno == EEXIST) {
        if ((e = make_way(dir, name))) return e;
        fd = openat(dir, name, flags, 0600);
    }
    if (fd < 0) return -errno;
    e = pass(s->in, fd, m->size);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = m->mtime}};
    if (!e && fchmod(fd, m->mode) < 0) e = -errno;
    if (!e) futimens(fd, times);
    close(fd);
    return e;
}

static int remember(struct state *s, struct later **list, const struct member *m) {
    size_t path = strlen(m->path) + 1, target = strlen(m->target) + 1;
    s->kept += sizeof(struct later) + path + target;
    if (s->kept > LATER_MAX) return -E2BIG;
    struct later *l = malloc(sizeof *l + path + target);
    if (!l) return -ENOMEM;
    *l = (struct later){*list, m->type, m->mode, m->mtime, l->path + path};
    memcpy(l->path, m->path, path);
    memcpy(l->target, m->target, target);
    *list = l;
    return 0;
}

static int directory(struct state *s, const struct member *m) {
    const char *name;
    struct stat st;
    int dir = parent(s, m->path, &name);
    if (dir < 0) return dir;
    if (mkdirat(dir, name, 0700) == 0) return remember(s, &s->directories, m);
    if (errno != EEXIST) return -errno;
    int there = paths_open(s->target, m->path, O_PATH | O_DIRECTORY, 0, s->resolve); /* a link to one inside is as good */
    if (there >= 0) {
        close(there);
        return 0;
    }
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) return there;
    int e = make_way(dir, name);
    if (!e && mkdirat(dir, name, 0700) < 0) e = -errno;
    return e ? e : remember(s, &s->directories, m);
}

static int link_one(struct state *s, const struct later *l) {
    const char *name, *from_name;
    char from[PATH_ROOM];
    int dir = parent(s, l->path, &name), source = -1;
    if (dir < 0) return dir;
    if (l->type == '1') {
        strcpy(from, l->target);
        if (!normalize(from) || !*from) return -EBADMSG;
        source = paths_parent(s->target, from, false, s->resolve, &from_name);
        if (source < 0) return source;
    }
    int e = 0;
    for (int tries = 0; tries < 2; tries++) {
        int done = l->type == '1' ? linkat(source, from_name, dir, name, 0) : symlinkat(l->target, dir, name);
        e = done < 0 ? -errno : 0;
        if (e != -EEXIST || (e = make_way(dir, name))) break;
    }
    if (source >= 0) close(source);
    return e;
}

static int finish(struct state *s) {
    int e = 0;
    for (struct later *l = s->links; l && !e; l = l->next) e = link_one(s, l);
    for (struct later *l = s->hard_links; l && !e; l = l->next) e = link_one(s, l);
    for (struct later *l = s->directories; l && !e; l = l->next) { /* the newest first: children before their parents */
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = l->mtime}};
        int fd = paths_open(s->target, l->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, s->resolve);
        if (fd < 0) continue; /* replaced meanwhile */
        futimens(fd, times);
        if (fchmod(fd, l->mode) < 0) e = -errno;
        close(fd);
    }
    return e;
}

static void forget(struct later *l) {
    while (l) {
        struct later *next = l->next;
        free(l);
        l = next;
    }
}

int untar(struct tar_in *in, int target, uint64_t resolve) {
    static struct member m;
    static struct state s;
    int e;
    s = (struct state){.in = in, .target = target, .resolve = resolve, .parent_fd = -1};
    while ((e = next_member(in, &m)) == 1) {
        if (!normalize(m.path)) { e = -EBADMSG; break; }
        uint64_t data = m.size;
        e = 0;
        if (!*m.path) e = 0;
        else if (m.type == '0') e = regular(&s, &m), data = 0;
        else if (m.type == '5') e = directory(&s, &m), data = 0;
        else if (m.type == '2') e = remember(&s, &s.links, &m), data = 0;
        else if (m.type == '1') e = remember(&s, &s.hard_links, &m), data = 0;
        else if (m.type == 'S') e = -EBADMSG; /* GNU sparse: its data is not what its size says */
        if (!e) e = pass(in, -1, data);
        if (e) break;
    }
    if (!e) e = finish(&s);
    if (s.parent_fd >= 0) close(s.parent_fd);
    forget(s.links);
    forget(s.hard_links);
    forget(s.directories);
    return e;
}
