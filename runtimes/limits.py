"""Limits of a call: as asked for (API.md's units, every field optional) and as resolved (ns, bytes, nothing left open).

Pure. Whether a limit is above the node's maximum is the gateway's to say.
"""

from __future__ import annotations

import math

import msgspec

from runtimes.backend import Limits

_MS, _MB, _KB = 1_000_000, 1 << 20, 1 << 10


class LimitsAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits as a request names them; None: not named. Fractions are allowed and rounded down to bytes."""

    cpu_ms: float | None = None
    wall_ms: float | None = None
    memory_mb: float | None = None
    stack_mb: float | None = None
    output_kb: float | None = None
    file_mb: float | None = None
    disk_mb: float | None = None
    processes: int | None = None
    cpus: float | None = None

    def over(self, base: LimitsAsk) -> LimitsAsk:
        """These laid over `base`: what is named here wins."""
        named = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(base, **named)


class RunLimits(msgspec.Struct, frozen=True):
    """Limits of one program, complete."""

    cpu_ns: int
    wall_ns: int
    memory_bytes: int
    stack_bytes: int | None
    """None: as much as memory."""
    output_bytes: int
    """Of each of stdout and stderr."""
    file_bytes: int
    disk_bytes: int
    processes: int
    cpu_milli: int

    def command(self) -> Limits:
        """What the command itself is given; output and disk are bound elsewhere (descriptors, the sandbox's spec)."""
        return Limits(
            cpu_ns=self.cpu_ns,
            wall_ns=self.wall_ns,
            memory_bytes=self.memory_bytes,
            stack_bytes=self.stack_bytes,
            file_bytes=self.file_bytes,
            processes=self.processes,
            cpu_milli=self.cpu_milli,
        )


RUN = LimitsAsk(
    cpu_ms=2000, wall_ms=6000, memory_mb=256, stack_mb=0, output_kb=1024, file_mb=64, disk_mb=256, processes=128, cpus=1
)  # fmt: skip
"""Defaults of a run (API.md). `wall_ms` is at least three times `cpu_ms`."""

COMPILE = LimitsAsk(
    cpu_ms=10_000, wall_ms=30_000, memory_mb=1024, stack_mb=0, output_kb=1024, file_mb=256, disk_mb=256,
    processes=256, cpus=1
)  # fmt: skip
"""Defaults of a compile (API.md). Compilers of managed languages are many threads, so `processes` is generous."""


def resolve(ask: LimitsAsk, defaults: LimitsAsk = RUN) -> RunLimits:
    """`ask` laid over `defaults`, in ns and bytes."""
    full = ask.over(defaults)
    cpu_ms = full.cpu_ms or 0
    wall_ms = ask.wall_ms if ask.wall_ms is not None else max(defaults.wall_ms or 0, 3 * cpu_ms)
    return RunLimits(
        cpu_ns=max(1, round(cpu_ms * _MS)),
        wall_ns=max(1, round(wall_ms * _MS)),
        memory_bytes=max(1, _bytes(full.memory_mb, _MB)),
        stack_bytes=max(1, _bytes(full.stack_mb, _MB)) if full.stack_mb else None,
        output_bytes=_bytes(full.output_kb, _KB),
        file_bytes=_bytes(full.file_mb, _MB),
        disk_bytes=max(1, _bytes(full.disk_mb, _MB)),
        processes=full.processes or 1,
        cpu_milli=max(1, round((full.cpus or 0) * 1000)),
    )


def _bytes(amount: float | None, unit: int) -> int:
    return math.floor((amount or 0) * unit)
