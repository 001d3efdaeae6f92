"""Where CPU time went: gateway, spawner with its workers, kernel threads, the client, idle. Reads /proc only."""

from __future__ import annotations

import os

import msgspec

from stokehold.service import procfs

_TICK = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds so far. The spawner's include its workers and all that it has reaped: sandboxes and their
    commands."""

    gateway_s: float
    spawner_s: float
    kernel_s: float
    idle_s: float


class Share(msgspec.Struct, frozen=True):
    """Shares of all cores' time, each from 0 to 1. `other`: what is none of the named."""

    gateway: float
    spawner: float
    kernel_threads: float
    client: float
    idle: float
    other: float


def usage(gateway: int | None, spawner: int | None) -> Usage:
    """CPU seconds of these processes (None: 0), of all kernel threads, and idle ones of the machine, since each
    began."""
    tree = 0.0
    kernel = 0.0
    for pid in procfs.pids():
        parent = procfs.parent(pid)
        if parent == 2 or pid == 2:
            kernel += procfs.cpu_s(pid)
        elif spawner is not None and (pid == spawner or parent == spawner):
            tree += procfs.cpu_s(pid)
    return Usage(procfs.cpu_s(gateway) if gateway else 0.0, tree, kernel, _idle_s())


def shares(before: Usage, after: Usage, client_s: float, seconds: float) -> Share:
    """How the time between two looks, `seconds` apart, was spent."""
    whole = seconds * (os.cpu_count() or 1)
    gateway, spawner, kernel, client, idle = (
        max(0.0, part) / whole
        for part in (
            after.gateway_s - before.gateway_s,
            after.spawner_s - before.spawner_s,
            after.kernel_s - before.kernel_s,
            client_s,
            after.idle_s - before.idle_s,
        )
    )
    other = max(0.0, 1.0 - gateway - spawner - kernel - client - idle)
    return Share(gateway=gateway, spawner=spawner, kernel_threads=kernel, client=client, idle=idle, other=other)


def _idle_s() -> float:
    fields = (procfs.PROC / "stat").read_text().partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICK
