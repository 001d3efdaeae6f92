"""Event streams and lines, in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokehold.sse import LINE_MAX, Events, Lines

STREAM = (
    b": keep-alive\n\n"
    b'id: 1\nevent: start\ndata: {"pid": 7}\n\n'
    b'id: 2\nevent: stdout\ndata: {"offset": 0,\ndata: "text": "a"}\n\n'
    b'event: exit\r\ndata: {"status": "Accepted"}\r\n\r\n'
    b"event: nothing\n\n"
)


@given(st.lists(st.integers(1, 20), min_size=1))
def test_cuts_do_not_matter(sizes: list[int]) -> None:
    events, rest, found, n = Events(), STREAM, [], 0
    while rest:
        size = sizes[n % len(sizes)]
        found += list(events.feed(rest[:size]))
        rest, n = rest[size:], n + 1
    assert [(event.name, event.data, event.id) for event in found] == [
        ("start", {"pid": 7}, "1"),
        ("stdout", {"offset": 0, "text": "a"}, "2"),
        ("exit", {"status": "Accepted"}, "2"),
    ]


def test_bytes_of_an_output_event() -> None:
    text, coded = Events().feed(
        b'event: stdout\ndata: {"text": "\xc3\xa9"}\n\nevent: stderr\ndata: {"base64": "/wA="}\n\n'
    )
    assert (text.bytes, coded.bytes) == ("é".encode(), b"\xff\x00")


def test_an_endless_line_is_refused() -> None:
    lines = Lines()
    with pytest.raises(ValueError, match="too long"):
        for _ in range(LINE_MAX // 65536 + 1):
            list(lines.feed(b"x" * 65536))


def test_what_follows_the_last_line() -> None:
    lines = Lines()
    assert list(lines.feed(b"a\nb")) == [b"a"]
    assert lines.end() == b"b"
    assert lines.end() == b""
