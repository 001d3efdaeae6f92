"""Decoding `text/event-stream` (WHATWG HTML, 9.2) and NDJSON from pieces of any size. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stokehold.replies import Event

LINE_MAX = 4 << 20


class Lines:
    """Cuts pieces into lines. Raises ValueError for a line over 4 MiB: no such line is ever sent."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise ValueError("a line of the stream is too long")
        for line in lines:
            yield line.removesuffix(b"\r")

    def end(self) -> bytes:
        """What follows the last line's end."""
        rest, self._rest = self._rest, b""
        return rest


class Events:
    """Collects lines into events; comments (keep-alive) and unknown fields are skipped."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._name = ""
        self._id: str | None = None
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        for line in self._lines.feed(piece):
            if not line:
                if self._data:
                    yield Event(
                        name=self._name or "message",
                        data=msgspec.json.decode(b"\n".join(self._data), type=dict),
                        id=self._id,
                    )
                self._name, self._data = "", []
                continue
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                self._name = value.decode(errors="replace")
            elif field == b"data":
                self._data.append(value)
            elif field == b"id":
                self._id = value.decode(errors="replace")
