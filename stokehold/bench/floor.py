"""`bench floor`: the spawner's own plan, made and destroyed by C alone. Starts the measuring program; computes
nothing itself."""

from __future__ import annotations

import subprocess

import msgspec

from stokehold.service import programs
from stokehold.service.places import Places


class FloorFailed(Exception):
    """The floor could not be measured. The message says why."""


class Floor(msgspec.Struct, frozen=True):
    """`rate`: sandboxes made and destroyed a second; `plan`: the steps of each; `superblocks`: file systems that
    one adds."""

    rate: float
    plan: list[str] | str
    superblocks: int
    made: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of the measuring processes and all that they made."""


def measure(where: Places, *, seconds: float, workers: int, exec: bool = False, role: str = "lease") -> Floor:
    """Measure for `seconds`; with `exec`, a small program is entered and run in each sandbox. Raises FloorFailed,
    CannotServe."""
    binary = programs.spawner_binary()
    layer = where.layers / "host"
    if not layer.is_dir():
        raise FloorFailed(f"{layer} is missing: start the service once (`stokehold serve`), which makes it")
    argv = [
        str(binary),
        "floor",
        "--layer",
        f"host={layer}",
        "--seconds",
        str(seconds),
        "--workers",
        str(workers),
        "--role",
        role,
        *(["--exec"] if exec else []),
    ]
    asked = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, complaint = asked.communicate(timeout=seconds + 60)
    if asked.returncode != 0:
        raise FloorFailed(complaint.decode(errors="replace")[-500:] or f"{binary.name} exited with {asked.returncode}")
    try:
        return msgspec.json.decode(output, type=Floor)
    except msgspec.DecodeError as problem:
        raise FloorFailed(f"unexpected answer: {problem}") from problem
