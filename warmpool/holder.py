"""`Leases`: who holds which sandbox, for how long. The asynchronous face of the lease machines over the controller.

It creates, looks up, holds, renews and ends leases, and runs the reaper. The spawner has a lease's record before
anybody hears of the lease, so no restart of this process loses one; the journal is written behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

import msgspec

from runtimes.backend import Adopted, Recorded, Sandbox, SandboxLost
from warmpool.archive import Archive
from warmpool.book import Book, Page, Usage
from warmpool.controller import Controller
from warmpool.errors import BadLease, NotFound
from warmpool.journal import Journal, Row
from warmpool.leases import (
    EndReason,
    Facts,
    IdempotencyKey,
    Lease,
    LeaseAsk,
    LeaseState,
    check_deadlines,
    check_metadata,
)
from warmpool.maker import Clocks, LeaseMaker
from warmpool.order import LeaseProblem, Order, Wish
from warmpool.pacing import NS
from warmpool.record import BadRecord, decode, encode
from warmpool.settings import Settings

log = logging.getLogger(__name__)

_REAP_AT_LEAST_S = 60.0


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Leases:
    """All leases of one node. `on_event(what, lease)` hears of `running`, `renewed` and `ended`, as it happens.

    `clock` is CLOCK_BOOTTIME, `wall` the time of day, both in ns."""

    def __init__(
        self,
        controller: Controller,
        settings: Settings,
        *,
        journal: Journal | None = None,
        on_event: Callable[[str, Lease], None] = lambda what, lease: None,
        clock: Callable[[], int] = boottime_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._limits = settings.leases
        self._on_event = on_event
        self._clock = clock
        self._wall = wall
        self._book = Book(settings.ended_in_memory)
        self._archive = Archive(journal, settings.ended_retention_s, wall)
        self._maker = LeaseMaker(
            controller, self._book, self._archive, self._limits, Clocks(clock, wall), self._running, self._end
        )
        self._boxes: dict[str, Sandbox] = {}  # by lease id
        self._by_box: dict[str, Lease] = {}  # by sandbox name
        self._wake = asyncio.Event()
        self._book.earlier = self._wake.set
        self._reaper: asyncio.Task[None] | None = None
        self._purged_at: int | None = None
        controller.on_lost = self._box_lost

    # -- life

    async def start(self, adopted: Sequence[Adopted]) -> None:
        """Rebuilds the leases from the records of `adopted` and the journal, ends the ones that are due, and starts the
        reaper. Leases that the journal knows and no spawner has any more end as `ttl` or `lost`."""
        rows = await self._archive.open(self._settings.ended_in_memory)
        for facts, box in self._decoded(adopted):
            self._adopt(facts, box)
        for row in rows:
            self._remember(row)
        self.reap()
        self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="lease reaper")

    async def aclose(self) -> None:
        """Stops creating and reaping. Leases that run go on running; those that are starting are given up."""
        await self._maker.aclose()
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
        await self._archive.close()

    # -- creation

    async def create(
        self, ask: LeaseAsk, *, tenant: str, count: int = 1, wait_s: float = 60.0, key: IdempotencyKey | None = None
    ) -> AsyncGenerator[Lease | LeaseProblem, None]:
        """Yields `count` leases or problems, each as soon as it is known: a lease once a command can run in it, or in
        state `starting` once `wait_s` seconds have passed (it is then made in the background; `get` shows its outcome).

        A consumer that goes away (closes this generator: use `contextlib.aclosing`) accepts all but the last that it
        was given; the rest is undone, unless there is a `key`. With a `key`, a repeat yields the same leases.
        Raises BadLease, KeyMismatch, Closing before the first."""
        ask.check(self._limits)
        if not 0 < count <= self._limits.max_count:
            raise BadLease("/count", f"must be 1 to {self._limits.max_count}")
        wish = Wish(ask, tenant, count, key)
        self._maker.check(wish)
        deadline = asyncio.get_running_loop().time() + wait_s
        order = Order(self._maker, wish, self._limits.create_concurrency, deadline)
        try:
            while (item := await order.next()) is not None:
                yield item
        finally:
            order.close()

    # -- looking

    def get(self, tenant: str, id: str) -> Lease:
        """The lease, over or not. Raises NotFound."""
        try:
            lease = self._book.get(tenant, id)
        except NotFound:
            return self._archive.find(tenant, id)
        self._settle(lease)
        return lease

    def find(
        self, tenant: str, *, state: LeaseState | None = None, metadata: Mapping[str, str] | None = None,
        limit: int = 100, cursor: str | None = None,
    ) -> Page:
        """A page of the tenant's leases, the oldest first. Ended ones that were pushed out of memory are not listed.

        Raises BadLease for a cursor that is none."""
        self.reap()
        return self._book.find(tenant, state=state, metadata=metadata, limit=limit, cursor=cursor)

    def usage(self, tenant: str) -> Usage:
        """What the tenant's leases that have not ended hold together."""
        return self._book.usage(tenant)

    def counts(self) -> dict[str, int]:
        """Leases by state; of ended ones, those in memory."""
        return self._book.counts()

    def running(self) -> list[tuple[Lease, Sandbox]]:
        """All leases of all tenants that have a sandbox, with it."""
        return [(self._by_box[box.name], box) for box in self._boxes.values()]

    # -- use

    @contextlib.asynccontextmanager
    async def hold(self, tenant: str, id: str) -> AsyncIterator[Sandbox]:
        """The lease's sandbox, for use inside the block, which counts as activity as long as it lasts.

        Raises NotFound, LeaseEnded, WrongState; a SandboxLost of this sandbox inside becomes LeaseEnded."""
        lease = self.get(tenant, id)
        lease.hold(self._clock())
        box = self._boxes[lease.id]
        try:
            yield box
        except SandboxLost as lost:
            if lost.name != box.name:
                raise
            self._box_lost(box, lost.reason)
            lease.check_alive(self._clock())
            raise
        finally:
            lease.let_go(self._clock())
            self._book.schedule(lease)

    async def patch(
        self, tenant: str, id: str, *, ttl_s: float | None = None,
        idle_s: float | msgspec.UnsetType | None = msgspec.UNSET, metadata: Mapping[str, str] | None = None,
    ) -> Lease:
        """Renews: expires `ttl_s` from now, idle after `idle_s` (None: never), `metadata` instead of what it had.

        Returns once the spawner knows. Raises NotFound, LeaseEnded, BadLease, BackendError."""
        check_deadlines(self._limits, ttl_s=ttl_s, idle_s=None if idle_s is msgspec.UNSET else idle_s)
        if metadata is not None:
            check_metadata(self._limits, metadata)
        lease = self.get(tenant, id)
        before = msgspec.structs.replace(lease.facts)
        lease.renew(self._clock(), self._wall(), ttl_s=ttl_s, idle_s=idle_s)
        if metadata is not None:
            lease.facts.metadata = dict(metadata)
        try:
            record = encode(lease.facts)
        except BadLease:
            lease.facts = before
            raise
        self._book.schedule(lease)
        box = self._boxes.get(lease.id)
        if isinstance(box, Recorded):
            try:
                await box.record(record, lease.facts.expires_at)
            except SandboxLost as lost:
                self._box_lost(box, lost.reason)
            lease.check_alive(self._clock())
        self._archive.note(lease)
        self._on_event("renewed", lease)
        return lease

    async def delete(self, tenant: str, id: str) -> Lease:
        """Ends it, whatever is running in it; one that is over stays as it is. Raises NotFound."""
        lease = self.get(tenant, id)
        if lease.ended is None:
            self._end(lease, "deleted")
        return lease

    async def delete_matching(self, tenant: str, metadata: Mapping[str, str]) -> int:
        """Ends all of the tenant's leases with all of `metadata`; how many. Raises BadLease if that is empty."""
        if not metadata:
            raise BadLease("/metadata", "a filter is required")
        self.reap()
        found = [lease for lease in self._book.find(tenant, metadata=metadata, limit=2**63 - 1).leases
                 if lease.ended is None]
        for lease in found:
            self._end(lease, "deleted")
        return len(found)

    def reap(self) -> None:
        """Ends everything that is due, and forgets what ended long ago. The reaper calls it in time."""
        now, wall = self._clock(), self._wall()
        for lease in self._book.come_up(now):
            self._settle(lease)
        if self._purged_at is None or wall - self._purged_at >= _REAP_AT_LEAST_S * NS:
            self._purged_at = wall
            for lease in self._book.old(self._archive.oldest()):
                self._book.remove(lease)
            self._archive.purge()

    # -- the life of one

    def _running(self, lease: Lease, box: Sandbox) -> None:
        lease.run(box.name, self._clock())
        self._boxes[lease.id], self._by_box[box.name] = box, lease
        self._book.schedule(lease)
        self._archive.note(lease)
        self._on_event("running", lease)

    def _settle(self, lease: Lease) -> None:
        """Ends it if it is due."""
        reason = lease.due(self._clock())
        if reason is not None:
            self._end(lease, reason)

    def _end(self, lease: Lease, reason: EndReason, detail: str = "") -> None:
        name = lease.end(reason, self._clock(), self._wall(), detail)
        self._maker.give_up(lease)
        if name is not None:
            del self._by_box[name]
            self._controller.release(self._boxes.pop(lease.id), f"lease {reason}")
        self._book.over(lease)
        self._archive.note(lease)
        self._on_event("ended", lease)

    def _box_lost(self, box: Sandbox, reason: str) -> None:
        lease = self._by_box.get(box.name)
        if lease is not None and lease.ended is None:
            if reason == "ttl":
                self._end(lease, "ttl")
            else:
                self._end(lease, lease.due(self._clock()) or "lost", f"its sandbox is gone: {reason}")

    async def _reap(self) -> None:
        while True:
            self._wake.clear()
            try:
                self.reap()
            except Exception:
                log.exception("the reaper failed")
            first = self._book.next_deadline()
            delay_s = _REAP_AT_LEAST_S if first is None else (first - self._clock()) / NS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(delay_s, 0.001), _REAP_AT_LEAST_S)):
                    await self._wake.wait()

    # -- from an earlier process

    def _decoded(self, adopted: Sequence[Adopted]) -> list[tuple[Facts, Sandbox]]:
        """Facts and sandbox of every record that can be read; what cannot be is ended."""
        found: list[tuple[Facts, Sandbox]] = []
        for each in adopted:
            try:
                found.append((decode(each.record), each.sandbox))
            except BadRecord as error:
                log.error("sandbox %s has a record that cannot be read (%s); it is ended", each.sandbox.name, error)
                self._controller.release(each.sandbox, "unreadable record")
        return found

    def _adopt(self, facts: Facts, box: Sandbox) -> None:
        now = self._clock()
        lease = Lease(facts, now)
        try:
            self._book.add(lease)
        except ValueError:  # a spawner that was cut off in the middle: one sandbox is enough
            self._controller.release(box, "the lease has another sandbox")
            return
        lease.run(box.name, now)
        self._boxes[lease.id], self._by_box[box.name] = box, lease
        self._book.schedule(lease)
        self._archive.note(lease)
        if not self._controller.holds(box):
            self._box_lost(box, "failed")  # since it was adopted

    def _remember(self, row: Row) -> None:
        with contextlib.suppress(NotFound):
            self._book.get(row.tenant, row.id)
            return  # it lives: the spawner has it
        lease = self._archive.lease(row)
        if lease is None:
            return
        self._book.add_ended(lease)
        if row.ended is None:
            self._archive.note(lease)
