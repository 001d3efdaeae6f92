/* Finds the control group hierarchies of this host, makes our root in each, and cleans what a dead spawner left there. */
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

static const char *const controllers[CG_CONTROLLERS] = {"memory", "pids", "cpu"};

bool cg_enabled(const struct cgroups *cg, enum cg_controller c) { return cg->v1_fd[c] < 0; }

void cg_names(const struct cgroups *cg, char *text, unsigned size) {
    *text = 0;
    for (int c = 0; c < CG_CONTROLLERS; c++)
        if (cg_enabled(cg, (enum cg_controller)c)) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s+%s", used ? " " : "", controllers[c]);
        }
}

static bool has_word(const char *list, const char *word, const char *separators) {
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, separators);
        if (n == length && !strncmp(at, word, n)) return true;
        at += n;
        at += strspn(at, separators);
    }
    return false;
}

/* mountinfo writes blanks in paths as octal. */
static void unescape(char *path) {
    char *to = path;
    for (char *at = path; *at; to++) {
        unsigned byte;
        if (*at == '\\' && sscanf(at + 1, "%3o", &byte) == 1) {
            *to = (char)byte;
            at += 4;
        } else *to = *at++;
    }
    *to = 0;
}

struct found { char v2[256], v1[CG_CONTROLLERS][256]; };

static int look(struct found *found) {
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    if (!f) return -errno;
    while (getline(&line, &room, f) > 0) {
        char where[256], type[64], options[512];
        char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %*s %255s", where) != 1) continue;
        if (sscanf(dash, " - %63s %*s %511s", type, options) != 2) continue;
        unescape(where);
        if (!strcmp(type, "cgroup2")) {
            if (!*found->v2) snprintf(found->v2, sizeof found->v2, "%s", where);
        } else if (!strcmp(type, "cgroup")) {
            for (int c = 0; c < CG_CONTROLLERS; c++)
                if (has_word(options, controllers[c], ",\n") && !*found->v1[c])
                    snprintf(found->v1[c], sizeof found->v1[c], "%s", where);
        }
    }
    free(line);
    fclose(f);
    return 0;
}

static int open_root(const char *mount, const char *name, char *why, unsigned why_size) {
    int top = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -1, error = 0;
    if (top < 0) return -errno;
    error = cg_mkdir(top, name);
    if (error == -EEXIST) error = 0;
    if (!error && (fd = openat(top, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0) error = -errno;
    close(top);
    if (error)
        snprintf(why, why_size, "cannot make the control group %s/%s (%s): mount that hierarchy writable (in a container: "
                 "--privileged with --cgroupns=host)", mount, name, strerror(-error));
    return error ? error : fd;
}

/* Let our v2 root's children use the controllers that live there. */
static int enable(const struct cgroups *cg, const char *mount, char *why, unsigned why_size) {
    char names[64], here[512];
    cg_names(cg, names, sizeof names);
    if (!*names) return 0;
    int top = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0) return -errno;
    int error = cg_read(top, "cgroup.controllers", here, sizeof here);
    for (int c = 0; !error && c < CG_CONTROLLERS; c++)
        if (cg_enabled(cg, (enum cg_controller)c) && !has_word(here, controllers[c], " \n")) {
            snprintf(why, why_size, "no control group hierarchy of this host has the %s controller: boot without "
                     "cgroup_disable=%s, and delegate it to %s", controllers[c], controllers[c], mount);
            close(top);
            return -ENOTSUP;
        }
    if (!error) error = cg_write(top, "cgroup.subtree_control", names);
    if (!error) error = cg_write(cg->v2_fd, "cgroup.subtree_control", names);
    close(top);
    if (error)
        snprintf(why, why_size, "cannot enable %s below %s (%s): %s", names, mount, strerror(-error), error == -EBUSY
                 ? "it holds processes itself; move them to a child group, or run in the host's cgroup namespace"
                 : "delegate these controllers to it");
    return error;
}

#ifdef STOKEHOLD_WEAK
/* Without a sandbox's own limit there is still ours, so that a hostile program harms neighbours and not the machine. */
static void bound_all(const struct cgroups *cg) {
    if (without("memory")) {
        if (cg_enabled(cg, CG_MEMORY)) cg_write(cg->v2_fd, "memory.max", "1073741824");
        else cg_write(cg->v1_fd[CG_MEMORY], "memory.limit_in_bytes", "1073741824");
    }
    if (without("pids")) cg_write(cg_enabled(cg, CG_PIDS) ? cg->v2_fd : cg->v1_fd[CG_PIDS], "pids.max", "1000");
}
#endif

int cg_setup(struct cgroups *cg, const char *name, char *why, unsigned why_size) {
    struct found found = {0};
    *cg = (struct cgroups){.v2_fd = -1, .v1_fd = {-1, -1, -1}};
    snprintf(cg->name, sizeof cg->name, "%s", name);
    *why = 0;
    int error = look(&found);
    if (error) {
        snprintf(why, why_size, "cannot read /proc/self/mountinfo: mount /proc");
        return error;
    }
    if (!*found.v2) {
        snprintf(why, why_size, "no cgroup v2 hierarchy is mounted: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 "
                 "cgroup2 /sys/fs/cgroup/unified (or boot with systemd.unified_cgroup_hierarchy=1)");
        return -ENOTSUP;
    }
    if ((cg->v2_fd = open_root(found.v2, name, why, why_size)) < 0) return cg->v2_fd;
    if (faccessat(cg->v2_fd, "cgroup.kill", F_OK, 0) < 0) {
        snprintf(why, why_size, "this kernel has no cgroup.kill: Linux 5.14 or later is needed");
        return -ENOTSUP;
    }
    for (int c = 0; c < CG_CONTROLLERS; c++)
        if (*found.v1[c] && (cg->v1_fd[c] = open_root(found.v1[c], name, why, why_size)) < 0) return cg->v1_fd[c];
    if (!cg_enabled(cg, CG_MEMORY)) {
        cg_write(cg->v1_fd[CG_MEMORY], "memory.use_hierarchy", "1");  /* before Linux 5.11 */
        /* Sockets are counted from the first group that limits them: were it a sandbox's, each first one would patch the kernel. */
        cg_write(cg->v1_fd[CG_MEMORY], "memory.kmem.tcp.limit_in_bytes", "-1");
    }
    error = enable(cg, found.v2, why, why_size);
#ifdef STOKEHOLD_WEAK
    if (!error) bound_all(cg);
#endif
    return error;
}

/* Call `act` for every group right below `root`. */
static int each(const struct cgroups *cg, int root, int (*act)(const struct cgroups *, const char *)) {
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) return -errno;
    for (struct dirent *d; (d = readdir(dir));)
        if (d->d_type == DT_DIR && d->d_name[0] != '.' && strlen(d->d_name) <= 40) {
            int e = act(cg, d->d_name);
            if (e && !error) error = e;
        }
    closedir(dir);
    return error;
}

static int end_group(const struct cgroups *cg, const char *sandbox) {
    cg_freeze(cg, sandbox, false);
    return cg_kill_all(cg, sandbox);
}

static int remove_group(const struct cgroups *cg, const char *sandbox) {
    int error = cg_sandbox_remove(cg, sandbox);
    for (int tries = 0; error == -EBUSY && tries < 200; tries++) {
        if (cg_wait_empty(cg, sandbox, 50) == 0) poll(NULL, 0, 1);
        cg_kill_all(cg, sandbox);
        error = cg_sandbox_remove(cg, sandbox);
    }
    return error;
}

int cg_clean(const struct cgroups *cg) {
    int error = each(cg, cg->v2_fd, end_group), e = each(cg, cg->v2_fd, remove_group);
    if (e) error = e;
    for (int c = 0; c < CG_CONTROLLERS; c++)
        if (!cg_enabled(cg, (enum cg_controller)c) && (e = each(cg, cg->v1_fd[c], remove_group))) error = e;
    return error;
}

void cg_remove_roots(const struct cgroups *cg) {
    char path[CG_PATH];
    const int fds[] = {cg->v2_fd, cg->v1_fd[0], cg->v1_fd[1], cg->v1_fd[2]};
    snprintf(path, sizeof path, "../%s", cg->name);
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0 && cg_rmdir(fds[i], path) < 0) errno = 0;  /* still in use: whoever uses it removes it */
}
