"""What commands, outcomes and directory entries look like on the wire: the contract's structs to fields and back.

No I/O but duplicating the caller's descriptors into the message that carries them.
"""

from __future__ import annotations

import os
import posixpath
import stat as st
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, Literal, NamedTuple

import msgspec

from runtimes.backend import (
    Collect,
    Command,
    Data,
    Descriptor,
    Ended,
    Entry,
    File,
    Input,
    Limits,
    Null,
    Outcome,
    Passed,
    Pipe,
    Same,
    Spec,
    StartFailed,
    StreamEnd,
    Terminal,
)
from runtimes.native.wire import ProtocolError, T, blob, fields, nest, number, text, u32, u64

_ENTRY = Struct("<IIIIQqII")  # type, mode, uid, gid, size, mtime, path length, target length
ENTRY_SIZE: Final = _ENTRY.size
_MAX_PASSED = 64
_MAX_PIPES = 16
_ENDED = (Ended.EXIT, Ended.CPU, Ended.WALL, Ended.SILENCE, Ended.MEMORY, Ended.OUTPUT, Ended.KILLED, Ended.EXEC,
          Ended.FAULT)
_INODE_BYTES = 4096
"""One inode for every so many bytes of disk: what ext4 and others give a small volume."""


def spec_fields(name: str, spec: Spec) -> bytes:
    """The payload of CREATE."""
    parts = [
        text(T.NAME, name), blob(T.SPEC, msgspec.msgpack.encode(spec)), u32(T.ROLE, spec.role == "lease"),
        text(T.BASE, spec.base), u64(T.DISK, spec.disk_bytes),
        u64(T.INODES, max(4096, spec.disk_bytes // _INODE_BYTES)),
    ]
    if spec.memory_bytes:
        parts.append(u64(T.MEMORY, spec.memory_bytes))
    if spec.processes:
        parts.append(u32(T.PIDS, spec.processes))
    if spec.cpu_milli:
        parts.append(u32(T.CPU_MILLI, spec.cpu_milli))
    return b"".join(parts)


# ---- START -----------------------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """A START's payload and the descriptors that go with it: duplicates, which the sender closes."""

    payload: bytes
    fds: list[int]


def start_fields(commands: Sequence[tuple[str, Command]]) -> Start:
    """START of commands, each in the sandbox of that name. Raises StartFailed for what can never be started."""
    fds: list[int] = []
    try:
        parts: list[bytes] = []
        pipes = 0
        for _, command in commands:
            for what in command.descriptors.values():
                if isinstance(what, Pipe):
                    pipes = max(pipes, what.number + 1)
        if pipes > _MAX_PIPES:
            raise StartFailed(f"{pipes} pipes: at most {_MAX_PIPES}")
        if pipes:
            parts.append(u32(T.PIPES, pipes))
        parts.extend(nest(T.COMMAND, _command(name, command, fds)) for name, command in commands)
        if len(fds) > _MAX_PASSED:
            raise StartFailed(f"{len(fds)} descriptors: at most {_MAX_PASSED}")
    except OSError as error:
        close_all(fds)
        raise StartFailed(f"a descriptor of the caller's: {error}") from error
    except BaseException:
        close_all(fds)
        raise
    return Start(b"".join(parts), fds)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _command(name: str, command: Command, fds: list[int]) -> Iterator[bytes]:
    yield text(T.NAME, name)
    yield text(T.PROC, command.id)
    yield u32(T.FLAGS, command.exclusive | (command.background == "end") << 1 | (command.orphan == "keep") << 2
              | (command.on_denied == "kill") << 3)
    yield from _limits(command.limits)
    for word in command.argv:
        yield blob(T.ARG, _clean(word if isinstance(word, bytes) else os.fsencode(word)))
    for key, value in command.env.items():
        yield blob(T.ENV, _clean(os.fsencode(f"{key}={value}")))
    yield blob(T.CWD, _clean(os.fsencode(command.cwd)))
    yield text(T.USER, command.user)
    for target, what in command.descriptors.items():
        yield nest(T.DESC, _descriptor(target, what, fds))
    for file in command.files:
        yield nest(T.PUT, _put(file, fds))


def _clean(word: bytes) -> bytes:
    if 0 in word:
        raise StartFailed("a NUL byte in an argument, a variable or a path")
    return word


def _limits(limits: Limits) -> Iterator[bytes]:
    for tag, value in ((T.CPU_NS, limits.cpu_ns), (T.WALL_NS, limits.wall_ns), (T.SILENCE_NS, limits.silence_ns),
                       (T.MEMORY, limits.memory_bytes), (T.STACK, limits.stack_bytes), (T.FSIZE, limits.file_bytes)):
        if value is not None:
            yield u64(tag, value)
    if limits.processes is not None:
        yield u32(T.PIDS, limits.processes)
    if limits.cpu_milli:
        yield u32(T.CPU_MILLI, limits.cpu_milli)


def _pass(fd: int, fds: list[int]) -> bytes:
    fds.append(os.dup(fd))
    return u32(T.INDEX, len(fds) - 1)


def _descriptor(target: int, what: Descriptor, fds: list[int]) -> Iterator[bytes]:
    yield u32(T.TARGET, target)
    match what:
        case Null():
            yield u32(T.KIND, 0)
        case Data(data=data):
            yield u32(T.KIND, 1)
            yield blob(T.DATA, data)
        case Passed(fd=fd):
            yield u32(T.KIND, 2)
            yield _pass(fd, fds)
        case Collect(limit=limit, on_full=on_full):
            yield u32(T.KIND, 3 if on_full == "kill" else 4)
            yield u64(T.LIMIT, limit)
        case Input():
            yield u32(T.KIND, 5)
        case Same(fd=fd):
            yield u32(T.KIND, 6)
            yield u32(T.INDEX, fd)
        case Terminal(rows=rows, columns=columns, limit=limit):
            yield u32(T.KIND, 7)
            yield u32(T.ROWS, rows)
            yield u32(T.COLUMNS, columns)
            yield u64(T.LIMIT, limit)
        case Pipe(number=pipe, end=end):
            yield u32(T.KIND, 8 if end == "read" else 9)
            yield u32(T.INDEX, pipe)


def _put(file: File, fds: list[int]) -> Iterator[bytes]:
    yield blob(T.PATH, os.fsencode(file.path))
    yield u32(T.MODE, file.mode)
    yield u32(T.KIND, file.tar)
    yield _pass(file.fd, fds) if file.fd is not None else blob(T.DATA, file.data)


# ---- EXIT ------------------------------------------------------------------------------------------------------------


class Exit(NamedTuple):
    """An EXIT event. `unread` names the streams whose kept bytes did not come along."""

    name: str
    proc: str
    outcome: Outcome
    unread: tuple[int, ...]


def exit_event(payload: bytes) -> Exit:
    """Raises ProtocolError."""
    name = proc = ""
    ended = Ended.FAULT
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    cpu = wall = peak = pids = 0
    streams: dict[int, StreamEnd] = {}
    unread: list[int] = []
    for tag, value in fields(payload):
        if tag == T.PROC:
            proc = value.decode()
        elif tag == T.NAME:
            name = value.decode()
        elif tag == T.ENDED:
            code = number(value)
            ended = _ENDED[code] if code < len(_ENDED) else Ended.FAULT
        elif tag == T.EXIT:
            exit_code = number(value)
        elif tag == T.SIGNAL:
            signal = number(value)
        elif tag == T.DETAIL:
            error = value.decode(errors="replace")
        elif tag == T.CPU_NS:
            cpu = number(value)
        elif tag == T.WALL_NS:
            wall = number(value)
        elif tag == T.PEAK:
            peak = number(value)
        elif tag == T.PIDS_PEAK:
            pids = number(value)
        elif tag == T.STREAM:
            target, end, came = _stream(value)
            streams[target] = end
            if not came:
                unread.append(target)
    outcome = Outcome(ended, exit_code, signal, error, cpu, wall, peak, pids, streams)
    return Exit(name, proc, outcome, tuple(unread))


def _stream(payload: bytes) -> tuple[int, StreamEnd, bool]:
    target = total = head = tail = 0
    data: bytes | None = None
    for tag, value in fields(payload):
        if tag == T.TARGET:
            target = number(value)
        elif tag == T.TOTAL:
            total = number(value)
        elif tag == T.HEAD:
            head = number(value)
        elif tag == T.TAIL:
            tail = number(value)
        elif tag == T.DATA:
            data = value
    if data is None:
        return target, StreamEnd(total=total), head + tail == 0
    if len(data) != head + tail:
        raise ProtocolError("a stream's data and lengths disagree")
    return target, StreamEnd(total=total, head=data[:head], tail=data[head:]), True


# ---- entries ---------------------------------------------------------------------------------------------------------

_TYPES: Mapping[int, Literal["file", "directory", "symlink", "fifo", "socket", "device"]] = {
    st.S_IFREG: "file", st.S_IFDIR: "directory", st.S_IFLNK: "symlink", st.S_IFIFO: "fifo", st.S_IFSOCK: "socket",
}


def entry_length(data: bytes | bytearray, at: int = 0) -> int | None:
    """How long the entry that begins at `at` is, or None while too little of it is there."""
    if len(data) - at < ENTRY_SIZE:
        return None
    *_, path_length, target_length = _ENTRY.unpack_from(data, at)
    length: int = ENTRY_SIZE + path_length + target_length
    if length > 1 << 20:
        raise ProtocolError("an entry longer than any path")
    return length if len(data) - at >= length else None


def entry(data: bytes | bytearray, folder: str, at: int = 0) -> Entry:
    """The entry at `at`, its path laid under `folder`; an empty path is `folder` itself."""
    kind, mode, uid, gid, size, mtime, path_length, target_length = _ENTRY.unpack_from(data, at)
    at += ENTRY_SIZE
    relative = os.fsdecode(bytes(data[at : at + path_length]))
    at += path_length
    target = os.fsdecode(bytes(data[at : at + target_length])) if target_length else None
    path = posixpath.join(folder, relative) if relative else folder
    return Entry(name=posixpath.basename(path.rstrip("/")) or "/", path=path,
                 type=_TYPES.get(kind & 0o170000, "device"), size=size, mode=mode, uid=uid, gid=gid,
                 mtime_ns=mtime, target=target)
