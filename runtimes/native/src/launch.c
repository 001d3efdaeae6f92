/* Starts a program as an unprivileged user without any capability, in a mount namespace of its own.
 *
 * Its code may lie below a directory which that user cannot pass (a checkout in /root). Such a directory is not opened: it is
 * covered by an empty tmpfs, in which only the exposed directories are shown, read-only, at their own paths. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "options.h"

#define EXPOSED_MAX 16

struct exposed { char path[4096], cover[4096]; int mount; };  /* cover: empty if every ancestor can be passed */

static bool passable(const struct stat *s, uid_t uid, gid_t gid) {
    if (s->st_uid == uid) return s->st_mode & S_IXUSR;
    return s->st_mode & (s->st_gid == gid ? S_IXGRP : S_IXOTH);
}

/* The topmost ancestor of `path` that the user cannot pass. */
static void find_cover(struct exposed *e, uid_t uid, gid_t gid) {
    char part[4096];
    struct stat s;
    for (const char *slash = strchr(e->path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - e->path), e->path);
        if (stat(part, &s) < 0) die(part);
        if (!passable(&s, uid, gid)) {
            strcpy(e->cover, part);
            return;
        }
    }
}

static void open_exposed(struct exposed *e, const char *directory, uid_t uid, gid_t gid) {
    struct stat s;
    char *real = realpath(directory, NULL);
    if (!real || stat(real, &s) < 0) die(directory);
    if (!S_ISDIR(s.st_mode)) usage("--expose must name a directory");
    *e = (struct exposed){.mount = -1};
    snprintf(e->path, sizeof e->path, "%s", real);
    free(real);
    find_cover(e, uid, gid);
    if (!*e->cover) return;
    e->mount = open_tree(AT_FDCWD, e->path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (e->mount < 0 || mount_setattr(e->mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) < 0) die(e->path);
}

static void make_parents(const char *cover, char *path) {
    for (char *slash = path + strlen(cover) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(path, 0755) < 0 && errno != EEXIST) die(path);
        *slash = '/';
    }
    if (mkdir(path, 0755) < 0 && errno != EEXIST) die(path);
}

static int by_length(const void *a, const void *b) {
    size_t x = strlen(((const struct exposed *)a)->path), y = strlen(((const struct exposed *)b)->path);
    return x < y ? -1 : x > y;
}

static void cover_and_show(struct exposed *all, int count) {
    qsort(all, (size_t)count, sizeof *all, by_length);  /* a directory before what lies in it */
    for (int i = 0; i < count; i++) {
        bool covered = !*all[i].cover;
        for (int j = 0; j < i && !covered; j++) covered = !strcmp(all[j].cover, all[i].cover);
        if (!covered && mount("stokehold", all[i].cover, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") < 0) die(all[i].cover);
    }
    for (int i = 0; i < count; i++) {
        bool shown = !*all[i].cover;
        for (int j = 0; j < i && !shown; j++) {  /* within one that is shown already */
            size_t n = strlen(all[j].path);
            shown = *all[j].cover && !strncmp(all[j].path, all[i].path, n) && (all[i].path[n] == '/' || !all[i].path[n]);
        }
        if (shown) continue;
        make_parents(all[i].cover, all[i].path);
        if (move_mount(all[i].mount, "", AT_FDCWD, all[i].path, MOVE_MOUNT_F_EMPTY_PATH) < 0) die(all[i].path);
    }
    for (int i = 0; i < count; i++)
        if (*all[i].cover && mount(NULL, all[i].cover, NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0) die(all[i].cover);
}

static void drop_privileges(uid_t uid, gid_t gid) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    int death = 0;
    if (prctl(PR_GET_PDEATHSIG, &death) < 0) die("parent-death signal");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap) < 0) die("bounding set");
    if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0) die("user");
    if (syscall(SYS_capset, &header, none) < 0) die("capabilities");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) die("capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) die("no_new_privs");
    if (prctl(PR_SET_PDEATHSIG, death) < 0) die("parent-death signal");  /* whoever started us asked for it; the new user cleared it */
}

void launch_main(int argc, char **argv) {
    static const struct option options[] = {{"uid", 1, 0, 'u'}, {"gid", 1, 0, 'g'}, {"expose", 1, 0, 'e'}, {0}};
    static struct exposed exposed[EXPOSED_MAX];
    const char *directories[EXPOSED_MAX];
    unsigned long uid = 0, gid = 0;
    int count = 0;
    for (int c; (c = getopt_long(argc, argv, "+", options, NULL)) != -1;) switch (c) {
        case 'u': uid = option_number("uid", optarg, 1, UINT32_MAX - 1); break;
        case 'g': gid = option_number("gid", optarg, 1, UINT32_MAX - 1); break;
        case 'e':
            if (count == EXPOSED_MAX) usage("too many --expose");
            directories[count++] = optarg;
            break;
        default: usage("unknown option");
    }
    if (!uid || !gid || optind == argc) usage("launch: an option or the program is missing");
    if (geteuid() != 0) {
        errno = EPERM;
        die("launch: must be started by root (sudo)");
    }
    umask(022);
    for (int i = 0; i < count; i++) open_exposed(&exposed[i], directories[i], (uid_t)uid, (gid_t)gid);
    if (unshare(CLONE_NEWNS) < 0) die("mount namespace");
    /* What the host unmounts later goes here too; nothing of ours is seen there. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) die("private mounts");
    cover_and_show(exposed, count);
    if (chdir("/") < 0) die("/");  /* where we stood may be covered */
    drop_privileges((uid_t)uid, (gid_t)gid);
    if (close_range(3, ~0u, 0) < 0) die("close_range");
    execvp(argv[optind], argv + optind);
    die(argv[optind]);
}
