"""Bytes of programs as values of replies: text if they are UTF-8, else base64; a cut never splits a character."""

from __future__ import annotations

import base64

from runtimes.backend import StreamEnd

Shown = str | dict[str, str]


def shown(data: bytes) -> Shown:
    """A whole value."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def whole_end(data: bytes) -> int:
    """Where the last whole character ends: less than the length only if the data stops inside of one."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return len(data) - back if needed > back else len(data)
    return len(data)


def whole_start(data: bytes) -> int:
    """Where the first whole character begins: greater than 0 only if the data starts inside of one."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return start


def shown_end(end: StreamEnd) -> Shown:
    """What was kept of a stream. Characters cut at the seams are left out, if what remains is text."""
    if not end.truncated:
        return shown(end.head + end.tail)
    head, tail = end.head[:whole_end(end.head)], end.tail[whole_start(end.tail):]
    try:
        return (head + tail).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(end.head + end.tail).decode()}


class Splitter:
    """Cuts a stream into pieces that are text wherever it is; at most three bytes wait for the rest of their character."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes, end: bool = False) -> list[dict[str, str]]:
        """What may be shown now, as `text` or `base64` fields."""
        data = self._held + data
        cut = len(data) if end else whole_end(data)
        self._held, data = data[cut:], data[:cut]
        if not data:
            return []
        value = shown(data)
        return [{"text": value} if isinstance(value, str) else value]

    @property
    def held(self) -> int:
        return len(self._held)
