/* The file helper: reaches a sandbox's files for the gateway, as one of the sandbox's users. It has joined and locked itself before it
 * resolves any path, so that a planted link leads only to where that user may go anyway. Answers values (errno) for what the file
 * system said, 1000 + errno for what we failed at. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"

#define OURS 1000
#define SYS_fchmodat2_ 452 /* Linux 6.6 */

size_t shown_length(const struct shown *s) { return sizeof s->entry + s->entry.path_length + s->entry.target_length; }

/* Anybody may give a file a time that no number of nanoseconds reaches: the nearest is told. */
static int64_t nanoseconds(struct timespec t) {
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)t.tv_sec, INT64_C(1000000000), &ns) || __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns))
        return t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

int files_describe(int dir, const char *name, const char *path, struct shown *out, struct stat *st) {
    struct stat own;
    if (!st) st = &own;
    if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0) return -errno;
    size_t length = strlen(path);
    if (length >= PATH_ROOM) return -ENAMETOOLONG;
    out->entry = (struct skh_entry){
        .type = st->st_mode & S_IFMT, .mode = st->st_mode & 07777, .uid = st->st_uid, .gid = st->st_gid, .size = (uint64_t)st->st_size,
        .mtime_ns = nanoseconds(st->st_mtim), .path_length = (uint32_t)length};
    memcpy(out->text, path, length);
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(dir, name, out->text + length, PATH_ROOM);
        if (n < 0) return -errno;
        out->entry.target_length = (uint32_t)n;
    }
    return 0;
}

void files_answer(const struct fileop_child *f, int error, uint64_t size, const struct shown *entry) {
    static struct { struct f_result result; struct shown entry; } m;
    m.result = (struct f_result){.error = error, .size = size, .entry_length = entry ? (uint32_t)shown_length(entry) : 0};
    if (entry) memcpy(&m.entry, entry, m.result.entry_length);
    send_with_fds(f->talk, &m, sizeof m.result + m.result.entry_length, NULL, 0);
}

static int stat_one(const struct fileop_child *f, struct shown *entry) {
    int fd = paths_open(f->root, f->ask->path, O_PATH | (f->ask->flags & FF_FOLLOW ? 0 : O_NOFOLLOW), 0, RESOLVE_IN_ROOT);
    if (fd < 0) return fd;
    int e = paths_ordinary(fd) ? files_describe(fd, "", f->ask->path, entry, NULL) : -EACCES;
    close(fd);
    return e;
}

static int delete(const struct fileop_child *f) {
    const char *name;
    struct stat st;
    int dir = paths_parent(f->root, f->ask->path, false, RESOLVE_IN_ROOT, &name);
    if (dir < 0) return dir;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return -errno;
    if (S_ISDIR(st.st_mode) && f->ask->flags & FF_RECURSIVE) return walk_delete(dir, name);
    return unlinkat(dir, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
}

static int make_directory(const struct fileop_child *f) {
    int e = paths_make(f->root, f->ask->path, f->ask->flags & FF_HAS_MODE ? f->ask->mode : 0755, RESOLVE_IN_ROOT);
    if (e != -ENOTDIR) return e;
    int fd = paths_open(f->root, f->ask->path, O_PATH, 0, RESOLVE_IN_ROOT);  /* it is there, and something else? */
    if (fd < 0) return e;
    close(fd);
    return -EEXIST;
}

static int change_mode(const struct fileop_child *f) {
    struct stat st;
    int fd = paths_open(f->root, f->ask->path, O_PATH, 0, RESOLVE_IN_ROOT);
    if (fd < 0) return fd;
    if (!paths_ordinary(fd)) return -EACCES;
    if (fstat(fd, &st) < 0) return -errno;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return -EINVAL;
    if (syscall(SYS_fchmodat2_, fd, "", f->ask->mode & 07777, AT_EMPTY_PATH) == 0) return 0;
    if (errno != ENOSYS) return -errno;
    fd = paths_open(f->root, f->ask->path, O_RDONLY, 0, RESOLVE_IN_ROOT);
    if (fd < 0) return fd;
    return !paths_ordinary(fd) ? -EACCES : fchmod(fd, f->ask->mode & 07777) < 0 ? -errno : 0;
}

static bool parse(const uint8_t *payload, size_t length, struct fileop_ask *a) {
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    *a = (struct fileop_ask){.depth = 1, .length = UINT64_MAX, .limit = UINT64_MAX, .user = "0"};
    skh_reader_init(&in, payload, length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_FOP: good = skh_u32(&f, &a->fop); break;
        case T_FLAGS: good = skh_u32(&f, &a->flags); break;
        case T_MODE: good = skh_u32(&f, &a->mode); break;
        case T_DEPTH: good = skh_u32(&f, &a->depth); break;
        case T_OFFSET: good = skh_u64(&f, &a->offset); break;
        case T_LENGTH: good = skh_u64(&f, &a->length); break;
        case T_LIMIT: good = skh_u64(&f, &a->limit); break;
        case T_PATH: good = skh_text(&f, a->path, sizeof a->path); break;
        case T_PATH2: good = skh_text(&f, a->path2, sizeof a->path2); break;
        case T_USER: good = skh_text(&f, a->user, sizeof a->user); break;
        default: break;
        }
    return good && !in.broken;
}

static void strip(char *path) {
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = 0;
}

static int act(const struct fileop_child *f, struct shown *entry, bool *has_entry, uint64_t *size) {
    bool needs_data = f->ask->fop == FOP_LIST || f->ask->fop == FOP_READ || f->ask->fop == FOP_WRITE || f->ask->fop == FOP_ARCHIVE ||
                      f->ask->fop == FOP_EXTRACT;
    if (needs_data && f->data < 0) return -EBADF;
    *has_entry = f->ask->fop == FOP_STAT || f->ask->fop == FOP_WRITE;
    switch (f->ask->fop) {
    case FOP_STAT: return stat_one(f, entry);
    case FOP_LIST: return walk_list(f, size);
    case FOP_READ: return fileio_read(f, entry);
    case FOP_WRITE: return fileio_write(f, entry, size);
    case FOP_DELETE: return delete(f);
    case FOP_MOVE: return fileio_move(f);
    case FOP_MKDIR: return make_directory(f);
    case FOP_CHMOD: return change_mode(f);
    case FOP_ARCHIVE: return walk_archive(f, size);
    case FOP_EXTRACT: return fileio_extract(f);
    default: return -EINVAL;
    }
}

/* Memory and CPU of a helper are the sandbox's, unless we work for ourselves (FF_UNCHARGED); it never counts against its processes. */
static bool join(struct child *c, bool charged, struct trouble *t) {
    const struct cgroups *cg = &c->enterer->host->cg;
    int all[CG_CONTROLLERS], count = charged ? cg_join_fds(cg, c->sandbox, NULL, 0, all) : 0;
    if (count < 0) return trouble(t, -count, true, "control groups");
    for (int controller = 0, i = 0; controller < CG_CONTROLLERS && i < count; controller++) {
        if (cg->v1_fd[controller] < 0) continue;
        if (controller != CG_PIDS) c->join[c->join_count++] = all[i];
        i++;
    }
    return inside_join(c, t);
}

static bool enter(struct child *c, const struct fileop_ask *a, int *data, struct trouble *t) {
    struct identity id;
    if (!inside_prepare(c, t) || !inside_keep(&c->pidfd, t) || !inside_keep(&c->talk, t) || !inside_keep(&c->broker_pidfd, t) ||
        !inside_keep(data, t) || !join(c, !(a->flags & FF_UNCHARGED), t))
        return false;
    if (close_range(0, KEPT_FD - 1, 0) < 0) return trouble(t, errno, true, "close descriptors");
    if (!inside_namespaces(c, t) || !inside_user(c, t)) return false;
    int e = users_lookup(a->user, false, &id);
    if (e) return trouble(t, EINVAL, false, "user");
    return inside_lock(c, &id, false, t);
}

void file_child(struct child *c, const struct w_file *ask, int data, const uint8_t *payload) {
    static struct fileop_ask a;
    static struct shown entry;
    struct trouble t;
    bool has_entry = false;
    uint64_t size = 0;
    bool good = parse(payload, ask->payload_length, &a);
    struct fileop_child f = {.ask = &a, .talk = c->talk};
    if (!good || !enter(c, &a, &data, &t)) {
        f.talk = c->talk;
        files_answer(&f, !good ? EINVAL : t.ours ? OURS + t.error : t.error, 0, NULL);
        _exit(1);
    }
    strip(a.path);
    strip(a.path2);
    f = (struct fileop_child){&a, c->talk, data, paths_open(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0, 0)};
    int e = f.root < 0 ? f.root : act(&f, &entry, &has_entry, &size);
    files_answer(&f, -e, size, e || !has_entry ? NULL : &entry);
    _exit(0);
}
