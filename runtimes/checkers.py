"""The built-in checkers: whether an output is the expected one. Pure, and linear in the size of both.

exact      byte for byte
lines      blanks, tabs and CR at line ends and empty lines at the end do not count
tokens     white space separates, amounts do not count
floats:E   as tokens; numbers match if |a−b| ≤ E·max(1, |b|), b being expected; NaN matches nothing
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest

Checker = Callable[[bytes, bytes], bool]
"""(output, expected) → right?"""

_BLANKS = b" \t\r"
_SPACE = b" \t\n\r\x0b\x0c"
# Only the first blank of a run may start a match, and a run is never given back: linear on any input.
_BLANK_ENDS = re.compile(rb"(?<![ \t\r])[ \t\r]++(?=\n)")
_NEXT_SPACE = re.compile(rb"[ \t\n\r\x0b\x0c]")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAMED_NUMBER = re.compile(rb"[+-]?(?:inf|infinity|nan)", re.I)
_NAN = re.compile(rb"nan", re.I)
_CHUNK = 1 << 18


def named(name: str) -> Checker:
    """The checker of that name. Raises ValueError for an unknown one, or an E that is no number ≥ 0."""
    if name in _PLAIN:
        return _PLAIN[name]
    kind, colon, text = name.partition(":")
    if kind == "floats" and colon:
        try:
            bound = float(text)
        except ValueError:
            bound = math.nan
        if "_" in text or text != text.strip() or not 0 <= bound < math.inf:
            raise ValueError(f"floats:E needs a number E ≥ 0, not {text[:40]!r}")
        return lambda output, expected: floats(output, expected, bound)
    raise ValueError("a checker is exact, lines, tokens or floats:E")


def exact(output: bytes, expected: bytes) -> bool:
    return output == expected


def lines(output: bytes, expected: bytes) -> bool:
    output, expected = output.rstrip(_BLANKS + b"\n"), expected.rstrip(_BLANKS + b"\n")
    return output == expected or _without_blank_ends(output) == _without_blank_ends(expected)


def tokens(output: bytes, expected: bytes) -> bool:
    if output == expected:
        return True
    return all(a == b for a, b in zip_longest(_joined(output), _joined(expected)))


def floats(output: bytes, expected: bytes, bound: float) -> bool:
    # Equal runs of tokens are skipped at the speed of memory, unless a NaN, which equals nothing, may hide there.
    skip = not (_NAN.search(output) and _NAN.search(expected))
    ours, theirs = _blocks(output), _blocks(expected)
    a: list[bytes] = []
    b: list[bytes] = []
    while True:
        a = a or next(ours, [])
        b = b or next(theirs, [])
        if not a or not b:
            return not a and not b
        count = min(len(a), len(b))
        head_a, head_b = a[:count], b[:count]
        if not (skip and head_a == head_b) and not all(
            _close(x, y, bound) for x, y in zip(head_a, head_b, strict=True)
        ):
            return False
        a, b = a[count:], b[count:]


_PLAIN: dict[str, Checker] = {"exact": exact, "lines": lines, "tokens": tokens}


def _without_blank_ends(data: bytes) -> bytes:
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if b" \n" in data or b"\t\n" in data or b"\r\n" in data:
        data = _BLANK_ENDS.sub(b"", data)
    return data


def _blocks(data: bytes) -> Iterator[list[bytes]]:
    """Its tokens, in lists of bounded size, so that 64 MiB of tokens never lie in memory as objects."""
    start = 0
    while start < len(data):
        found = _NEXT_SPACE.search(data, start + _CHUNK)
        end = found.start() if found else len(data)
        words = data[start:end].split()
        if words:
            yield words
        start = end


def _joined(data: bytes) -> Iterator[bytes]:
    """Its tokens with one space between any two, in pieces of exactly `_CHUNK` bytes but the last."""
    kept = bytearray()
    for words in _blocks(data):
        if kept:
            kept += b" "
        kept += b" ".join(words)
        while len(kept) > _CHUNK:  # at least one byte stays: the space before the next block is known to be needed
            yield bytes(kept[:_CHUNK])
            del kept[:_CHUNK]
    if kept:
        yield bytes(kept)


def _number(token: bytes) -> float | None:
    if _NUMBER.fullmatch(token) or _NAMED_NUMBER.fullmatch(token):
        return float(token)
    return None


def _close(a: bytes, b: bytes, bound: float) -> bool:
    y = _number(b)
    if y is None:
        return a == b
    x = _number(a)
    if x is None or math.isnan(x) or math.isnan(y):
        return False
    if math.isinf(x) or math.isinf(y):  # infinity itself, or a number too large for binary fractions
        return _close_exactly(a, b, bound)
    difference, allowed = abs(x - y), bound * max(1.0, abs(y))
    doubt = 1e-9 * allowed + 1e-15 * max(abs(x), abs(y))
    if a != b and abs(difference - allowed) <= doubt:  # too near to trust binary fractions: 1.1 and 1.0 differ by 0.1
        return _close_exactly(a, b, bound)
    return difference <= allowed


def _close_exactly(a: bytes, b: bytes, bound: float) -> bool:
    """Neither is NaN. What no arithmetic holds (an exponent of 20 digits) matches itself alone."""
    with decimal.localcontext(decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        try:
            x, y = decimal.Decimal(a.decode()), decimal.Decimal(b.decode())
            if x.is_infinite() or y.is_infinite():
                return x == y
            return abs(x - y) <= decimal.Decimal(repr(bound)) * max(decimal.Decimal(1), abs(y))
        except decimal.DecimalException:
            return a == b
