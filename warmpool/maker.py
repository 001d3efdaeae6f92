"""How a lease comes to be: entered in the book, given a sandbox, recorded with the spawner, and only then running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from runtimes.backend import BackendError, Recorded, Sandbox, SandboxLost
from warmpool.archive import Archive
from warmpool.book import Book
from warmpool.controller import Claim, Controller
from warmpool.errors import Closing, KeyMismatch, NotFound, QuotaExceeded, WarmpoolError
from warmpool.ids import derived_id, random_id
from warmpool.leases import EndReason, Facts, IdempotencyKey, Lease
from warmpool.order import Wish
from warmpool.pacing import NS
from warmpool.record import encode
from warmpool.settings import LeaseLimits

log = logging.getLogger(__name__)

_ATTEMPTS = 3  # sandboxes that a lease may lose while it is being made


class Clocks:
    """`boot` is CLOCK_BOOTTIME, `wall` the time of day; both in ns."""

    def __init__(self, boot: Callable[[], int], wall: Callable[[], int]) -> None:
        self.boot = boot
        self.wall = wall


class LeaseMaker:
    """An `order.Maker`. `running(lease, sandbox)` says that one stands, `end(lease, reason, detail)` to end one."""

    def __init__(
        self, controller: Controller, book: Book, archive: Archive, limits: LeaseLimits, clocks: Clocks,
        running: Callable[[Lease, Sandbox], None], end: Callable[[Lease, EndReason, str], None],
    ) -> None:
        self._controller = controller
        self._book = book
        self._archive = archive
        self._limits = limits
        self._clocks = clocks
        self._running = running
        self._end = end
        self._tasks: dict[str, asyncio.Task[Exception | None]] = {}  # by lease id
        self._announced: set[str] = set()  # leases that are starting and whose ids were handed out
        self._closing = False

    async def aclose(self) -> None:
        """Gives up on what is being made, and makes nothing any more."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check(self, wish: Wish) -> None:
        """Raises what a whole request gets: Closing, BadLease (a record too large), KeyMismatch."""
        if self._closing:
            raise Closing("the service is shutting down")
        encode(self._facts(wish, 0, "0" * 32, 0))
        if wish.key is not None:
            with contextlib.suppress(NotFound):
                self._matching(self._book.get(wish.tenant, self._id(wish, 0)), wish.key)

    def begin(self, wish: Wish, index: int) -> Lease:
        if self._closing:
            raise Closing("the service is shutting down")
        id = self._id(wish, index)
        if wish.key is not None:
            with contextlib.suppress(NotFound):
                return self._matching(self._book.get(wish.tenant, id), wish.key)
        if self._book.usage(wish.tenant).leases >= self._limits.max_per_tenant:
            raise QuotaExceeded("leases", self._limits.max_per_tenant)
        lease = Lease(self._facts(wish, index, id, self._book.stamp(self._clocks.wall())), self._clocks.boot())
        self._book.add(lease)
        return lease

    def make(self, lease: Lease) -> asyncio.Task[Exception | None]:
        task = self._tasks.get(lease.id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(lease))
            self._tasks[lease.id] = task
            task.add_done_callback(lambda done: self._forget(lease, done))
        return task

    def announce(self, lease: Lease) -> None:
        self._announced.add(lease.id)
        self._archive.note(lease)

    def fail(self, lease: Lease, error: Exception) -> None:
        if lease.state != "starting":
            return
        if lease.id in self._announced:
            self._end(lease, "failed", str(error))
        else:
            self._book.remove(lease)

    def discard(self, lease: Lease) -> None:
        if lease.ended is None:
            self._end(lease, "deleted", "nobody took it")
        self._book.remove(lease)
        self._archive.drop(lease)

    def give_up(self, lease: Lease) -> None:
        """It has ended: whatever was being done to make it stops."""
        self._announced.discard(lease.id)
        task = self._tasks.pop(lease.id, None)
        if task is not None:
            task.cancel()

    async def _make(self, lease: Lease) -> Exception | None:
        began = time.monotonic_ns()
        try:
            for left in reversed(range(_ATTEMPTS)):
                claim = await self._controller.claim(lease.spec, wait_s=self._limits.start_limit_s)
                try:
                    await self._hand_over(lease, claim, began)
                    break
                except SandboxLost:
                    if not left:
                        raise
        except (WarmpoolError, BackendError) as error:
            return error
        except Exception as error:
            log.exception("lease %s could not be made", lease.id)
            return error
        return None

    async def _hand_over(self, lease: Lease, claim: Claim, began: int) -> None:
        """Gives the claimed sandbox to the lease once its record is kept. The sandbox is released on any failure."""
        box, facts = claim.sandbox, lease.facts
        try:
            facts.warmth, facts.claim_ns = claim.warmth, claim.claim_ns
            facts.total_ns = time.monotonic_ns() - began
            if isinstance(box, Recorded):
                kept = b""
                while (record := encode(lease.facts)) != kept:  # a patch may come in between
                    await box.record(record, lease.facts.expires_at)
                    kept = record
            if not self._controller.holds(box):
                raise SandboxLost(box.name, "failed")
            lease.check_alive(self._clocks.boot())
        except BaseException:
            self._controller.release(box, "not handed out")
            raise
        self._announced.discard(lease.id)
        self._running(lease, box)

    def _forget(self, lease: Lease, task: asyncio.Task[Exception | None]) -> None:
        if self._tasks.get(lease.id) is task:
            del self._tasks[lease.id]

    def _facts(self, wish: Wish, index: int, id: str, stamp: int) -> Facts:
        ask, ttl_ns = wish.ask, int(wish.ask.ttl_s * NS)
        return Facts(
            id=id, tenant=wish.tenant, kind=ask.spec.kind, backend=self._controller.backend_of(ask.spec.kind) or "",
            spec=ask.spec, created_wall=stamp, expires_wall=self._clocks.wall() + ttl_ns,
            expires_at=self._clocks.boot() + ttl_ns, idle_ns=None if ask.idle_s is None else int(ask.idle_s * NS),
            user=ask.user, env=dict(ask.env), cwd=ask.cwd, metadata=dict(ask.metadata), key=wish.key, index=index,
        )

    @staticmethod
    def _id(wish: Wish, index: int) -> str:
        if wish.key is None:
            return random_id()
        return derived_id(wish.tenant, wish.key.route, wish.key.key, str(index))

    @staticmethod
    def _matching(lease: Lease, key: IdempotencyKey) -> Lease:
        if lease.facts.key != key:
            raise KeyMismatch("this idempotency key was used with another body")
        return lease
