"""Values: text or base64, and cuts that leave characters whole."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from runtimes import values
from runtimes.backend import StreamEnd
from runtimes.values import Base64


@given(st.binary())
def test_encoding_loses_nothing(data: bytes) -> None:
    value = values.encode(data)
    back = value.encode() if isinstance(value, str) else base64.b64decode(value.base64)
    assert back == data


@given(st.text(), st.integers(0, 40))
def test_a_cut_leaves_whole_characters(text: str, limit: int) -> None:
    data = text.encode()
    kept = values.cut(data, limit)
    assert len(kept) <= limit or kept == data
    assert text.startswith(kept.decode())
    assert len(data) <= limit or len(kept) > limit - 4


def test_a_cut_of_bytes_that_are_no_text_keeps_them_all() -> None:
    assert values.cut(b"\xff\xc3\xa9\xc3\xa9", 4) == b"\xff\xc3\xa9\xc3"


def test_an_unfinished_character_of_the_program_itself_is_not_cut_off() -> None:
    shown = values.show(StreamEnd(total=3, head=b"ab\xc3"))
    assert shown == values.Shown(Base64(base64.b64encode(b"ab\xc3").decode()), 3, False)


def test_a_stream_over_its_limit() -> None:
    kept = ("é" * 512).encode() + b"\xc3"
    assert values.show(StreamEnd(total=4000, head=kept)) == values.Shown("é" * 512, 4000, True)


def test_return_kb_bounds_what_the_reply_carries() -> None:
    stream = StreamEnd(total=6, head="ééé".encode())
    assert values.show(stream, 3) == values.Shown("é", 6, True)
    assert values.show(stream, 6) == values.Shown("ééé", 6, False)
    assert values.show(stream, 0) == values.Shown("", 6, True)


def test_head_and_tail_say_how_much_is_missing() -> None:
    stream = StreamEnd(total=1000, head=b"a\xc3", tail=b"\xa9z")
    assert values.show_ends(stream) == values.Shown("a\n[998 bytes left out]\nz", 1000, True)


def test_no_stream() -> None:
    assert values.show(None) == values.Shown("", 0, False)
