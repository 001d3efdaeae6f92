/* Keeps moving a process between control groups cheap. On v1 every command is moved into its sandbox's groups, and each move waits for an RCU
 * grace period (6 to 16 ms, with the lock of all control groups held) unless some hierarchy asks for `favordynmods`. So we make one of our own
 * that asks for it: it has no controller, is mounted nowhere, and goes with the last of our processes. Only from Linux 6.18 on does a part of the
 * mode (the lock by thread group, for forks) stay until the host boots again. Best effort: without it everything works, later. */
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include "maker.h"

void migration_make_cheap(const struct cgroups *cg) {
    bool moves = false;
    for (int c = 0; c < CG_CONTROLLERS; c++) moves |= cg->v1_fd[c] >= 0;
    if (!moves) return;
    int context = fsopen("cgroup", FSOPEN_CLOEXEC);
    if (context < 0) return;
    /* The mount that keeps it is inherited by the workers and never closed. Linux before 6.0 does not know the option. */
    if (fsconfig(context, FSCONFIG_SET_FLAG, "none", NULL, 0) == 0 && fsconfig(context, FSCONFIG_SET_STRING, "name", "stokehold", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_FLAG, "favordynmods", NULL, 0) == 0 && fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    close(context);
}
