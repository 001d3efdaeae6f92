/* The steps by which a child of an enterer gets from the host into a sandbox and loses the host's rights on the way. Each is
 * refused to be half done: a step that fails ends the child. Nothing here reads what the sandbox controls. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "enter.h"
#include "seccomp.h"

bool trouble(struct trouble *t, int error, bool ours, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->stage, sizeof t->stage, format, args);
    va_end(args);
    t->error = error;
    t->ours = ours;
    return false;
}

/* The kernel sets it back to fs.suid_dumpable at every change of credentials. Not dumpable means: no other process inside can
 * trace us, read our memory or open our /proc entries, though we are visible there from birth. */
static void not_dumpable(void) {
    prctl(PR_SET_DUMPABLE, without("dumpable") ? 1 : 0);
}

bool inside_keep(int *fd, struct trouble *t) {
    if (*fd < 0) return true;
    int kept = fcntl(*fd, F_DUPFD_CLOEXEC, KEPT_FD);
    if (kept < 0) return trouble(t, errno, true, "descriptors");
    *fd = kept;
    return true;
}

bool inside_prepare(struct child *c, struct trouble *t) {
    struct sigaction normal = {.sa_handler = SIG_DFL};
    sigset_t none;
    not_dumpable();
    if (setsid() < 0) return trouble(t, errno, true, "setsid");
    for (int s = 1; s < NSIG; s++) sigaction(s, &normal, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    int score = openat(c->enterer->host->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score < 0 || write(score, "0", 1) != 1) return trouble(t, errno, true, "oom_score_adj");
    close(score);
    return true;
}

bool inside_namespaces(const struct child *c, struct trouble *t) {
    if (setns(c->pidfd, CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0) return trouble(t, errno, true, "setns");
#ifdef STOKEHOLD_WEAK
    if (without("cover") && (chdir("/w/cover") < 0 || chroot(".") < 0)) return trouble(t, errno, true, "chroot");
#endif
    not_dumpable();
    stop_at("setns");
    return true;
}

bool inside_user(const struct child *c, struct trouble *t) {
    if (setns(c->pidfd, CLONE_NEWUSER) < 0) return trouble(t, errno, true, "setns user");
    not_dumpable();
    stop_at("userns");
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) return trouble(t, errno, true, "become root");
    not_dumpable();
    return true;
}

/* API.md: what root in a lease can do. */
static const uint8_t lease_capabilities[] = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_SETFCAP, CAP_KILL,
    CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT};

static uint64_t capabilities_of(uint32_t role) {
    uint64_t set = 0;
    if (role == 1)
        for (size_t i = 0; i < sizeof lease_capabilities; i++) set |= 1ull << lease_capabilities[i];
    return set;
}

static int set_capabilities(uint64_t set, uint64_t inheritable) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {
        {(uint32_t)set, (uint32_t)set, (uint32_t)inheritable},
        {(uint32_t)(set >> 32), (uint32_t)(set >> 32), (uint32_t)(inheritable >> 32)}};
    return (int)syscall(SYS_capset, &header, data);
}

#ifdef STOKEHOLD_WEAK
/* Without the mechanism "caps", everybody keeps everything that the sandbox's own user namespace has. */
static bool keep_capabilities(struct trouble *t) {
    uint64_t all = 0;
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++) all |= 1ull << cap;
    if (set_capabilities(all, all) < 0) return trouble(t, errno, true, "capset");
    for (int cap = 0; all >> cap; cap++) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
    return true;
}
#endif

static bool become(const struct identity *id, uint64_t keep, struct trouble *t) {
    if (without("caps")) prctl(PR_SET_KEEPCAPS, 1);
    for (int cap = 0; !without("caps") && cap < 64; cap++) {
        if (keep >> cap & 1) continue;
        if (prctl(PR_CAPBSET_DROP, cap) < 0) {
            if (errno == EINVAL) break; /* the last one that this kernel knows */
            return trouble(t, errno, true, "bounding set");
        }
    }
    if (setgroups(id->groups_count, id->groups) < 0) return trouble(t, errno, true, "setgroups");
    if (setresgid(id->gid, id->gid, id->gid) < 0) return trouble(t, errno, true, "setresgid");
    if (setresuid(id->uid, id->uid, id->uid) < 0) return trouble(t, errno, true, "setresuid");
    not_dumpable();
    stop_at("resuid");
#ifdef STOKEHOLD_WEAK
    if (without("caps")) return keep_capabilities(t);
#endif
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return trouble(t, errno, true, "ambient set");
    if (set_capabilities(id->uid == 0 ? keep : 0, 0) < 0) return trouble(t, errno, true, "capset");
    not_dumpable();
    return true;
}

bool inside_lock(const struct child *c, const struct identity *id, bool deny_kill, struct trouble *t) {
    struct pollfd broker = {.fd = c->broker_pidfd, .events = POLLIN};
    if (!become(id, capabilities_of(c->role), t)) return false;
    /* Only now: a change of credentials clears it. getppid() cannot tell whether the broker died before, it is 0 in here. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) return trouble(t, errno, true, "parent death signal");
    if (poll(&broker, 1, 0) != 0) return trouble(t, ESRCH, true, "the spawner is gone");
    if (!without("nnp") && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return trouble(t, errno, true, "no_new_privs");
    stop_at("nnp");
    if (without("seccomp")) return true;
    int e = seccomp_install(deny_kill ? &c->enterer->killing_filter : &c->enterer->filter);
    return e ? trouble(t, -e, true, "seccomp") : true;
}

bool inside_join(struct child *c, struct trouble *t) {
    for (int i = 0; i < c->join_count; i++) {
        if (write(c->join[i], "0", 1) != 1) return trouble(t, errno, true, "join control group");
        close(c->join[i]);
    }
    c->join_count = 0;
    return true;
}
