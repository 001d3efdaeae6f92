/* The policy: which system calls a program in a sandbox may make, and why. Default deny: what is not named here is ENOSYS, so that
 * programs take their older path. What is refused on purpose is named too, with EPERM, so that it shows (and so that
 * `on_denied: kill` can tell an attempt from a probe for something new). Facts about arguments stand with the rule. */
#include <asm/unistd.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "seccomp.h"

/* Newer than the headers of the oldest supported distribution; one number on every architecture. */
enum { NEW_cachestat = 451, NEW_fchmodat2, NEW_map_shadow_stack, NEW_futex_wake, NEW_futex_wait, NEW_futex_requeue,
       NEW_statmount, NEW_listmount, NEW_mseal = 462, NEW_setxattrat, NEW_getxattrat, NEW_listxattrat, NEW_removexattrat,
       NEW_open_tree_attr };

#define CALLS(...) (const uint16_t[]){__VA_ARGS__, CALLS_END}

const struct call_group seccomp_groups[] = {
    {V_ALLOW, "files by descriptor and path: the mount namespace and the user decide what they reach", CALLS(
        __NR_read, __NR_write, __NR_openat, __NR_openat2, __NR_close, __NR_close_range, __NR_lseek, __NR_pread64, __NR_pwrite64,
        __NR_readv, __NR_writev, __NR_preadv, __NR_pwritev, __NR_preadv2, __NR_pwritev2, __NR_fstat, __NR_newfstatat, __NR_statx,
        __NR_statfs, __NR_fstatfs, __NR_faccessat, __NR_faccessat2, __NR_getdents64, __NR_readlinkat, __NR_renameat, __NR_renameat2,
        __NR_linkat, __NR_symlinkat, __NR_unlinkat, __NR_mkdirat, __NR_fchmod, __NR_fchmodat, NEW_fchmodat2, __NR_fchown,
        __NR_fchownat, __NR_utimensat, __NR_truncate, __NR_ftruncate, __NR_fallocate, __NR_fsync, __NR_fdatasync,
        __NR_sync_file_range, __NR_fadvise64, __NR_readahead, __NR_flock, __NR_copy_file_range, __NR_sendfile, __NR_splice, __NR_tee,
        __NR_vmsplice, __NR_getcwd, __NR_chdir, __NR_fchdir, __NR_umask, __NR_dup, __NR_dup3, __NR_fcntl, __NR_pipe2, __NR_chroot,
        NEW_cachestat, __NR_name_to_handle_at)},
    {V_ALLOW, "extended attributes: apt, tar and cp keep them; the file system checks their namespaces", CALLS(
        __NR_setxattr, __NR_lsetxattr, __NR_fsetxattr, __NR_getxattr, __NR_lgetxattr, __NR_fgetxattr, __NR_listxattr,
        __NR_llistxattr, __NR_flistxattr, __NR_removexattr, __NR_lremovexattr, __NR_fremovexattr, NEW_setxattrat, NEW_getxattrat,
        NEW_listxattrat, NEW_removexattrat)},
    {V_ALLOW, "waiting for events: bounded by descriptors and by the user namespace's own count", CALLS(
        __NR_pselect6, __NR_ppoll, __NR_epoll_create1, __NR_epoll_ctl, __NR_epoll_pwait, __NR_epoll_pwait2, __NR_eventfd2,
        __NR_signalfd4, __NR_timerfd_create, __NR_timerfd_settime, __NR_timerfd_gettime, __NR_inotify_init1, __NR_inotify_add_watch,
        __NR_inotify_rm_watch)},
    {V_ALLOW, "memory: charged to the sandbox's group", CALLS(
        __NR_mmap, __NR_munmap, __NR_mprotect, __NR_mremap, __NR_msync, __NR_mincore, __NR_brk, __NR_mlock, __NR_mlock2,
        __NR_munlock, __NR_mlockall, __NR_munlockall, __NR_remap_file_pages, __NR_pkey_mprotect, __NR_pkey_alloc, __NR_pkey_free,
        __NR_membarrier, __NR_get_mempolicy, __NR_set_mempolicy, __NR_mbind, __NR_memfd_create, __NR_process_madvise,
        __NR_process_mrelease, NEW_mseal, NEW_map_shadow_stack)},
    {V_ALLOW, "System V and POSIX messages, semaphores, shared memory: the IPC namespace is the sandbox's own", CALLS(
        __NR_shmget, __NR_shmat, __NR_shmdt, __NR_shmctl, __NR_semget, __NR_semop, __NR_semtimedop, __NR_semctl, __NR_msgget,
        __NR_msgsnd, __NR_msgrcv, __NR_msgctl, __NR_mq_open, __NR_mq_unlink, __NR_mq_timedsend, __NR_mq_timedreceive, __NR_mq_notify,
        __NR_mq_getsetattr)},
    {V_ALLOW, "processes, threads and signals: the PID namespace bounds whom they reach, the pids group how many", CALLS(
        __NR_execve, __NR_execveat, __NR_exit, __NR_exit_group, __NR_wait4, __NR_waitid, __NR_kill, __NR_tkill, __NR_tgkill,
        __NR_pidfd_open, __NR_pidfd_send_signal, __NR_pidfd_getfd, __NR_getpid, __NR_getppid, __NR_gettid, __NR_getpgid,
        __NR_setpgid, __NR_getsid, __NR_setsid, __NR_set_tid_address, __NR_set_robust_list, __NR_get_robust_list, __NR_futex,
        __NR_futex_waitv, NEW_futex_wake, NEW_futex_wait, NEW_futex_requeue, __NR_rseq, __NR_restart_syscall, __NR_rt_sigaction,
        __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigpending, __NR_rt_sigtimedwait, __NR_rt_sigqueueinfo,
        __NR_rt_tgsigqueueinfo, __NR_rt_sigsuspend, __NR_sigaltstack, __NR_getcpu)},
    {V_ALLOW, "debuggers: gdb and strace work on the same user's programs; PID 1 and entering helpers are not dumpable", CALLS(
        __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev)},
    {V_ALLOW, "time and timers: reading clocks, and timers counted in the user namespace", CALLS(
        __NR_getitimer, __NR_setitimer, __NR_nanosleep, __NR_clock_nanosleep, __NR_clock_gettime, __NR_clock_getres,
        __NR_gettimeofday, __NR_times, __NR_timer_create, __NR_timer_settime, __NR_timer_gettime, __NR_timer_getoverrun,
        __NR_timer_delete)},
    {V_ALLOW, "limits and scheduling: they only lower what the groups allow; real-time classes need a capability that none has", CALLS(
        __NR_getrusage, __NR_prlimit64, __NR_getrlimit, __NR_setrlimit, __NR_getpriority, __NR_setpriority, __NR_ioprio_get,
        __NR_ioprio_set, __NR_sched_yield, __NR_sched_getaffinity, __NR_sched_setaffinity, __NR_sched_getparam,
        __NR_sched_setparam, __NR_sched_getscheduler, __NR_sched_setscheduler, __NR_sched_get_priority_max,
        __NR_sched_get_priority_min, __NR_sched_rr_get_interval, __NR_sched_getattr, __NR_sched_setattr)},
    {V_ALLOW, "identity: within the user namespace and the bounding set", CALLS(
        __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid, __NR_getresuid, __NR_getresgid, __NR_getgroups, __NR_setuid,
        __NR_setgid, __NR_setreuid, __NR_setregid, __NR_setresuid, __NR_setresgid, __NR_setfsuid, __NR_setfsgid, __NR_setgroups,
        __NR_capget, __NR_capset)},
    {V_ALLOW, "facts about the machine, and random bytes", CALLS(__NR_uname, __NR_sysinfo, __NR_getrandom)},
    {V_ALLOW, "sandboxes of a program's own: these can only take rights away", CALLS(
        __NR_seccomp, __NR_landlock_create_ruleset, __NR_landlock_add_rule, __NR_landlock_restrict_self)},
    {V_ALLOW, "sockets once made: socket() and socketpair() decide which", CALLS(
        __NR_bind, __NR_connect, __NR_listen, __NR_accept, __NR_accept4, __NR_getsockname, __NR_getpeername, __NR_sendto,
        __NR_recvfrom, __NR_sendmsg, __NR_recvmsg, __NR_sendmmsg, __NR_recvmmsg, __NR_shutdown, __NR_setsockopt, __NR_getsockopt)},
#ifdef __x86_64__
    {V_ALLOW, "the older forms of the calls above that x86-64 kept", CALLS(
        __NR_open, __NR_creat, __NR_stat, __NR_lstat, __NR_access, __NR_getdents, __NR_readlink, __NR_rename, __NR_link,
        __NR_symlink, __NR_unlink, __NR_mkdir, __NR_rmdir, __NR_chmod, __NR_chown, __NR_lchown, __NR_utime, __NR_utimes,
        __NR_futimesat, __NR_dup2, __NR_pipe, __NR_select, __NR_poll, __NR_epoll_create, __NR_epoll_wait, __NR_eventfd,
        __NR_signalfd, __NR_inotify_init, __NR_fork, __NR_vfork, __NR_getpgrp, __NR_pause, __NR_alarm, __NR_time, __NR_arch_prctl)},
#endif
    {V_ERRNO(0), "flushing: it would make all of the host's disks work for one sandbox; nothing in one outlives it, so it is done at once",
        CALLS(__NR_sync, __NR_syncfs)},
    {V_ERRNO(ENOSYS), "clone3 passes its flags by pointer, where a filter cannot look; every libc goes back to clone",
        CALLS(__NR_clone3)},
    {V_ERRNO(ENOSYS), "asynchronous I/O contexts are one count for the whole host (fs.aio-max-nr): one sandbox could take them all",
        CALLS(__NR_io_setup, __NR_io_destroy, __NR_io_submit, __NR_io_cancel, __NR_io_getevents, __NR_io_pgetevents)},
    {V_DENY, "namespaces: inside a new one a program has every capability, and so every kernel path behind one", CALLS(
        __NR_unshare, __NR_setns)},
    {V_DENY, "mounts: the view of the file system is the boundary", CALLS(
        __NR_mount, __NR_umount2, __NR_pivot_root, __NR_open_tree, NEW_open_tree_attr, __NR_move_mount, __NR_fsopen, __NR_fsconfig,
        __NR_fsmount, __NR_fspick, __NR_mount_setattr, NEW_statmount, NEW_listmount, __NR_swapon, __NR_swapoff, __NR_quotactl,
        __NR_quotactl_fd, __NR_acct)},
    {V_DENY, "handles open files that no path here leads to; fanotify watches whole file systems", CALLS(
        __NR_open_by_handle_at, __NR_fanotify_init, __NR_fanotify_mark)},
    {V_DENY, "io_uring does other calls behind the filter's back, and much of the kernel's recent trouble was there", CALLS(
        __NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register)},
    {V_DENY, "code and probes in the kernel", CALLS(
        __NR_bpf, __NR_perf_event_open, __NR_init_module, __NR_finit_module, __NR_delete_module, __NR_kexec_load,
#ifdef __NR_kexec_file_load
        __NR_kexec_file_load,
#endif
        __NR_syslog, __NR_reboot)},
    {V_DENY, "userfaultfd lets a program hold the kernel inside a copy for as long as it likes: the tool of most races", CALLS(
        __NR_userfaultfd)},
    {V_DENY, "keyrings are counted by user, not by sandbox, and keep what outlives it", CALLS(
        __NR_add_key, __NR_request_key, __NR_keyctl)},
    {V_DENY, "memory that the kernel cannot look into or move is neither counted nor reclaimed as other memory is", CALLS(
#ifdef __NR_memfd_secret
        __NR_memfd_secret,
#endif
        __NR_move_pages, __NR_migrate_pages)},
    {V_DENY, "the machine's name, clock and terminals", CALLS(
        __NR_sethostname, __NR_setdomainname, __NR_settimeofday, __NR_clock_settime, __NR_adjtimex, __NR_clock_adjtime,
        __NR_vhangup)},
    {V_DENY, "kcmp orders kernel addresses for whoever asks", CALLS(__NR_kcmp)},
#ifdef __x86_64__
    {V_DENY, "ports and segments of the processor", CALLS(__NR_iopl, __NR_ioperm, __NR_modify_ldt)},
#endif
    {0, NULL, NULL},
};

#define ANY 0xffffffffu
#define LAST {END, 0, 0, 0, 0}
#define ALLOW_ELSE {ELSE, 0, 0, 0, V_ALLOW}, LAST
#define DENY_ELSE {ELSE, 0, 0, 0, V_DENY}, LAST
#define DENY_BIT(arg, bit) {IF, arg, bit, bit, V_DENY}

static const struct step clone_steps[] = {
    DENY_BIT(0, CLONE_NEWUSER), DENY_BIT(0, CLONE_NEWNS), DENY_BIT(0, CLONE_NEWPID), DENY_BIT(0, CLONE_NEWNET),
    DENY_BIT(0, CLONE_NEWIPC), DENY_BIT(0, CLONE_NEWUTS), DENY_BIT(0, CLONE_NEWCGROUP), ALLOW_ELSE,
};

/* Each protocol is its own body of kernel code, and asking for an absent one loads its module. ICMP is the unprivileged ping. */
#define INTERNET(family, icmp) \
    {UNLESS_SKIP, 0, ANY, family, 5}, {IF, 2, ANY, 0, V_ALLOW}, {IF, 2, ANY, 6, V_ALLOW}, {IF, 2, ANY, 17, V_ALLOW}, \
        {IF, 2, ANY, icmp, V_ALLOW}, {ELSE, 0, 0, 0, V_ERRNO(EPROTONOSUPPORT)}
static const struct step socket_steps[] = {
    {IF, 0, ANY, AF_UNIX, V_ALLOW},
    INTERNET(AF_INET, 1),
    INTERNET(AF_INET6, 58),
    {UNLESS_SKIP, 0, ANY, AF_NETLINK, 2}, {IF, 2, ANY, NETLINK_ROUTE, V_ALLOW}, {ELSE, 0, 0, 0, V_ERRNO(EPROTONOSUPPORT)},
    DENY_ELSE,
};
static const struct step socketpair_steps[] = {{IF, 0, ANY, AF_UNIX, V_ALLOW}, {ELSE, 0, 0, 0, V_ERRNO(EOPNOTSUPP)}, LAST};

/* Numbers are {direction, size, type, nr}; masking keeps what the kernel's handlers tell apart. */
static const struct step ioctl_steps[] = {
    {IF, 1, ANY, 0x5412 /* TIOCSTI: types into a terminal for whoever reads it next */, V_DENY},
    {IF, 1, ANY, 0x541c /* TIOCLINUX: the same through a console's selection */, V_DENY},
    {IF, 1, ANY, 0x5423 /* TIOCSETD: line disciplines are drivers, loaded on demand */, V_DENY},
    {IF, 1, ANY, 0x801c581f /* FS_IOC_FSGETXATTR */, V_ALLOW},
    {IF, 1, 0xff00, 0x5800 /* every other 'X': XFS_IOC_SWAPEXT and EXCHANGE_RANGE, handles, freezing, project ids */, V_DENY},
    {IF, 1, 0xffff, 0x660f /* EXT4_IOC_MOVE_EXT: swaps another file's blocks */, V_DENY},
    {IF, 1, 0xffff, 0x6611 /* EXT4_IOC_SWAP_BOOT */, V_DENY},
    ALLOW_ELSE,
};

static const struct step prctl_steps[] = {
    {IF, 0, ANY, 67 /* PR_SET_MEMORY_MERGE: shared pages tell one sandbox what another holds */, V_DENY}, ALLOW_ELSE};
static const struct step madvise_steps[] = {{IF, 2, ANY, MADV_MERGEABLE /* likewise */, V_ERRNO(EINVAL)}, ALLOW_ELSE};

/* PER_LINUX, PER_LINUX32, UNAME26, both, "tell me", and ADDR_NO_RANDOMIZE, which debuggers set for their own child. The rest are
 * emulations of other systems, and READ_IMPLIES_EXEC. */
static const struct step personality_steps[] = {
    {IF, 0, ANY, 0, V_ALLOW}, {IF, 0, ANY, 0x8, V_ALLOW}, {IF, 0, ANY, 0x20000, V_ALLOW}, {IF, 0, ANY, 0x20008, V_ALLOW},
    {IF, 0, ANY, 0xffffffff, V_ALLOW}, {IF, 0, ANY, 0x40000, V_ALLOW}, DENY_ELSE};

/* FIFOs, sockets and regular files. The 0/0 character device (overlayfs's mark for "deleted") is refused as well. */
#define NODE_STEPS(arg) {{IF, arg, S_IFMT, S_IFCHR, V_DENY}, {IF, arg, S_IFMT, S_IFBLK, V_DENY}, ALLOW_ELSE}
static const struct step mknodat_steps[] = NODE_STEPS(2);
#ifdef __x86_64__
static const struct step mknod_steps[] = NODE_STEPS(1);
#endif

const struct call_rule seccomp_rules[] = {
    {__NR_clone, "threads and processes, but no new namespaces", clone_steps},
    {__NR_socket, "Unix, internet, and routing netlink (getifaddrs)", socket_steps},
    {__NR_socketpair, "Unix only", socketpair_steps},
    {__NR_ioctl, "terminals and files, but not what reaches past them", ioctl_steps},
    {__NR_prctl, "a program's own settings", prctl_steps},
    {__NR_madvise, "advice on its own memory", madvise_steps},
    {__NR_personality, "the harmless ones", personality_steps},
    {__NR_mknodat, "no devices", mknodat_steps},
#ifdef __x86_64__
    {__NR_mknod, "no devices", mknod_steps},
#endif
    {0, NULL, NULL},
};
