/* The child that becomes a command: entry, descriptors, input files, limits, exec. It tells the broker by the status socket how far it got;
 * the socket closes by itself at exec. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "enter.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct command {
    char **argv, **env;
    unsigned args, envs;       /* counted first, then filled */
    char cwd[PATH_ROOM], user[128];
    const uint8_t *payload;
    size_t length;
};

static void tell(const struct child *c, uint32_t kind, const struct trouble *t) {
    struct st_message m = {.kind = kind, .reserved = (uint32_t)getpid() /* inside */, .at_ns = now_ns()};
    if (t) {
        m.error = t->error;
        m.fault = t->ours;
        memcpy(m.stage, t->stage, sizeof m.stage);
    }
    send_with_fds(c->talk, &m, sizeof m, NULL, 0);
}

static void fail(const struct child *c, const struct trouble *t) __attribute__((noreturn));
static void fail(const struct child *c, const struct trouble *t) {
    tell(c, ST_FAIL, t);
    _exit(127);
}

static char *text(const struct skh_field *f) {
    char *copy = malloc(f->length + 1);
    if (!copy) abort();
    memcpy(copy, f->data, f->length);
    copy[f->length] = 0;
    return copy;
}

static bool parse(struct command *cmd, struct trouble *t) {
    struct skh_reader in;
    struct skh_field f;
    bool good = true;
    strcpy(cmd->cwd, "/");
    strcpy(cmd->user, "0");
    for (skh_reader_init(&in, cmd->payload, cmd->length); skh_next(&in, &f);) cmd->args += f.tag == T_ARG, cmd->envs += f.tag == T_ENV;
    cmd->argv = calloc(cmd->args + 1, sizeof *cmd->argv);
    cmd->env = calloc(cmd->envs + 2, sizeof *cmd->env); /* and HOME */
    if (!cmd->argv || !cmd->env) abort();
    unsigned arg = 0, env = 0;
    for (skh_reader_init(&in, cmd->payload, cmd->length); good && skh_next(&in, &f);) switch (f.tag) {
        case T_ARG: cmd->argv[arg++] = text(&f); break;
        case T_ENV: cmd->env[env++] = text(&f); break;
        case T_CWD: good = skh_text(&f, cmd->cwd, sizeof cmd->cwd); break;
        case T_USER: good = skh_text(&f, cmd->user, sizeof cmd->user); break;
        default: break;
        }
    return good && !in.broken && cmd->args ? true : trouble(t, EINVAL, true, "command");
}

static const char *variable(const struct command *cmd, const char *name) {
    size_t n = strlen(name);
    for (unsigned i = 0; i < cmd->envs; i++)
        if (!strncmp(cmd->env[i], name, n) && cmd->env[i][n] == '=') return cmd->env[i] + n + 1;
    return NULL;
}

/* As asked, or as near as the spawner's own hard limit lets it (a host may withhold CAP_SYS_RESOURCE from us). */
static bool limit(int which, rlim_t soft, rlim_t hard, struct trouble *t) {
    struct rlimit l = {soft, hard}, own;
    if (without("rlimits")) return true;
    if (setrlimit((enum __rlimit_resource)which, &l) == 0) return true;
    if (errno == EPERM && getrlimit((enum __rlimit_resource)which, &own) == 0 && own.rlim_max < hard) {
        l.rlim_max = own.rlim_max;
        if (l.rlim_cur > l.rlim_max) l.rlim_cur = l.rlim_max;
    }
    return setrlimit((enum __rlimit_resource)which, &l) < 0 ? trouble(t, errno, true, "rlimit %d", which) : true;
}

/* All but RLIMIT_FSIZE, which would bound the input files too. Raising needs the host's rights. RLIMIT_CORE is 1, not 0: no core file
 * fits either way, and 1 alone also keeps a host's core_pattern program from being started by a crash in a sandbox. */
static bool limits(const struct w_enter *ask, struct trouble *t) {
    rlim_t stack = ask->limits.stack == UINT64_MAX ? RLIM_INFINITY : ask->limits.stack;
    bool lease = ask->role == 1;
    return limit(RLIMIT_STACK, stack, stack, t) && limit(RLIMIT_CORE, 1, 1, t) &&
           limit(RLIMIT_NOFILE, 1024, lease ? 65536 : 4096, t) && limit(RLIMIT_MEMLOCK, 8 << 20, 8 << 20, t) &&
           limit(RLIMIT_SIGPENDING, 4096, 4096, t) && limit(RLIMIT_MSGQUEUE, 819200, 819200, t) &&
           limit(RLIMIT_NPROC, RLIM_INFINITY, RLIM_INFINITY, t);
}

static int open_null(struct trouble *t) {
    struct stat st;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(1, 3)) {
        trouble(t, fd < 0 ? errno : ENODEV, true, "/dev/null");
        return -1;
    }
    return inside_keep(&fd, t) ? fd : -1;
}

/* The program's descriptors. Every source lies above every target. What is not named of 0, 1 and 2 is /dev/null. */
static bool descriptors(const struct child *c, const struct w_enter *ask, const int *fds, unsigned fds_count, int *slave,
                        struct trouble *t) {
    bool standard[3] = {false, false, false};
    int null = open_null(t);
    if (null < 0) return false;
    for (uint32_t i = 0; i < ask->desc_count; i++) {
        const struct w_desc *d = &ask->desc[i];
        if (d->target > TARGET_MAX || d->index < W_TTY || d->index >= (int32_t)fds_count) return trouble(t, EINVAL, true, "descriptor");
        if (d->target < 3) standard[d->target] = true;
        if (d->index == W_SAME) continue;
        if (d->index == W_TTY && *slave < 0 && !terminal_open(c, ask->rows, ask->columns, slave, t)) return false;
        int from = d->index == W_NULL ? null : d->index == W_TTY ? *slave : fds[d->index];
        if (dup2(from, (int)d->target) < 0) return trouble(t, errno, true, "descriptor %u", d->target);
    }
    for (int i = 0; i < 3; i++)
        if (!standard[i] && dup2(null, i) < 0) return trouble(t, errno, true, "descriptor %d", i);
    for (uint32_t i = 0; i < ask->desc_count; i++) {
        const struct w_desc *d = &ask->desc[i];
        if (d->index == W_SAME && (d->same > TARGET_MAX || dup2((int)d->same, (int)d->target) < 0))
            return trouble(t, EINVAL, true, "descriptor %u", d->target);
    }
    return true;
}

static bool place(const struct command *cmd, const int *fds, unsigned fds_count, bool absolute, struct trouble *t) {
    struct skh_reader in;
    struct skh_field f;
    skh_reader_init(&in, cmd->payload, cmd->length);
    while (skh_next(&in, &f))
        if (f.tag == T_PUT && !put_place(&f, fds, fds_count, absolute, t)) return false;
    return true;
}

/* What the maker gave PID 1: a lease's share of the processors. */
static void share_processors(void) {
    cpu_set_t cpus;
    if (sched_getaffinity(1, sizeof cpus, &cpus) == 0) sched_setaffinity(0, sizeof cpus, &cpus);
}

static bool execute(struct command *cmd, struct trouble *t) {
    const char *name = cmd->argv[0], *path = variable(cmd, "PATH");
    char full[PATH_ROOM];
    int error = ENOENT;
    if (strchr(name, '/')) {
        execve(name, cmd->argv, cmd->env);
        return trouble(t, errno, false, "execve %s", name);
    }
    if (!path) path = DEFAULT_PATH;
    while (*name) {
        size_t n = strcspn(path, ":");
        if (n + strlen(name) + 2 <= sizeof full) {
            snprintf(full, sizeof full, "%.*s%s%s", (int)n, path, n ? "/" : "", name);
            execve(full, cmd->argv, cmd->env);
            if (errno == EACCES) error = EACCES; /* go on: a later one may be the program */
            else if (errno != ENOENT && errno != ENOTDIR) return trouble(t, errno, false, "execve %s", full);
        }
        if (!path[n]) break;
        path += n + 1;
    }
    return trouble(t, error, false, "execve %s", name);
}

static bool keep_all(struct child *c, int *fds, unsigned fds_count, struct trouble *t) {
    bool good = inside_keep(&c->pidfd, t) && inside_keep(&c->talk, t) && inside_keep(&c->broker_pidfd, t) && inside_keep(&c->terminal_lock, t);
    for (int i = 0; good && i < c->join_count; i++) good = inside_keep(&c->join[i], t);
    for (unsigned i = 2; good && i < fds_count; i++) good = inside_keep(&fds[i], t); /* 0 and 1 are the first two above */
    if (good && close_range(0, KEPT_FD - 1, 0) < 0) return trouble(t, errno, true, "close descriptors");
    return good;
}

static bool become(struct child *c, const struct w_enter *ask, struct command *cmd, int *fds, unsigned fds_count, struct trouble *t) {
    bool exclusive = ask->flags & CMD_EXCLUSIVE, has_home = variable(cmd, "HOME");
    struct identity id;
    int slave = -1;
    if (!inside_prepare(c, t) || !keep_all(c, fds, fds_count, t) || !limits(ask, t)) return false;
    if (!exclusive && !inside_join(c, t)) return false;
    if (!inside_namespaces(c, t) || !descriptors(c, ask, fds, fds_count, &slave, t) || !inside_user(c, t)) return false;
    if (ask->role == 1) share_processors();
    int e = users_lookup(cmd->user, !has_home, &id);
    if (e) return trouble(t, -e, false, "user %s", cmd->user);
    if (slave >= 0 && fchown(slave, id.uid, (gid_t)-1) < 0) return trouble(t, errno, true, "terminal's owner");
    if (!has_home) {
        char *home = malloc(sizeof "HOME=" + sizeof id.home);
        if (!home) abort();
        sprintf(home, "HOME=%s", id.home);
        cmd->env[cmd->envs] = home;
    }
    if (!inside_lock(c, &id, ask->flags & CMD_DENY_KILL, t)) return false;
    const int *passed = fds + ask->passed_offset;
    unsigned passed_count = fds_count - ask->passed_offset;
    if (!place(cmd, passed, passed_count, true, t)) return false;
    if (chdir(cmd->cwd) < 0) return trouble(t, errno, false, "chdir %s", cmd->cwd);
    if (!place(cmd, passed, passed_count, false, t)) return false;
    /* Input files are ours: a call's program starts with nothing on its account. */
    if (exclusive && !inside_join(c, t)) return false;
    if (ask->limits.fsize != UINT64_MAX && !limit(RLIMIT_FSIZE, ask->limits.fsize, ask->limits.fsize, t)) return false;
    stop_at("exec");
    tell(c, ST_EXEC, NULL);
    return execute(cmd, t);
}

void command_child(struct child *c, const struct w_enter *ask, const int *fds, unsigned fds_count, const uint8_t *payload) {
    static int own[PASSED_MAX + 2 * DESC_MAX + 8];
    static struct command cmd;
    struct trouble t;
    cmd = (struct command){.payload = payload, .length = ask->payload_length};
    if (ask->desc_count > DESC_MAX || fds_count > sizeof own / sizeof *own || ask->passed_offset > fds_count) {
        trouble(&t, EINVAL, true, "command");
        fail(c, &t);
    }
    memcpy(own, fds, fds_count * sizeof *own);
    if (ask->payload_index >= 0) {
        void *mapped = MAP_FAILED;
        if ((uint32_t)ask->payload_index < fds_count && ask->payload_length <= SKH_PAYLOAD_MAX)
            mapped = mmap(NULL, ask->payload_length, PROT_READ, MAP_PRIVATE, fds[ask->payload_index], 0);
        if (mapped == MAP_FAILED) {
            trouble(&t, errno, true, "command's memfd");
            fail(c, &t);
        }
        cmd.payload = mapped;
    }
    if (parse(&cmd, &t)) become(c, ask, &cmd, own, fds_count, &t);
    fail(c, &t);
}
