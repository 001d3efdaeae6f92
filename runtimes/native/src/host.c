/* What the spawner takes from the host before it leaves the host's mounts: control groups, /proc, layers, and the small
 * read-only trees that all sandboxes share. Nothing here has seen a tenant's data. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maker.h"

#define FIRST_RANGE 4096u      /* uids below this many ranges are the host's own */
#define SLOT_0_RANGES 32768u
#define SLOT_RANGES 4096u
#define LAST_SLOT 7u

static _Noreturn void refuse(const char *what, const char *remedy) {
    fprintf(stderr, "stokehold-spawner: %s: %s\n", what, remedy);
    exit(1);
}

static int tmpfs(const char *mode) {
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", "stokehold", 0) < 0 ||
        fsconfig(context, FSCONFIG_SET_STRING, "mode", mode, 0) < 0 || fsconfig(context, FSCONFIG_SET_STRING, "size", "1m", 0) < 0 ||
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) die("tmpfs");
    int fd = fsmount(context, FSMOUNT_CLOEXEC, 0);
    if (fd < 0) die("tmpfs");
    close(context);
    return fd;
}

static void set_attributes(int mount, uint64_t attributes) {
    struct mount_attr attr = {.attr_set = attributes};
    if (mount_setattr(mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) < 0) die("mount_setattr");
}

/* The minimal /dev: device nodes, links, and the directories that others are mounted on. */
static int make_dev(void) {
    static const struct { const char *name; unsigned major, minor; } nodes[] = {
        {"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
    static const struct { const char *name, *target; } links[] = {
        {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
        {"ptmx", "pts/ptmx"}};
    umask(0);
    int fd = tmpfs("0755");
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (mknodat(fd, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0)
            refuse("cannot make device nodes", "the spawner needs CAP_MKNOD (in a container: --privileged)");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlinkat(links[i].target, fd, links[i].name) < 0) die("/dev");
    if (mkdirat(fd, "pts", 0755) < 0 || mkdirat(fd, "shm", 01777) < 0 || mkdirat(fd, "mqueue", 01777) < 0) die("/dev");
    set_attributes(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return fd;
}

static int take(const char *path) {
    int fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "stokehold-spawner: cannot use %s as part of a layer: %s\n", path, strerror(errno));
        exit(1);
    }
    set_attributes(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | (without("nosuid") ? 0 : MOUNT_ATTR_NOSUID));
    return fd;
}

static bool plain_target(const char *path) {
    return path[0] == '/' && path[1] && !strstr(path, "/../") && !strstr(path, "//") && strlen(path) < sizeof(((struct bind *)0)->target);
}

static void open_binds(struct layer *layer, const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/binds", directory);
    FILE *f = fopen(path, "re");
    if (!f) die(path);
    for (unsigned line = 1; fgets(path, sizeof path, f); line++) {
        char *tab = strchr(path, '\t');
        path[strcspn(path, "\n")] = 0;
        if (!*path) continue;
        if (!tab) refuse("layer", "a line of its binds has no tab: build the layer again");
        *tab = 0;
        struct stat there;
        if (!plain_target(path) || tab[1] != '/') refuse("layer", "a line of its binds is not two absolute paths: build it again");
        if (fstatat(layer->root_fd, path + 1, &there, AT_SYMLINK_NOFOLLOW) < 0) refuse(path, "the layer's root lacks it: build it again");
        if (!strcmp(path, "/usr")) {
            layer->usr_fd = take(tab + 1);
            continue;
        }
        if (layer->binds_count == BINDS_MAX) refuse("layer", "too many binds");
        struct bind *b = &layer->binds[layer->binds_count++];
        snprintf(b->target, sizeof b->target, "%s", path);
        b->fd = take(tab + 1);
    }
    fclose(f);
}

static void open_layer(struct layer *layer, const struct layer_option *option) {
    char path[4096];
    struct stat s;
    if (strlen(option->name) >= sizeof layer->name) refuse(option->name, "a layer's name is at most 31 characters");
    snprintf(layer->name, sizeof layer->name, "%s", option->name);
    if (stat(option->directory, &s) < 0) die(option->directory);
    if (s.st_uid != 0 || (s.st_mode & 022)) refuse(option->directory, "a layer must belong to root and be writable by nobody else");
    snprintf(path, sizeof path, "%s/root", option->directory);
    layer->root_fd = take(path);
    layer->usr_fd = -1;
    open_binds(layer, option->directory);
}

void host_open(struct host *host, const char *cgroup, unsigned slot, const struct layer_option *layers, int count) {
    char why[512];
    umask(0);  /* modes are meant as they are written */
    *host = (struct host){.layers_count = count, .ranges = slot ? SLOT_RANGES : SLOT_0_RANGES};
    if (slot == LAST_SLOT) host->ranges--;  /* its last uid would be -1, which is nobody at all */
    host->uid_base = (FIRST_RANGE + (slot ? SLOT_0_RANGES + (slot - 1) * SLOT_RANGES : 0)) * RANGE_SIZE;
    int error = cg_setup(&host->cg, cgroup, why, sizeof why);
    if (error) refuse("control groups", *why ? why : strerror(-error));
    error = cg_clean(&host->cg);
    if (error) {
        errno = -error;
        die("cannot remove the control groups of an earlier spawner");
    }
    if ((host->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) die("/proc");
    if ((host->broker_pidfd = pidfd_open(getpid(), 0)) < 0) die("pidfd_open");
    if (fcntl(host->broker_pidfd, F_SETFD, FD_CLOEXEC) < 0) die("pidfd_open");
    /* Ours from here on: a detached mount can be cloned only in the namespace that it was taken in. */
    if (unshare(CLONE_NEWNS) < 0) refuse("cannot make a mount namespace", "the spawner needs CAP_SYS_ADMIN (in a container: --privileged)");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) die("private mounts");
    migration_make_cheap(&host->cg);
    host->dev_fd = make_dev();
    for (int i = 0; i < count; i++) open_layer(&host->layers[i], &layers[i]);
}

/* /sys of a sandbox is empty but for the number of its CPUs, which C libraries look up there. */
static void make_sys(int root, const char *name, long cpus) {
    static const char *const files[] = {"online", "possible", "present"};
    char path[128], text[24];
    int length = cpus > 1 ? snprintf(text, sizeof text, "0-%ld\n", cpus - 1) : snprintf(text, sizeof text, "0\n");
    static const char *const levels[] = {"", "/devices", "/devices/system", "/devices/system/cpu"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        snprintf(path, sizeof path, "sys/%s%s", name, levels[i]);
        if (mkdirat(root, path, 0755) < 0) die("/sys");
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "sys/%s/devices/system/cpu/%s", name, files[i]);
        int fd = openat(root, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        if (fd < 0 || write(fd, text, (size_t)length) != length) die("/sys");
        close(fd);
    }
}

/* Before Linux 6.15 only attached mounts can be cloned: keep the layers in our namespace. */
static void keep_attached(int root, int mount, unsigned *number) {
    char path[32];
    struct stat s;
    if (fstat(mount, &s) < 0) die("layer");
    snprintf(path, sizeof path, "layers/%u", (*number)++);
    if (S_ISDIR(s.st_mode) ? mkdirat(root, path, 0755) : mknodat(root, path, S_IFREG | 0444, 0)) die("layers");
    if (move_mount(mount, "", root, path, MOVE_MOUNT_F_EMPTY_PATH) < 0) die("layers");
}

static void keep_layers(const struct host *host, int root) {
    unsigned number = 0;
    int clone = open_tree(host->dev_fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (clone >= 0) {
        close(clone);
        return;
    }
    if (mkdirat(root, "layers", 0755) < 0) die("layers");
    keep_attached(root, host->dev_fd, &number);
    for (int i = 0; i < host->layers_count; i++) {
        const struct layer *l = &host->layers[i];
        keep_attached(root, l->root_fd, &number);
        if (l->usr_fd >= 0) keep_attached(root, l->usr_fd, &number);
        for (int j = 0; j < l->binds_count; j++) keep_attached(root, l->binds[j].fd, &number);
    }
}

void host_leave(struct host *host) {
    static const char *const directories[] = {"skel", "usr", "w", "empty", "sys"};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int root = tmpfs("0555");
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        if (mkdirat(root, directories[i], 0555) < 0) die("root");
    make_sys(root, "all", cpus);
    for (long n = 1; n < cpus && n < 1024; n++) {
        char name[24];
        snprintf(name, sizeof name, "%ld", n);
        make_sys(root, name, n);
    }
    /* Any directory of the old root will do to stand on; both it and what is on it go at once. */
    if (move_mount(root, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) < 0 || fchdir(root) < 0) die("root");
    if (syscall(SYS_pivot_root, ".", ".") < 0) refuse("pivot_root", "the root file system must not be the initial ramfs");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) die("leave the host's mounts");
    keep_layers(host, root);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
    if (mount_setattr(root, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0) die("root");
    close(root);
}

/* In a process of its own, as a maker would. */
static _Noreturn void probe(const struct host *host) {
    maker_begin(host);
    for (int i = 0; i < host->layers_count; i++)
        for (uint32_t role = 0; role < 2; role++) {
            struct w_make ask = {.role = role, .disk = 1u << 20, .memory = role ? 64u << 20 : 0, .pids = 16, .cpu_milli = 1000};
            struct made made;
            const char *stage;
            snprintf(ask.name, sizeof ask.name, "probe%d0%u%u", getpid() % 10000 + 10000, i % 10, role);
            snprintf(ask.base, sizeof ask.base, "%s", host->layers[i].name);
            int error = sandbox_make(host, &ask, &made, &stage);
            if (error) {
                fprintf(stderr, "stokehold-spawner: this host cannot make a sandbox of layer %s: %s: %s (Linux 5.19 or later, as root "
                        "with all capabilities, and layers on a file system with idmapped mounts: ext4, xfs, btrfs)\n", ask.base, stage, strerror(-error));
                _exit(1);
            }
            syscall(SYS_pidfd_send_signal, made.pidfd, SIGKILL, NULL, 0);
            close(made.pidfd);
            if ((error = sandbox_unmake(host, ask.name, &stage))) {
                fprintf(stderr, "stokehold-spawner: this host cannot end a sandbox: %s: %s\n", stage, strerror(-error));
                _exit(1);
            }
        }
    _exit(0);
}

void host_probe(const struct host *host) {
    int status;
    pid_t pid = fork(), got;
    if (pid < 0) die("fork");
    if (pid == 0) probe(host);
    bool failed = true;
    while ((got = waitpid(-1, &status, 0)) > 0 || errno == EINTR)  /* its PID 1s are our children too */
        if (got == pid) failed = status != 0;
    if (!failed) return;
    cg_remove_roots(&host->cg);
    exit(1);
}
