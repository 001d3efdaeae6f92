/* The groups of one sandbox and of its commands (cgroup.h says where they lie). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cgroup_files.h"
#include "spawner.h"

#define PERIOD_US 100000u
#define BUFFERS_MAX (16ull << 20)  /* of sockets */
#define MEMSW_ROOM (2u << 20)    /* a huge page: the largest charge at once */
#define DEPTH 4u            /* more than we ever nest */
#define QUOTA_MIN_US 1000u  /* the kernel's own */

/* ---- files ---- */

int cg_write(int dir, const char *path, const char *value) {
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    int error = write(fd, value, strlen(value)) < 0 ? -errno : 0;
    close(fd);
    return error;
}

int cg_read(int dir, const char *path, char *text, unsigned size) {
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    unsigned used = 0;
    ssize_t n = 0;
    while (used < size - 1 && (n = read(fd, text + used, size - 1 - used)) > 0) used += (unsigned)n;
    int error = n < 0 ? -errno : 0;
    text[used] = 0;
    close(fd);
    return error;
}

int cg_mkdir(int dir, const char *path) { return mkdirat(dir, path, 0755) < 0 ? -errno : 0; }

int cg_rmdir(int dir, const char *path) {
    return unlinkat(dir, path, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* A group's directory can be removed only when nothing is in it: its children first, if there are any. */
static int remove_tree(int parent, const char *path, unsigned depth) {
    int error = cg_rmdir(parent, path);
    if ((error != -EBUSY && error != -ENOTEMPTY) || !depth) return error;
    int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        error = -errno;
        if (fd >= 0) close(fd);
        return error == -ENOENT ? 0 : error;
    }
    for (struct dirent *d; (d = readdir(dir));)
        if (d->d_type == DT_DIR && d->d_name[0] != '.') remove_tree(fd, d->d_name, depth - 1);
    closedir(dir);
    return cg_rmdir(parent, path);
}

static int write_number(int dir, const char *group, const char *file, uint64_t value) {
    char path[CG_PATH], text[24];
    snprintf(path, sizeof path, "%s/%s", group, file);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return cg_write(dir, path, text);
}

static int64_t read_number(int dir, const char *group, const char *file) {
    char path[CG_PATH], text[32];
    snprintf(path, sizeof path, "%s/%s", group, file);
    int error = cg_read(dir, path, text, sizeof text);
    return error ? error : strtoll(text, NULL, 10);
}

/* The number after `key` at the start of a line of `text`; 0 if there is none. */
static uint64_t value_of(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, key, length) && at[length] == ' ') return strtoull(at + length + 1, NULL, 10);
    return 0;
}

/* `<sandbox>/c` or `<sandbox>/c/<command>` */
static void v2_path(char path[CG_PATH], const char *sandbox, const char *command) {
    snprintf(path, CG_PATH, command ? "%s/c/%s" : "%s/c", sandbox, command);
}

static void v1_path(char path[CG_PATH], const char *sandbox, const char *command) {
    snprintf(path, CG_PATH, command ? "%s/%s" : "%s", sandbox, command);
}

/* ---- limits ---- */

/* Memory and swap together are charged before memory, and on recent kernels only memory counts what it refused (failcnt), by
 * which its own limit is told from an outer one. So the first is bound a little above the second, and swapping is off. */
static int limit_memory_v1(int root, const char *group, uint64_t bytes) {
    uint64_t together = bytes > UINT64_MAX - MEMSW_ROOM ? bytes : bytes + MEMSW_ROOM;
    int error = write_number(root, group, "memory.limit_in_bytes", bytes);
    if (error == -EINVAL) {  /* above the present limit of memory and swap: raise that first */
        write_number(root, group, "memory.memsw.limit_in_bytes", together);
        error = write_number(root, group, "memory.limit_in_bytes", bytes);
    }
    if (error) return error;
    write_number(root, group, "memory.swappiness", 0);
    error = write_number(root, group, "memory.memsw.limit_in_bytes", together);
    if (error && error != -ENOENT && error != -ENOTSUP) return error;
    /* What stands in TCP and UDP buffers is not memory on v1, and bounded for the whole host alone: one sandbox that fills its
     * loopback would slow every connection of the host's. A full account makes writers wait. */
    error = write_number(root, group, "memory.kmem.tcp.limit_in_bytes", bytes < BUFFERS_MAX ? bytes : BUFFERS_MAX);
    return error == -ENOENT || error == -ENOTSUP ? 0 : error;
}

static int limit_memory_v2(int root, const char *group, uint64_t bytes, bool whole) {
    int error = write_number(root, group, "memory.max", bytes);
    if (!error && (error = write_number(root, group, "memory.swap.max", 0)) == -ENOENT) error = 0;
    if (!error) error = write_number(root, group, "memory.oom.group", whole);
    return error;
}

static int limit_cpu(const struct cgroups *cg, const char *v1, const char *v2, uint32_t milli) {
    uint64_t quota = (uint64_t)milli * PERIOD_US / 1000;
    char path[CG_PATH], text[48];
    if (quota < QUOTA_MIN_US) quota = QUOTA_MIN_US;
    if (!cg_enabled(cg, CG_CPU)) return write_number(cg->v1_fd[CG_CPU], v1, "cpu.cfs_quota_us", quota);
    snprintf(path, sizeof path, "%s/cpu.max", v2);
    snprintf(text, sizeof text, "%llu %u", (unsigned long long)quota, PERIOD_US);
    return cg_write(cg->v2_fd, path, text);
}

/* whole: a memory kill takes everything in the group. */
static int limit(const struct cgroups *cg, const char *v1, const char *v2, const struct cg_limits *l, bool whole) {
    int error = 0;
    if (l->memory != UINT64_MAX && !without("memory"))
        error = cg_enabled(cg, CG_MEMORY) ? limit_memory_v2(cg->v2_fd, v2, l->memory, whole)
                                          : limit_memory_v1(cg->v1_fd[CG_MEMORY], v1, l->memory);
    if (!error && l->pids != UINT32_MAX && !without("pids"))
        error = cg_enabled(cg, CG_PIDS) ? write_number(cg->v2_fd, v2, "pids.max", l->pids)
                                        : write_number(cg->v1_fd[CG_PIDS], v1, "pids.max", l->pids);
    if (!error && l->cpu_milli != UINT32_MAX) error = limit_cpu(cg, v1, v2, l->cpu_milli);
    return error;
}

/* ---- sandboxes ---- */

static int enable_below(const struct cgroups *cg, const char *group, const char *names) {
    char path[CG_PATH];
    if (!*names) return 0;
    snprintf(path, sizeof path, "%s/cgroup.subtree_control", group);
    return cg_write(cg->v2_fd, path, names);
}

int cg_sandbox_make(const struct cgroups *cg, const char *sandbox, const struct cg_limits *limits) {
    char init[CG_PATH], commands[CG_PATH], names[64];
    int error = cg_mkdir(cg->v2_fd, sandbox);
    if (error) return error;
    cg_names(cg, names, sizeof names);
    snprintf(init, sizeof init, "%s/init", sandbox);
    v2_path(commands, sandbox, NULL);
    if ((error = cg_mkdir(cg->v2_fd, init)) || (error = cg_mkdir(cg->v2_fd, commands))) goto failed;
    if ((error = enable_below(cg, sandbox, names))) goto failed;
    for (int c = 0; c < CG_CONTROLLERS; c++) {
        if (cg->v1_fd[c] < 0) continue;
        error = cg_mkdir(cg->v1_fd[c], sandbox);
        if (error == -EEXIST && c > 0) error = 0;  /* one hierarchy with several controllers */
        if (error) goto failed;
    }
    if (limits && (error = limit(cg, sandbox, commands, limits, false))) goto failed;
    return 0;
failed:
    cg_sandbox_remove(cg, sandbox);
    return error;
}

int cg_sandbox_init_fd(const struct cgroups *cg, const char *sandbox) {
    char path[CG_PATH];
    snprintf(path, sizeof path, "%s/init", sandbox);
    int fd = openat(cg->v2_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cg_sandbox_limits(const struct cgroups *cg, const char *sandbox, const struct cg_limits *limits) {
    char commands[CG_PATH];
    v2_path(commands, sandbox, NULL);
    return limit(cg, sandbox, commands, limits, true);
}

int cg_sandbox_remove(const struct cgroups *cg, const char *sandbox) {
    char path[CG_PATH];
    int error;
    v2_path(path, sandbox, NULL);
    if ((error = remove_tree(cg->v2_fd, path, DEPTH))) return error;
    snprintf(path, sizeof path, "%s/init", sandbox);
    if ((error = cg_rmdir(cg->v2_fd, path))) return error;
    for (int c = 0; c < CG_CONTROLLERS; c++)
        if (cg->v1_fd[c] >= 0 && (error = remove_tree(cg->v1_fd[c], sandbox, DEPTH))) return error;
    return remove_tree(cg->v2_fd, sandbox, DEPTH);  /* last: cg_clean finds the rest by it */
}

/* ---- commands ---- */

unsigned cg_own(const struct cg_limits *l) {
    return (l->memory != UINT64_MAX) << CG_MEMORY | (l->pids != UINT32_MAX) << CG_PIDS | (l->cpu_milli != UINT32_MAX) << CG_CPU;
}

int cg_command_make(const struct cgroups *cg, const char *sandbox, const char *command, const struct cg_limits *own) {
    static const char *const names[CG_CONTROLLERS] = {"+memory", "+pids", "+cpu"};
    char v2[CG_PATH], v1[CG_PATH], commands[CG_PATH];
    v2_path(v2, sandbox, command);
    v1_path(v1, sandbox, command);
    v2_path(commands, sandbox, NULL);
    int error = cg_mkdir(cg->v2_fd, v2);
    if (error || !own) return error;
    unsigned mask = cg_own(own);
    for (int c = 0; c < CG_CONTROLLERS && !error; c++) {
        if (!(mask & 1u << c)) continue;
        /* On v2 a controller comes to all commands of a sandbox with the first that needs it. */
        error = cg_enabled(cg, c) ? enable_below(cg, commands, names[c]) : cg_mkdir(cg->v1_fd[c], v1);
        if (error == -EEXIST && c > 0) error = 0;  /* one hierarchy with several controllers */
    }
    struct cg_limits rest = *own;
    rest.cpu_milli = UINT32_MAX;
    if (!error) error = limit(cg, v1, v2, &rest, true);
    if (!error && own->cpu_milli != UINT32_MAX && (error = limit_cpu(cg, v1, v2, own->cpu_milli)) == -EINVAL)
        error = 0;  /* v1 refuses more than the sandbox has: then that is the bound */
    if (error) cg_command_remove(cg, sandbox, command);
    return error;
}

int cg_command_fd(const struct cgroups *cg, const char *sandbox, const char *command) {
    char path[CG_PATH];
    v2_path(path, sandbox, command);
    int fd = openat(cg->v2_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cg_join_fds(const struct cgroups *cg, const char *sandbox, const char *command, unsigned own, int fds[CG_CONTROLLERS]) {
    int count = 0;
    for (int c = 0; c < CG_CONTROLLERS; c++) {
        char group[CG_PATH], path[CG_PATH + 16];
        if (cg->v1_fd[c] < 0) continue;
        v1_path(group, sandbox, own & 1u << c ? command : NULL);
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
        int fd = openat(cg->v1_fd[c], path, O_WRONLY | O_CLOEXEC);
        if (fd < 0) {
            int error = -errno;
            while (count) close(fds[--count]);
            return error;
        }
        fds[count++] = fd;
    }
    return count;
}

int cg_command_remove(const struct cgroups *cg, const char *sandbox, const char *command) {
    char path[CG_PATH];
    v2_path(path, sandbox, command);
    int error = cg_rmdir(cg->v2_fd, path);
    v1_path(path, sandbox, command);
    for (int c = 0; c < CG_CONTROLLERS; c++) {
        int e = cg->v1_fd[c] < 0 ? 0 : cg_rmdir(cg->v1_fd[c], path);
        if (!error) error = e;
    }
    return error;
}

/* ---- acts and questions ---- */

int cg_kill(const struct cgroups *cg, const char *sandbox, const char *command) {
    char path[CG_PATH];
    v2_path(path, sandbox, command);
    return write_number(cg->v2_fd, path, "cgroup.kill", 1);
}

int cg_kill_all(const struct cgroups *cg, const char *sandbox) { return write_number(cg->v2_fd, sandbox, "cgroup.kill", 1); }

int cg_freeze(const struct cgroups *cg, const char *sandbox, bool frozen) {
    char path[CG_PATH];
    v2_path(path, sandbox, NULL);
    return write_number(cg->v2_fd, path, "cgroup.freeze", frozen);
}

int cg_events_path(const struct cgroups *cg, const char *sandbox, const char *command, char *path, unsigned size) {
    char group[CG_PATH];
    (void)cg;
    v2_path(group, sandbox, command);
    return (unsigned)snprintf(path, size, "%s/cgroup.events", group) < size ? 0 : -ENAMETOOLONG;
}

int cg_populated(const struct cgroups *cg, const char *sandbox, const char *command) {
    char path[CG_PATH + 16], text[256];
    cg_events_path(cg, sandbox, command, path, sizeof path);
    int error = cg_read(cg->v2_fd, path, text, sizeof text);
    return error ? error : value_of(text, "populated") != 0;
}

int cg_wait_empty(const struct cgroups *cg, const char *sandbox, int timeout_ms) {
    char path[CG_PATH], text[256];
    snprintf(path, sizeof path, "%s/cgroup.events", sandbox);
    int fd = openat(cg->v2_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -errno;
    uint64_t end = now_ns() + (uint64_t)timeout_ms * 1000000u, now = 0;
    int result = -ETIMEDOUT;
    while (now < end) {
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n < 0 ? 0 : n] = 0;
        if (n < 0 || value_of(text, "populated") == 0) {
            result = n < 0 ? -errno : 0;
            break;
        }
        struct pollfd changed = {fd, POLLPRI, 0};
        now = now_ns();
        if (now < end) poll(&changed, 1, (int)((end - now) / 1000000u) + 1);
    }
    close(fd);
    return result;
}

int64_t cg_cpu_ns(const struct cgroups *cg, const char *sandbox, const char *command) {
    char group[CG_PATH], path[CG_PATH + 16], text[1024];
    v2_path(group, sandbox, command);
    snprintf(path, sizeof path, "%s/cpu.stat", group);
    int error = cg_read(cg->v2_fd, path, text, sizeof text);
    return error ? error : (int64_t)(value_of(text, "usage_usec") * 1000);
}

static int memory_v2(int root, const char *group, struct cg_memory *out) {
    char path[CG_PATH + 24], text[4096];
    int error;
    snprintf(path, sizeof path, "%s/memory.stat", group);
    if ((error = cg_read(root, path, text, sizeof text))) return error;
    out->anon = value_of(text, "anon");
    out->shmem = value_of(text, "shmem");
    int64_t peak = read_number(root, group, "memory.peak");  /* since Linux 5.19 */
    out->max_usage = peak < 0 ? 0 : (uint64_t)peak;
    snprintf(path, sizeof path, "%s/memory.events.local", group);
    if ((error = cg_read(root, path, text, sizeof text))) return error;
    out->failures = value_of(text, "max");
    snprintf(path, sizeof path, "%s/memory.events", group);
    if ((error = cg_read(root, path, text, sizeof text))) return error;
    out->kills = value_of(text, "oom_kill");
    return 0;
}

static int memory_v1(int root, const char *group, struct cg_memory *out) {
    char path[CG_PATH + 24], text[4096];
    int error;
    snprintf(path, sizeof path, "%s/memory.stat", group);
    if ((error = cg_read(root, path, text, sizeof text))) return error;
    out->anon = value_of(text, "total_rss");  /* v1's word for anonymous memory, huge pages included */
    out->shmem = value_of(text, "total_shmem");
    int64_t peak = read_number(root, group, "memory.max_usage_in_bytes");
    int64_t failures = read_number(root, group, "memory.failcnt");
    if (peak < 0 || failures < 0) return peak < 0 ? (int)peak : (int)failures;
    out->max_usage = (uint64_t)peak;
    out->failures = (uint64_t)failures;
    snprintf(path, sizeof path, "%s/memory.oom_control", group);
    if ((error = cg_read(root, path, text, sizeof text))) return error;
    out->kills = value_of(text, "oom_kill");
    return 0;
}

int cg_memory(const struct cgroups *cg, const char *sandbox, const char *command, struct cg_memory *out) {
    char group[CG_PATH];
    *out = (struct cg_memory){0};
    if (cg_enabled(cg, CG_MEMORY)) {
        v2_path(group, sandbox, command);
        return memory_v2(cg->v2_fd, group, out);
    }
    v1_path(group, sandbox, command);
    return memory_v1(cg->v1_fd[CG_MEMORY], group, out);
}

static int64_t pids(const struct cgroups *cg, const char *sandbox, const char *file) {
    char group[CG_PATH];
    if (!cg_enabled(cg, CG_PIDS)) return read_number(cg->v1_fd[CG_PIDS], sandbox, file);
    v2_path(group, sandbox, NULL);
    return read_number(cg->v2_fd, group, file);
}

int64_t cg_pids_peak(const struct cgroups *cg, const char *sandbox) { return pids(cg, sandbox, "pids.peak"); }
int64_t cg_pids_now(const struct cgroups *cg, const char *sandbox) { return pids(cg, sandbox, "pids.current"); }

int64_t cg_threads_now(const struct cgroups *cg, const char *sandbox, const char *command) {
    char path[CG_PATH + 16], group[CG_PATH], text[4096];
    int64_t count = 0;
    v2_path(group, sandbox, command);
    snprintf(path, sizeof path, "%s/cgroup.threads", group);
    int fd = openat(cg->v2_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) count += text[i] == '\n';
    close(fd);
    return count;
}
