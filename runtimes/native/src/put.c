/* Places a command's input files, as the user that it will run as and with no more rights than that. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enter.h"

struct put { char path[PATH_ROOM]; uint32_t mode, kind, index; bool by_index; struct skh_field data; };

static bool parse(const struct skh_field *field, struct put *p) {
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    *p = (struct put){.mode = 0644};
    skh_reader_init(&in, field->data, field->length);
    while (good && skh_next(&in, &f)) switch (f.tag) {
        case T_PATH: good = skh_text(&f, p->path, sizeof p->path); break;
        case T_MODE: good = skh_u32(&f, &p->mode); break;
        case T_KIND: good = skh_u32(&f, &p->kind) && p->kind <= 1; break;
        case T_INDEX: good = p->by_index = skh_u32(&f, &p->index); break;
        case T_DATA: p->data = f; break;
        default: break;
        }
    return good && !in.broken && p->path[0];
}

static int place_file(const struct put *p, int source, uint64_t resolve) {
    const char *name;
    struct stat st;
    uint64_t copied;
    off_t at = 0;
    int dir = paths_parent(AT_FDCWD, p->path, true, resolve, &name);
    if (dir < 0) return dir;
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    int e = fd < 0 ? -errno : 0;
    close(dir);
    if (e) return e;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) e = -EINVAL;
    else if (source >= 0) e = paths_copy(source, &at, fd, UINT64_MAX, &copied);
    else e = paths_write(fd, p->data.data, p->data.length);
    if (!e && fchmod(fd, p->mode & 07777) < 0) e = -errno;
    close(fd);
    return e;
}

static int place_tar(const struct put *p, int source, uint64_t resolve) {
    off_t at = 0;
    struct tar_in in = {.fd = source, .at = &at, .data = p->data.data, .left = p->data.length};
    int e = paths_make(AT_FDCWD, p->path, 0755, resolve);
    if (e) return e;
    int target = paths_open(AT_FDCWD, p->path, O_PATH | O_DIRECTORY, 0, resolve);
    if (target < 0) return target;
    e = paths_ordinary(target) ? untar(&in, target, RESOLVE_BENEATH) : -EACCES;
    close(target);
    return e;
}

bool put_place(const struct skh_field *field, const int *fds, unsigned fds_count, bool absolute, struct trouble *t) {
    static struct put p;
    if (!parse(field, &p) || (p.by_index && p.index >= fds_count)) return trouble(t, EINVAL, true, "PUT");
    if ((p.path[0] == '/') != absolute) return true;
    int source = p.by_index ? fds[p.index] : -1;
    uint64_t resolve = absolute ? 0 : RESOLVE_BENEATH;
    int e = p.kind == 1 ? place_tar(&p, source, resolve) : place_file(&p, source, resolve);
    /* What the archive or descriptor is, is our doing; what the sandbox's file system says to it is not. */
    bool ours = e == -EBADMSG || e == -EBADF || e == -EIO || e == -ESPIPE;
    return e ? trouble(t, -e, ours, "place %s", p.path) : true;
}
