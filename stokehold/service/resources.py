"""What exists on this host and is ours, found by looking: nobody who runs is asked. Counts; changes nothing.

Ours are: processes in control groups named `stokehold` or `stokehold-<8 hex>`, the spawner with all that descends
from it, the supervisor and its gateway; every mount in the mount namespaces of sandboxed processes, and elsewhere
those whose source bears our name or that show a part of our state; the network namespaces that our processes live
in or hold open."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stokehold.service import procfs
from stokehold.service.places import Places, read_service
from stokehold.service.slot import held

GROUP = re.compile(r"stokehold(-[0-9a-f]{8})?")
SPAWNER = "stokehold-spawner"
TITLES = {"stokehold-zygote", "stokehold-maker", "stokehold-enterer", "stokehold-init"}
DOCKER = "/var/run/docker.sock"


class Resources(msgspec.Struct):
    """What of ours exists. All 0 after `stop`."""

    processes: int = 0
    mounts: int = 0
    cgroups: int = 0
    netns: int = 0
    uppers: int = 0
    loops: int = 0
    containers: int = 0

    def any(self) -> bool:
        return any(msgspec.structs.astuple(self))


def count(where: Places, *, every: bool) -> Resources:
    """Look: for the things of the service at `where`, or of `every` service on this host."""
    processes = our_processes(where, every=every)
    mounts, uppers = _mounts(where, processes, every=every)
    return Resources(
        processes=len(processes),
        mounts=mounts,
        cgroups=sum(1 for _ in group_directories(None if every else {where.cgroup})),
        netns=_network_namespaces(processes),
        uppers=uppers,
        loops=_loops(where, every=every),
        containers=0 if where.private and not every else _containers(),
    )


def group_roots(names: set[str] | None) -> Iterator[Path]:
    """Our root directories in every mounted hierarchy, also below a delegated group; `names` None: of any service."""
    seen = set()
    for mount in procfs.mounts("self"):
        if mount.kind not in ("cgroup", "cgroup2") or mount.device in seen:
            continue
        seen.add(mount.device)
        for folder, children, _ in os.walk(mount.point):
            ours = [name for name in children if GROUP.fullmatch(name) and (names is None or name in names)]
            yield from (Path(folder) / name for name in ours)
            children[:] = [name for name in children if not GROUP.fullmatch(name)]


def group_directories(names: set[str] | None) -> Iterator[Path]:
    """Every directory of ours in every hierarchy, children before parents."""
    for root in group_roots(names):
        yield from (Path(folder) for folder, _, _ in os.walk(root, topdown=False))


def our_processes(where: Places, *, every: bool) -> set[int]:
    """Ids of all processes of the service at `where`, or of `every` service: never of the process that asks."""
    found: set[int] = set()
    for folder in group_directories(None if every else {where.cgroup}):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    children: dict[int, list[int]] = {}
    for pid in procfs.pids():
        argv = procfs.cmdline(pid)
        program = Path(argv[0]).name if argv else procfs.comm(pid)
        if _is_gateway(argv):
            ours = every or _follows(argv, "--config", str(where.config))
        elif program == SPAWNER:
            ours = every or _follows(argv, "--cgroup", where.cgroup)
        else:
            ours = every and program in TITLES
        if ours:
            found.add(pid)
        children.setdefault(procfs.parent(pid) or 0, []).append(pid)
    fresh = [pid for pid in found if pid]
    while fresh:  # workers have titles of their own and no command line: they are known by their parents
        fresh = [child for pid in fresh for child in children.get(pid, ()) if child not in found]
        found.update(fresh)
    service = read_service(where)
    if service and held(where.lock):
        found.add(service.pid)
    return {pid for pid in found - {0, os.getpid()} if procfs.namespace(pid, "mnt")}


def _is_gateway(argv: list[str]) -> bool:
    return _follows(argv, "-m", "gateway") and "--config" in argv and Path(argv[0]).name != SPAWNER


def _follows(argv: list[str], option: str, value: str) -> bool:
    return any(a == option and b == value for a, b in itertools.pairwise(argv))


def _in_group(pid: int) -> bool:
    return any(GROUP.fullmatch(part) for path in procfs.cgroups(pid) for part in path.split("/"))


def _mounts(where: Places, processes: set[int], *, every: bool) -> tuple[int, int]:
    """Mounts of ours in every mount namespace that a process lives in, and how many private uppers are among them."""
    host = procfs.namespace("self", "mnt")
    namespaces: dict[str, int] = {}
    sandboxed: set[str] = set()
    for pid in procfs.pids():
        name = procfs.namespace(pid, "mnt")
        if name is None:
            continue
        if every or name == host or pid in processes:
            namespaces.setdefault(name, pid)
        if pid in processes and name != host and _in_group(pid):
            sandboxed.add(name)
    total = 0
    uppers: set[str] = set()
    for name, pid in namespaces.items():
        for mount in procfs.mounts(pid):
            ours = mount.source.startswith("stokehold") or (mount.root.startswith(f"{where.state}/") and mount.root != mount.point)
            if name in sandboxed or ours:
                total += 1
                if mount.kind == "overlay" and "upperdir=" in mount.options:
                    uppers.add(mount.device)
    with contextlib.suppress(OSError):
        uppers.update(entry.name for entry in (where.state / "uppers").iterdir())
    return total, len(uppers)


def _network_namespaces(processes: set[int]) -> int:
    host = {procfs.namespace("self", "net"), procfs.namespace(1, "net")}
    found = set()
    for pid in processes:
        found.add(procfs.namespace(pid, "net"))
        found.update(target for target in procfs.descriptors(pid) if target.startswith("net:["))
    named = sum(1 for mount in procfs.mounts("self") if mount.kind == "nsfs" and "stokehold" in mount.point)
    return len(found - host - {None}) + named


def _loops(where: Places, *, every: bool) -> int:
    total = 0
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            file = backing.read_text().strip()
            total += file.startswith(f"{where.state}/") or (every and "stokehold" in Path(file).name)
    return total


def _containers() -> int:
    """Docker containers of ours, running or not. A private state directory has none: they are named for the
    default one."""
    if not Path(DOCKER).exists():
        return 0
    connection = http.client.HTTPConnection("docker", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(2)
        connection.sock.connect(DOCKER)
        connection.request("GET", "/containers/json?all=1")
        listed = json.loads(connection.getresponse().read())
        return sum(1 for item in listed if any(name.startswith("/stokehold") for name in item.get("Names", ())))
    except (OSError, ValueError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
