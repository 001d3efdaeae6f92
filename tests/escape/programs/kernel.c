/* Parts of the kernel that a program in a sandbox has no business with. An attempt does harm if the code behind the call
 * answered at all: every answer but the filter's. Harmless: each is undone, or refused by arguments that cannot work. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "attack.h"

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
#define FAULTY ((void *)8) /* an address that is never mapped */

/* `filtered`: the errno with which the filter refuses this call. The kernel's own code never gives it for these arguments. */
static void reached(const char *what, long result, int filtered) {
    if (result >= 0) harm("%s succeeded", what);
    if (errno != filtered) harm("%s was answered by the kernel's own code: %s", what, strerrorname_np(errno));
    refused(what);
}

#define REACH(name, filtered, ...) \
    static void name(int argc, char **argv) { (void)argc, (void)argv; reached(#name, syscall(__VA_ARGS__), filtered); }

/* Namespaces: harm is one that was made. */
static void made(const char *what, long result) {
    if (result >= 0) harm("%s made a namespace", what);
    refused(what);
}
static void unshare_user(int argc, char **argv) { (void)argc, (void)argv; made("unshare", unshare(CLONE_NEWUSER)); }
static void unshare_network(int argc, char **argv) {
    (void)argc, (void)argv;
    made("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNET));
}
REACH(unshare_unknown, EPERM, SYS_unshare, 1)
REACH(setns_nothing, EPERM, SYS_setns, -1, 0)

static void clone_user(int argc, char **argv) {
    (void)argc, (void)argv;
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    made("clone", pid);
}

/* Even a plain one: its flags cannot be filtered, so no use of it is let through. */
static void clone3_plain(int argc, char **argv) {
    struct clone_args args = {.exit_signal = SIGCHLD};
    (void)argc, (void)argv;
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    reached("clone3", pid, ENOSYS);
}
static void clone3_user(int argc, char **argv) {
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    (void)argc, (void)argv;
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    made("clone3", pid);
}

/* Mounts. Without the filter the kernel looks at a mount's arguments before it looks at rights. */
REACH(mount_copy, EPERM, SYS_mount, FAULTY, FAULTY, FAULTY, 0, NULL)
REACH(umount_nothing, EPERM, SYS_umount2, "/", 0x40000000)
REACH(open_tree_nothing, EPERM, SYS_open_tree, AT_FDCWD, "/nothing", 0)
REACH(mount_setattr_nothing, EPERM, SYS_mount_setattr, AT_FDCWD, "/nothing", 0, FAULTY, 0)
REACH(handle_nothing, EPERM, SYS_open_by_handle_at, AT_FDCWD, FAULTY, O_RDONLY)

/* A tmpfs in a user namespace of one's own: the whole way, for the namespaces as well as for the mount. */
static void mount_tmpfs(int argc, char **argv) {
    (void)argc, (void)argv;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0) refused("unshare");
    if (mount("none", "/tmp", "tmpfs", 0, "size=16k") < 0) refused("mount");
    harm("mounted a file system");
}

/* Code in the kernel */
REACH(bpf_program, EPERM, SYS_bpf, BPF_PROG_LOAD, FAULTY, 16)
REACH(perf_event, EPERM, SYS_perf_event_open, FAULTY, 0, -1, -1, 0)

static void bpf_load(int argc, char **argv) {
    struct bpf_insn code[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K}, {.code = BPF_JMP | BPF_EXIT}}; /* return 0 */
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insns = (uint64_t)(uintptr_t)code, .insn_cnt = 2,
                           .license = (uint64_t)(uintptr_t)"GPL"};
    (void)argc, (void)argv;
    if (syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr) < 0) refused("bpf");
    harm("loaded a program into the kernel");
}

static void io_uring(int argc, char **argv) {
    char parameters[120] = {0};
    (void)argc, (void)argv;
    reached("io_uring_setup", syscall(SYS_io_uring_setup, 2, parameters), EPERM);
}
REACH(aio, ENOSYS, SYS_io_setup, 1, FAULTY)
REACH(userfault, EPERM, SYS_userfaultfd, UFFD_USER_MODE_ONLY | O_CLOEXEC)
REACH(secret_memory, EPERM, SYS_memfd_secret, 0)
REACH(compare, EPERM, SYS_kcmp, 0, 0, 0x40000000, 0, 0)

/* Keyrings: kept by user, so what one sandbox leaves another might find. Here: a key in the program's own, gone with it. */
REACH(key_add, EPERM, SYS_add_key, "user", "stokehold-test", "x", 1, KEY_SPEC_PROCESS_KEYRING)
REACH(key_session, EPERM, SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL)
REACH(key_request, EPERM, SYS_request_key, "user", "stokehold-test", NULL, 0)

/* Descriptors of files that swap their blocks with another's, whoever may write which. */
static void swap_extents(unsigned long request, const char *what) {
    int fd = open("/tmp/swap", O_RDWR | O_CREAT, 0600);
    if (fd < 0) broken("open: %m");
    reached(what, ioctl(fd, request, FAULTY), EPERM);
}
static void xfs_swapext(int argc, char **argv) { (void)argc, (void)argv; swap_extents(0xc0c0586d, "XFS_IOC_SWAPEXT"); }
static void ext4_move(int argc, char **argv) { (void)argc, (void)argv; swap_extents(0xc028660f, "EXT4_IOC_MOVE_EXT"); }
/* The upper half of the number is ignored by the kernel: a filter that compares 64 bits would let this pass. */
static void xfs_swapext_high(int argc, char **argv) {
    int fd = open("/tmp/swap", O_RDWR | O_CREAT, 0600);
    (void)argc, (void)argv;
    if (fd < 0) broken("open: %m");
    reached("XFS_IOC_SWAPEXT with high bits", syscall(SYS_ioctl, (long)fd, 0x1c0c0586dul, FAULTY), EPERM);
}

/* Types into the terminal that the caller controls: harmless, it is its own. */
static void terminal_type(int argc, char **argv) {
    (void)argc, (void)argv;
    int fd = open("/dev/tty", O_RDWR);
    if (fd < 0) broken("no terminal: %m");
    reached("TIOCSTI", ioctl(fd, TIOCSTI, "\n"), EPERM);
}
static void terminal_type_high(int argc, char **argv) {
    (void)argc, (void)argv;
    int fd = open("/dev/tty", O_RDWR);
    if (fd < 0) broken("no terminal: %m");
    reached("TIOCSTI with high bits", syscall(SYS_ioctl, (long)fd, 0x100005412ul, "\n"), EPERM);
}
static void terminal_discipline(int argc, char **argv) {
    int line = 29; /* beyond every driver's number */
    (void)argc, (void)argv;
    int fd = open("/dev/tty", O_RDWR);
    if (fd < 0) broken("no terminal: %m");
    reached("TIOCSETD", ioctl(fd, TIOCSETD, &line), EPERM);
}

/* Sockets of families that no network namespace divides, or that are large and rarely looked at. */
REACH(socket_vsock, EPERM, SYS_socket, AF_VSOCK, SOCK_STREAM, 0)
REACH(socket_crypto, EPERM, SYS_socket, AF_ALG, SOCK_SEQPACKET, 0)
REACH(socket_audit, EPROTONOSUPPORT, SYS_socket, AF_NETLINK, SOCK_RAW, 9)
REACH(socket_raw, EPROTONOSUPPORT, SYS_socket, AF_INET, SOCK_RAW, 255)
REACH(socket_pair, EOPNOTSUPP, SYS_socketpair, AF_TIPC, SOCK_STREAM, 0, FAULTY)

/* Other entrances: numbers and machines whose calls mean something else. */
static void old_abi(int argc, char **argv) {
    long result = 20; /* getpid of 32-bit programs */
    (void)argc, (void)argv;
#ifdef __x86_64__
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    errno = (int)-result;
    reached("int 0x80", result > 0 ? result : -1, EPERM);
#endif
    safe("not on this machine");
}
static void x32(int argc, char **argv) {
    (void)argc, (void)argv;
    reached("x32", syscall(0x40000000 | SYS_getpid), EPERM);
}

/* A device: /dev/null's twin. */
static void device(int argc, char **argv) {
    (void)argc, (void)argv;
    errno = 0;
    if (mknod("/tmp/null", S_IFCHR | 0666, makedev(1, 3)) < 0) refused("mknod");
    int fd = open("/tmp/null", O_RDWR);
    if (fd < 0) refused("open of a device");
    harm("made a device and opened it");
}
/* The number is beyond what a mode holds: only the filter refuses it as a device. */
REACH(device_refused, EPERM, SYS_mknodat, -1, "nothing", S_IFCHR | 0666, makedev(0, 0))

/* A program that shares its memory with all others of the host that hold the same. */
static void merge_memory(int argc, char **argv) {
    (void)argc, (void)argv;
    reached("PR_SET_MEMORY_MERGE", prctl(67, 0, 1, 0, 0), EPERM); /* a third argument: EINVAL, so nothing is merged */
}
REACH(emulate, EPERM, SYS_personality, READ_IMPLIES_EXEC)

const struct attack attacks[] = {
    {"unshare_user", unshare_user}, {"unshare_network", unshare_network}, {"unshare_unknown", unshare_unknown},
    {"setns", setns_nothing}, {"clone_user", clone_user}, {"clone3_user", clone3_user}, {"clone3", clone3_plain}, {"mount", mount_copy},
    {"umount", umount_nothing}, {"open_tree", open_tree_nothing},
    {"mount_setattr", mount_setattr_nothing}, {"open_by_handle", handle_nothing}, {"mount_tmpfs", mount_tmpfs},
    {"bpf", bpf_program}, {"bpf_load", bpf_load}, {"perf", perf_event},
    {"io_uring", io_uring}, {"aio", aio}, {"userfaultfd", userfault}, {"memfd_secret", secret_memory}, {"kcmp", compare},
    {"add_key", key_add}, {"session_keyring", key_session}, {"request_key", key_request}, {"xfs_swapext", xfs_swapext},
    {"xfs_swapext_high", xfs_swapext_high}, {"ext4_move", ext4_move}, {"tiocsti", terminal_type},
    {"tiocsti_high", terminal_type_high}, {"tiocsetd", terminal_discipline}, {"vsock", socket_vsock},
    {"af_alg", socket_crypto}, {"audit", socket_audit}, {"raw", socket_raw}, {"socketpair", socket_pair},
    {"i386", old_abi}, {"x32", x32}, {"device", device}, {"mknod", device_refused}, {"ksm", merge_memory},
    {"personality", emulate}, {NULL, NULL},
};
