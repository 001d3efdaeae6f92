"""Bytes that came out of a program, as a reply carries them: text where they are UTF-8, else base64; no cut splits a
character.

Pure. Knows nothing of requests: the gateway decodes those.
"""

from __future__ import annotations

import base64
import codecs
import re

import msgspec

from runtimes.backend import StreamEnd

_LEFT_OUT = re.compile(rb"\n\[([0-9]{1,18}) bytes left out\]\n")


class Base64(msgspec.Struct, frozen=True):
    """Bytes that are not text."""

    base64: str


Value = str | Base64


class Shown(msgspec.Struct, frozen=True):
    """One output as a reply carries it."""

    value: Value
    total: int
    """All bytes that were seen."""
    truncated: bool


def encode(data: bytes) -> Value:
    """The string if `data` is UTF-8, else base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Base64(base64.b64encode(data).decode())


def cut(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes of the beginning, without a character cut in two."""
    return whole_end(data[:limit]) if len(data) > limit else data


def whole_end(data: bytes) -> bytes:
    """`data` without the first bytes of a character at its end, if all before it is text; else `data` itself."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return data
    pending = len(decoder.getstate()[0])
    return data[: len(data) - pending] if pending else data


def whole_start(data: bytes) -> bytes:
    """`data` without the last bytes of a character at its beginning (at most 3)."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def show(stream: StreamEnd | None, return_bytes: int | None = None) -> Shown:
    """A stream that kept its beginning (`Collect` with `kill`), cut to `return_bytes` of it."""
    if stream is None:
        return Shown("", 0, False)
    data = stream.head + stream.tail
    if return_bytes is not None and len(data) > return_bytes:
        return Shown(encode(cut(data, return_bytes)), stream.total, True)
    if stream.truncated:
        return Shown(encode(whole_end(data)), stream.total, True)
    return Shown(encode(data), stream.total, False)


def kept_parts(shown: Shown) -> list[tuple[int, bytes]]:
    """The parts of a stream that `show` or `show_ends` kept, each with its offset; the last may be empty, at the end."""
    value, total = shown.value, shown.total
    data = value.encode() if isinstance(value, str) else base64.b64decode(value.base64)
    for found in _LEFT_OUT.finditer(data) if shown.truncated else ():
        head, tail = data[: found.start()], data[found.end() :]
        if int(found[1]) == total - len(head) - len(tail):
            return [(0, head), (total - len(tail), tail)]
    return [(0, data), (total, b"")]


def show_ends(stream: StreamEnd | None) -> Shown:
    """A stream that kept its head and tail (`Collect` with `truncate`); a line between them counts what is missing."""
    if stream is None or not stream.truncated:
        return show(stream)
    head, tail = whole_end(stream.head), whole_start(stream.tail)
    missing = stream.total - len(head) - len(tail)
    return Shown(encode(head + f"\n[{missing} bytes left out]\n".encode() + tail), stream.total, True)
