"""Packets, frames and fields of the spawner's protocol, exactly as `src/proto.h` and PROTOCOL.md define them.

Pure bytes in, bytes out; the only system call here makes a sealed memfd. It must not know what any operation does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

PACKET_MAX: Final = 65536
INLINE_MAX: Final = 32768
PAYLOAD_MAX: Final = 80 << 20
FDS_MAX: Final = 250
RECORD_MAX: Final = 4096
RING_HEADER: Final = 4096
VERSION: Final = 1
MAGIC: Final = 0x31484B53
F_MEMFD: Final = 1

_PACKET = Struct("<IHHII")  # magic, version, frames, length, reserved
_FRAME = Struct("<HHIQHHI")  # op, flags, length, seq, fds, reserved, reserved
_FIELD = Struct("<HHI")  # tag, zero, length
_U32 = Struct("<HHII")
_U64 = Struct("<HHIQ")


class Op:
    """`enum skh_op`."""

    HELLO: Final = 1
    CREATE: Final = 2
    CLAIM: Final = 3
    DESTROY: Final = 4
    START: Final = 5
    SIGNAL: Final = 6
    END: Final = 7
    OPEN: Final = 8
    WATCH: Final = 9
    CLOSE: Final = 10
    RESIZE: Final = 11
    ACK: Final = 12
    LIST: Final = 13
    FILE: Final = 14
    FILE_COMMIT: Final = 15
    FILE_CANCEL: Final = 16
    STATS: Final = 17
    FREEZE: Final = 18
    REPLY: Final = 0x8000
    EV_STARTED: Final = 0x4001
    EV_EXIT: Final = 0x4002
    EV_OUTPUT: Final = 0x4003
    EV_LOST: Final = 0x4004
    EV_ITEM: Final = 0x4005


class T:
    """`enum skh_tag`."""

    CODE: Final = 1
    DETAIL: Final = 2
    NAME: Final = 3
    PROC: Final = 4
    VERSION_MIN: Final = 5
    VERSION_MAX: Final = 6
    VERSION: Final = 7
    EPOCH: Final = 8
    PID: Final = 9
    INSTANCE: Final = 10
    SPEC: Final = 11
    RECORD: Final = 12
    EXPIRES: Final = 13
    REASON: Final = 14
    ROLE: Final = 15
    BASE: Final = 16
    DISK: Final = 17
    MEMORY: Final = 18
    CPU_NS: Final = 19
    WALL_NS: Final = 20
    SILENCE_NS: Final = 21
    STACK: Final = 22
    FSIZE: Final = 23
    PIDS: Final = 24
    CPU_MILLI: Final = 25
    COMMAND: Final = 26
    ARG: Final = 27
    ENV: Final = 28
    CWD: Final = 29
    USER: Final = 30
    FLAGS: Final = 31
    DESC: Final = 32
    TARGET: Final = 33
    KIND: Final = 34
    INDEX: Final = 35
    DATA: Final = 36
    LIMIT: Final = 37
    MODE: Final = 38
    PUT: Final = 39
    PATH: Final = 40
    PATH2: Final = 41
    ROWS: Final = 42
    COLUMNS: Final = 43
    EXIT: Final = 44
    SIGNAL: Final = 45
    ENDED: Final = 46
    PEAK: Final = 47
    PIDS_PEAK: Final = 48
    STREAM: Final = 49
    TOTAL: Final = 50
    HEAD: Final = 51
    TAIL: Final = 52
    CLOSED: Final = 53
    STATE: Final = 54
    USED: Final = 55
    FOP: Final = 56
    OFFSET: Final = 57
    LENGTH: Final = 58
    DEPTH: Final = 59
    ENTRY: Final = 60
    ORPHAN_S: Final = 61
    EXISTS: Final = 62
    ITEM: Final = 63
    GROUP: Final = 64
    SIZE: Final = 65
    PIPES: Final = 66
    INODES: Final = 67


class ProtocolError(Exception):
    """The peer sent what no peer of ours sends: the connection is of no use any more."""


class Frame(NamedTuple):
    """One frame as received. Its descriptors belong to whoever takes it."""

    op: int
    seq: int
    payload: bytes
    fds: tuple[int, ...] = ()


# ---- fields ----------------------------------------------------------------------------------------------------------


def u32(tag: int, value: int) -> bytes:
    return _U32.pack(tag, 0, 4, value)


def u64(tag: int, value: int) -> bytes:
    return _U64.pack(tag, 0, 8, value)


def blob(tag: int, value: bytes) -> bytes:
    return _FIELD.pack(tag, 0, len(value)) + value


def text(tag: int, value: str) -> bytes:
    return blob(tag, value.encode())


def nest(tag: int, fields: Iterable[bytes]) -> bytes:
    return blob(tag, b"".join(fields))


def fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a payload, in order. Raises ProtocolError where one points outside."""
    at, end = 0, len(payload)
    unpack = _FIELD.unpack_from
    while at < end:
        if end - at < 8:
            raise ProtocolError("a field's header is cut off")
        tag, _, length = unpack(payload, at)
        at += 8
        if length > end - at:
            raise ProtocolError(f"field {tag} is cut off")
        yield tag, payload[at : at + length]
        at += length


def number(value: bytes) -> int:
    """A u32 or u64 field's value."""
    return int.from_bytes(value, "little")


# ---- frames and packets ----------------------------------------------------------------------------------------------


def frame(op: int, seq: int, payload: bytes = b"", fds: int = 0, flags: int = 0) -> bytes:
    return _FRAME.pack(op, flags, len(payload), seq, fds, 0, 0) + payload


def packet(frames: Sequence[bytes]) -> bytes:
    """One packet of whole frames; the caller keeps it within PACKET_MAX."""
    body = b"".join(frames)
    return _PACKET.pack(MAGIC, VERSION, len(frames), len(body) + _PACKET.size, 0) + body


PACKET_HEADER: Final = _PACKET.size
FRAME_HEADER: Final = _FRAME.size


def split(data: bytes, fds: Sequence[int] = ()) -> list[Frame]:
    """The frames of a packet, each with its descriptors. Raises ProtocolError; then no descriptor was given away."""
    if len(data) < _PACKET.size:
        raise ProtocolError("a packet without a header")
    magic, version, count, length, _ = _PACKET.unpack_from(data)
    if magic != MAGIC or version != VERSION or length != len(data):
        raise ProtocolError("not a packet of this protocol")
    at, taken = _PACKET.size, 0
    frames: list[Frame] = []
    for _ in range(count):
        if len(data) - at < _FRAME.size:
            raise ProtocolError("a frame's header is cut off")
        op, flags, size, seq, own, _, _ = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if size > len(data) - at or own > len(fds) - taken or flags:
            raise ProtocolError("a frame is cut off")
        frames.append(Frame(op, seq, data[at : at + size], tuple(fds[taken : taken + own])))
        at += size
        taken += own
    if at != len(data) or taken != len(fds):
        raise ProtocolError("bytes or descriptors that belong to no frame")
    return frames


def sealed(data: bytes) -> int:
    """A memfd with these bytes that nobody can change any more; the caller closes it."""
    fd = os.memfd_create("stokehold-payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd
