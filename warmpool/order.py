"""One request for leases while it is being filled: what was asked, begun, made, handed out and accepted.

A lease counts as accepted once its consumer comes back for the next one. What is made and not accepted when the
consumer goes away is undone, unless an idempotency key says that a repeat will ask for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import msgspec

from warmpool.leases import IdempotencyKey, Lease, LeaseAsk


class LeaseProblem(msgspec.Struct, frozen=True):
    """Why the lease at `index` of a request was not made: a WarmpoolError or a BackendError."""

    index: int
    error: Exception


class Wish(msgspec.Struct, frozen=True):
    """What was asked, by whom."""

    ask: LeaseAsk
    tenant: str
    count: int
    key: IdempotencyKey | None


class Maker(Protocol):
    """What an order needs of the one who keeps the leases."""

    def begin(self, wish: Wish, index: int) -> Lease:
        """The lease at `index`, in state `starting` unless a request with the same key has made it already.

        Raises WarmpoolError."""
        ...

    def make(self, lease: Lease) -> asyncio.Task[Exception | None]:
        """What brings a starting lease to `running`, the same for all who ask. Its result: why it could not."""
        ...

    def discard(self, lease: Lease) -> None:
        """Nobody will ever hear of it: undo it."""
        ...

    def fail(self, lease: Lease, error: Exception) -> None:
        """It could not be made. Idempotent."""
        ...

    def announce(self, lease: Lease) -> None:
        """Its id is handed out although it is only starting."""
        ...


class Order:
    """Fills one wish, at most `concurrency` leases at a time. Synchronous but for `next`."""

    def __init__(self, maker: Maker, wish: Wish, concurrency: int, deadline: float) -> None:
        self._maker = maker
        self._wish = wish
        self._concurrency = concurrency
        self._deadline = deadline  # of the loop's clock
        self._next_index = 0
        self._backlog: deque[Lease] = deque()  # handed out as starting, not begun to be made
        self._making: dict[str, Lease] = {}
        self._announced: set[str] = set()  # of those that are being made or in the backlog
        self._out: deque[Lease | LeaseProblem] = deque()
        self._changed = asyncio.Event()
        self._patient = True
        self._gone = False
        self._left = wish.count
        self._handed: Lease | LeaseProblem | None = None  # handed out last, not yet accepted
        self._pump()

    async def next(self) -> Lease | LeaseProblem | None:
        """The next lease or problem, in the order in which they become known; None after the last.

        Once the deadline has passed: at once, in state `starting` if need be. Accepts the one before."""
        self._handed = None
        if not self._left:
            return None
        while not self._out:
            if not self._patient:
                self._begin_late()
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self._changed.wait()
            except TimeoutError:
                self._lose_patience()
        self._left -= 1
        self._handed = self._out.popleft()
        return self._handed

    def close(self) -> None:
        """The consumer goes. What it has not accepted is undone, unless there is a key."""
        self._gone = True
        self._next_index = self._wish.count
        if self._wish.key is not None:
            return
        handed = [] if self._handed is None else [self._handed]
        undone = [lease for lease in (*handed, *self._out) if isinstance(lease, Lease)]
        undone += [lease for id, lease in self._making.items() if id not in self._announced]
        for lease in undone:
            if lease in self._backlog:
                self._backlog.remove(lease)
            self._maker.discard(lease)
        self._out.clear()

    def _pump(self) -> None:
        """Begins as many as may be made at the same time."""
        while len(self._making) < self._concurrency:
            if self._backlog:
                lease = self._backlog.popleft()
                if lease.state == "starting":
                    self._make(lease)
            elif self._next_index < self._wish.count and self._patient:
                begun = self._begin()
                if begun is not None:
                    self._make(begun)
            else:
                return

    def _begin(self) -> Lease | None:
        """The next lease if it is still to be made; else it goes out as it is."""
        index = self._next_index
        self._next_index += 1
        try:
            lease = self._maker.begin(self._wish, index)
        except Exception as error:
            self._put(LeaseProblem(index, error))
            return None
        if lease.state != "starting":
            self._put(lease)
            return None
        return lease

    def _begin_late(self) -> None:
        lease = self._begin()
        if lease is not None:
            self._announce(lease)
            self._backlog.append(lease)
            self._pump()

    def _make(self, lease: Lease) -> None:
        self._making[lease.id] = lease
        self._maker.make(lease).add_done_callback(lambda task: self._made(lease, task))

    def _made(self, lease: Lease, task: asyncio.Task[Exception | None]) -> None:
        del self._making[lease.id]
        announced = lease.id in self._announced
        self._announced.discard(lease.id)
        error: Exception | None = None
        if not task.cancelled():
            error = task.result()
        elif lease.ended is None:  # discarded: nobody waits for it
            self._pump()
            return
        if error is not None:
            self._maker.fail(lease, error)
        if not announced:
            self._put(lease if error is None else LeaseProblem(lease.index, error))
        self._pump()

    def _lose_patience(self) -> None:
        self._patient = False
        for lease in self._making.values():
            self._announce(lease)

    def _announce(self, lease: Lease) -> None:
        self._announced.add(lease.id)
        self._maker.announce(lease)
        self._put(lease)

    def _put(self, item: Lease | LeaseProblem) -> None:
        if not self._gone:
            self._out.append(item)
            self._changed.set()
