"""The compiled system call filter, run by an interpreter of classic BPF: every call has the outcome that the policy means."""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .c_library import call_numbers, load

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[platform.machine()]
ARCH_32 = {"x86_64": 0x40000003, "aarch64": 0x40000028}[platform.machine()]
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
DENIED = ERRNO | errno.EPERM
UNKNOWN = ERRNO | errno.ENOSYS
CALLS = call_numbers()


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.POINTER(Instruction))]


@functools.cache
def program(kill: bool) -> list[tuple[int, int, int, int]]:
    build = load().seccomp_build
    build.restype, build.argtypes = Program, [ctypes.c_bool]
    built = build(kill)
    return [(i.code, i.jt, i.jf, i.k) for i in built.code[:built.length]]


def outcome(number: int, *args: int, kill: bool = False, arch: int = ARCH) -> int:
    code = program(kill)
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *args, *[0] * (6 - len(args)))
    accumulator = at = 0
    while True:
        op, jt, jf, k = code[at]
        at += 1
        match op:
            case 0x20:
                accumulator, = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x05:
                at += k
            case 0x15:
                at += jt if accumulator == k else jf
            case 0x35:
                at += jt if accumulator >= k else jf
            case 0x06:
                return k
            case _:
                raise AssertionError(f"instruction {op:#x}")


ORDINARY = [
    "read", "write", "openat", "close", "mmap", "munmap", "mprotect", "brk", "execve", "execveat", "exit_group",
    "wait4", "futex", "rt_sigaction", "kill", "tgkill", "newfstatat", "statx", "getdents64", "sendto",
    "recvmsg", "accept4", "bind", "connect", "epoll_pwait", "eventfd2", "timerfd_create", "inotify_init1",
    "memfd_create", "pipe2", "ppoll", "getrandom", "rseq", "prlimit64", "sched_setaffinity", "ptrace",
    "process_vm_readv", "shmget", "semget", "msgget", "mq_open", "chroot", "setuid", "setgroups", "capset",
    "seccomp", "landlock_create_ruleset", "pidfd_open", "pidfd_send_signal", "copy_file_range", "renameat2",
    "utimensat",
]
REFUSED = [
    "unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "swapon", "quotactl", "acct", "open_by_handle_at", "fanotify_init",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "init_module",
    "finit_module", "delete_module", "kexec_load", "syslog", "reboot", "userfaultfd", "add_key", "request_key",
    "keyctl", "move_pages", "sethostname", "settimeofday", "clock_settime", "adjtimex", "vhangup", "kcmp",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_programs_may(name: str) -> None:
    assert outcome(CALLS[name]) == outcome(CALLS[name], kill=True) == ALLOW


@pytest.mark.parametrize("name", REFUSED)
def test_programs_may_not(name: str) -> None:
    assert outcome(CALLS[name]) == DENIED
    assert outcome(CALLS[name], kill=True) == KILL


@pytest.mark.parametrize("name", ["clone3", "io_setup", "restart_syscall_of_tomorrow"])
def test_what_is_probed_for_is_absent(name: str) -> None:
    number = CALLS.get(name, 480)
    assert outcome(number) == outcome(number, kill=True) == UNKNOWN


@given(st.integers(480, 2**30 - 1))
def test_unknown_numbers_are_absent(number: int) -> None:
    assert outcome(number) == UNKNOWN


@given(st.integers(0, 500))
def test_other_architectures_are_refused(number: int) -> None:
    assert outcome(number, arch=ARCH_32) == DENIED
    if platform.machine() == "x86_64":
        assert outcome(number | 0x40000000, kill=True) == KILL  # x32


@given(st.integers(0, 500), st.booleans())
def test_every_call_has_an_outcome(number: int, kill: bool) -> None:
    found = outcome(number, kill=kill)
    assert found in (ALLOW, UNKNOWN, KILL if kill else DENIED, ERRNO) or found & 0xFFFF0000 == ERRNO


NEW = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
       "cgroup": 0x2000000}


@pytest.mark.parametrize("flag", NEW.values(), ids=NEW.keys())
def test_clone_makes_no_namespace(flag: int) -> None:
    assert outcome(CALLS["clone"], flag | 17) == DENIED
    assert outcome(CALLS["clone"], flag | 17 | 1 << 40) == DENIED


def test_clone_makes_threads_and_processes() -> None:
    assert outcome(CALLS["clone"], 0x3D0F00) == outcome(CALLS["clone"], 17) == outcome(CALLS["clone"], 0x4111) == ALLOW


@pytest.mark.parametrize("family, protocol, expected", [
    (1, 0, ALLOW), (2, 0, ALLOW), (2, 6, ALLOW), (2, 17, ALLOW), (2, 1, ALLOW), (10, 0, ALLOW), (10, 58, ALLOW), (16, 0, ALLOW),
    (2, 132, ERRNO | errno.EPROTONOSUPPORT), (2, 262, ERRNO | errno.EPROTONOSUPPORT), (16, 12, ERRNO | errno.EPROTONOSUPPORT),
    (17, 0, DENIED), (38, 0, DENIED), (40, 0, DENIED), (3, 0, DENIED), (0, 0, DENIED), (21, 0, DENIED)])
def test_sockets(family: int, protocol: int, expected: int) -> None:
    assert outcome(CALLS["socket"], family, 1, protocol) == expected


@given(st.integers(0, 2**32 - 1).map(lambda high: high << 32))
def test_bits_that_the_kernel_ignores_hide_nothing(high: int) -> None:
    assert outcome(CALLS["ioctl"], 0, high | 0x5412) == DENIED
    assert outcome(CALLS["ioctl"], 0, high | 0xC0C0586D) == DENIED
    assert outcome(CALLS["socket"], high | 38, 5, 0) == DENIED
    assert outcome(CALLS["prctl"], high | 67, 1) == DENIED
    assert outcome(CALLS["mknodat"], 0, 0, high | 0o20666) == DENIED
    assert outcome(CALLS["personality"], high | 0x400000) == DENIED


@pytest.mark.parametrize("request_, expected", [
    (0x5401, ALLOW), (0x5413, ALLOW), (0x541B, ALLOW), (0x80086601, ALLOW), (0x40049409, ALLOW), (0x801C581F, ALLOW),
    (0x5412, DENIED), (0x541C, DENIED), (0x5423, DENIED), (0xC0C0586D, DENIED), (0x40285881, DENIED), (0x401C5820, DENIED),
    (0xC028660F, DENIED), (0x6611, DENIED)])
def test_ioctls(request_: int, expected: int) -> None:
    assert outcome(CALLS["ioctl"], 0, request_) == expected


@pytest.mark.parametrize("mode, expected", [(0o100644, ALLOW), (0o10644, ALLOW), (0o140644, ALLOW), (0o644, ALLOW),
                                            (0o20644, DENIED), (0o60644, DENIED)])
def test_nodes(mode: int, expected: int) -> None:
    assert outcome(CALLS["mknodat"], 0, 0, mode) == expected


def test_flushing_is_done_at_once() -> None:
    assert outcome(CALLS["sync"]) == ERRNO
