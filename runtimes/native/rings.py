"""Reading a stream's ring: a memfd that the spawner fills while we read, laid out as PROTOCOL.md says.

A reader copies, then looks again at how far the writer has come and drops what may have been overwritten meanwhile.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple, Protocol

from runtimes.backend import Chunk, StreamEnd
from runtimes.native.wire import RING_HEADER

_HEADER = Struct("<QQQQQ")


class Source(Protocol):
    """Bytes at offsets: a descriptor, or a test's own."""

    def pread(self, length: int, offset: int) -> bytes: ...


class Descriptor:
    """A memfd that this object owns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        while len(data) < length and (more := os.pread(self.fd, length - len(data), offset + len(data))):
            data += more
        return data

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Header(NamedTuple):
    """The ring's first bytes. `claimed` runs ahead of `total` while the writer is between the two."""

    total: int
    closed: int
    head: int
    tail: int
    claimed: int


class Ring:
    """One reader's view. Offsets are the stream's own."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def header(self) -> Header:
        return Header(*_HEADER.unpack(self._source.pread(_HEADER.size, 0)))

    def read(self, offset: int, limit: int, *, closed: bool = False) -> Chunk:
        """What there is at or after `offset`, at most `limit` bytes; empty if nothing is there yet.

        `closed`: the caller knows already that nothing follows what is there."""
        while True:
            total, ended, head, tail, _ = self.header()
            closed = closed or ended != 0
            if offset < min(head, total):
                data = self._source.pread(min(limit, min(head, total) - offset), RING_HEADER + offset)
                return Chunk(offset=offset, data=data, end=closed and offset + len(data) >= total)
            offset = max(offset, min(total, max(head, total - tail)))
            data = self._tail(offset, min(limit, total - offset), head, tail)
            now = self.header()
            oldest = max(now.total, now.claimed) - tail  # what lies before it may be newer bytes by now
            if offset >= oldest or not data:
                return Chunk(offset=offset, data=data, end=closed and offset + len(data) >= total)
            if oldest < offset + len(data):
                return Chunk(offset=oldest, data=data[oldest - offset :], end=False)
            offset = oldest

    def all(self) -> StreamEnd:
        """Everything that is kept."""
        header = self.header()
        first = self._source.pread(min(header.head, header.total), RING_HEADER)
        if header.total <= header.head or header.tail == 0:
            return StreamEnd(total=header.total, head=first)
        rest = self.read(header.head, header.tail)
        return StreamEnd(total=rest.offset + len(rest.data), head=first, tail=rest.data)

    def _tail(self, offset: int, length: int, head: int, tail: int) -> bytes:
        if tail == 0 or length <= 0:
            return b""
        at = (offset - head) % tail
        data = self._source.pread(min(length, tail - at), RING_HEADER + head + at)
        if len(data) < length:
            data += self._source.pread(length - len(data), RING_HEADER + head)
        return data
