"""`bench floor`: the spawner's own plan, made and destroyed by C alone. Starts the measuring program; computes nothing itself."""

from __future__ import annotations

import os
import subprocess

import msgspec

from stokehold.service import programs, slot
from stokehold.service.places import Places

WORKERS = 16
"""Unmounting waits for the kernel's grace periods; so many workers overlap them."""


class FloorFailed(Exception):
    """The floor could not be measured. The message says why."""


class Floor(msgspec.Struct, frozen=True):
    """`rate`: sandboxes made and destroyed a second; `plan`: the steps of each; `superblocks`: file systems that one adds."""

    rate: float
    plan: list[str]
    superblocks: int
    made: int
    failed: int
    workers: int
    seconds: float
    cpu_s: float
    """CPU seconds of all processes of the measurement; kernel threads' work for them is not in it."""
    make_mean_ms: float
    run_mean_ms: float
    end_mean_ms: float


def measure(where: Places, *, seconds: float, workers: int = WORKERS, role: str = "lease", program: str | None = None) -> Floor:
    """Measure for `seconds` (whole ones); with `program`, that is entered and run to its end in each sandbox.

    Needs root. Raises FloorFailed, CannotServe."""
    layer = where.layers / "host"
    programs.make_layer(layer)
    try:
        number, held = slot.claim_slot()
    except OSError as problem:
        raise FloorFailed(str(problem)) from problem
    argv = [
        *(str(programs.spawner_binary()), "floor", "--layer", f"host={layer}", "--role", role),
        *("--seconds", str(max(1, round(seconds))), "--workers", str(workers)),
        *("--cgroup", f"stokehold-{os.getpid() & 0xFFFFFFFF:08x}", "--slot", str(number)),
        *(("--exec", program) if program else ()),
    ]
    try:
        asked = subprocess.run(argv, capture_output=True, timeout=seconds + 60, check=False)
    except subprocess.TimeoutExpired as problem:
        raise FloorFailed(f"no figures within {seconds + 60:.0f} s") from problem
    finally:
        os.close(held)
    if asked.returncode != 0:
        raise FloorFailed(asked.stderr.decode(errors="replace")[-500:] or f"{argv[0]} exited with {asked.returncode}")
    try:
        return msgspec.json.decode(asked.stdout, type=Floor)
    except msgspec.DecodeError as problem:
        raise FloorFailed(f"unexpected answer: {problem}") from problem
