"""One program in one fresh sandbox: waits for a slot, claims, runs, lets the caller look, and releases at once.

Tries a second sandbox if the first failed by our fault. Owns slots and sandboxes for that time only; knows nothing of
languages, tests or verdicts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from runtimes.backend import BackendError, Command, Outcome, Sandbox, Spec
from runtimes.call import BackendFault

_ATTEMPTS = 2
_Result = TypeVar("_Result")


class Claimed(Protocol):
    """What a claim yields: a sandbox that nothing was ever run in, how ready it was, and how long claiming it took."""

    @property
    def sandbox(self) -> Sandbox: ...
    @property
    def warmth(self) -> str: ...
    @property
    def claim_ns(self) -> int: ...


Claim = Callable[[Spec], Awaitable[Claimed]]
Release = Callable[[Sandbox, str], None]


class Tally:
    """Where one call's time went."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.queue_ns = 0
        self.claim_ns = 0
        self.warmth: str | None = None

    @property
    def total_ns(self) -> int:
        return time.monotonic_ns() - self.began_ns


class Runner:
    """At most `slots` programs run at once. Waiting for one, or for a sandbox, counts against no limit."""

    def __init__(self, claim: Claim, release: Release, slots: int) -> None:
        self._claim = claim
        self._release = release
        self._slots = asyncio.Semaphore(slots)

    async def run(
        self,
        spec: Spec,
        command: Callable[[str], Command],
        look: Callable[[Sandbox, Outcome], Awaitable[_Result]],
        tally: Tally,
    ) -> _Result:
        """Run `command(id)` and return what `look` makes of its end, while the sandbox still stands.

        A BackendError of either is a fault of ours: once more on another sandbox, then BackendFault. What `claim`
        raises passes through. Cancelling ends the program."""
        fault: BackendError | None = None
        for _ in range(_ATTEMPTS):
            queued = time.monotonic_ns()
            async with self._slots:
                tally.queue_ns += time.monotonic_ns() - queued
                claimed = await self._claim(spec)
                tally.claim_ns += claimed.claim_ns
                tally.warmth = claimed.warmth
                reason = "cancelled"
                try:
                    outcome = await claimed.sandbox.run(command(secrets.token_hex(10)))
                    result = await look(claimed.sandbox, outcome)
                    reason = "done"
                    return result
                except BackendError as problem:
                    reason, fault = "failed", problem
                finally:
                    self._release(claimed.sandbox, reason)
        raise BackendFault(str(fault)) from fault
