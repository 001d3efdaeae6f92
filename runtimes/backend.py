"""The contract of every backend: how one sandbox is made, spoken to and ended.

This module owns the words that the pool, the call engine and the gateway share with a backend. It does no I/O. What the
guest did is a value (`Outcome`, `FileFailure.code`); what we failed to do is an error (`BackendError`).

BackendError
├── SandboxLost      the sandbox ended under the caller: nothing more can be learned from it
├── StartFailed      one sandbox could not be made, or a command could not be entered, by a fault of ours
└── NoSuchProcess    the id names no process of this sandbox (never started, or forgotten)
FileFailure          a file operation was refused by the sandbox's own file system (a value travelling as an exception)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Literal, Protocol, runtime_checkable

import msgspec

Kind = Literal["container", "microvm", "vm", "fake"]
Stream = Literal[1, 2]  # the descriptor it came from: 1 stdout (or a terminal), 2 stderr


class BackendError(Exception):
    """What we failed to do. Never a verdict."""


class SandboxLost(BackendError):
    """The sandbox ended under the caller. `reason` is one of `LostReason`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"sandbox {name} is gone: {reason}")
        self.name = name
        self.reason = reason


class StartFailed(BackendError):
    """A sandbox could not be made or entered. The message says at which step and with which errno."""


class NoSuchProcess(BackendError):
    """The id names no process: never started here, or already forgotten."""


class FileFailure(Exception):
    """A path that cannot be used as asked. `code` is an errno name (`ENOENT`, `EISDIR`, `ELOOP`, `ENOSPC`…)."""

    def __init__(self, code: str, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {detail or code}")
        self.code = code
        self.path = path


class Need(msgspec.Struct, frozen=True):
    """One thing that a backend needs from the host, whether it is there, and the command or change that provides it."""

    name: str
    met: bool
    found: str
    remedy: str


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that must match for one sandbox to stand in for another. Hashable: it is the pool's key."""

    kind: Kind = "container"
    role: Literal["call", "lease"] = "lease"
    """`call`: uid 1000, only /box, /tmp and /dev/shm writable, files count as memory, limits come with the command.
    `lease`: root inside, the whole root writable on a private upper of `disk_bytes`, limits belong to the sandbox."""
    base: str = "host"
    memory_bytes: int = 0
    """Anonymous and shared memory of all that runs in a lease; 0 for calls (the command brings it)."""
    disk_bytes: int = 256 << 20
    processes: int = 0
    cpu_milli: int = 0
    """Thousandths of a CPU; 0 for calls (the command brings it)."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of one command. None is no bound beyond the sandbox's own."""

    cpu_ns: int | None = None
    """CPU time of the whole tree, from the control group."""
    wall_ns: int | None = None
    """Counted from the program's exec."""
    silence_ns: int | None = None
    """The longest time without a byte on any collected stream."""
    memory_bytes: int | None = None
    stack_bytes: int | None = None
    """RLIMIT_STACK; None leaves it unlimited (memory is the bound)."""
    file_bytes: int | None = None
    """RLIMIT_FSIZE: one file; passing it is SIGXFSZ."""
    processes: int | None = None
    cpu_milli: int | None = None


class Null(msgspec.Struct, frozen=True, tag="null"):
    """/dev/null."""


class Data(msgspec.Struct, frozen=True, tag="data"):
    """These bytes, as a sealed read-only file that is at its end after them."""

    data: bytes


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """A descriptor of ours, duplicated into the program. The caller keeps and closes its own."""

    fd: int


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Output, kept in a bounded ring: bytes are counted as they pass.

    `kill`: exactly `limit` bytes are kept and the first byte over it ends the run. `truncate`: head and tail are kept,
    half of `limit` each, the middle is counted and dropped, and the program never waits for a reader."""

    limit: int
    on_full: Literal["kill", "truncate"] = "truncate"


class Input(msgspec.Struct, frozen=True, tag="input"):
    """A pipe that `Process.write` feeds."""


class Same(msgspec.Struct, frozen=True, tag="same"):
    """The same open file as descriptor `fd` (stderr merged into stdout: `{2: Same(1)}`)."""

    fd: int


class Terminal(msgspec.Struct, frozen=True, tag="terminal"):
    """The program's controlling terminal; what it prints is stream 1, kept as by `Collect(limit)`. For 0, 1 and 2."""

    rows: int = 24
    columns: int = 80
    limit: int = 1 << 20


class Pipe(msgspec.Struct, frozen=True, tag="pipe"):
    """One end of a pipe shared by commands started together (`Backend.start_group`): interactors, pipelines."""

    number: int
    end: Literal["read", "write"]


Descriptor = Null | Data | Passed | Collect | Input | Same | Terminal | Pipe


class File(msgspec.Struct, frozen=True):
    """A file placed under the command's working directory (relative `path`) before it starts, owned by its user; an
    absolute `path` is placed before the working directory is entered, which may thus be made by it.

    `fd` names a descriptor of ours to copy from instead of `data`; with `tar` it is an archive, extracted at `path`."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    fd: int | None = None
    tar: bool = False


class Command(msgspec.Struct, frozen=True):
    """One program to run. `id` is the caller's and never reused: starting the same id again is the same `Process`."""

    id: str
    argv: tuple[str | bytes, ...]
    env: Mapping[str, str] = {}
    """The whole environment. HOME is added from the user's passwd entry if absent."""
    cwd: str = "/"
    user: str = "0"
    """`uid`, `uid:gid`, or a name that the sandbox's own /etc/passwd knows."""
    limits: Limits = Limits()
    descriptors: Mapping[int, Descriptor] = msgspec.field(
        default_factory=lambda: {0: Null(), 1: Collect(1 << 20), 2: Collect(1 << 20)})
    files: tuple[File, ...] = ()
    exclusive: bool = False
    """A call: limits are set on the sandbox's own groups, and at the end everything in the sandbox is ended."""
    background: Literal["keep", "end"] = "keep"
    """Whether what the program left behind goes on after its exit."""
    orphan: Literal["keep", "kill"] = "kill"
    """Whether it goes on when the gateway goes away."""
    on_denied: Literal["fail", "kill"] = "fail"


class Ended(StrEnum):
    """What ended a command: itself, or which bound, or whose act."""

    EXIT = "exit"
    CPU = "cpu"
    WALL = "wall"
    SILENCE = "silence"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"      # asked for: Process.end(), a client that went away, orphan: kill
    EXEC = "exec"          # the program could not be executed, or an input could not be placed: `error` says which
    FAULT = "fault"        # ours: an outer group was full, entry failed; the caller retries or answers 503


class StreamEnd(msgspec.Struct, frozen=True):
    """What became of one collected stream. `total` counts all bytes seen."""

    total: int = 0
    head: bytes = b""
    tail: bytes = b""
    """Kept = head + tail; if len(head) + len(tail) < total, the middle (or, with `kill`, the rest) was dropped."""

    @property
    def truncated(self) -> bool:
        return len(self.head) + len(self.tail) < self.total


class Outcome(msgspec.Struct, frozen=True):
    """How a command ended. Exactly one of `exit_code`, `signal` is set unless it never ran."""

    ended: Ended
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    """For EXEC and FAULT: what failed and how, e.g. `execve ./a: ENOENT`."""
    cpu_ns: int = 0
    wall_ns: int = 0
    memory_bytes: int = 0
    """Anonymous + shared memory at its peak over the whole tree, as near as the host allows."""
    processes_peak: int = 0
    streams: Mapping[int, StreamEnd] = {}


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a stream. `offset` is where `data` begins (greater than asked for: what lay between was dropped).
    `end` is true once the stream is closed and nothing follows."""

    offset: int
    data: bytes
    end: bool


class Adopted(msgspec.Struct, frozen=True):
    """A sandbox that an earlier process left running."""

    sandbox: Sandbox
    record: bytes
    """The lease's record, empty if it was never claimed."""
    used: bool
    """True if anything was ever run in it or it was ever claimed: it must not go back to a pool."""


class Failure(msgspec.Struct, frozen=True):
    """One sandbox of `start_many` that could not be made."""

    name: str
    reason: str


class Entry(msgspec.Struct, frozen=True):
    """One directory entry, as API.md names it."""

    name: str
    path: str
    type: Literal["file", "directory", "symlink", "fifo", "socket", "device"]
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    user: str | None = None
    group: str | None = None
    target: str | None = None


class Process(Protocol):
    id: str
    pid: int | None  # inside the sandbox, once known
    async def wait(self) -> Outcome:
        """Its outcome, whenever it ends. Raises SandboxLost only."""
        ...

    async def started(self) -> bool:
        """Wait until it was executed (True) or could not be (False). Raises SandboxLost only."""
        ...

    async def read(self, stream: Stream, offset: int, limit: int) -> Chunk:
        """At least one byte at or after `offset`, or the end: waits for it. Raises SandboxLost."""
        ...

    async def write(self, data: bytes | None) -> None:
        """Feed stdin, waiting while the pipe is full; None closes it. Raises BrokenPipeError, SandboxLost."""
        ...

    async def signal(self, number: int) -> None: ...
    async def end(self) -> None:
        """End it and everything that it started."""
        ...

    async def resize(self, rows: int, columns: int) -> None: ...
    async def forget(self) -> None:
        """Its outcome has been recorded: drop it."""
        ...


class Sandbox(Protocol):
    name: str
    spec: Spec
    async def start(self, command: Command) -> Process:
        """Begin a command; returns once it was accepted. The same id is the same Process.

        Raises SandboxLost, StartFailed."""
        ...

    async def run(self, command: Command) -> Outcome:
        """start, wait, forget. Cancelling it ends the command and forgets it."""
        ...

    async def processes(self) -> list[Process]: ...
    async def stop(self, reason: str) -> None:
        """Idempotent; never raises."""
        ...

    async def lost(self) -> str:
        """Wait until the sandbox is gone, whoever ended it; the reason."""
        ...


class Backend(Protocol):
    kind: ClassVar[Kind]
    def needs(self) -> list[Need]: ...
    def start_many(self, names: Sequence[str], spec: Spec) -> AsyncIterator[Sandbox | Failure]: ...
    async def start_group(self, members: Sequence[tuple[Sandbox, Command]]) -> list[Process]:
        """Begin commands in one or more sandboxes together, all or none, sharing the pipes that they name.

        Raises SandboxLost, StartFailed."""
        ...

    async def stop_many(self, names: Sequence[str], reason: str) -> None: ...
    async def adopt(self) -> list[Adopted]: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class Recorded(Protocol):
    """A sandbox whose lease record is kept where a gateway's death does not reach."""

    async def record(self, data: bytes, expires_at_ns: int | None) -> None:
        """Keep `data` (≤ 4 KiB); end the sandbox at `expires_at_ns` (CLOCK_BOOTTIME; None: never) even without us."""
        ...


@runtime_checkable
class Files(Protocol):
    """Files of a sandbox, reached from outside as one of its users. Every method raises FileFailure and SandboxLost.

    Only regular files and directories on the sandbox's own file systems are read, written, listed or archived;
    links are followed inside the sandbox's root only, never into /proc."""

    async def stat(self, path: str, *, user: str = "0", follow: bool = False) -> Entry: ...
    def list(self, path: str, *, user: str = "0", depth: int = 1) -> AsyncIterator[Entry]: ...
    async def read(self, path: str, *, user: str = "0", offset: int = 0,
                   length: int | None = None) -> tuple[Entry, AsyncIterator[bytes]]: ...
    async def write(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0", mode: int | None = None,
                    mkdirs: bool = False, append: bool = False) -> Entry:
        """Atomic: the file appears whole (a temporary name, then rename) or not at all, also when `chunks` raises."""
        ...

    async def delete(self, path: str, *, user: str = "0", recursive: bool = False) -> None: ...
    async def move(self, source: str, target: str, *, user: str = "0") -> None: ...
    async def mkdir(self, path: str, *, user: str = "0", mode: int = 0o755) -> None:
        """Makes parents too; an existing directory is not an error."""
        ...

    async def chmod(self, path: str, mode: int, *, user: str = "0") -> None: ...
    async def archive(self, path: str, *, user: str = "0") -> AsyncIterator[bytes]:
        """A tar (pax) of the tree at `path`, names relative to it."""
        ...

    async def extract(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0") -> None: ...
    async def archive_to(self, path: str, fd: int, *, user: str = "0", limit: int) -> int:
        """As `archive`, written to a file of ours without passing through Python; its size in bytes."""
        ...
