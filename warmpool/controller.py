"""The controller: the one place that acts on what the pools decide. It holds sandboxes and futures; it decides nothing.

A claim takes a ready sandbox without a single await. What it leaves to do (refill, stops, refusals) is done by one
loop, which hands batches to backends in tasks of their own: neither making nor unmaking stands in a claim's way.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from runtimes.backend import Adopted, Backend, BackendError, Failure, Kind, Sandbox, Spec, StartFailed
from warmpool.batches import Starts, Stops
from warmpool.errors import Closing, NoCapacity, PoolEmpty, QueueFull, WarmpoolError
from warmpool.ids import random_id
from warmpool.pacing import NS, Backoff, TokenBucket, share
from warmpool.policy import Fixed, Policy
from warmpool.pool import STATES, Command, Give, Pool, Refuse, Start, Stop, Waiter
from warmpool.settings import Settings

log = logging.getLogger(__name__)

class Claim(msgspec.Struct, frozen=True):
    """A sandbox that is the claimer's alone until it is released."""

    sandbox: Sandbox
    warmth: str
    """`staged`: it stood already. `cold`: it was made while the claim waited."""
    claim_ns: int
    """From the call to the sandbox."""


class Controller:
    """All pools of one node over its backends.

    `on_lost(sandbox, reason)` is called when a claimed sandbox is gone that nobody released. The caller makes and
    closes the backends. A spec is served by the first backend of its kind."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        settings: Settings,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        names: Callable[[], str] = random_id,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._backends = {backend.kind: backend for backend in reversed(list(backends.values()))}
        self._backend_names = {backend.kind: name for name, backend in reversed(list(backends.items()))}
        self._settings = settings
        self._clock = clock
        self._names = names
        self._jitter = jitter
        self.on_lost: Callable[[Sandbox, str], None] = lambda sandbox, reason: None
        self._pools: dict[Spec, Pool] = {}
        self._owner: dict[str, Pool] = {}  # by sandbox name, while its pool knows it
        self._sandboxes: dict[str, Sandbox] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._futures: dict[Waiter, asyncio.Future[str]] = {}
        self._starts = Starts(self._backends, settings.start_batch, self._made)
        self._stops = Stops(self._backends, settings.stop_batch, settings.stop_concurrency, self._stopped)
        self._troubles: Counter[str] = Counter()  # since the last turn, for the log
        self._bucket = TokenBucket(settings.refill_per_s, settings.refill_burst, clock())
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._closing = False
        for warm in settings.pools:
            if warm.spec.kind in self._backends:
                self._pools[warm.spec] = self._new_pool(warm.name, warm.spec, Fixed(warm.target))

    # -- life

    async def start(self) -> list[Adopted]:
        """Takes over what runs, then fills the pools in the background.

        What was never used goes to its pool, what was used and has no lease record is ended, and what has one is
        claimed and returned: the caller owns it. Raises BackendError if a backend cannot say what runs."""
        held: list[Adopted] = []
        now = self._clock()
        for backend in self._backends.values():
            for found in await backend.adopt():
                name = found.sandbox.name
                pool = self._pool(found.sandbox.spec)
                pool.adopt(name, "claimed" if found.record or found.used else "ready", now)
                self._owner[name] = pool
                self._keep(found.sandbox)
                if found.record:
                    held.append(found)
                elif found.used:
                    self._act(pool, pool.release(name, "orphaned", now))
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="warmpool controller")
        return held

    async def aclose(self, *, keep_leases: bool = True) -> None:
        """Refuses all who wait and all who come, ends what is being made, and waits for stops that were asked for.

        With `keep_leases`, what is ready or claimed goes on running and can be adopted; else it is ended too."""
        self._closing = True
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        await self._starts.cancel()
        now = self._clock()
        for pool in list(self._pools.values()):
            self._act(pool, pool.close("shutdown", now, ready=not keep_leases, claimed=not keep_leases))
        await self._stops.drain()
        for watcher in self._watchers.values():
            watcher.cancel()
        if self._watchers:
            await asyncio.wait(list(self._watchers.values()))

    # -- claimers

    async def claim(self, spec: Spec, *, wait_s: float | None = None) -> Claim:
        """A sandbox of `spec`, which the caller then owns and must release.

        Takes a ready one at once; else waits up to `wait_s` seconds (None: the settings' `claim_wait_s`) for one to be
        made. A claimer that is cancelled owns nothing.
        Raises PoolEmpty, NoCapacity, QueueFull, Closing, BackendError."""
        if self._closing:
            raise Closing("the controller is shutting down")
        began = self._clock()
        pool = self._pool(spec)
        taken = pool.claim(began)
        if taken is not None:
            self._nudge()
            return Claim(self._sandboxes[taken], "staged", self._clock() - began)
        self._admit()
        wait_ns = int((self._settings.claim_wait_s if wait_s is None else wait_s) * NS)
        while True:
            name = await self._wait(pool, pool.wait(began, began + wait_ns))
            pool = self._pool(spec)
            sandbox = self._sandboxes.get(name)
            if sandbox is not None and pool.state(name) == "claimed":  # else lost between the gift and this line
                return Claim(sandbox, "cold", self._clock() - began)

    def release(self, sandbox: Sandbox, reason: str) -> None:
        """The sandbox is destroyed, never reused. Never waits, never raises; an unknown or released one is no error."""
        self._release(sandbox.name, reason)

    def holds(self, sandbox: Sandbox) -> bool:
        """Whether it is still claimed: neither released nor lost."""
        pool = self._owner.get(sandbox.name)
        return pool is not None and pool.state(sandbox.name) == "claimed"

    def backend_of(self, kind: Kind) -> str | None:
        """The name of the backend that serves `kind`; None if there is none."""
        return self._backend_names.get(kind)

    # -- to look at

    def counts(self) -> dict[str, dict[str, int]]:
        """By pool and state; specs that are made on demand only are summed up as `other`. `waiting` counts claims."""
        counts: dict[str, dict[str, int]] = {}
        for pool in self._pools.values():
            into = counts.setdefault(pool.label, dict.fromkeys((*STATES, "waiting"), 0))
            for state in STATES:
                into[state] += pool.count(state)
            into["waiting"] += pool.waiting
        return counts

    async def idle(self) -> None:
        """Wait until every pool has what it wants, and nothing is being made or ended."""
        await self._idle.wait()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._pools.values()))

    def kick(self) -> None:
        """Look again now: the clock was turned by hand."""
        self._nudge()

    # -- waiting

    def _admit(self) -> None:
        """Raises what a claim gets that cannot even wait."""
        waiting = sum(pool.waiting for pool in self._pools.values())
        claimed = sum(pool.count("claimed") for pool in self._pools.values())
        if claimed + waiting >= self._settings.max_sandboxes:
            raise NoCapacity(f"{claimed} sandboxes are held and {waiting} claims wait; at most "
                             f"{self._settings.max_sandboxes} may exist")
        if waiting >= self._settings.queue_bound:
            raise QueueFull(f"{waiting} claims wait already")

    async def _wait(self, pool: Pool, waiter: Waiter) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._futures[waiter] = future
        self._nudge()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release(future.result(), "claimer went away")  # it was given, but never arrived
            raise
        finally:
            self._futures.pop(waiter, None)
            pool.leave(waiter)
            self._nudge()

    def _release(self, name: str, reason: str) -> None:
        pool = self._owner.get(name)
        if pool is not None:
            self._act(pool, pool.release(name, reason, self._clock()))

    # -- the loop

    def _nudge(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                delay_s = self._turn()
            except Exception:
                log.exception("the controller's turn failed:\n%r", self)
                delay_s = 1.0
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _turn(self) -> float | None:
        """Does what there is to do now; how long until there is more by time alone (seconds)."""
        now = self._clock()
        for pool in list(self._pools.values()):
            self._act(pool, pool.expire(now))
            if pool.is_unused(now):
                del self._pools[pool.spec]
        pools = list(self._pools.values())
        self._make_room(pools, now)
        wants = [pool.wants(now) for pool in pools]
        room = min(self._room(pools), self._settings.max_starting - sum(pool.count("starting") for pool in pools))
        granted = share(wants, room, self._bucket, now)
        for pool, count in zip(pools, granted, strict=True):
            self._act(pool, pool.start(count, now))
        self._stops.launch()
        for what, count in self._troubles.items():
            log.warning("%d sandboxes %s", count, what)
        self._troubles.clear()
        if not self._stops and all(pool.is_settled(now) for pool in pools) and not self._wake.is_set():
            self._idle.set()
        times = [at for pool in pools if (at := pool.wakes_at(now)) is not None]
        if room > 0 and sum(granted) < sum(want.refill + want.urgent for want in wants):
            times.append(self._bucket.ready_at(now))  # else a birth or a stop wakes the loop
        return max(0, min(times) - now) / NS if times else None

    def _room(self, pools: Sequence[Pool]) -> int:
        return self._settings.max_sandboxes - sum(len(pool) for pool in pools)

    def _make_room(self, pools: Sequence[Pool], now: int) -> None:
        """Claims that wait come before what is merely ready elsewhere."""
        short = sum(pool.wants(now).urgent for pool in pools) - self._room(pools) - sum(
            pool.count("ending") for pool in pools
        )
        for pool in sorted(pools, key=lambda pool: pool.count("ready"), reverse=True):
            if short <= 0:
                return
            commands = pool.shed(short, "room for another spec", now)
            short -= len(commands)
            self._act(pool, commands)

    # -- acting

    def _act(self, pool: Pool, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Start(names):
                    self._owner.update(dict.fromkeys(names, pool))
                    self._starts.launch(names, pool.spec)
                case Stop(name, reason):
                    self._stops.add(name, pool.spec.kind, reason)
                    self._unwatch(name)
                    self._sandboxes.pop(name, None)
                    self._nudge()
                case Give(waiter, name):
                    future = self._futures.get(waiter)
                    if future is None or future.done():  # cancelled, and has not had its turn to leave yet
                        self._release(name, "claimer went away")
                    else:
                        future.set_result(name)
                case Refuse(waiter, failure):
                    future = self._futures.get(waiter)
                    if future is not None and not future.done():
                        future.set_exception(self._refusal(failure))

    def _refusal(self, failure: str | None) -> WarmpoolError | BackendError:
        if failure is not None:
            return StartFailed(failure)
        if self._closing:
            return Closing("the controller is shutting down")
        return PoolEmpty("no sandbox became ready in time")

    def _made(self, made: Sandbox | Failure) -> None:
        now = self._clock()
        pool = self._owner.get(made.name)
        if isinstance(made, Failure):
            if pool is not None:
                self._troubles[f"of {pool.label} could not be made: {made.reason}"] += 1
                self._act(pool, pool.failed(made.name, made.reason, now))
                self._forget(pool, made.name)
        elif pool is None or pool.state(made.name) != "starting":  # asked to stop meanwhile
            self._stops.add(made.name, made.spec.kind, "born too late")
        else:
            self._keep(made)
            self._act(pool, pool.born(made.name, now))
        self._nudge()

    def _stopped(self, names: Sequence[str]) -> None:
        now = self._clock()
        for name in names:
            pool = self._owner.get(name)
            if pool is not None:
                pool.stopped(name, now)
                self._forget(pool, name)
        self._nudge()

    # -- sandboxes

    def _keep(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.name] = sandbox
        self._watchers[sandbox.name] = asyncio.get_running_loop().create_task(self._watch(sandbox))

    async def _watch(self, sandbox: Sandbox) -> None:
        reason = await sandbox.lost()
        pool = self._owner[sandbox.name]
        was = pool.state(sandbox.name)
        pool.lost(sandbox.name, self._clock())
        self._watchers.pop(sandbox.name, None)
        self._forget(pool, sandbox.name)
        self._nudge()
        if was == "claimed":
            self.on_lost(sandbox, reason)
        elif was == "ready":
            self._troubles[f"of {pool.label} were ready and are gone: {reason}"] += 1

    def _unwatch(self, name: str) -> None:
        watcher = self._watchers.pop(name, None)
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()

    def _forget(self, pool: Pool, name: str) -> None:
        if pool.state(name) is None:
            self._owner.pop(name, None)
            self._sandboxes.pop(name, None)
            self._unwatch(name)

    def _pool(self, spec: Spec) -> Pool:
        """The pool of `spec`, made on demand. Raises StartFailed if no backend makes its kind."""
        pool = self._pools.get(spec)
        if pool is None:
            if spec.kind not in self._backends:
                raise StartFailed(f"no backend makes sandboxes of kind {spec.kind}")
            pool = self._pools[spec] = self._new_pool("other", spec, Fixed(0))
        return pool

    def _new_pool(self, label: str, spec: Spec, policy: Policy) -> Pool:
        settings = self._settings
        backoff = Backoff(int(settings.backoff_base_ms * 1e6), int(settings.backoff_cap_ms * 1e6), self._jitter)
        return Pool(label, spec, policy, backoff, self._names, fail_after_ns=int(settings.fail_after_s * NS))
