/* What a sandbox sees: its root, /usr, /dev, /proc, /sys and its writable places, in a mount namespace of its own.
 *
 * The spawner's namespace, which every new one copies, is one read-only tmpfs with empty directories (host.c): /skel and /usr
 * (lower layers of overlays, attached there because older kernels take no detached ones), /w (the writable tmpfs), /empty,
 * /sys/N. The new root is attached over "/" of the copy. That cannot be left through "..": a walk that arrives at the root of
 * a mount which covers a namespace's root finds no parent and stays. It spares pivot_root's wait for a grace period. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "maker.h"

#define SOURCE "stokehold"
#define PROGRAM_UID 1000u      /* who calls run as, inside */
#define INODES_MIN 16384u

/* Of /proc: files and directories that tell about, or act on, the host. Most are already refused to a root that is nobody
 * outside; a mask also covers those that everybody may read. */
static const char *const masked[] = {
    "acpi", "asound", "driver", "scsi",                             /* devices */
    "kcore", "kmsg", "kallsyms", "modules", "vmallocinfo", "slabinfo", "allocinfo", "iomem", "ioports", /* kernel memory */
    "keys", "key-users",                                            /* other users' keyrings: not per namespace */
    "kpagecgroup", "kpagecount", "kpageflags",                      /* physical pages */
    "latency_stats", "sched_debug", "timer_list", "timer_stats",    /* other processes' activity */
    "interrupts", "softirqs",                                       /* a side channel of keystrokes and devices */
    "sysrq-trigger", "cmdline", "config.gz",                        /* the host's own */
};
static const char *const read_only[] = {"sys", "bus", "fs", "irq"};

#define COUNT(a) (sizeof(a) / sizeof *(a))
enum { ABSENT, A_FILE, A_DIRECTORY };
static unsigned char masked_kind[COUNT(masked)], read_only_kind[COUNT(read_only)];

static unsigned char kind_of(int dir, const char *name) {
    struct stat s;
    if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) < 0) return ABSENT;
    return S_ISDIR(s.st_mode) ? A_DIRECTORY : S_ISREG(s.st_mode) ? A_FILE : ABSENT;
}

void mounts_learn(const struct host *host) {
    for (size_t i = 0; i < COUNT(masked); i++) masked_kind[i] = kind_of(host->proc_fd, masked[i]);
    for (size_t i = 0; i < COUNT(read_only); i++) read_only_kind[i] = kind_of(host->proc_fd, read_only[i]);
}

/* ---- in the maker: detached mounts with the sandbox's owners ---- */

static int idmapped(int mount, int userns) {
    int fd = open_tree(mount, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0) return -errno;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    if (mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

void mounts_close(struct tree *tree) {
    for (int i = 0; i < tree->layer->binds_count; i++) if (tree->binds[i] >= 0) close(tree->binds[i]);
    if (tree->root >= 0) close(tree->root);
    if (tree->usr >= 0) close(tree->usr);
    if (tree->dev >= 0) close(tree->dev);
}

int mounts_open(const struct host *host, const struct layer *layer, int userns, struct tree *tree, const char **stage) {
    *tree = (struct tree){.layer = layer, .root = -1, .usr = -1, .dev = -1};
    memset(tree->binds, -1, sizeof tree->binds);
    int error;
    *stage = "mounts: owners of the root layer";
    if ((error = tree->root = idmapped(layer->root_fd, userns)) < 0) goto failed;
    *stage = "mounts: owners of /usr";
    if (layer->usr_fd >= 0 && (error = tree->usr = idmapped(layer->usr_fd, userns)) < 0) goto failed;
    *stage = "mounts: owners of /dev";
    tree->dev = idmapped(host->dev_fd, userns);
    if (tree->dev < 0)  /* a tmpfs before Linux 6.3: its nodes are shown as nobody's, and serve as well */
        tree->dev = open_tree(host->dev_fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if ((error = tree->dev < 0 ? -errno : 0)) goto failed;
    *stage = "mounts: owners of a bind";
    for (int i = 0; i < layer->binds_count; i++)
        if ((error = tree->binds[i] = idmapped(layer->binds[i].fd, userns)) < 0) goto failed;
    return 0;
failed:
    mounts_close(tree);
    return error;
}

/* ---- in the new PID 1 ---- */

static int attach(int mount, int dir, const char *target) {
    return move_mount(mount, "", dir, target, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

static int bind(int from, const char *source, uint64_t attributes, int dir, const char *target) {
    int fd = open_tree(from, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW), error = 0;
    if (fd < 0) return -errno;
    struct mount_attr attr = {.attr_set = attributes};
    if (attributes && mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0) error = -errno;
    if (!error) error = attach(fd, dir, target);
    close(fd);
    return error;
}

struct option { const char *key, *value; };

static int file_system(const char *type, const struct option *options, uint64_t attributes) {
    int context = fsopen(type, FSOPEN_CLOEXEC), fd = -1, error = 0;
    if (context < 0) return -errno;
    if (fsconfig(context, FSCONFIG_SET_STRING, "source", SOURCE, 0) < 0) error = -errno;
    for (; !error && options && options->key; options++)
        if (fsconfig(context, FSCONFIG_SET_STRING, options->key, options->value, 0) < 0) error = -errno;
    if (!error && fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) error = -errno;
    if (!error && (fd = fsmount(context, FSMOUNT_CLOEXEC, attributes)) < 0) error = -errno;
    close(context);
    return error ? error : fd;
}

static int directory(const char *path, mode_t mode, uid_t owner) {
    setfsuid(owner);
    setfsgid(owner);
    int error = mkdir(path, mode) < 0 ? -errno : 0;
    setfsuid(0);
    setfsgid(0);
    return error;
}

/* /w: everything that this sandbox can write, bounded together. */
static int writable(const struct w_make *ask, uid_t base, const char **stage) {
    uint64_t disk = without("size") ? 1u << 30 : ask->disk, inodes = ask->inodes;
    if (!inodes) inodes = disk / 4096 > INODES_MIN ? disk / 4096 : INODES_MIN;
    if (without("size")) inodes = 1u << 20;
    char size[24], count[24];
    snprintf(size, sizeof size, "%llu", (unsigned long long)disk);
    snprintf(count, sizeof count, "%llu", (unsigned long long)inodes);
    const struct option options[] = {{"size", size}, {"nr_inodes", count}, {"mode", "0755"}, {NULL, NULL}};

    *stage = "mounts: writable tmpfs";
    int fd = file_system("tmpfs", options, MOUNT_ATTR_NODEV | (without("nosuid") ? 0 : MOUNT_ATTR_NOSUID));
    if (fd < 0) return fd;
    int error = attach(fd, AT_FDCWD, "/w");
    close(fd);
    if (error) return error;
    *stage = "mounts: writable directories";
    if ((error = directory("/w/tmp", 01777, base)) || (error = directory("/w/shm", 01777, base))) return error;
    if (ask->role == 0) return directory("/w/box", 0755, base + PROGRAM_UID);
    if (without("cover") && (error = directory("/w/cover", 0755, 0))) return error;
    if ((error = directory("/w/root", 0755, base)) || (error = directory("/w/root.work", 0700, 0))) return error;
    if ((error = directory("/w/usr", 0755, base)) || (error = directory("/w/usr.work", 0700, 0))) return error;
    return directory("/w/root/workspace", 0777, base);  /* for whichever user the lease has */
}

static int overlay(const char *lower, const char *upper, const char *work) {
    const struct option options[] = {
        {"lowerdir", lower}, {"upperdir", upper}, {"workdir", work},
        {"index", "off"}, {"metacopy", "off"},
        {"redirect_dir", "on"},  /* so that rename of a layer's directory works, as on any disk */
        {"xino", "on"},          /* one st_dev, and inode numbers that survive a copy up */
        {NULL, NULL}};
    return file_system("overlay", options, MOUNT_ATTR_NODEV | (without("nosuid") ? 0 : MOUNT_ATTR_NOSUID));
}

/* The lease's root: a private upper over each layer. Returns its mount, attached over "/". */
static int root_of_lease(const struct tree *tree, const char **stage) {
    *stage = "mounts: attach the root layer";
    int error = attach(tree->root, AT_FDCWD, "/skel");
    if (error) return error;
    *stage = "mounts: root overlay";
    int root = overlay("/skel", "/w/root", "/w/root.work");
    if (root < 0) return root;
    *stage = "mounts: attach the root";
    if ((error = attach(root, AT_FDCWD, without("cover") ? "/w/cover" : "/"))) goto failed;
    if (tree->usr >= 0) {
        *stage = "mounts: attach the /usr layer";
        if ((error = attach(tree->usr, AT_FDCWD, "/usr"))) goto failed;
        *stage = "mounts: /usr overlay";
        int usr = overlay("/usr", "/w/usr", "/w/usr.work");
        if ((error = usr < 0 ? usr : 0)) goto failed;
        *stage = "mounts: attach /usr";
        error = attach(usr, root, "usr");
        close(usr);
        if (error) goto failed;
    }
    return root;
failed:
    close(root);
    return error;
}

static int root_of_call(const struct tree *tree, const char **stage) {
    *stage = "mounts: attach the root";
    int error = attach(tree->root, AT_FDCWD, "/");
    if (error) return error;
    *stage = "mounts: attach /usr";
    if (tree->usr >= 0 && (error = attach(tree->usr, tree->root, "usr"))) return error;
    *stage = "mounts: /box";
    if ((error = bind(AT_FDCWD, "/w/box", 0, tree->root, "box"))) return error;
    int root = fcntl(tree->root, F_DUPFD_CLOEXEC, 0);
    return root < 0 ? -errno : root;
}

/* A file at /w/meminfo that tells a program its own share. */
static int write_meminfo(uint64_t bytes) {
    char text[512];
    unsigned long long kb = bytes / 1024;
    int length = snprintf(text, sizeof text,
        "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\nBuffers:               0 kB\n"
        "Cached:                0 kB\nSwapCached:            0 kB\nActive:                0 kB\nInactive:              0 kB\n"
        "SwapTotal:             0 kB\nSwapFree:              0 kB\nShmem:                 0 kB\nSlab:                  0 kB\n",
        kb, kb, kb);
    int fd = open("/w/meminfo", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0) return -errno;
    int error = write(fd, text, (size_t)length) == length ? 0 : -ENOSPC;
    close(fd);
    return error;
}

static int process_files(const struct w_make *ask, const struct tree *tree, int root, uid_t base, int *limits, const char **stage) {
    *stage = "mounts: /proc";
    int proc = file_system("proc", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (proc < 0) return proc;
    int error = attach(proc, root, "proc");
    if (!error && !without("netns")) error = net_settings(proc, base, stage);
    if (!error) {
        *stage = "mounts: /proc/sys/user";
        *limits = openat(proc, "sys/user", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (*limits < 0) error = -errno;
    }
    if (!error) *stage = "mounts: what is hidden of /proc";
    for (size_t i = 0; i < COUNT(masked) && !error && !without("masks"); i++) {
        if (masked_kind[i] == A_FILE) error = bind(tree->dev, "null", 0, proc, masked[i]);
        else if (masked_kind[i] == A_DIRECTORY) error = bind(AT_FDCWD, "/empty", 0, proc, masked[i]);
    }
    if (!error) *stage = "mounts: read-only parts of /proc";
    for (size_t i = 0; i < COUNT(read_only) && !error && !without("roproc"); i++)
        if (read_only_kind[i] != ABSENT) error = bind(proc, read_only[i], MOUNT_ATTR_RDONLY, proc, read_only[i]);
    if (!error && ask->shown_memory) {
        *stage = "mounts: /proc/meminfo";
        error = write_meminfo(ask->shown_memory);
        if (!error) error = bind(AT_FDCWD, "/w/meminfo", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC, proc, "meminfo");
    }
    close(proc);
    return error;
}

static int rest(const struct w_make *ask, const struct tree *tree, int root, uid_t base, int *limits, const char **stage) {
    int error;
    *stage = "mounts: /dev";
    if ((error = attach(tree->dev, root, "dev")) || (error = bind(AT_FDCWD, "/w/shm", 0, tree->dev, "shm"))) return error;
    *stage = "mounts: /tmp";
    if ((error = bind(AT_FDCWD, "/w/tmp", 0, root, "tmp"))) return error;
    *stage = "mounts: layer's bind";
    for (int i = 0; i < tree->layer->binds_count; i++)
        if ((error = attach(tree->binds[i], root, tree->layer->binds[i].target + 1))) return error;
    *stage = "mounts: /sys";
    char cpus[32] = "/sys/all";
    uint32_t milli = ask->cpu_milli;
    if (milli && milli != UINT32_MAX) snprintf(cpus, sizeof cpus, "/sys/%u", (milli + 999) / 1000);
    error = bind(AT_FDCWD, cpus, 0, root, "sys");
    if (error == -ENOENT) error = bind(AT_FDCWD, "/sys/all", 0, root, "sys");
    if (error) return error;
    return process_files(ask, tree, root, base, limits, stage);
}

int mounts_build(const struct w_make *ask, const struct tree *tree, uid_t base, int *limits, const char **stage) {
    int error = writable(ask, base, stage);
    if (error) return error;
    int root = ask->role ? root_of_lease(tree, stage) : root_of_call(tree, stage);
    if (root < 0) return root;
    error = rest(ask, tree, root, base, limits, stage);
    if (!error) {
        *stage = "mounts: enter the root";
        if (fchdir(root) < 0 || chroot(".") < 0) error = -errno;
    }
    close(root);
    return error;
}
