/* Writes a pax tar: ustar headers, with an extended header where a name, a link's target or a size does not fit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "enter.h"

#define BLOCK 512u

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, target[100], magic[6], version[2], uname[32],
        gname[32], major[8], minor[8], prefix[155], padding[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a tar header is one block");

static int flush(struct tar_out *out) {
    int e = paths_write(out->fd, out->buffer, out->fill);
    out->fill = 0;
    return e;
}

static int add(struct tar_out *out, const void *data, size_t length) {
    const char *at = data;
    while (length) {
        size_t n = sizeof out->buffer - out->fill;
        if (n > length) n = length;
        if (at) memcpy(out->buffer + out->fill, at, n), at += n;
        else memset(out->buffer + out->fill, 0, n);
        out->fill += n;
        out->written += n;
        length -= n;
        if (out->fill == sizeof out->buffer) {
            int e = flush(out);
            if (e) return e;
        }
    }
    return 0;
}

static size_t padding(uint64_t size) { return (size_t)(-size & (BLOCK - 1)); }

static void octal(char *field, size_t size, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%0*llo", (int)size - 1, (unsigned long long)value);
    memcpy(field, text, size); /* callers know that it fits */
}

static int add_header(struct tar_out *out, const char *name, char type, uint32_t mode, const struct stat *st, uint64_t size,
                      const char *target) {
    struct header h = {.type = type, .magic = "ustar", .version = {'0', '0'}};
    unsigned sum = 0;
    memcpy(h.name, name, strnlen(name, sizeof h.name));
    memcpy(h.target, target, strnlen(target, sizeof h.target));
    octal(h.mode, sizeof h.mode, mode & 07777);
    octal(h.uid, sizeof h.uid, st->st_uid & 07777777);
    octal(h.gid, sizeof h.gid, st->st_gid & 07777777);
    octal(h.size, sizeof h.size, size);
    octal(h.mtime, sizeof h.mtime, st->st_mtim.tv_sec < 0 ? 0 : (uint64_t)st->st_mtim.tv_sec & 077777777777);
    memset(h.checksum, ' ', sizeof h.checksum);
    for (size_t i = 0; i < sizeof h; i++) sum += ((const unsigned char *)&h)[i];
    octal(h.checksum, sizeof h.checksum - 1, sum);
    return add(out, &h, sizeof h);
}

/* "length key=value\n", where length counts itself. */
static size_t record(char *to, const char *key, const char *value) {
    size_t body = strlen(key) + strlen(value) + 3, length = body + 1;
    char digits[24];
    while (length != body + (size_t)snprintf(digits, sizeof digits, "%zu", length)) length++;
    return (size_t)sprintf(to, "%zu %s=%s\n", length, key, value);
}

int tar_entry(struct tar_out *out, const char *path, const struct stat *st, const char *target) {
    char name[PATH_ROOM + 2], extended[3 * PATH_ROOM], number[24];
    char type = S_ISDIR(st->st_mode) ? '5' : S_ISLNK(st->st_mode) ? '2' : '0';
    uint64_t size = type == '0' ? (uint64_t)st->st_size : 0;
    size_t length = 0;
    if (strlen(path) >= PATH_ROOM || strlen(target) >= PATH_ROOM) return -ENAMETOOLONG;
    if (size > UINT64_MAX / 4 || out->written + size + 4 * BLOCK > out->limit) return -EFBIG;
    snprintf(name, sizeof name, "%s%s", path, type == '5' ? "/" : "");
    if (strlen(name) > 100) length += record(extended + length, "path", name);
    if (strlen(target) > 100) length += record(extended + length, "linkpath", target);
    if (size > 077777777777) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)size);
        length += record(extended + length, "size", number);
    }
    if (length) {
        int e = add_header(out, "PaxHeaders/entry", 'x', 0644, st, length, "");
        if (!e) e = add(out, extended, length);
        if (!e) e = add(out, NULL, padding(length));
        if (e) return e;
    }
    return add_header(out, name, type, st->st_mode, st, size > 077777777777 ? 0 : size, target);
}

int tar_data(struct tar_out *out, int fd, uint64_t size) {
    uint64_t left = size;
    while (left) {
        size_t room = sizeof out->buffer - out->fill;
        ssize_t n = paths_read(fd, NULL, out->buffer + out->fill, left < room ? (size_t)left : room);
        if (n < 0) return (int)n;
        if (n == 0) break; /* it became shorter */
        out->fill += (size_t)n;
        out->written += (uint64_t)n;
        left -= (uint64_t)n;
        int e = out->fill == sizeof out->buffer ? flush(out) : 0;
        if (e) return e;
    }
    while (left) {
        size_t n = left < sizeof out->buffer ? (size_t)left : sizeof out->buffer;
        int e = add(out, NULL, n);
        if (e) return e;
        left -= n;
    }
    return add(out, NULL, padding(size));
}

int tar_end(struct tar_out *out) {
    int e = add(out, NULL, 2 * BLOCK);
    return e ? e : flush(out);
}
