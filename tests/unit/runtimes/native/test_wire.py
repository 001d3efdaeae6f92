"""The wire format: what is written is read back, what is broken is refused, and the numbers are those of proto.h."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.native import wire
from runtimes.native.wire import Op, ProtocolError, T

PROTO = Path(wire.__file__).parent / "src" / "proto.h"
FIELDS = st.lists(st.tuples(st.integers(1, 200), st.binary(max_size=300)), max_size=20)
Frames = list[tuple[int, int, list[tuple[int, bytes]], int]]
FRAMES: st.SearchStrategy[Frames] = st.lists(
    st.tuples(st.integers(1, 0xFFFF), st.integers(0, 2**64 - 1), FIELDS, st.integers(0, 3)), max_size=12)


def constants(prefix: str) -> dict[str, int]:
    found = re.findall(rf"\b{prefix}_(\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)", PROTO.read_text())
    return {name: int(value, 0) for name, value in found}


def test_tags_are_those_of_the_header() -> None:
    ours = {name: value for name, value in vars(T).items() if not name.startswith("_")}
    assert ours == constants("T")


def test_operations_are_those_of_the_header() -> None:
    ours = {name: value for name, value in vars(Op).items() if not name.startswith("_")}
    theirs = constants("SKH")
    theirs.pop("F_MEMFD")
    assert ours == theirs


@given(FIELDS)
def test_fields_come_back(fields: list[tuple[int, bytes]]) -> None:
    payload = b"".join(wire.blob(tag, value) for tag, value in fields)
    assert list(wire.fields(payload)) == fields


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_numbers_come_back(small: int, large: int) -> None:
    found = list(wire.fields(wire.u32(T.CODE, small) + wire.u64(T.TOTAL, large)))
    assert [(tag, len(value), wire.number(value)) for tag, value in found] == [(T.CODE, 4, small), (T.TOTAL, 8, large)]


@given(FRAMES)
def test_packets_come_back(frames: Frames) -> None:
    encoded = []
    expected = []
    fds: list[int] = []
    for op, seq, fields, count in frames:
        payload = b"".join(wire.blob(tag, value) for tag, value in fields)
        own = tuple(range(len(fds), len(fds) + count))
        fds.extend(own)
        encoded.append(wire.frame(op, seq, payload, count))
        expected.append(wire.Frame(op, seq, payload, own))
    assert wire.split(wire.packet(encoded), fds) == expected


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_read_but_never_anything_else(data: bytes) -> None:
    for read in (lambda: wire.split(data), lambda: list(wire.fields(data))):
        with contextlib.suppress(ProtocolError):
            read()


@given(FRAMES, st.data())
def test_a_cut_packet_is_refused(frames: Frames, data: st.DataObject) -> None:
    whole = wire.packet([wire.frame(op, seq, b"".join(wire.blob(*field) for field in fields))
                         for op, seq, fields, _ in frames])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        wire.split(whole[:cut])


def test_descriptors_that_belong_to_no_frame_are_refused() -> None:
    with pytest.raises(ProtocolError):
        wire.split(wire.packet([wire.frame(Op.LIST, 1)]), [5])


def test_a_sealed_payload_cannot_be_changed() -> None:
    fd = wire.sealed(b"x" * 100_000)
    try:
        assert os.pread(fd, 200_000, 0) == b"x" * 100_000
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"y", 0)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    finally:
        os.close(fd)
