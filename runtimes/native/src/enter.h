/* What the files of the enter side share. A child of an enterer goes through inside.c's steps in order, then becomes either a
 * command (exec.c) or a file helper (files.c). Until it has locked itself it holds the host's rights: no step before
 * inside_lock() may follow a path that the sandbox controls, except /etc/passwd and /etc/group (users.c). */
#ifndef STOKEHOLD_ENTER_H
#define STOKEHOLD_ENTER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "spawner.h"

#define KEPT_FD 300            /* descriptors that a child keeps lie from here on: above every target a command can name */
#define TARGET_MAX 255u
#define GROUPS_MAX 64

/* What failed. `ours`: not the program's doing, so never a verdict. Functions that take one fill it and return false. */
struct trouble { int error; bool ours; char stage[64]; };
bool trouble(struct trouble *t, int error, bool ours, const char *format, ...) __attribute__((format(printf, 4, 5)));

struct identity {
    uid_t uid;                 /* inside */
    gid_t gid, groups[GROUPS_MAX];
    size_t groups_count;
    char home[256];
};

/* The enterer, as its children find it. */
struct enterer {
    const struct host *host;
    int socket, own_pid_namespace;
    struct sock_fprog filter, killing_filter;
};

/* What one child needs. Descriptors are the worker's until inside_keep() has moved them. */
struct child {
    const struct enterer *enterer;
    const char *sandbox;
    uint32_t role;
    uid_t base_uid;            /* the host's uid of the sandbox's root */
    int pidfd;
    int talk;                  /* status or control socket */
    int broker_pidfd;
    int join[CG_CONTROLLERS];  /* cgroup.procs to write "0" to */
    int join_count;
    int terminal_lock;         /* the sandbox's v2 directory: whoever mounts its devpts holds the lock; -1 without terminal */
};

/* ---- inside.c: the steps of entry ---- */
bool inside_keep(int *fd, struct trouble *t);
bool inside_prepare(struct child *c, struct trouble *t);       /* session, signals, score: while still in the host's view */
bool inside_namespaces(const struct child *c, struct trouble *t);
bool inside_user(const struct child *c, struct trouble *t);    /* the user namespace, as its root, with all of its capabilities */
bool inside_lock(const struct child *c, const struct identity *id, bool deny_kill, struct trouble *t);
bool inside_join(struct child *c, struct trouble *t);

/* ---- users.c ---- */
/* `asked`: "uid", "uid:gid", "name", "name:group". `passwd` and `group` are the files' contents. 0, -ENOENT: no such user or
 * group, -EINVAL: not a user, or outside the sandbox's range. */
int users_resolve(const char *asked, const char *passwd, const char *group, struct identity *out);
/* The same from /etc/passwd and /etc/group, read only if needed: by a name, or for HOME. */
int users_lookup(const char *asked, bool want_home, struct identity *out);

/* ---- terminal.c ---- */
/* Before inside_user(): a terminal on the sandbox's devpts, mounted now if it is the first; the calling session's own. The
 * master goes to the broker by ST_MASTER. Returns the slave. */
bool terminal_open(const struct child *c, uint16_t rows, uint16_t columns, int *slave, struct trouble *t);

/* ---- paths.c: opening what a sandbox controls, once locked ---- */
#define PATH_ROOM 4096
bool paths_ordinary(int fd);                       /* on a file system that holds plain files: not proc, devpts, mqueue… */
int paths_open(int root, const char *path, int flags, mode_t mode, uint64_t resolve); /* descriptor or -errno; never waits */
/* Open the directory that holds `path`'s last component (made with 0755 if `make`), and point to that component. */
int paths_parent(int root, const char *path, bool make, uint64_t resolve, const char **name);
int paths_make(int root, const char *path, mode_t mode, uint64_t resolve);           /* mkdir -p; 0 or -errno */
int paths_write(int fd, const void *data, size_t length);                            /* all of it; 0 or -errno */
ssize_t paths_read(int fd, off_t *at /* or NULL: as it comes */, void *to, size_t length); /* bytes, 0 at the end, -errno */
int paths_copy(int from, off_t *at, int to, uint64_t limit, uint64_t *copied);

/* ---- put.c ---- */
/* One T_PUT of a command, placed as the user that it runs as. `fds` are the passed descriptors. */
bool put_place(const struct skh_field *field, const int *fds, unsigned fds_count, bool absolute, struct trouble *t);

/* ---- tar.c (writing), untar.c (reading) ---- */
struct tar_out { int fd; uint64_t written, limit; size_t fill; char buffer[64 << 10]; }; /* written: with what is buffered */
int tar_entry(struct tar_out *out, const char *path, const struct stat *st, const char *target); /* header; 0 or -errno */
int tar_data(struct tar_out *out, int fd, uint64_t size); /* exactly `size` bytes: padded or cut if the file changed meanwhile */
int tar_end(struct tar_out *out);

/* From a pipe or file read as it comes (`at` NULL), a file read at *at, or memory (fd -1). */
struct tar_in { int fd; off_t *at; const uint8_t *data; size_t left; };
int untar(struct tar_in *in, int target, uint64_t resolve); /* 0, -errno; -EBADMSG: not a tar */

/* ---- the two kinds of child ---- */
void command_child(struct child *c, const struct w_enter *ask, const int *fds, unsigned fds_count, const uint8_t *payload)
    __attribute__((noreturn));
void file_child(struct child *c, const struct w_file *ask, int data_fd, const uint8_t *payload) __attribute__((noreturn));

#endif
