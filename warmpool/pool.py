"""One pool: the sandboxes of one spec, what each is doing, and the claims that wait for one.

Everything that affects this state lies in this file. It is pure: events come in with `now` (ns of the caller's clock),
commands go out, and nothing is awaited, so no two claims can ever see the same sandbox as free. `repr(pool)` shows it:

    <pool leases target=16 ready=14 starting=2 claimed=3 ending=1 waiting=0>

A sandbox is `starting` once asked for, `ready` once it stands, `claimed` by exactly one claimer, `ending` once it was
asked to stop, and forgotten once it is gone. No arrow leads back to `ready`: what was claimed is never given again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import msgspec

from runtimes.backend import Spec
from warmpool.errors import IllegalTransition
from warmpool.pacing import Backoff, Want
from warmpool.policy import Observed, Policy

State = Literal["starting", "ready", "claimed", "ending"]
STATES: tuple[State, ...] = get_args(State)

GONE: Literal["gone"] = "gone"
TRANSITIONS: dict[State | None, frozenset[str]] = {
    None: frozenset({"starting", "ready", "claimed", "ending"}),  # all but the first only when adopted
    "starting": frozenset({"ready", "ending", GONE}),
    "ready": frozenset({"claimed", "ending", GONE}),
    "claimed": frozenset({"ending", GONE}),
    "ending": frozenset({GONE}),
}

ATTEMPTS = 3  # starts in a row that must have failed before a claim that waits is refused


class Start(msgspec.Struct, frozen=True):
    """Make these sandboxes."""

    names: tuple[str, ...]


class Stop(msgspec.Struct, frozen=True):
    """End this sandbox, then say `stopped`."""

    name: str
    reason: str


class Give(msgspec.Struct, frozen=True):
    """`name` is claimed by the claim that waits as `waiter`."""

    waiter: Waiter
    name: str


class Refuse(msgspec.Struct, frozen=True):
    """The claim that waits as `waiter` gets nothing. `failure`: why the last start failed; None: its time passed."""

    waiter: Waiter
    failure: str | None


Command = Start | Stop | Give | Refuse


class Waiter:
    """A claim that waits, since `since` until `deadline`. Compared by identity."""

    __slots__ = ("deadline", "since")

    def __init__(self, since: int, deadline: int) -> None:
        self.since = since
        self.deadline = deadline


class _Member:
    __slots__ = ("state", "story")

    def __init__(self) -> None:
        self.state: State | None = None
        self.story: list[tuple[int, str]] = []


class Pool:
    """The state machine of one spec.

    `name` makes names for new sandboxes; `fail_after_ns` is how long a claim waits through failing starts."""

    def __init__(
        self, label: str, spec: Spec, policy: Policy, backoff: Backoff, name: Callable[[], str], *, fail_after_ns: int
    ) -> None:
        self.label = label
        self.spec = spec
        self.policy = policy
        self.backoff = backoff
        self._name = name
        self._fail_after = fail_after_ns
        self._members: dict[str, _Member] = {}
        self._ready: OrderedDict[str, None] = OrderedDict()  # the oldest first
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()  # the one that waits longest first
        self._count: dict[State, int] = dict.fromkeys(STATES, 0)
        self._first_deadline: int | None = None  # not later than the first deadline of any waiter
        self.claims = 0
        self.hits = 0
        self.failures = 0

    # -- what it is

    def __repr__(self) -> str:
        counts = " ".join(f"{state}={self._count[state]}" for state in ("ready", "starting", "claimed", "ending"))
        return f"<pool {self.label} target={self._target(0)} {counts} waiting={len(self._waiters)}>"

    def __len__(self) -> int:
        """All its sandboxes that exist or are being made or unmade."""
        return len(self._members)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def count(self, state: State) -> int:
        return self._count[state]

    def state(self, name: str) -> State | None:
        """None if it has no such sandbox (any more)."""
        member = self._members.get(name)
        return member.state if member else None

    def names(self, state: State) -> list[str]:
        return [name for name, member in self._members.items() if member.state == state]

    def is_unused(self, now: int) -> bool:
        """Nothing exists, nobody waits, and nothing should be kept ready."""
        return not self._members and not self._waiters and self._target(now) == 0

    def wants(self, now: int) -> Want:
        """How many it would start now."""
        if now < self.backoff.ready_at:
            return Want(0, 0)
        return self._missing(now)

    def is_settled(self, now: int) -> bool:
        """Nobody waits, nothing is being made or ended, and nothing is missing."""
        return not (self._waiters or self._count["starting"] or self._count["ending"] or self._missing(now).refill)

    def wakes_at(self, now: int) -> int | None:
        """When something happens by time alone: a waiter's deadline, or the end of a pause after a failure."""
        times = [] if self._first_deadline is None else [self._first_deadline]
        missing = self._missing(now)
        if self.backoff.ready_at > now and (missing.urgent or missing.refill):
            times.append(self.backoff.ready_at)
        return min(times, default=None)

    # -- events of claimers

    def claim(self, now: int) -> str | None:
        """Takes the sandbox that has been ready longest; None if there is none."""
        self.claims += 1
        if not self._ready:
            return None
        self.hits += 1
        return self._take(now)

    def wait(self, now: int, deadline: int) -> Waiter:
        """Queues a claim. It gets a Give or a Refuse unless it leaves."""
        waiter = Waiter(now, deadline)
        self._waiters[waiter] = None
        if self._first_deadline is None or deadline < self._first_deadline:
            self._first_deadline = deadline
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """The claim waits no longer. No effect if it was served."""
        self._waiters.pop(waiter, None)
        if not self._waiters:
            self._first_deadline = None

    def release(self, name: str, reason: str, now: int) -> list[Command]:
        """What was claimed is not needed any more. No effect if it is gone or ending already."""
        if self.state(name) in (None, "ending"):
            return []
        return [self._stop(name, reason, now)]

    # -- events of time

    def start(self, count: int, now: int) -> list[Command]:
        """Asks for `count` more."""
        names = tuple(self._name() for _ in range(count))
        for name in names:
            self._to(name, "starting", now, "asked for")
        return [Start(names)] if names else []

    def expire(self, now: int) -> list[Command]:
        """Refuses the waiters whose deadline has passed, and sheds what is ready beyond the target."""
        commands: list[Command] = []
        if self._first_deadline is not None and now >= self._first_deadline:
            late = [waiter for waiter in self._waiters if now >= waiter.deadline]
            commands += self._refuse(late, None)
            self._first_deadline = min((waiter.deadline for waiter in self._waiters), default=None)
        surplus = len(self._ready) - self._target(now)
        return commands + self.shed(surplus, "surplus", now)

    def shed(self, count: int, reason: str, now: int) -> list[Command]:
        """Ends up to `count` of those that are ready."""
        commands: list[Command] = []
        for name in list(self._ready)[: max(0, count)]:
            commands.append(self._stop(name, reason, now))
        return commands

    def close(self, reason: str, now: int, *, ready: bool, claimed: bool) -> list[Command]:
        """Refuses all who wait, ends what is being made, and what is ready or claimed if so asked."""
        commands = self._refuse(list(self._waiters), None)
        ending = {"starting"} | ({"ready"} if ready else set()) | ({"claimed"} if claimed else set())
        for name, member in list(self._members.items()):
            if member.state in ending:
                commands.append(self._stop(name, reason, now))
        return commands

    # -- events of backends

    def adopt(self, name: str, state: State, now: int) -> None:
        """An earlier process left it running."""
        self._to(name, state, now, "adopted")

    def born(self, name: str, now: int) -> list[Command]:
        """It stands: the longest waiter gets it, else it is ready."""
        self.backoff.succeeded()
        state = self.state(name)
        if state == "ending":  # asked to stop while it was being made
            return []
        if state is None:  # the stop that overtook it is done: it must not stay
            return [Stop(name, "born too late")]
        self._to(name, "ready", now, "born")
        if not self._waiters:
            return []
        waiter, _ = self._waiters.popitem(last=False)
        if not self._waiters:
            self._first_deadline = None
        return [Give(waiter, self._take(now))]

    def failed(self, name: str, reason: str, now: int) -> list[Command]:
        """It could not be made."""
        if self.state(name) is None:
            return []
        self.failures += 1
        self.backoff.failed(now)
        self._to(name, GONE, now, f"failed: {reason}")
        if self.backoff.failures < ATTEMPTS:
            return []
        return self._refuse([waiter for waiter in self._waiters if now - waiter.since >= self._fail_after], reason)

    def lost(self, name: str, now: int) -> None:
        """It is gone, by whoever's act. No effect if it was known to be ending: `stopped` follows."""
        if self.state(name) not in (None, "ending"):
            self._to(name, GONE, now, "lost")

    def stopped(self, name: str, now: int) -> None:
        """The stop that was asked for is done."""
        if self.state(name) is not None:
            self._to(name, GONE, now, "stopped")

    # -- inside

    def _target(self, now: int) -> int:
        return self.policy.target(
            Observed(
                ready=self._count["ready"], starting=self._count["starting"], claimed=self._count["claimed"],
                waiting=len(self._waiters), claims=self.claims, hits=self.hits, failures=self.failures,
            ),
            now,
        )

    def _missing(self, now: int) -> Want:
        starting = self._count["starting"]
        urgent = max(0, len(self._waiters) - starting)
        spare = max(0, starting - len(self._waiters))
        return Want(urgent, max(0, self._target(now) - len(self._ready) - spare))

    def _take(self, now: int) -> str:
        name = next(iter(self._ready))
        self._to(name, "claimed", now, "claimed")
        return name

    def _stop(self, name: str, reason: str, now: int) -> Stop:
        self._to(name, "ending", now, f"stop: {reason}")
        return Stop(name, reason)

    def _refuse(self, waiters: Iterable[Waiter], failure: str | None) -> list[Command]:
        commands: list[Command] = []
        for waiter in waiters:
            self.leave(waiter)
            commands.append(Refuse(waiter, failure))
        return commands

    def _to(self, name: str, target: State | Literal["gone"], now: int, why: str) -> None:
        member = self._members.get(name) or _Member()
        source = member.state
        if target not in TRANSITIONS[source]:
            raise IllegalTransition(name, source, target, member.story)
        member.story.append((now, why))
        if source is not None:
            self._count[source] -= 1
        if source == "ready":
            del self._ready[name]
        if target == GONE:
            del self._members[name]
            return
        member.state = target
        self._members[name] = member
        self._count[target] += 1
        if target == "ready":
            self._ready[name] = None
