"""What a call is once validated, and what comes of it: the structs between the gateway and the call engine.

Results carry API.md's field names and are encoded as they are. No behaviour beyond reading a result.

CallRefused          the call cannot be run as asked: the caller's to mend, with the field
BackendFault         (a BackendError) it failed twice by our fault; retryable
DeadlinePassed       the caller's patience was over first
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from runtimes.backend import BackendError, Kind
from runtimes.limits import COMPILE, LimitsAsk, RunLimits, resolve
from runtimes.values import Value

Status = Literal[
    "Accepted",
    "Wrong Answer",
    "Partially Correct",
    "Compile Error",
    "Time Limit Exceeded",
    "Memory Limit Exceeded",
    "Output Limit Exceeded",
    "Nonzero Exit Status",
    "Signalled",
    "Dangerous Syscall",
    "File Error",
    "Judgement Failed",
]
LimitName = Literal["cpu", "wall", "memory", "output", "file"]


class CallRefused(Exception):
    """The call cannot be run as asked. `field` is a JSON pointer into the request."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


class BackendFault(BackendError):
    """A program could not be run by a fault of ours, twice. Never a verdict; the same call may succeed."""


class DeadlinePassed(Exception):
    """The caller's deadline passed; what ran for it was ended."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the caller gives, at `path` below /box."""

    path: str
    data: bytes
    mode: int = 0o644


class Test(msgspec.Struct, frozen=True):
    """One run of the program. None: the call's own."""

    __test__ = False

    name: str = "1"
    stdin: bytes = b""
    expected: bytes | None = None
    """None: only run, nothing is compared."""
    args: tuple[str, ...] | None = None
    files: tuple[InputFile, ...] = ()
    """Laid over the call's."""
    limits: RunLimits | None = None


class Compile(msgspec.Struct, frozen=True):
    """What the caller says about compiling."""

    flags: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    limits: RunLimits = resolve(LimitsAsk(), COMPILE)


class Call(msgspec.Struct, frozen=True):
    """One validated `/v1/run`. Exactly one of: `language` with `source` or `files`; `argv` (with `files`)."""

    language: str | None = None
    source: bytes | None = None
    files: tuple[InputFile, ...] = ()
    entry: str | None = None
    argv: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    """Laid over PATH, HOME, LANG, TMPDIR; None removes one."""
    cwd: str | None = None
    """Relative to /box."""
    compile: Compile = Compile()
    tests: tuple[Test, ...] = (Test(),)
    """Empty: compile only. A call without `tests` is one test without `expected`."""
    checker: str = "lines"
    limits: RunLimits = resolve(LimitsAsk())
    parallel: int = 1
    stop_on_first_failure: bool = False
    files_out: tuple[str, ...] = ()
    """Relative to /box; a trailing `?` makes one optional."""
    return_bytes: int | None = None
    """How much of each output the reply carries; None: all that was kept."""
    on_denied_syscall: Literal["fail", "kill"] = "fail"
    kind: Kind = "container"


class RunResult(msgspec.Struct, frozen=True):
    """What became of one program."""

    name: str
    status: Status
    limit: LimitName | None = None
    exit_code: int | None = None
    signal: str | None = None
    error: str | None = None
    cpu_ns: int = 0
    wall_ns: int = 0
    memory_bytes: int = 0
    processes_peak: int = 0
    stdout: Value = ""
    stderr: Value = ""
    stdout_bytes: int = 0
    stdout_truncated: bool = False
    stderr_bytes: int = 0
    stderr_truncated: bool = False
    files: Mapping[str, Value] = {}
    score: float | None = None
    checker: RunResult | None = None


class CompileResult(msgspec.Struct, frozen=True):
    """What became of the compiler. `artifact` names what it made, null if it made nothing."""

    status: Literal["Accepted", "Compile Error"]
    limit: LimitName | None = None
    exit_code: int | None = None
    signal: str | None = None
    error: str | None = None
    cached: bool = False
    artifact: str | None = None
    cpu_ns: int = 0
    wall_ns: int = 0
    memory_bytes: int = 0
    processes_peak: int = 0
    stdout: Value = ""
    stderr: Value = ""
    stdout_bytes: int = 0
    stdout_truncated: bool = False
    stderr_bytes: int = 0
    stderr_truncated: bool = False


class Timing(msgspec.Struct, frozen=True):
    """Where the call's time went, summed over its programs. None of it counts against a limit."""

    queue_ns: int = 0
    claim_ns: int = 0
    total_ns: int = 0


class CallResult(msgspec.Struct, frozen=True):
    """The reply of a call."""

    status: Status
    compile: CompileResult | None
    runs: tuple[RunResult, ...]
    warmth: str | None
    """Of the sandbox of the last program; null if none was needed."""
    timing: Timing
