"""From an exec request to a `Command`, and from its outcome to the run object. Starts nothing."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import secrets
import signal
from typing import Any, Literal, Protocol

import msgspec

from gateway.errors import BadRequest, Failed, Unsupported
from gateway.requests import ExecAsk, ExecLimitsAsk
from gateway.schema import Reply, encode_text, value_bytes, within
from gateway.settings import Maximum
from runtimes.backend import Collect, Command, Data, Descriptor, Ended, Input, Limits, Null, Outcome, Same
from runtimes.values import Value, show, show_ends
from runtimes.verdicts import measured

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_ENV = {"PATH": PATH, "LANG": "C.UTF-8"}
"""HOME comes from the sandbox's own passwd file."""
SHELL_ARGUMENT_MAX = 100_000
"""A single argument may have 128 KiB (MAX_ARG_STRLEN); longer texts are read by the shell from a descriptor."""
SHELL_FD = 9
ARGUMENTS_MAX = 1 << 20
"""All arguments and variables together: what does not fit would be a refused execve."""
WORKSPACE = "/workspace"
"""Where commands and relative paths of a lease begin that names no `cwd`."""
OUTPUT_KB = 1024


class Home(Protocol):
    """What a command takes from its lease."""

    @property
    def id(self) -> str: ...
    @property
    def user(self) -> str | None: ...
    @property
    def env(self) -> Any: ...
    @property
    def cwd(self) -> str | None: ...


class RunObject(Reply):
    """How a command ended, as API.md's run object with `id` and `pid`."""

    id: str
    pid: int | None
    tag: str | None
    status: str
    limit: str | None
    exit_code: int | None
    signal: str | None
    error: str | None
    cpu_ns: int
    wall_ns: int
    memory_bytes: int
    processes_peak: int
    stdout: Value
    stderr: Value
    stdout_bytes: int
    stdout_truncated: bool
    stderr_bytes: int
    stderr_truncated: bool
    replayed: bool = False


def random_id(prefix: str) -> str:
    """A fresh command id, 26 characters."""
    return prefix + base64.b32encode(secrets.token_bytes(15)).decode().lower()[:24] + "0"


def keyed_id(prefix: str, tenant: str, lease: str, key: str) -> str:
    """The id of the command under an idempotency key: the same for every repeat, also after a restart."""
    digest = hashlib.sha256("\0".join((tenant, lease, key)).encode("utf-8", "surrogateescape")).digest()
    return prefix + base64.b32encode(digest[:15]).decode().lower()[:24] + "1"


def user_of(asked: str | None, lease: Home) -> str:
    return asked or lease.user or "0"


def command_of(
    ask: ExecAsk, lease: Home, maximum: Maximum, *, id: str, orphan: Literal["keep", "kill"], interactive: bool = False
) -> Command:
    """The command of a validated request. `interactive`: stdin is a pipe unless the request gives its bytes.

    Raises BadRequest with the field."""
    if (ask.argv is None) == (ask.shell is None):
        raise BadRequest("exactly one of argv and shell is needed", field="/argv" if ask.shell is None else "/shell")
    stdin: Descriptor = Input() if interactive else Null()
    if ask.stdin is not None:
        stdin = Data(value_bytes(ask.stdin, "/stdin"))
    within(ask.output_kb, maximum.output_kb, "/output_kb")
    limits = _limits(ask, maximum)
    asked = [kb for kb in (ask.output_kb, ask.limits.output_kb if ask.limits else None) if kb is not None]
    kept = Collect(round(min(asked, default=OUTPUT_KB) * 1024), ask.on_output or "truncate")
    descriptors: dict[int, Descriptor] = {0: stdin, 1: kept, 2: kept}
    if ask.stderr == "merge":
        descriptors[2] = Same(1)
    elif ask.stderr == "discard":
        descriptors[2] = Null()
    env = _environment(ask, lease)
    return Command(
        id=id,
        argv=_argv(ask, descriptors, env),
        env=env,
        cwd=posixpath.join(lease.cwd or WORKSPACE, ask.cwd) if ask.cwd else lease.cwd or WORKSPACE,
        user=user_of(ask.user, lease),
        limits=limits,
        descriptors=descriptors,
        background=ask.background or "keep",
        orphan=orphan,
    )


def _argv(ask: ExecAsk, descriptors: dict[int, Descriptor], env: dict[str, str]) -> tuple[str | bytes, ...]:
    if ask.shell is not None:
        text = encode_text(ask.shell, "/shell")
        if b"\0" not in text and len(text) <= SHELL_ARGUMENT_MAX:
            return ("/bin/sh", "-c", ask.shell)
        descriptors[SHELL_FD] = Data(text)
        return ("/bin/sh", f"/proc/self/fd/{SHELL_FD}")
    argv = ask.argv or []
    size = sum(len(encode_text(text, "/argv")) + 9 for text in argv) + sum(len(k) + len(v) + 10 for k, v in env.items())
    if not argv[0]:
        raise BadRequest("the program's name is empty", field="/argv/0")
    if size > ARGUMENTS_MAX:
        raise BadRequest(f"arguments and environment have {size} bytes; at most {ARGUMENTS_MAX} fit", field="/argv")
    return tuple(argv)


def _environment(ask: ExecAsk, lease: Home) -> dict[str, str]:
    env: dict[str, str] = dict(BASE_ENV)
    for layer in (lease.env or {}, ask.env or {}):
        for name, value in layer.items():
            if value is None:
                env.pop(name, None)
            elif "\0" in value:
                raise BadRequest("a variable cannot hold a NUL", field="/env")
            else:
                env[name] = value
    return env


def _limits(ask: ExecAsk, maximum: Maximum) -> Limits:
    limits = ask.limits or ExecLimitsAsk()
    for name in msgspec.structs.fields(ExecLimitsAsk):
        within(getattr(limits, name.name), getattr(maximum, name.name), f"/limits/{name.name}")
    if limits.disk_mb is not None:
        raise Unsupported("a command has no disk of its own: the lease's resources bound it", field="/limits/disk_mb")
    within(ask.timeout_ms, maximum.timeout_ms, "/timeout_ms")
    within(ask.silence_ms, maximum.timeout_ms, "/silence_ms")
    walls = [ms for ms in (ask.timeout_ms, limits.wall_ms) if ms is not None]
    return Limits(
        cpu_ns=_times(limits.cpu_ms, 1_000_000),
        wall_ns=_times(min(walls) if walls else None, 1_000_000),
        silence_ns=_times(ask.silence_ms, 1_000_000),
        memory_bytes=_times(limits.memory_mb, 1 << 20),
        stack_bytes=_times(limits.stack_mb, 1 << 20) or None,
        file_bytes=_times(limits.file_mb, 1 << 20),
        processes=limits.processes,
        cpu_milli=_times(limits.cpus, 1000),
    )


def _times(value: float | None, unit: int) -> int | None:
    return None if value is None else max(round(value * unit), 1 if value else 0)


_BY_LIMIT = {
    Ended.CPU: ("Time Limit Exceeded", "cpu"),
    Ended.WALL: ("Time Limit Exceeded", "wall"),
    Ended.SILENCE: ("Time Limit Exceeded", "wall"),
    Ended.MEMORY: ("Memory Limit Exceeded", "memory"),
    Ended.OUTPUT: ("Output Limit Exceeded", "output"),
    Ended.EXEC: ("File Error", None),
}


def verdict_of(outcome: Outcome) -> tuple[str, str | None]:
    """Status and limit of a command in a lease. Raises Failed for a fault of ours, which is never a status."""
    if outcome.ended is Ended.FAULT:
        raise Failed(f"the command could not be run: {outcome.error or 'a fault of the host'}"[:500])
    if outcome.ended in _BY_LIMIT:
        return _BY_LIMIT[outcome.ended]
    if outcome.signal == signal.SIGXFSZ:
        return "Output Limit Exceeded", "file"
    if outcome.signal is not None or outcome.exit_code is None:
        return "Signalled", None
    return ("Accepted" if outcome.exit_code == 0 else "Nonzero Exit Status"), None


def signal_number(name: str | int) -> int:
    """Of a name with or without SIG, or a number. Raises BadRequest."""
    if isinstance(name, str) and not (name.isascii() and name.isdigit()):
        found = getattr(signal.Signals, name if name.startswith("SIG") else f"SIG{name}", None)
        if found is None:
            raise BadRequest(f"there is no signal {name[:40]}", field="/signal")
        return int(found)
    if not 0 < int(name) <= 64:
        raise BadRequest("signals have numbers from 1 to 64", field="/signal")
    return int(name)


def run_object(outcome: Outcome, *, id: str, pid: int | None, tag: str | None, replayed: bool = False) -> RunObject:
    """The reply for an ended command. Raises Failed for a fault of ours."""
    status, limit = verdict_of(outcome)
    shown = show if outcome.ended is Ended.OUTPUT else show_ends
    out, err = shown(outcome.streams.get(1)), shown(outcome.streams.get(2))
    error = outcome.error
    if outcome.ended is Ended.SILENCE:
        error = error or "nothing was printed for silence_ms"
    elif outcome.ended is Ended.KILLED:
        error = error or "ended on request"
    return RunObject(
        id=id,
        pid=pid,
        tag=tag,
        status=status,
        limit=limit,
        error=error,
        **measured(outcome, out, err),
        replayed=replayed,
    )


def digest_of(*parts: bytes) -> bytes:
    """What tells one request body from another."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()
