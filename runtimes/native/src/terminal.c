/* A command's controlling terminal, on the sandbox's own devpts. Done while the child is still the host's root, so nothing here follows
 * a link; /dev is a read-only mount of ours, which the sandbox cannot change. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <termios.h>
#include <unistd.h>

#include "enter.h"

#define PTYS_MAX 64            /* of one sandbox: the kernel counts all of the host's together (kernel.pty.max, 4096) */
#define PTYS_OF_ALL 1048576
#define TTY_GROUP 5            /* Debian's and everybody's "tty" */

static int open_pts(int flags) {
    struct open_how how = {.flags = (uint64_t)(unsigned)flags, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, "/dev/pts", &how, sizeof how);
}

static int configure(int fs, const char *key, const char *format, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, format, value);
    return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, text, 0);
}

/* Owned by the sandbox's root, so that it may hand terminals to its users. */
static int mount_pts(int at, uid_t base) {
    int fs = (int)syscall(SYS_fsopen, "devpts", FSOPEN_CLOEXEC), mount = -1;
    if (fs < 0) return -1;
    if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", "stokehold", 0) == 0 && configure(fs, "uid", "%u", base) == 0 &&
        configure(fs, "gid", "%u", base + TTY_GROUP) == 0 && configure(fs, "mode", "%o", 0620) == 0 &&
        configure(fs, "ptmxmode", "%o", 0666) == 0 && configure(fs, "max", "%u", without("ptymax") ? PTYS_OF_ALL : PTYS_MAX) == 0 &&
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (mount >= 0 && syscall(SYS_move_mount, mount, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0) {
        int error = errno;
        close(mount);
        errno = error;
        mount = -1;
    }
    int error = errno;
    close(fs);
    errno = error;
    return mount;
}

/* The devpts, mounted by whoever comes first. The lock is on the host's side: nobody inside can hold it. */
static int devpts(const struct child *c) {
    struct statfs fs;
    if (flock(c->terminal_lock, LOCK_EX) < 0) return -1;
    int at = open_pts(O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at >= 0 && fstatfs(at, &fs) == 0 && fs.f_type != DEVPTS_SUPER_MAGIC) {
        int mount = mount_pts(at, c->base_uid), error = errno;
        close(at);
        errno = error;
        at = mount;
    }
    flock(c->terminal_lock, LOCK_UN);
    return at;
}

bool terminal_open(const struct child *c, uint16_t rows, uint16_t columns, int *slave, struct trouble *t) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    struct st_message tell = {.kind = ST_MASTER};
    int unlock = 0, at = devpts(c);
    if (at < 0) return trouble(t, errno, true, "devpts");
    int master = openat(at, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
    close(at);
    if (master < 0) return trouble(t, errno, true, "ptmx");
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0) return trouble(t, errno, true, "terminal");
    *slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*slave < 0) return trouble(t, errno, true, "terminal");
    if (fchown(*slave, c->base_uid, c->base_uid + TTY_GROUP) < 0) return trouble(t, errno, true, "terminal's owner");
    if (ioctl(*slave, TIOCSCTTY, 0) < 0) return trouble(t, errno, true, "controlling terminal");
    int e = send_with_fds(c->talk, &tell, sizeof tell, &master, 1);
    if (e) return trouble(t, -e, true, "terminal's master");
    close(master);
    return inside_keep(slave, t);
}
