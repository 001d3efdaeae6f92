"""Whether this host can enforce what a sandbox needs, found by doing it in a child that leaves nothing behind.

`python -m guard.preflight [--json]` exits 0 if every need is met, 1 otherwise. Must not change the host, and must
not guess from version numbers what it can try. Every need names the command or change that provides it. Needs
nothing but Python's own library: it runs before anything is installed."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_SET_NO_NEW_PRIVS, PR_GET_SECCOMP = 38, 21
CAP_SYS_ADMIN = 21
TRIAL_S = 3
TRIAL_UID = 61499
"""A host uid that owns nothing: under it a user namespace is tried out."""

_libc = ctypes.CDLL(None, use_errno=True)


class Need(NamedTuple):
    """One thing that sandboxes need from the host, whether it is there, and what provides it."""

    name: str
    met: bool
    found: str
    remedy: str


def check() -> list[Need]:
    """Every need of container sandboxes, in the order in which to mend them. Takes well under a second."""
    needs = [_root(), _machine()]
    if not needs[0].met:
        return needs
    needs += [_v2_groups(), *(_controller(name) for name in ("memory", "pids", "cpu"))]
    needs += [
        _tried(
            "namespaces",
            _try_namespaces,
            "Run on the host itself or in a virtual machine, or give the container all "
            "privileges: docker run --privileged --cgroupns=host …",
        ),
        _tried("user namespaces", _try_user_namespace, "sysctl -w user.max_user_namespaces=65536"),
        _tried("overlayfs", _try_overlay, "modprobe overlay; a kernel of 5.19 or newer"),
        _tried("detached mounts", _try_detached, "A kernel of 5.12 or newer (open_tree, mount_setattr)"),
        _tried("seccomp", _try_seccomp, "A kernel built with CONFIG_SECCOMP_FILTER"),
    ]
    return needs


def _root() -> Need:
    remedy = "Start it as root (sudo), outside of an unprivileged container; in Docker: --privileged --cgroupns=host"
    if os.geteuid() != 0:
        return Need("root", False, f"uid {os.geteuid()}", remedy)
    effective = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    inner = Path("/proc/self/uid_map").read_text().split()[:3] != ["0", "0", "4294967295"]
    if not effective >> CAP_SYS_ADMIN & 1:
        return Need("root", False, "root without CAP_SYS_ADMIN (an unprivileged container)", remedy)
    if inner:
        return Need("root", False, "root of a user namespace only", remedy)
    return Need("root", True, "root with CAP_SYS_ADMIN", remedy)


def _machine() -> Need:
    machine = platform.machine()
    met = platform.system() == "Linux" and machine in ("x86_64", "aarch64")
    return Need("machine", met, f"{platform.system()} {platform.release()} {machine}", "Linux on x86_64 or aarch64")


def _hierarchies() -> list[tuple[str, str, set[str]]]:
    """(mount point, kind, options) of every mounted control-group hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            found.append((left.split()[4], kind, set(options.split(","))))
    return found


def _try_group(root: str, needed: str) -> str | None:
    """What is wrong with making a group under `root` that has the file `needed`; None if nothing is."""
    folder = Path(root) / f"stokehold-preflight-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as problem:
        return f"{root}: {problem.strerror}"
    try:
        return None if (folder / needed).exists() else f"{root}: groups have no {needed}"
    finally:
        folder.rmdir()


def _v2_groups() -> Need:
    remedy = (
        "mount -t cgroup2 none /sys/fs/cgroup/unified (or boot with systemd.unified_cgroup_hierarchy=1); "
        "in a container: "
        "--privileged --cgroupns=host"
    )
    root = next((point for point, kind, _ in _hierarchies() if kind == "cgroup2"), None)
    if root is None:
        return Need("cgroup v2", False, "no v2 hierarchy is mounted", remedy)
    wrong = _try_group(root, "cgroup.kill")
    return Need("cgroup v2", wrong is None, wrong or root, remedy)


def _controller(name: str) -> Need:
    """The controller, on whichever hierarchy has it."""
    remedy = f"Boot with cgroup_enable={name}, or mount it: mount -t cgroup -o {name} none /sys/fs/cgroup/{name}"
    probe = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}[name]
    for point, kind, options in _hierarchies():
        if kind == "cgroup" and name in options:
            wrong = _try_group(point, probe)
            return Need(f"cgroup {name}", wrong is None, wrong or f"v1 at {point}", remedy)
    for point, kind, _ in _hierarchies():
        if kind == "cgroup2" and name in (Path(point) / "cgroup.controllers").read_text().split():
            return Need(f"cgroup {name}", True, f"v2 at {point}", remedy)
    return Need(f"cgroup {name}", False, "no hierarchy has it", remedy)


def _tried(name: str, trial: Callable[[], str], remedy: str) -> Need:
    """Run `trial` in a child, so that what it made ends with it. It returns what it found, or raises OSError."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TRIAL_S)
        os.close(reading)
        try:
            answer = "+" + trial()
        except OSError as problem:
            answer = f"-{problem.strerror or problem}" + (f": {problem.filename}" if problem.filename else "")
        os.write(writing, answer[:500].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode(errors="replace") or "-no answer in time"
    os.waitpid(child, 0)
    return Need(name, answer.startswith("+"), answer[1:], remedy)


def _call(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _unshare(flags: int, what: str) -> None:
    _call(what, _libc.unshare(flags))


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call(
        f"mount {kind or target}",
        _libc.mount(
            source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
        ),
    )


def _private_mounts() -> None:
    _unshare(CLONE_NEWNS, "unshare mount namespace")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)


def _try_namespaces() -> str:
    _private_mounts()
    for flag, name in (
        (CLONE_NEWPID, "pid"),
        (CLONE_NEWNET, "net"),
        (CLONE_NEWIPC, "ipc"),
        (CLONE_NEWUTS, "uts"),
        (CLONE_NEWCGROUP, "cgroup"),
    ):
        _unshare(flag, f"unshare {name} namespace")
    return "pid, mount, net, ipc, uts, cgroup"


def _try_user_namespace() -> str:
    _call("setresgid", _libc.setresgid(TRIAL_UID, TRIAL_UID, TRIAL_UID))
    _call("setresuid", _libc.setresuid(TRIAL_UID, TRIAL_UID, TRIAL_UID))
    _unshare(CLONE_NEWUSER, "unshare user namespace as an unprivileged uid")
    return "made by an unprivileged uid"


def _try_overlay() -> str:
    _private_mounts()
    with tempfile.TemporaryDirectory(prefix="stokehold-preflight-") as folder:
        _mount("stokehold", folder, "tmpfs", 0, "size=1m")
        try:
            for name in ("upper", "work", "lower", "root"):
                (Path(folder) / name).mkdir()
            options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
            _mount("stokehold", f"{folder}/root", "overlay", 0, options)
            _call("umount overlay", _libc.umount2(f"{folder}/root".encode(), 2))
        finally:
            _libc.umount2(folder.encode(), 2)
    return "with its upper on a tmpfs"


def _try_detached() -> str:
    open_tree, mount_setattr = 428, 442
    tree = _call("open_tree", _libc.syscall(open_tree, -100, b"/usr", 1 | os.O_CLOEXEC))
    attributes = (ctypes.c_uint64 * 4)(1, 0, 0, 0)  # MOUNT_ATTR_RDONLY
    _call("mount_setattr", _libc.syscall(mount_setattr, tree, b"", 0x1000, attributes, ctypes.sizeof(attributes)))
    return "open_tree, mount_setattr"


def _try_seccomp() -> str:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if "errno" not in actions.read_text().split():
        raise OSError(0, "filters cannot answer with an error")
    _call("no_new_privs", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("PR_GET_SECCOMP", _libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0))
    return "filters"


def main() -> int:
    """Print what was found; 0 if every need is met."""
    needs = check()
    met = all(need.met for need in needs)
    if "--json" in sys.argv[1:]:
        print(json.dumps({"ok": met, "needs": [need._asdict() for need in needs]}))
    else:
        for need in needs:
            print(f"{'ok' if need.met else 'MISSING':8}{need.name}: {need.found}")
            if not need.met:
                print(f"        remedy: {need.remedy}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
