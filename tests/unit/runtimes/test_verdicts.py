"""Verdicts: every end, in API.md's order."""

from __future__ import annotations

import signal

import pytest

from runtimes.backend import Ended, Outcome, StreamEnd
from runtimes.limits import LimitsAsk, resolve
from runtimes.verdicts import OurFault, Verdict, compile_result, judge, run_result, signal_name

LIMITS = resolve(LimitsAsk(output_kb=1))
FULL = {1: StreamEnd(total=1025, head=b"x" * 1024)}
EXACT = {1: StreamEnd(total=1024, head=b"x" * 1024), 2: StreamEnd(total=1024, head=b"y" * 1024)}
LATE = LIMITS.cpu_ns + 1


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(Ended.EXIT, 0), Verdict("Accepted")),
        (Outcome(Ended.EXIT, 0, streams=EXACT), Verdict("Accepted")),
        (Outcome(Ended.EXIT, 3), Verdict("Nonzero Exit Status")),
        (Outcome(Ended.EXIT, None, signal.SIGSEGV), Verdict("Signalled")),
        (Outcome(Ended.EXIT, None, signal.SIGKILL), Verdict("Signalled")),
        (Outcome(Ended.EXIT, None, signal.SIGSYS), Verdict("Signalled")),
        (Outcome(Ended.EXIT, None, signal.SIGXFSZ), Verdict("Output Limit Exceeded", "file")),
        (Outcome(Ended.EXIT, None, signal.SIGSEGV, streams=FULL), Verdict("Output Limit Exceeded", "output")),
        (Outcome(Ended.EXIT, 0, streams=FULL), Verdict("Output Limit Exceeded", "output")),
        (Outcome(Ended.OUTPUT, None, signal.SIGKILL), Verdict("Output Limit Exceeded", "output")),
        (Outcome(Ended.OUTPUT, None, signal.SIGKILL, cpu_ns=LATE), Verdict("Time Limit Exceeded", "cpu")),
        (Outcome(Ended.EXIT, 0, cpu_ns=LATE), Verdict("Time Limit Exceeded", "cpu")),
        (Outcome(Ended.EXIT, 0, cpu_ns=LIMITS.cpu_ns), Verdict("Accepted")),
        (Outcome(Ended.EXIT, 0, wall_ns=LIMITS.wall_ns * 2), Verdict("Accepted")),
        (Outcome(Ended.CPU, None, signal.SIGKILL), Verdict("Time Limit Exceeded", "cpu")),
        (Outcome(Ended.WALL, None, signal.SIGKILL), Verdict("Time Limit Exceeded", "wall")),
        (Outcome(Ended.SILENCE, None, signal.SIGKILL), Verdict("Time Limit Exceeded", "wall")),
        (Outcome(Ended.MEMORY, None, 9, cpu_ns=LATE, streams=FULL), Verdict("Memory Limit Exceeded", "memory")),
        (Outcome(Ended.EXEC, error="execve ./a: ENOENT"), Verdict("File Error")),
    ],
)
def test_each_end(outcome: Outcome, verdict: Verdict) -> None:
    assert judge(outcome, LIMITS) == verdict


def test_a_denied_call_kills_only_where_that_was_asked() -> None:
    outcome = Outcome(Ended.EXIT, None, signal.SIGSYS)
    assert judge(outcome, LIMITS, denied_kills=True) == Verdict("Dangerous Syscall")


@pytest.mark.parametrize("ended", [Ended.FAULT, Ended.KILLED])
def test_what_we_did_is_no_verdict(ended: Ended) -> None:
    with pytest.raises(OurFault):
        judge(Outcome(ended, None, signal.SIGKILL, error="setns: EPERM"), LIMITS)
    with pytest.raises(OurFault):
        compile_result(Outcome(ended, None, signal.SIGKILL), LIMITS)


def test_every_end_has_a_row() -> None:
    for ended in set(Ended) - {Ended.FAULT, Ended.KILLED}:
        judge(Outcome(ended, 0), LIMITS)


def test_signals_have_names() -> None:
    assert (signal_name(11), signal_name(34 + 3), signal_name(signal.SIGRTMIN)) == ("SIGSEGV", "SIG37", "SIGRTMIN")


def test_a_signalled_run_has_no_exit_code() -> None:
    outcome = Outcome(Ended.EXIT, 139, 11, cpu_ns=1, wall_ns=2, memory_bytes=3, processes_peak=4, streams=EXACT)
    result = run_result("t", outcome, Verdict("Signalled"), return_bytes=2)
    assert (result.exit_code, result.signal, result.stdout, result.stdout_truncated) == (None, "SIGSEGV", "xx", True)
    assert (result.stdout_bytes, result.stderr_bytes, result.stderr_truncated) == (1024, 1024, True)
    assert (result.cpu_ns, result.wall_ns, result.memory_bytes, result.processes_peak) == (1, 2, 3, 4)


def test_compiler_output_is_no_limit() -> None:
    long = {2: StreamEnd(total=5000, head=b"a" * 512, tail=b"z" * 512)}
    result = compile_result(Outcome(Ended.EXIT, 0, streams=long), LIMITS)
    assert (result.status, result.stderr_bytes, result.stderr_truncated) == ("Accepted", 5000, True)


@pytest.mark.parametrize(
    ("outcome", "limit"),
    [
        (Outcome(Ended.EXIT, 1), None),
        (Outcome(Ended.EXIT, None, 11), None),
        (Outcome(Ended.CPU, None, 9), "cpu"),
        (Outcome(Ended.WALL, None, 9), "wall"),
        (Outcome(Ended.MEMORY, None, 9), "memory"),
        (Outcome(Ended.EXIT, None, signal.SIGXFSZ), "file"),
        (Outcome(Ended.EXEC, error="execve gcc: ENOENT"), None),
    ],
)
def test_a_compiler_that_fails(outcome: Outcome, limit: str | None) -> None:
    result = compile_result(outcome, LIMITS)
    assert (result.status, result.limit) == ("Compile Error", limit)
