"""`stokehold stop`: an orderly end, and a look that nothing of ours is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from stokehold.service import resources, slot
from stokehold.service.leftovers import clean
from stokehold.service.places import Places, read_service
from stokehold.service.supervisor import DRAIN_S, SPAWNER_END_S

SETTLE_S = 10.0


def stop(where: Places, say: Callable[[str], None]) -> resources.Resources:
    """End the service if it runs, remove what a crashed one left; what is still there afterwards (all 0 is success).

    Needs root."""
    lock = _stop_running(where, say) if where.lock.exists() else None
    if lock is not None:
        try:
            clean(where)
        finally:
            os.close(lock)
    limit = time.monotonic() + SETTLE_S
    while (left := resources.count(where, every=False)).any() and time.monotonic() < limit:
        time.sleep(0.05)
    return left


def _stop_running(where: Places, say: Callable[[str], None]) -> int | None:
    """Ask the supervisor to stop and wait for its lock. None if it would not go in time."""
    limit = time.monotonic() + DRAIN_S + SPAWNER_END_S + SETTLE_S
    asked: int | None = None
    while time.monotonic() < limit:
        lock = slot.try_lock(where.lock)
        if lock is not None:
            say("stopped" if asked else "nothing was running")
            return lock
        service = read_service(where)
        if service and service.pid != asked:
            asked = service.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(asked, signal.SIGTERM)
        time.sleep(0.05)
    say("the service did not end in time")
    return None
