"""What the service answers, typed. Field names are the API's own; unknown members of a reply are ignored, so that
a newer service can be used. Owns no behaviour but reading its own fields."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

Verdict = Literal[
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


class Encoded(msgspec.Struct, frozen=True):
    """A value that is not plain text: exactly one member is set. Bytes that are no UTF-8 come as `base64`."""

    text: str | None = None
    base64: str | None = None
    blob: str | None = None


Value = str | Encoded


def value_bytes(value: Value) -> bytes:
    """The bytes of a value. Raises ValueError for a blob, which has to be fetched."""
    if isinstance(value, str):
        return value.encode()
    if value.base64 is not None:
        return base64.b64decode(value.base64)
    if value.text is not None:
        return value.text.encode()
    raise ValueError(f"{value.blob} is a blob: fetch it")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How one program went: what it used, what it wrote, what ended it."""

    status: str
    limit: str | None = None
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
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "Accepted"

    @property
    def out(self) -> bytes:
        return value_bytes(self.stdout)

    @property
    def err(self) -> bytes:
        return value_bytes(self.stderr)


class Compile(Stage, frozen=True, kw_only=True):
    """The compiler's run. `status` is Accepted or Compile Error."""

    cached: bool = False
    artifact: str | None = None


class Run(Stage, frozen=True, kw_only=True):
    """One test, or the one run of a call without tests."""

    name: str = ""
    files: dict[str, Value] = {}
    score: float | None = None
    checker: dict[str, Any] | None = None


class Timing(msgspec.Struct, frozen=True):
    """Where the time of a request went, in ns."""

    queue_ns: int = 0
    claim_ns: int = 0
    total_ns: int = 0


class RunReply(msgspec.Struct, frozen=True):
    """The verdict of a call: `status` is Compile Error, else the first run's that is not Accepted, else Accepted."""

    status: str
    runs: list[Run] = []
    compile: Compile | None = None
    warmth: str | None = None
    timing: Timing = Timing()

    @property
    def ok(self) -> bool:
        return self.status == "Accepted"


class ExecReply(Stage, frozen=True, kw_only=True):
    """How a command in a lease went. `id` names it for ever; `replayed`: an idempotency key had run it before."""

    id: str = ""
    pid: int | None = None
    replayed: bool | None = None


class Ended(msgspec.Struct, frozen=True):
    """Why and when a lease ended."""

    reason: str
    at: str | int | float | None = None
    detail: str | None = None


class LeaseInfo(msgspec.Struct, frozen=True):
    """A lease as the service sees it. Times are RFC 3339."""

    id: str
    state: str
    kind: str = "container"
    backend: str | None = None
    node: str | None = None
    endpoint: str | None = None
    token: str | None = None
    created_at: str | int | float | None = None
    expires_at: str | int | float | None = None
    idle_s: float | None = None
    metadata: dict[str, Any] = {}
    warmth: str | None = None
    timing: dict[str, int] | None = None
    ended: Ended | None = None


class LeasePage(msgspec.Struct, frozen=True):
    """Some leases, and the cursor of the next page."""

    leases: list[LeaseInfo] = []
    next: str | None = None


class LeaseLine(msgspec.Struct, frozen=True):
    """One line of a stream of leases: `lease` or `problem`."""

    index: int = 0
    lease: LeaseInfo | None = None
    problem: dict[str, Any] | None = None


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process of a lease: running while `status` is None."""

    id: str = ""
    pid: int | None = None
    state: str | None = None
    tag: str | None = None
    argv: list[str] | None = None
    status: str | None = None
    exit_code: int | None = None
    signal: str | None = None


class ProcessPage(msgspec.Struct, frozen=True):
    """Some processes, and the cursor of the next page."""

    processes: list[ProcessInfo] = []
    next: str | None = None


class Output(msgspec.Struct, frozen=True):
    """A piece of a process's output: `offset` is where it begins (greater than asked: what lay between was dropped)."""

    offset: int = 0
    text: str | None = None
    base64: str | None = None
    end: bool = False

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 is not None else (self.text or "").encode()


class Entry(msgspec.Struct, frozen=True):
    """One directory entry. `mode` is octal text or a number, as the service gives it."""

    name: str
    path: str
    type: str
    size: int = 0
    mode: str | int = 0
    uid: int = 0
    gid: int = 0
    user: str | None = None
    group: str | None = None
    mtime_ns: int = 0
    target: str | None = None


class EntryPage(msgspec.Struct, frozen=True):
    """Some entries, and the cursor of the next page."""

    entries: list[Entry] = []
    next: str | None = None


class Language(msgspec.Struct, frozen=True):
    """A language that the service can run."""

    name: str
    aliases: list[str] = []
    version: str | None = None
    file: str | None = None
    compile: Any = None
    run: Any = None


class Languages(msgspec.Struct, frozen=True):
    """The languages of a node."""

    languages: list[Language] = []


class Event(msgspec.Struct, frozen=True):
    """One event of a streamed command: `start`, `stdout`, `stderr`, `dropped`, `exit` or `problem`, with its
    members."""

    name: str
    data: dict[str, Any]
    id: str | None = None

    @property
    def bytes(self) -> bytes:
        """What a `stdout` or `stderr` event carries."""
        coded = self.data.get("base64")
        return base64.b64decode(coded) if coded is not None else str(self.data.get("text", "")).encode()
