"""How fast sandboxes may be asked for: a token bucket for refill, backoff after failures, shares of what may start.

Pure: time comes in as `now` (ns), randomness as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

NS = 1_000_000_000


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up. It begins full."""

    def __init__(self, rate: float, burst: int, now: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = now

    def _refresh(self, now: int) -> None:
        if now > self._at:
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate / NS)
            self._at = now

    def take(self, want: int, now: int) -> int:
        """Up to `want` whole tokens, as many as there are."""
        self._refresh(now)
        granted = max(0, min(want, int(self._tokens)))
        self._tokens -= granted
        return granted

    def ready_at(self, now: int) -> int:
        """When at least one whole token will be there."""
        self._refresh(now)
        missing = 1.0 - self._tokens
        return now if missing <= 0 else now + int(missing / self._rate * NS) + 1


class Backoff:
    """After the n-th failure in a row, nothing for base · 2ⁿ⁻¹ (at most `cap`), times a random factor in [½, 1).

    Failures that arrive while it already holds back belong to the same attempt and do not count again."""

    def __init__(self, base_ns: int, cap_ns: int, random: Callable[[], float]) -> None:
        self._base = base_ns
        self._cap = cap_ns
        self._random = random
        self.failures = 0
        """Failed attempts in a row."""
        self.ready_at = 0

    def failed(self, now: int) -> None:
        if self.failures and now < self.ready_at:
            return
        self.failures += 1
        delay = min(self._cap, self._base << min(self.failures - 1, 32))
        self.ready_at = now + int(delay * (0.5 + self._random() / 2))

    def succeeded(self) -> None:
        self.failures = 0
        self.ready_at = 0


class Want(msgspec.Struct, frozen=True):
    """What one pool would start now: `urgent` for claims that wait, `refill` to reach its target."""

    urgent: int
    refill: int


def share(wants: Sequence[Want], room: int, bucket: TokenBucket, now: int) -> list[int]:
    """How many each pool may start: urgent ones first, in turns of one so that no pool starves another, then refill, in
    turns too and for tokens. The sum is at most `room`."""
    granted = [0] * len(wants)
    room = _deal([want.urgent for want in wants], granted, max(0, room))
    refill = [want.refill for want in wants]
    _deal(refill, granted, bucket.take(min(room, sum(refill)), now))
    return granted


def _deal(asked: list[int], granted: list[int], room: int) -> int:
    """Deals `room` out over `asked`, as evenly as they take it. Adds to `granted`; returns what is left."""
    left = list(asked)
    while room > 0 and (open_ := [i for i, n in enumerate(left) if n > 0]):
        each = max(1, room // len(open_))
        for i in open_:
            got = min(left[i], each, room)
            left[i] -= got
            granted[i] += got
            room -= got
    return room
