/* What the spawner's roles share: the host as main() found it, and the messages between broker and workers.
 *
 * broker   one process: protocol, limits, buffers, the only parent of everything (broker.c, process.c, ring.c)
 * zygote   forked before any tenant's data arrived; forks workers on request (spawner.c)
 * maker    makes and unmakes sandboxes (maker.c, mounts.c, identity.c, net.c); never sees a tenant's data
 * enterer  brings commands and file helpers into sandboxes (enter.c, seccomp.c, files.c, tar.c)
 *
 * Every role is single-threaded. PID 1s, commands and file helpers are cloned with CLONE_PARENT: the broker is their
 * parent, so a worker's death kills nothing. Workers die with the broker (PR_SET_PDEATHSIG), PID 1s too, and with a PID 1
 * everything in its PID namespace. */
#ifndef STOKEHOLD_SPAWNER_H
#define STOKEHOLD_SPAWNER_H

#include <stdint.h>
#include <sys/types.h>

#include "cgroup.h"
#include "proto.h"

#define LAYERS_MAX 8
#define BINDS_MAX 16
#define RANGE_SIZE 65536u  /* uids of one sandbox */
#define DESC_MAX 16
#define PASSED_MAX 64

struct bind { char target[96]; int fd; };  /* a detached mount (open_tree), shown read-only at `target` */
struct layer {
    char name[32];
    int root_fd;               /* detached mount of the skeleton */
    int usr_fd;                /* detached mount of /usr, or -1 */
    int binds_count;
    struct bind binds[BINDS_MAX];
};

struct host {
    int proc_fd;               /* the host's /proc (O_PATH directory) */
    int dev_fd;                /* detached mount: the minimal /dev, shared by all, read-only */
    int broker_pidfd;          /* readable once the broker is dead */
    struct cgroups cg;
    int layers_count;
    struct layer layers[LAYERS_MAX];
    uid_t uid_base;            /* first uid of range 0 */
    uint32_t ranges;
    uid_t gateway_uid;
};

/* ---- broker -> zygote, over SOCK_SEQPACKET: one request with the worker's socket as its descriptor, one answer ---- */
struct z_request { uint32_t kind; /* 0 maker, 1 enterer */ };
struct z_answer { int32_t error, pid; };

/* ---- broker -> worker, over SOCK_SEQPACKET; answers carry the same token ---- */
enum w_op { W_MAKE = 1, W_UNMAKE = 2, W_ENTER = 3, W_FILE = 4 };

struct w_make {                /* no descriptors */
    uint32_t op;
    uint64_t token;
    char name[SKH_ID_MAX + 1];
    char base[32];
    uint32_t role;             /* 0 call, 1 lease */
    uint32_t range;            /* index of the uid range: base uid = uid_base + range * RANGE_SIZE */
    uint64_t disk, inodes, memory;
    uint64_t shown_memory;     /* what /proc/meminfo inside says, 0: the host's */
    uint32_t pids, cpu_milli;
};

struct w_unmake { uint32_t op; uint64_t token; char name[SKH_ID_MAX + 1]; };

struct w_desc { uint32_t target; int32_t index; /* into the message's descriptors, or one of W_* below */ uint32_t same; };
enum { W_NULL = -1, W_SAME = -2, W_TTY = -3 };

struct w_limits {              /* UINT64_MAX / UINT32_MAX: none */
    uint64_t memory, stack, fsize;
    uint32_t pids, cpu_milli;
};

struct w_enter {               /* descriptors: [0] PID 1's pidfd, [1] status socket, then the passed ones */
    uint32_t op;
    uint64_t token;
    char sandbox[SKH_ID_MAX + 1];
    char proc[SKH_ID_MAX + 1];
    uint32_t flags;            /* skh_command_flags */
    uint32_t role;
    uint32_t range;
    uint16_t rows, columns;
    struct w_limits limits;
    uint32_t desc_count;
    struct w_desc desc[DESC_MAX];
    int32_t payload_index;     /* descriptor with the command's fields (T_ARG, T_ENV, T_CWD, T_USER, T_PUT), or -1: they follow */
    uint32_t passed_offset;    /* T_INDEX of a T_PUT counts from this descriptor */
    uint32_t payload_length;
};

struct w_file {                /* descriptors: [0] PID 1's pidfd, [1] control socket, [2] data pipe (if the op has one) */
    uint32_t op;
    uint64_t token;
    char sandbox[SKH_ID_MAX + 1];
    uint32_t role, range, has_data;
    uint32_t payload_length;   /* T_FOP, T_PATH, T_PATH2, T_MODE, T_USER, T_FLAGS, T_OFFSET, T_LENGTH, T_DEPTH, T_LIMIT follow */
};

struct w_answer {              /* worker -> broker */
    uint64_t token;
    int32_t error;             /* 0 or errno */
    int32_t pid;               /* of the new child of the broker, 0 if none */
    char stage[48];            /* which step failed */
};

/* ---- command -> broker, over the status socket (SOCK_SEQPACKET, CLOEXEC: its end after ST_EXEC means executed) ---- */
enum st_kind { ST_EXEC = 1, ST_FAIL = 2, ST_MASTER = 3 /* carries the terminal's master */ };
struct st_message { uint32_t kind; int32_t error; uint32_t fault; /* 1: ours */ uint32_t reserved; /* ST_EXEC: pid inside */ uint64_t at_ns; /* CLOCK_MONOTONIC */ char stage[64]; };

/* ---- file helper -> broker, over the control socket: one answer. The broker sends one byte 'C' to commit a FOP_WRITE or
 * FOP_EXTRACT once the gateway has said that the data is whole; its end before that means: undo. ---- */
struct f_result { int32_t error; uint32_t entry_length; uint64_t size; /* skh_entry, path, target follow */ };

/* ---- shared small helpers (util.c) ---- */
void die(const char *what) __attribute__((noreturn));
void warn_errno(const char *what, const char *name);
uint64_t now_ns(void);          /* CLOCK_MONOTONIC */
uint64_t boot_ns(void);         /* CLOCK_BOOTTIME */
int send_with_fds(int socket, const void *data, size_t length, const int *fds, unsigned count);   /* 0 or -errno; blocking socket */
ssize_t recv_with_fds(int socket, void *data, size_t size, int *fds, unsigned *count /* in: room, out: got */); /* CLOEXEC */

/* ---- roles ---- */
void maker_main(const struct host *host, int socket) __attribute__((noreturn));
void enterer_main(const struct host *host, int socket) __attribute__((noreturn));

/* A test build (-DSTOKEHOLD_WEAK) can take one mechanism away, named in STOKEHOLD_WITHOUT (comma separated), and stop an
 * entering helper at a step named in STOKEHOLD_STOP_AT. In the product both compile to nothing. */
#ifdef STOKEHOLD_WEAK
bool without(const char *mechanism);
void stop_at(const char *step);
#else
#define without(mechanism) false
#define stop_at(step) ((void)0)
#endif

#endif
