"""Commands, outcomes and entries on the wire."""

from __future__ import annotations

import os
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.backend import (
    Collect,
    Command,
    Data,
    Ended,
    File,
    Input,
    Limits,
    Null,
    Passed,
    Pipe,
    Same,
    StartFailed,
    Terminal,
)
from runtimes.native import messages
from runtimes.native.wire import ProtocolError, T, blob, fields, nest, number, text, u32, u64


def test_a_command_with_everything() -> None:
    read, write = os.pipe()
    command = Command(
        id="commandone", argv=("cat", b"\xff"), env={"A": "1"}, cwd="/box", user="1000:1000",
        limits=Limits(cpu_ns=5, memory_bytes=6, processes=7),
        descriptors={0: Data(b"in"), 1: Collect(10, "kill"), 2: Same(1), 3: Passed(write), 4: Pipe(1, "read"),
                     5: Null()},
        files=(File("a", b"x", 0o755), File("t", fd=read, tar=True)), exclusive=True, background="end", orphan="keep",
        on_denied="kill")
    start = messages.start_fields([("sandboxone", command)])
    try:
        outer = list(fields(start.payload))
        assert [tag for tag, _ in outer] == [T.PIPES, T.COMMAND]
        assert number(outer[0][1]) == 2
        found = list(fields(outer[1][1]))
        assert (T.NAME, b"sandboxone") in found and (T.PROC, b"commandone") in found
        assert [value for tag, value in found if tag == T.ARG] == [b"cat", b"\xff"]
        assert [value for tag, value in found if tag == T.ENV] == [b"A=1"]
        assert number(dict(found)[T.FLAGS]) == 15
        assert {tag: number(value) for tag, value in found if tag in (T.CPU_NS, T.MEMORY, T.PIDS)} == {
            T.CPU_NS: 5, T.MEMORY: 6, T.PIDS: 7}
        kinds = [dict(fields(value)) for tag, value in found if tag == T.DESC]
        assert [number(kind[T.KIND]) for kind in kinds] == [1, 3, 6, 2, 8, 0]
        assert number(kinds[3][T.INDEX]) == 0
        puts = [dict(fields(value)) for tag, value in found if tag == T.PUT]
        assert puts[0] == {T.PATH: b"a", T.MODE: pack("<I", 0o755), T.KIND: pack("<I", 0), T.DATA: b"x"}
        assert number(puts[1][T.INDEX]) == 1 and number(puts[1][T.KIND]) == 1
        assert len(start.fds) == 2 and not set(start.fds) & {read, write}
    finally:
        messages.close_all([*start.fds, read, write])


@pytest.mark.parametrize("command", [
    Command(id="commandone", argv=("a\0b",)),
    Command(id="commandone", argv=("a",), env={"A": "\0"}),
    Command(id="commandone", argv=("a",), cwd="/\0"),
    Command(id="commandone", argv=("a",), descriptors={0: Pipe(16, "read")}),
    Command(id="commandone", argv=("a",), descriptors={0: Passed(99_999)}),
])
def test_what_can_never_be_started_is_refused_here(command: Command) -> None:
    with pytest.raises(StartFailed):
        messages.start_fields([("sandboxone", command)])


def test_terminals_and_inputs_have_their_kinds() -> None:
    command = Command(id="commandone", argv=("a",), descriptors={0: Input(), 1: Terminal(30, 90, 1000), 2: Collect(5)})
    payload = messages.start_fields([("sandboxone", command)]).payload
    inner = fields(dict(fields(payload))[T.COMMAND])
    kinds = [dict(fields(value)) for tag, value in inner if tag == T.DESC]
    assert [number(kind[T.KIND]) for kind in kinds] == [5, 7, 4]
    assert (number(kinds[1][T.ROWS]), number(kinds[1][T.COLUMNS]), number(kinds[1][T.LIMIT])) == (30, 90, 1000)


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 1000))
def test_an_exit_event_with_its_data(data: bytes, head: int, more: int) -> None:
    head = min(head, len(data))
    stream = nest(T.STREAM, [u32(T.TARGET, 1), u64(T.TOTAL, len(data) + more), u64(T.HEAD, head),
                             u64(T.TAIL, len(data) - head), blob(T.DATA, data)])
    event = messages.exit_event(text(T.NAME, "sandboxone") + text(T.PROC, "commandone") + u32(T.ENDED, 5)
                                + u32(T.SIGNAL, 9) + u64(T.CPU_NS, 7) + stream)
    assert (event.name, event.proc, event.unread) == ("sandboxone", "commandone", ())
    assert (event.outcome.ended, event.outcome.signal, event.outcome.exit_code) == (Ended.OUTPUT, 9, None)
    end = event.outcome.streams[1]
    assert (end.head, end.tail, end.total) == (data[:head], data[head:], len(data) + more)
    assert end.truncated == (more > 0)


def test_streams_without_their_data_are_named() -> None:
    stream = nest(T.STREAM, [u32(T.TARGET, 2), u64(T.TOTAL, 9), u64(T.HEAD, 9), u64(T.TAIL, 0)])
    empty = nest(T.STREAM, [u32(T.TARGET, 1), u64(T.TOTAL, 0), u64(T.HEAD, 0), u64(T.TAIL, 0)])
    assert messages.exit_event(stream + empty).unread == (2,)


def test_lengths_that_disagree_are_refused() -> None:
    stream = nest(T.STREAM, [u32(T.TARGET, 2), u64(T.TOTAL, 9), u64(T.HEAD, 9), u64(T.TAIL, 0), blob(T.DATA, b"x")])
    with pytest.raises(ProtocolError):
        messages.exit_event(stream)


def wire_entry(path: bytes, target: bytes = b"", kind: int = 0o100000) -> bytes:
    return pack("<IIIIQqII", kind, kind | 0o644, 1, 2, 3, -4, len(path), len(target)) + path + target


def test_entries_come_in_pieces() -> None:
    data = wire_entry(b"a/b") + wire_entry(b"link", b"/etc", 0o120000)
    first = messages.entry_length(data)
    assert first is not None
    entry = messages.entry(data, "/top")
    assert (entry.path, entry.name, entry.type, entry.size, entry.mtime_ns) == ("/top/a/b", "b", "file", 3, -4)
    link = messages.entry(data, "/top", first)
    assert (link.path, link.type, link.target) == ("/top/link", "symlink", "/etc")
    assert all(messages.entry_length(data[:cut]) is None for cut in range(first))


def test_an_endless_entry_is_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.entry_length(pack("<IIIIQqII", 0, 0, 0, 0, 0, 0, 2**31, 0))
