/* Tries to become more than it is: other users, capabilities, set-id programs, roots outside its own. Harmless: all of it
 * happens within the sandbox's own range of users and on its own files. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "attack.h"

static unsigned long long capabilities(const char *which) {
    char line[128];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, which, strlen(which))) return strtoull(strchr(line, '\t'), NULL, 16);
    broken("no %s", which);
}

/* What an exec gained: exits 0 if nothing. */
static void who(int argc, char **argv) {
    (void)argc, (void)argv;
    if (geteuid() != getuid()) harm("runs as user %d", geteuid());
    if (capabilities("CapEff")) harm("has capabilities %llx", capabilities("CapEff"));
    safe("user %d without capabilities", getuid());
}

static void become_root(int argc, char **argv) {
    (void)argc, (void)argv;
    if (setresuid(0, 0, 0) == 0) harm("became root");
    refused("setresuid");
}
static void change_owner(int argc, char **argv) {
    (void)argc, (void)argv;
    int fd = open("/tmp/own", O_WRONLY | O_CREAT, 0600);
    if (fchown(fd, 0, 0) == 0) harm("gave a file to root");
    refused("chown");
}
/* bounded MASK: a capability beyond the allowed ones, in any set, or that can be had. */
static void bounded(int argc, char **argv) {
    unsigned long long allowed = strtoull(argv[0], NULL, 16);
    static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};
    (void)argc;
    for (size_t i = 0; i < 5; i++)
        if (capabilities(sets[i]) & ~allowed) harm("%s is %llx", sets[i], capabilities(sets[i]));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct all[2] = {{~0u, ~0u, ~0u}, {0x1ff, 0x1ff, 0x1ff}};
    if (syscall(SYS_capset, &header, all) == 0) harm("took every capability");
    safe("%s", strerrorname_np(errno));
}

/* set_id: as the sandbox's root, a copy of this program that is set-id, and one with file capabilities; then run by a user. */
static void copy_self(const char *to, mode_t mode) {
    char data[65536];
    int in = open("/proc/self/exe", O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    for (ssize_t n; (n = read(in, data, sizeof data)) > 0;)
        if (write(out, data, (size_t)n) != n) broken("copy: %m");
    if (out < 0 || fchmod(out, mode) < 0) broken("%s: %m", to);
    close(out);
}
static void run_as_user(const char *path) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (syscall(SYS_setgroups, 0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)) broken("setresuid: %m");
        execl(path, path, "who", NULL);
        broken("execl: %m");
    }
    int status;
    waitpid(pid, &status, 0);
    _exit(WEXITSTATUS(status));
}
static void set_id(int argc, char **argv) {
    (void)argc;
    copy_self(argv[0], 04755);
    struct stat st;
    if (stat(argv[0], &st) < 0 || !(st.st_mode & S_ISUID)) safe("the bit does not stay");
    run_as_user(argv[0]);
}
static void file_capabilities(int argc, char **argv) {
    struct vfs_cap_data caps = {.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE};
    (void)argc;
    copy_self(argv[0], 0755);
    caps.data[0].permitted = 1u << CAP_SETUID | 1u << CAP_CHOWN;
    if (setxattr(argv[0], "security.capability", &caps, sizeof caps, 0) < 0) refused("setxattr");
    run_as_user(argv[0]);
}
/* The host's own set-id programs, by a user. Each is asked for its version on a pipe that is full, so that it stands still
 * after its first words and shows whom it runs as. */
static void host_set_id(int argc, char **argv) {
    static const char *const programs[] = {"/usr/bin/su", "/usr/bin/mount", "/usr/bin/umount", "/usr/bin/sudo", "/usr/bin/pkexec",
                                           "/usr/bin/newgrp", "/usr/bin/passwd"};
    char full[4096] = "", path[64], line[128];
    int pipes[2], tried = 0;
    (void)argc, (void)argv;
    if (pipe2(pipes, O_NONBLOCK) < 0) broken("pipe: %m");
    while (write(pipes[1], full, sizeof full) > 0) {}
    fcntl(pipes[1], F_SETFL, 0);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct stat st;
        if (stat(programs[i], &st) < 0 || !(st.st_mode & S_ISUID)) continue;
        tried++;
        pid_t pid = fork();
        if (pid == 0) {
            dup2(pipes[1], 1);
            dup2(pipes[1], 2);
            execl(programs[i], programs[i], "--version", NULL);
            _exit(127);
        }
        snprintf(path, sizeof path, "/proc/%d/status", pid);
        for (int moment = 0; moment < 30; moment++) {
            FILE *f = fopen(path, "r");
            while (f && fgets(line, sizeof line, f))
                if (!strncmp(line, "Uid:", 4) && atoi(strchr(strchr(line, '\t') + 1, '\t') + 1) != (int)getuid()) {
                    kill(pid, SIGKILL);
                    harm("%s runs as another: %s", programs[i], line);
                }
            if (f) fclose(f);
            usleep(5000);
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    safe("none of the host's %d set-id programs changes users", tried);
}

/* chroot twice: the working directory stays outside the new root, and ".." climbs from there. */
static void double_chroot(int argc, char **argv) {
    struct stat before, after;
    (void)argc, (void)argv;
    stat("/", &before);
    mkdir("/tmp/cell", 0755);
    int outside = open("/", O_RDONLY | O_DIRECTORY);
    if (chroot("/tmp/cell") < 0) refused("chroot");
    if (fchdir(outside) < 0) broken("fchdir: %m");
    for (int i = 0; i < 64; i++)
        if (chdir("..") < 0) broken("..: %m");
    if (chroot(".") < 0) broken("chroot: %m");
    stat("/", &after);
    if (before.st_dev != after.st_dev || before.st_ino != after.st_ino) {
        DIR *d = opendir("/");
        char list[512] = "";
        for (struct dirent *e; d && (e = readdir(d));) snprintf(list + strlen(list), sizeof list - strlen(list), " %s", e->d_name);
        harm("stands outside its root:%s", list);
    }
    safe("the same root as before");
}
/* A directory moved out of a chroot while somebody stands in it. */
static void move_out(int argc, char **argv) {
    struct stat root, here;
    (void)argc, (void)argv;
    stat("/", &root);
    mkdir("/tmp/cell", 0755);
    mkdir("/tmp/cell/inner", 0755);
    int go[2];
    if (pipe(go) < 0) broken("pipe: %m");
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        if (chroot("/tmp/cell") < 0 || chdir("/inner") < 0 || read(go[0], &c, 1) != 1) _exit(3);
        for (int i = 0; i < 64; i++)
            if (chdir("..") < 0) _exit(3);
        stat(".", &here);
        _exit(here.st_dev == root.st_dev && here.st_ino == root.st_ino ? 0 : 1);
    }
    usleep(50000);
    if (rename("/tmp/cell/inner", "/tmp/moved") < 0 || write(go[1], "", 1) < 0) broken("rename: %m");
    int status;
    waitpid(pid, &status, 0);
    if (WEXITSTATUS(status) == 1) harm("climbed above the root");
    safe("the root is the top");
}

const struct attack attacks[] = {
    {"who", who}, {"become_root", become_root}, {"change_owner", change_owner}, {"bounded", bounded}, {"set_id", set_id},
    {"file_capabilities", file_capabilities}, {"host_set_id", host_set_id}, {"double_chroot", double_chroot},
    {"move_out", move_out}, {NULL, NULL}};
