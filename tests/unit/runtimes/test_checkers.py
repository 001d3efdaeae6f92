"""Checkers: API.md's wording, against a slow and obvious reading of it; linear on hostile input."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes import checkers

texts = st.lists(st.sampled_from([b"a", b"b", b"1", b" ", b"\t", b"\r", b"\n", b"\x0b"]), max_size=12).map(b"".join)


def slow_lines(data: bytes) -> list[bytes]:
    lines = [line.rstrip(b" \t\r") for line in data.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


@given(texts, texts)
def test_lines_is_what_it_says(a: bytes, b: bytes) -> None:
    assert checkers.lines(a, b) == (slow_lines(a) == slow_lines(b))


@given(texts)
def test_lines_ignores_what_it_says(a: bytes) -> None:
    dressed = b"\n".join(line + b" \t\r" for line in a.split(b"\n")) + b"\n\n \n"
    assert checkers.lines(dressed, a)


@given(texts, texts)
def test_tokens_is_what_it_says(a: bytes, b: bytes) -> None:
    assert checkers.tokens(a, b) == (a.split() == b.split())


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@given(a=texts, b=texts)
def test_pieces_change_nothing(chunk: int, a: bytes, b: bytes) -> None:
    before = checkers._CHUNK
    checkers._CHUNK = chunk
    try:
        assert checkers.tokens(a, b) == (a.split() == b.split())
        assert checkers.floats(a, b, 0.0) == (a.split() == b.split())
    finally:
        checkers._CHUNK = before


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_floats_bound(a: float, b: float) -> None:
    from fractions import Fraction

    near = abs(Fraction(a) - Fraction(b)) <= Fraction("1e-6") * max(Fraction(1), abs(Fraction(b)))
    assert checkers.named("floats:1e-6")(repr(a).encode(), repr(b).encode()) == near


@pytest.mark.parametrize(
    ("output", "expected", "bound", "right"),
    [
        (b"0.3333333 2", b"0.333333333 2.0", "1e-6", True),
        (b"0.33 2", b"0.333333333 2.0", "1e-6", False),
        (b"1.1", b"1.0", "0.1", True),
        (b"1.100000000000000000001", b"1.0", "0.1", False),
        (b"nan", b"nan", "1", False),
        (b"NaN", b"1", "1e9", False),
        (b"1 2 nan", b"1 2 -nan", "1", False),
        (b"banana", b"banana", "0", True),
        (b"inf", b"inf", "0", True),
        (b"inf", b"-inf", "1", False),
        (b"1", b"inf", "1", False),
        (b"inf", b"1", "1", False),
        (b"1_0", b"10", "1", False),
        (b"0x10", b"16", "1", False),
        (b"yes 1.0", b"yes 1", "0", True),
        (b"yes", b"no", "1", False),
        (b"yes", b"1", "1", False),
        (b"1 2 3", b"1 2", "1", False),
        (b"1 2", b"1 2 3", "1", False),
        (b"", b"", "1", True),
        (b" \n", b"", "1", True),
        (b"1e400", b"1e400", "0", True),
        (b"1e400", b"1e399", "1e-6", False),
        (b"1e400", b"inf", "1", False),
        (b"5", b"1e400", "1", True),
        (b"1" * 400 + b"2", b"1" * 401, "0", False),
        (b"1" * 400 + b"2", b"1" * 401, "1e-6", True),
        (b"100000000000000000000000001", b"100000000000000000000000000", "0", False),
        (b"1e-99999999999999999999", b"1e-6", "1e-6", False),
        (b"1e-6", b"1e-99999999999999999999", "1e-6", False),
        (b"1e99999999999999999999", b"1e99999999999999999999 ", "0", True),
        (b"1e99999999999999999999", b"1e99999999999999999998", "1", False),
        (b"1000000", b"1000001", "1e-6", True),
        (b".5 +5. 5E0", b"0.5 5 5", "0", True),
    ],
)
def test_floats(output: bytes, expected: bytes, bound: str, right: bool) -> None:
    assert checkers.named(f"floats:{bound}")(output, expected) is right


@pytest.mark.parametrize(
    ("name", "output", "expected", "right"),
    [
        ("exact", b"a \n", b"a\n", False),
        ("exact", b"a\n", b"a\n", True),
        ("lines", b" a\n", b"a\n", False),
        ("lines", b"a\n\nb\n", b"a\nb\n", False),
        ("lines", b"", b"x\n", False),
        ("lines", b"a  \nb\n\n", b"a\nb", True),
        ("lines", b"a\tb", b"a b", False),
        ("lines", b"a\r\nb\r\n", b"a\nb\n", True),
        ("tokens", b"1   2\n3\n", b"1 2 3", True),
        ("tokens", b"12 3", b"1 23", False),
        ("tokens", b"1 2", b"1 2 2", False),
    ],
)
def test_examples(name: str, output: bytes, expected: bytes, right: bool) -> None:
    assert checkers.named(name)(output, expected) is right


@pytest.mark.parametrize(
    "name", ["", "Lines", "floats", "floats:", "floats:x", "floats:-1", "floats:nan", "floats:inf", "floats:1_0", "floats:1 "]
)
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        checkers.named(name)


SIZE = 4 << 20


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b" " * SIZE + b"x\n", b" " * SIZE + b"y\n"),
        (b"a\n" * (SIZE // 2), b"a \n" * (SIZE // 2)),
        (b" \t" * (SIZE // 2) + b"\n1", b"1"),
        (b"1 " * (SIZE // 2), b"1\n" * (SIZE // 2)),
        (b"x" * SIZE, b"x" * (SIZE - 1) + b"y"),
    ],
)
@pytest.mark.parametrize("name", ["exact", "lines", "tokens", "floats:1e-9"])
def test_hostile_sizes_take_linear_time(name: str, output: bytes, expected: bytes) -> None:
    checker = checkers.named(name)
    began = time.process_time()
    checker(output, expected)
    assert time.process_time() - began < 6 and math.isfinite(began)
