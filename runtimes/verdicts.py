"""From how a program ended to its verdict, in API.md's order: Memory > Time > Output > Dangerous Syscall > Signalled >
Nonzero > File Error > the checker's.

Pure. A fault of ours has no verdict: `judge` raises.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from typing import Any

import msgspec

from runtimes import values
from runtimes.backend import BackendError, Ended, Outcome
from runtimes.call import CompileResult, LimitName, RunResult, Status
from runtimes.limits import RunLimits


class OurFault(BackendError):
    """The program's end says nothing about the program: try again on a fresh sandbox."""


class Verdict(msgspec.Struct, frozen=True):
    """What the end alone says. `Accepted`: nothing against it so far."""

    status: Status
    limit: LimitName | None = None


def signal_name(number: int) -> str:
    """`SIGSEGV`; `SIG35` for those without a name of their own (real-time signals)."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def judge(outcome: Outcome, limits: RunLimits, *, denied_kills: bool = False) -> Verdict:
    """The verdict on how a program ended. Raises OurFault if that was our doing."""
    match outcome.ended:
        case Ended.FAULT | Ended.KILLED:
            raise OurFault(outcome.error or f"ended by us: {outcome.ended}")
        case Ended.MEMORY:
            return Verdict("Memory Limit Exceeded", "memory")
        case Ended.CPU:
            return Verdict("Time Limit Exceeded", "cpu")
        case Ended.WALL | Ended.SILENCE:
            return Verdict("Time Limit Exceeded", "wall")
        case Ended.EXEC:
            return Verdict("File Error")
        case Ended.EXIT | Ended.OUTPUT:
            return _exited(outcome, limits, denied_kills)


def _exited(outcome: Outcome, limits: RunLimits, denied_kills: bool) -> Verdict:
    if outcome.cpu_ns > limits.cpu_ns:  # it ended by itself between its limit and our look at it
        return Verdict("Time Limit Exceeded", "cpu")
    if outcome.ended is Ended.OUTPUT or any(s.total > limits.output_bytes for s in outcome.streams.values()):
        return Verdict("Output Limit Exceeded", "output")
    if outcome.signal == signals.SIGXFSZ:
        return Verdict("Output Limit Exceeded", "file")
    if outcome.signal == signals.SIGSYS and denied_kills:
        return Verdict("Dangerous Syscall")
    if outcome.signal is not None:
        return Verdict("Signalled")
    if outcome.exit_code != 0:
        return Verdict("Nonzero Exit Status")
    return Verdict("Accepted")


def measured(outcome: Outcome, out: values.Shown, err: values.Shown) -> dict[str, Any]:
    """The members that every kind of run has in a reply: how it exited, what it used, what it wrote."""
    return {
        "exit_code": outcome.exit_code if outcome.signal is None else None,
        "signal": None if outcome.signal is None else signal_name(outcome.signal),
        "cpu_ns": outcome.cpu_ns,
        "wall_ns": outcome.wall_ns,
        "memory_bytes": outcome.memory_bytes,
        "processes_peak": outcome.processes_peak,
        "stdout": out.value,
        "stderr": err.value,
        "stdout_bytes": out.total,
        "stdout_truncated": out.truncated,
        "stderr_bytes": err.total,
        "stderr_truncated": err.truncated,
    }


def run_result(
    name: str,
    outcome: Outcome,
    verdict: Verdict,
    *,
    error: str | None = None,
    files: Mapping[str, values.Value] | None = None,
    return_bytes: int | None = None,
) -> RunResult:
    """A run as the reply carries it. `error` stands where the end itself left none."""
    out = values.show(outcome.streams.get(1), return_bytes)
    err = values.show(outcome.streams.get(2), return_bytes)
    return RunResult(
        name=name,
        status=verdict.status,
        limit=verdict.limit,
        error=outcome.error or error,
        **measured(outcome, out, err),
        files=files or {},
    )


def compile_result(outcome: Outcome, limits: RunLimits) -> CompileResult:
    """A compiler's run as the reply carries it: Accepted or Compile Error. Raises OurFault.

    Compilers print without end and may be cut short at it: that is never why a compile fails."""
    unbounded = msgspec.structs.replace(limits, output_bytes=1 << 62)
    verdict = judge(outcome, unbounded)
    out, err = values.show_ends(outcome.streams.get(1)), values.show_ends(outcome.streams.get(2))
    return CompileResult(
        status="Accepted" if verdict.status == "Accepted" else "Compile Error",
        limit=verdict.limit,
        error=outcome.error,
        **measured(outcome, out, err),
    )
