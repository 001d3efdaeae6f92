"""`stokehold doctor`: what the host lacks and what provides it; how many leases its limits allow. Changes nothing."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import msgspec

from stokehold.service import procfs, programs
from stokehold.service.hostlimits import WANTED

LEASE_PROCESSES = 2
"""PID 1 and one command."""
LEASE_DESCRIPTORS = 3
LEASE_GROUPS = 3
LEASE_MEMORY = 4 << 20
"""An idle lease: two processes' kernel memory, its groups, namespaces and superblocks."""
CAP_SYS_RESOURCE = 24
RESERVE = 512
"""Processes and descriptors that the host and the service itself need."""


class Need(msgspec.Struct, frozen=True):
    """One thing that sandboxes need from the host."""

    name: str
    met: bool
    found: str
    remedy: str


class Limit(msgspec.Struct, frozen=True):
    """One limit of the host, how many leases it allows (None: no bound), and the command that raises it ("" : as
    wanted)."""

    name: str
    value: int
    leases: int | None
    remedy: str = ""


class Report(msgspec.Struct, frozen=True):
    """`leases`: how many the tightest limit allows at once."""

    ok: bool
    needs: list[Need]
    limits: list[Limit]
    leases: int


def examine() -> Report:
    """Look at the host. Without root most needs cannot be tried, and the report says so."""
    needs = _needs()
    limits = _limits()
    return Report(
        ok=all(need.met for need in needs),
        needs=needs,
        limits=limits,
        leases=min(limit.leases for limit in limits if limit.leases is not None),
    )


def _needs() -> list[Need]:
    asked = subprocess.run([sys.executable, "-P", "-m", "guard.preflight", "--json"], capture_output=True, timeout=30, check=False)
    try:
        needs = [msgspec.convert(need, Need) for need in json.loads(asked.stdout)["needs"]]
    except (ValueError, KeyError):
        needs = [Need("preflight", False, asked.stderr.decode(errors="replace")[-300:], "make setup")]
    try:
        built, found, remedy = True, str(programs.spawner_binary()), ""
    except programs.CannotServe as problem:
        built, found, remedy = False, str(problem), "make setup"
    return [*needs, Need("spawner", built, found, remedy)]


def _limits() -> list[Limit]:
    values = {wanted.key: wanted for wanted in WANTED}

    def setting(key: str, per_lease: int | None) -> list[Limit]:
        wanted = values[key]
        now = wanted.now()
        if now is None:
            return []
        leases = None if per_lease is None else max(0, (now - RESERVE) // per_lease)
        return [Limit(key, now, leases, "" if now >= wanted.value else f"sysctl -w {key}={wanted.value}")]

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raisable = _capable(CAP_SYS_RESOURCE)
    ceiling = max(hard, values["fs.nr_open"].now() or 0) if raisable else hard
    enough = raisable or hard >= values["fs.nr_open"].value
    mend = "" if enough else "start it with LimitNOFILE=1048576 or CAP_SYS_RESOURCE"
    return [
        *setting("kernel.pid_max", LEASE_PROCESSES),
        *setting("kernel.threads-max", LEASE_PROCESSES),
        *setting("fs.mount-max", None),
        *setting("fs.inotify.max_user_instances", None),
        *setting("fs.inotify.max_user_watches", LEASE_GROUPS),
        Limit("open files", ceiling, max(0, (ceiling - RESERVE) // LEASE_DESCRIPTORS), mend),
        Limit("control groups", 65_535, 65_535 - 16, ""),
        Limit("memory", _memory(), _memory() // LEASE_MEMORY, ""),
    ]


def _capable(number: int) -> bool:
    lines = (procfs.PROC / "self" / "status").read_text().splitlines()
    held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(held >> number & 1)


def _memory() -> int:
    lines = (procfs.PROC / "meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
