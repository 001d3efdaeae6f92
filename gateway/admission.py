"""Who may work now and who waits: bounded queues, one per tenant, served fairly between tenants. Does no I/O, holds no clock.

A free place goes to the tenant that has the fewest running; among those, to the one served longest ago. Within a tenant,
RFC 9218 urgency orders (0 first, 3 is usual), then arrival."""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from gateway.errors import QueueFull, QuotaExceeded

_URGENCY = re.compile(r"(?:^|[,\s;])u\s*=\s*([0-7])(?:$|[,\s;])")
USUAL = 3


def urgency_of(priority: str | None) -> int:
    """The urgency in a `Priority` header; what cannot be read is the usual one, as RFC 9218 asks."""
    found = _URGENCY.search(priority or "")
    return int(found[1]) if found else USUAL


class _Tenant:
    """One tenant's share: how many run, and who waits."""

    __slots__ = ("name", "running", "served", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self.served = 0
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []


class Admission:
    """`running` places in all; each tenant may have `queue` waiting."""

    def __init__(self, running: int, queue: int) -> None:
        self.places = running
        self.queue = queue
        self.running = 0
        self._tenants: dict[str, _Tenant] = {}
        self._numbers = count(1)

    @property
    def waiting(self) -> int:
        return sum(len(tenant.waiting) for tenant in self._tenants.values())

    def __repr__(self) -> str:
        shares = ", ".join(f"{t.name} {t.running}+{len(t.waiting)}" for t in self._tenants.values())
        return f"<Admission {self.running}/{self.places} [{shares}]>"

    @asynccontextmanager
    async def turn(self, tenant: str, urgency: int = USUAL) -> AsyncIterator[None]:
        """Wait for a place and hold it inside. Raises QueueFull at once if the tenant's queue is full."""
        share = self._tenants.setdefault(tenant, _Tenant(tenant))
        if self.running < self.places and not self.waiting:
            self._give(share)
        else:
            if len(share.waiting) >= self.queue:
                raise QueueFull(f"{len(share.waiting)} calls of this tenant wait already", retry_after_ms=1000)
            await self._wait(share, urgency)
        try:
            yield
        finally:
            self._take_back(share)

    async def _wait(self, share: _Tenant, urgency: int) -> None:
        future = asyncio.get_running_loop().create_future()
        entry = (urgency, next(self._numbers), future)
        heapq.heappush(share.waiting, entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._take_back(share)
            elif entry in share.waiting:  # else it was passed over when a place became free
                share.waiting.remove(entry)
                heapq.heapify(share.waiting)
                self._drop(share)
            raise

    def _give(self, share: _Tenant) -> None:
        self.running += 1
        share.running += 1
        share.served = next(self._numbers)

    def _take_back(self, share: _Tenant) -> None:
        self.running -= 1
        share.running -= 1
        while self.running < self.places:
            waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
            if not waiting:
                break
            chosen = min(waiting, key=lambda tenant: (tenant.running, tenant.served))
            _, _, future = heapq.heappop(chosen.waiting)
            if not future.done():
                self._give(chosen)
                future.set_result(None)
        self._drop(share)

    def _drop(self, share: _Tenant) -> None:
        if not share.running and not share.waiting:
            self._tenants.pop(share.name, None)


class Quota:
    """How many of something a tenant may have at once; beyond it QuotaExceeded, at once."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self._held: dict[str, int] = {}

    def take(self, tenant: str) -> None:
        held = self._held.get(tenant, 0)
        if held >= self.most:
            raise QuotaExceeded(f"{held} {self.what} of this tenant run already")
        self._held[tenant] = held + 1

    def give_back(self, tenant: str) -> None:
        held = self._held.get(tenant, 0) - 1
        if held > 0:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)
