/* The parts of making a sandbox, in the order in which maker.c calls them. Every function returns 0 or a descriptor, or
 * -errno, and then has set *stage to the step that failed. Nothing here sees a tenant's data. */
#ifndef STOKEHOLD_MAKER_H
#define STOKEHOLD_MAKER_H

#include "spawner.h"

/* ---- identity.c: who a sandbox's root is ---- */
/* A user namespace owned by host uid `base`, inside 0..65535 = base..base+65535, in which no namespace can be made. */
int identity_make(const struct host *host, uid_t base, const char **stage);
/* Become root of user namespace `userns` without any capability, for good. Not dumpable afterwards. */
int identity_become_root(int userns, int limits, const char **stage);

/* ---- net.c ---- */
/* The descriptor of a network namespace with nothing but `lo`, which is up. The seam for a pool: any fresh one will do. */
int net_make(const struct host *host, const char **stage);
int net_settings(int proc, uid_t base, const char **stage);  /* of the caller's namespace, through a /proc of its own */

/* ---- mounts.c: what a sandbox sees ---- */
struct tree {                  /* what is mounted from outside: detached mounts with the sandbox's owners */
    const struct layer *layer;
    int root, usr, dev, binds[BINDS_MAX];
};
void mounts_learn(const struct host *host);  /* once per maker: which files of this kernel's /proc must be hidden */
int mounts_open(const struct host *host, const struct layer *layer, int userns, struct tree *tree, const char **stage);
void mounts_close(struct tree *tree);
/* In the new PID 1, in its new mount and PID namespaces: build everything, and stand in it. */
/* limits: gets /proc/sys/user of the new /proc, for identity_become_root */
int mounts_build(const struct w_make *ask, const struct tree *tree, uid_t base, int *limits, const char **stage);

/* ---- maker.c ---- */
struct made { pid_t pid; int pidfd; };       /* a child of our own parent; the caller closes pidfd */
void maker_begin(const struct host *host);   /* once per process, before the first sandbox_make */
int sandbox_make(const struct host *host, const struct w_make *ask, struct made *made, const char **stage);
/* The processes are being killed by the caller: wait for their end (to 5 s) and remove the groups. */
int sandbox_unmake(const struct host *host, const char *name, const char **stage);
extern const char *const lease_plan[];       /* the steps of making a lease, NULL at the end */
#define LEASE_SUPERBLOCKS 5                  /* tmpfs, overlay, overlay of /usr, proc, and the IPC namespace's own mqueue */
#define CALL_SUPERBLOCKS 3                   /* no overlays */

/* ---- host.c: what the spawner takes from the host. All of these explain on stderr and exit when they cannot. ---- */
struct layer_option { const char *name, *directory; };
void host_open(struct host *host, const char *cgroup, unsigned slot, const struct layer_option *layers, int count);
void migration_make_cheap(const struct cgroups *cg);   /* migration.c */
void host_leave(struct host *host);          /* the host's mounts: none of its paths can be opened afterwards */
void host_probe(const struct host *host);    /* make and end one sandbox of each layer and role */

/* ---- zygote.c ---- */
void title_keep(int argc, char **argv);      /* once, in main */
void title_set(const char *title);           /* what ps and /proc/PID/cmdline show */
int zygote_start(const struct host *host, int listen_socket);  /* the broker's end of its socket */

/* ---- subcommands ---- */
_Noreturn void floor_main(int argc, char **argv);
_Noreturn void launch_main(int argc, char **argv);

#endif
