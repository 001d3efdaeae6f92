"""Reading /proc: processes, their mounts and their network namespaces. Interprets nothing; what vanished meanwhile
is absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

PROC = Path("/proc")


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    device: str
    root: str
    point: str
    kind: str
    source: str
    options: str


def pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def comm(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().rstrip("\n")
    except OSError:
        return ""


def cmdline(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def cgroups(pid: int) -> list[str]:
    """The paths of its control groups, one per hierarchy."""
    try:
        return [line.split(":", 2)[2] for line in (PROC / str(pid) / "cgroup").read_text().splitlines()]
    except (OSError, IndexError):
        return []


def namespace(pid: int | str, kind: str) -> str | None:
    """What identifies its namespace of that kind (`net:[4026531840]`); None if it is gone, a zombie, or out of
    reach."""
    try:
        return str((PROC / str(pid) / "ns" / kind).readlink())
    except OSError:
        return None


def descriptors(pid: int) -> Iterator[str]:
    """What its descriptors point at."""
    folder = PROC / str(pid) / "fd"
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:
            continue


def mounts(pid: int | str) -> list[Mount]:
    """The mounts of its mount namespace; empty if it is gone or out of reach."""
    try:
        text = (PROC / str(pid) / "mountinfo").read_text(errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split(" ", 2)
        if len(fields) >= 6 and len(rest) == 3:
            found.append(Mount(device=fields[2], root=fields[3], point=fields[4], kind=rest[0], source=rest[1], options=rest[2]))
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its reaped children (proc_pid_stat(5): utime, stime, cutime, cstime); 0 if it
    is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(fields[n]) for n in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")


def parent(pid: int) -> int | None:
    """Its parent's pid; None if it is gone."""
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
