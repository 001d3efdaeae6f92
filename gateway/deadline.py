"""The caller's whole patience, `Stokehold-Timeout-Ms`, as a moment on the monotonic clock. Cancels nothing itself."""

from __future__ import annotations

import time
from collections.abc import Iterable

from gateway.errors import BadRequest

HEADER = b"stokehold-timeout-ms"
MAXIMUM_MS = 30 * 86_400_000


def deadline_of(headers: Iterable[tuple[bytes, bytes]], now_ns: int | None = None) -> int | None:
    """When the patience ends (CLOCK_MONOTONIC, ns), None if it was not limited. Raises BadRequest."""
    for name, value in headers:
        if name == HEADER:
            text = value.decode("latin-1").strip()
            if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MAXIMUM_MS:
                raise BadRequest(f"Stokehold-Timeout-Ms is a number of milliseconds from 1 to {MAXIMUM_MS}")
            return (time.monotonic_ns() if now_ns is None else now_ns) + int(text) * 1_000_000
    return None


def remaining_s(deadline_ns: int) -> float:
    """Seconds until then, 0 if it has passed."""
    return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
