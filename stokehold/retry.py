"""When a failed request is sent again, and how long to wait before. Pure: the random number is an argument."""

from __future__ import annotations

from stokehold.errors import ApiError, ConnectionFailed, StokeholdError

ATTEMPTS = 5
FIRST_S = 0.1
LONGEST_S = 5.0
REFUSED = frozenset({"quota_exceeded", "queue_full", "pool_empty", "no_capacity", "draining"})
"""Codes that say: nothing was begun. Even what may not be repeated may be sent again after them."""


def delay_s(error: StokeholdError, attempt: int, *, repeatable: bool, random: float) -> float | None:
    """Seconds until the next attempt after failure number `attempt` (from 1), or None: raise `error`.

    `random` lies in [0, 1): waits are spread, so that clients that failed together do not come back together."""
    if attempt >= ATTEMPTS or not error.retryable:
        return None
    refused = isinstance(error, ApiError) and error.code in REFUSED
    if not repeatable and not refused:
        return None
    if isinstance(error, ApiError) and error.retry_after_ms is not None:
        return min(error.retry_after_ms / 1000, 30.0) * (1 + random / 4)
    longest = min(FIRST_S * 2.0 ** (attempt - 1), LONGEST_S)
    if isinstance(error, ConnectionFailed):
        longest = min(longest, 1.0)
    return longest * (0.5 + random / 2)
