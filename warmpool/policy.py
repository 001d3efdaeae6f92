"""How many sandboxes of one spec should be kept ready. Pure; it decides a number and never acts on it.

A pool asks its policy each time something may have changed. A policy that follows arrivals derives rates from
successive `Observed`s; the fixed one looks at none of it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Observed(msgspec.Struct, frozen=True):
    """What a pool has seen so far. The last three only ever grow."""

    ready: int
    starting: int
    claimed: int
    waiting: int
    claims: int
    """Claims so far, served or not."""
    hits: int
    """Claims so far that found a sandbox ready."""
    failures: int
    """Starts so far that failed."""


class Policy(Protocol):
    def target(self, observed: Observed, now: int) -> int:
        """How many should be ready (or starting for no waiter) at `now` (ns of the caller's clock)."""
        ...


class Fixed(msgspec.Struct, frozen=True):
    """Always the same number: 0 for specs that are made on demand only."""

    size: int = 0

    def target(self, observed: Observed, now: int) -> int:
        return self.size
