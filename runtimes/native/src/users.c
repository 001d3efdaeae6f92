/* Who "name", "uid", "name:group" or "uid:gid" is inside a sandbox, from its own /etc/passwd and /etc/group. What those files say is
 * the sandbox's own affair; how long they are, what kind of file they are and whether they ever end is not: reads are bounded and never wait. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "enter.h"

#define FILE_MAX (1u << 20)
#define FIELDS 7

/* A whole string of digits within the sandbox's range. */
static bool number(const char *text, size_t length, uint32_t *out) {
    uint32_t v = 0;
    if (!length || length > 5) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        v = v * 10 + (uint32_t)(text[i] - '0');
    }
    *out = v;
    return v < RANGE_SIZE;
}

static bool digits(const char *text, size_t length) {
    return length && strspn(text, "0123456789") >= length;
}

struct line { const char *field[FIELDS]; size_t length[FIELDS]; unsigned count; };

/* The next line, cut at its colons; false at the end. */
static bool next_line(const char **at, struct line *out) {
    const char *end = *at;
    if (!*end) return false;
    out->count = 0;
    for (const char *start = end;; end++) {
        if (*end && *end != '\n' && *end != ':') continue;
        if (out->count < FIELDS) {
            out->field[out->count] = start;
            out->length[out->count++] = (size_t)(end - start);
        }
        start = end + 1;
        if (*end != ':') break;
    }
    *at = *end ? end + 1 : end;
    return true;
}

static bool is(const struct line *l, unsigned field, const char *text, size_t length) {
    return l->count > field && l->length[field] == length && !memcmp(l->field[field], text, length);
}

static bool listed(const struct line *l, const char *name, size_t length) {
    if (l->count < 4) return false;
    const char *at = l->field[3], *end = at + l->length[3];
    while (at <= end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t n = (size_t)((comma ? comma : end) - at);
        if (n == length && !memcmp(at, name, n)) return true;
        at += n + 1;
    }
    return false;
}

static void supplementary(const char *group, const char *name, size_t length, struct identity *out) {
    struct line l;
    uint32_t gid;
    while (out->groups_count < GROUPS_MAX && next_line(&group, &l))
        if (listed(&l, name, length) && number(l.field[2], l.length[2], &gid)) out->groups[out->groups_count++] = gid;
}

int users_resolve(const char *asked, const char *passwd, const char *group, struct identity *out) {
    const char *colon = strchr(asked, ':');
    size_t length = colon ? (size_t)(colon - asked) : strlen(asked);
    bool by_number = digits(asked, length), found = false;
    struct line l, user = {.count = 0};
    uint32_t uid = 0, gid = 0;
    *out = (struct identity){.home = "/"};
    if (!length || (colon && !colon[1])) return -EINVAL;
    if (by_number && !number(asked, length, &uid)) return -EINVAL;
    while (!found && next_line(&passwd, &l)) {
        uint32_t id;
        if (l.count < 6 || !number(l.field[2], l.length[2], &id)) continue;
        found = by_number ? id == uid : is(&l, 0, asked, length);
        if (found) user = l, uid = id;
    }
    if (!found && !by_number) return -ENOENT;
    if (found) {
        number(user.field[3], user.length[3], &gid);
        if (user.length[5] && user.length[5] < sizeof out->home && user.field[5][0] == '/') {
            memcpy(out->home, user.field[5], user.length[5]);
            out->home[user.length[5]] = 0;
        }
    }
    out->uid = uid;
    out->gid = gid;
    if (!colon) {
        if (found) supplementary(group, user.field[0], user.length[0], out);
        return 0;
    }
    const char *wanted = colon + 1;
    size_t n = strlen(wanted);
    if (digits(wanted, n)) {
        if (!number(wanted, n, &gid)) return -EINVAL;
        out->gid = gid;
        return 0;
    }
    while (next_line(&group, &l))
        if (is(&l, 0, wanted, n) && l.count >= 3 && number(l.field[2], l.length[2], &gid)) {
            out->gid = gid;
            return 0;
        }
    return -ENOENT;
}

/* "" if it is not there or not a plain file. */
static char *read_bounded(const char *path) {
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    char *text = malloc(FILE_MAX + 1);
    size_t length = 0;
    struct stat st;
    if (!text) abort();
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && paths_ordinary(fd))
        while (length < FILE_MAX) {
            ssize_t n = read(fd, text + length, FILE_MAX - length);
            if (n <= 0) break;
            length += (size_t)n;
        }
    if (fd >= 0) close(fd);
    text[length] = 0;
    return text;
}

int users_lookup(const char *asked, bool want_home, struct identity *out) {
    const char *colon = strchr(asked, ':');
    bool numeric = colon && digits(asked, (size_t)(colon - asked)) && digits(colon + 1, strlen(colon + 1));
    if (numeric && !want_home) return users_resolve(asked, "", "", out);
    char *passwd = read_bounded("/etc/passwd"), *group = numeric ? NULL : read_bounded("/etc/group");
    int e = users_resolve(asked, passwd, group ? group : "", out);
    free(passwd);
    free(group);
    return e;
}
