"""Rings: what a reader gets is a true piece of the stream, also while the writer overwrites it."""

from __future__ import annotations

from struct import Struct

from hypothesis import given
from hypothesis import strategies as st

from runtimes.native.rings import Ring
from runtimes.native.wire import RING_HEADER

HEADER = Struct("<QQQQQ")


class Memory:
    """A ring in memory that writes as the spawner does, and lets a test write in the middle of a reader's copy."""

    def __init__(self, head: int, tail: int) -> None:
        self.bytes = bytearray(RING_HEADER + head + tail)
        self.head, self.tail, self.total = head, tail, 0
        self.stream = bytearray()
        self.meanwhile: list[bytes] = []
        self.put(b"")

    def put(self, data: bytes, closed: bool = False) -> None:
        for byte in data:
            at = self.total
            self.stream.append(byte)
            if at < self.head:
                self.bytes[RING_HEADER + at] = byte
            elif self.tail:
                self.bytes[RING_HEADER + self.head + (at - self.head) % self.tail] = byte
            self.total += 1
        HEADER.pack_into(self.bytes, 0, self.total, closed, self.head, self.tail, self.total)

    def pread(self, length: int, offset: int) -> bytes:
        data = bytes(self.bytes[offset : offset + length])
        if offset >= RING_HEADER and self.meanwhile:
            self.put(self.meanwhile.pop(0))
        return data


@given(st.integers(0, 20), st.integers(0, 20), st.binary(max_size=100))
def test_all_keeps_head_and_tail(head: int, tail: int, data: bytes) -> None:
    memory = Memory(head, tail)
    memory.put(data)
    end = Ring(memory).all()
    assert end.total == len(data)
    assert end.head == data[:head]
    assert end.tail == (data[head:][-tail:] if tail else b"")


@given(st.integers(0, 20), st.integers(0, 20), st.binary(max_size=100), st.integers(0, 120), st.integers(1, 50))
def test_a_read_is_a_piece_of_the_stream(head: int, tail: int, data: bytes, offset: int, limit: int) -> None:
    memory = Memory(head, tail)
    memory.put(data, closed=True)
    chunk = Ring(memory).read(offset, limit)
    assert chunk.offset >= offset
    assert len(chunk.data) <= limit
    assert chunk.data == data[chunk.offset : chunk.offset + len(chunk.data)]
    assert chunk.end == (chunk.offset + len(chunk.data) >= len(data))
    if offset < len(data) and head + tail >= len(data):
        assert chunk.offset == offset and chunk.data


@given(st.integers(0, 8), st.integers(1, 8), st.binary(max_size=40), st.integers(0, 40),
       st.lists(st.binary(max_size=30), max_size=3))
def test_what_is_overwritten_meanwhile_is_dropped(head: int, tail: int, data: bytes, offset: int,
                                                  meanwhile: list[bytes]) -> None:
    memory = Memory(head, tail)
    memory.put(data)
    memory.meanwhile = meanwhile
    chunk = Ring(memory).read(offset, 1000)
    assert chunk.data == bytes(memory.stream[chunk.offset : chunk.offset + len(chunk.data)])


def test_reading_on_yields_everything_that_was_kept() -> None:
    memory = Memory(10, 10)
    memory.put(bytes(range(100)), closed=True)
    ring = Ring(memory)
    offset, pieces = 0, []
    while True:
        chunk = ring.read(offset, 7)
        pieces.append((chunk.offset, chunk.data))
        offset = chunk.offset + len(chunk.data)
        if chunk.end:
            break
    assert [(at, list(data)) for at, data in pieces] == [
        (0, [*range(7)]), (7, [7, 8, 9]), (90, [*range(90, 97)]), (97, [97, 98, 99])]


def test_the_callers_word_that_it_is_closed_counts() -> None:
    memory = Memory(10, 10)
    memory.put(b"abc")
    assert not Ring(memory).read(0, 10).end
    assert Ring(memory).read(0, 10, closed=True).end
