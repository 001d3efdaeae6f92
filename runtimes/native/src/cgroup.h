/* Control groups of sandboxes and commands, on whichever hierarchy has each controller. Knows paths and files; decides nothing.
 *
 * v2 (always):  <root>/<sandbox>/init        PID 1
 *               <root>/<sandbox>/c/<command> each command, for kill, emptiness and CPU time
 * v1 (if the controller lives there): <root>/<sandbox> in memory, pids and cpu; <root>/<sandbox>/<command> for a command with
 * a limit of its own. On a v2-only host the same limits are set on <sandbox>/c or <sandbox>/c/<command>. */
#ifndef STOKEHOLD_CGROUP_H
#define STOKEHOLD_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum cg_controller { CG_MEMORY, CG_PIDS, CG_CPU, CG_CONTROLLERS };

struct cgroups {
    int v2_fd;                       /* our own root directory in the v2 hierarchy */
    int v1_fd[CG_CONTROLLERS];       /* our root on v1, or -1: the controller is on v2 */
    char name[64];                   /* of our root: stokehold or stokehold-<instance> */
};

struct cg_limits { uint64_t memory; uint32_t pids, cpu_milli; };  /* UINT64_MAX / UINT32_MAX: leave alone */
struct cg_memory { uint64_t anon, shmem, max_usage, failures, kills; };

/* All return 0 (or a value) or -errno. `command` may be NULL where it says the sandbox as a whole is meant. */
int cg_setup(struct cgroups *cg, const char *name, char *why, unsigned why_size); /* find hierarchies, make our roots */
int cg_clean(const struct cgroups *cg);         /* end and remove every sandbox group below our roots (left by a dead spawner) */
void cg_remove_roots(const struct cgroups *cg); /* at an orderly end */

int cg_sandbox_make(const struct cgroups *cg, const char *sandbox, const struct cg_limits *limits);
int cg_sandbox_init_fd(const struct cgroups *cg, const char *sandbox);  /* v2 directory for CLONE_INTO_CGROUP of PID 1 */
int cg_sandbox_limits(const struct cgroups *cg, const char *sandbox, const struct cg_limits *limits);
int cg_sandbox_remove(const struct cgroups *cg, const char *sandbox);   /* -EBUSY: try again */

int cg_command_make(const struct cgroups *cg, const char *sandbox, const char *command, const struct cg_limits *own /* or NULL */);
int cg_command_fd(const struct cgroups *cg, const char *sandbox, const char *command); /* v2 directory for CLONE_INTO_CGROUP */
unsigned cg_own(const struct cg_limits *limits);  /* bits (1 << controller) of those that are limited */
/* Open the v1 cgroup.procs files to join, memory first; returns how many. Writing "0" to each moves the caller. `own`: the
 * controllers in which the command has a group of its own. */
int cg_join_fds(const struct cgroups *cg, const char *sandbox, const char *command, unsigned own, int fds[CG_CONTROLLERS]);
int cg_command_remove(const struct cgroups *cg, const char *sandbox, const char *command);

int cg_kill(const struct cgroups *cg, const char *sandbox, const char *command);        /* NULL: everything but PID 1's group is under c */
int cg_kill_all(const struct cgroups *cg, const char *sandbox);                          /* PID 1 too */
int cg_freeze(const struct cgroups *cg, const char *sandbox, bool frozen);
int cg_populated(const struct cgroups *cg, const char *sandbox, const char *command);   /* 1, 0 or -errno */
/* Of cgroup.events, for inotify: relative to the working directory that main() leaves, our v2 root. */
int cg_events_path(const struct cgroups *cg, const char *sandbox, const char *command, char *path, unsigned size);
int cg_wait_empty(const struct cgroups *cg, const char *sandbox, int timeout_ms); /* PID 1 too; 0, or -ETIMEDOUT */
int64_t cg_cpu_ns(const struct cgroups *cg, const char *sandbox, const char *command);
/* own_memory: the command's own group, else the sandbox's */
int cg_memory(const struct cgroups *cg, const char *sandbox, const char *command_with_own_memory, struct cg_memory *out);
int64_t cg_pids_peak(const struct cgroups *cg, const char *sandbox); /* -ENOENT where the kernel does not keep it */
int64_t cg_pids_now(const struct cgroups *cg, const char *sandbox);
int64_t cg_threads_now(const struct cgroups *cg, const char *sandbox, const char *command); /* counted one by one */

#endif
