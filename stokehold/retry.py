"""When a failed request is sent again, and how long to wait before. Pure: the random number is an argument."""

from __future__ import annotations

from stokehold.errors import AnswerTimedOut, ApiError, ConnectionFailed, StokeholdError

ATTEMPTS = 5
ATTEMPTS_KNOWN = 20
"""Attempts to reach a service that has answered this client before: a gateway that is started again is back within
seconds."""
ATTEMPTS_SILENT = 2
FIRST_S = 0.1
LONGEST_S = 5.0
REFUSED = frozenset({"quota_exceeded", "queue_full", "pool_empty", "no_capacity", "draining"})
"""Codes that say: nothing was begun. Even what may not be repeated may be sent again after them."""


def delay_s(error: StokeholdError, attempt: int, *, repeatable: bool, known: bool, random: float) -> float | None:
    """Seconds until the next attempt after failure number `attempt` (from 1), or None: raise `error`.

    `known`: the service has answered this client before. `random` lies in [0, 1): waits are spread, so that
    clients that failed together do not come back together."""
    if not error.retryable or attempt >= _attempts(error, known):
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


def _attempts(error: StokeholdError, known: bool) -> int:
    if isinstance(error, AnswerTimedOut):
        return ATTEMPTS_SILENT
    return ATTEMPTS_KNOWN if known and isinstance(error, ConnectionFailed) else ATTEMPTS
