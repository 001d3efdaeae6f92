"""One lease: its states, its deadlines, who is using it. Everything that affects a lease's state lies in this file.

Pure: events come in with `now` (ns of CLOCK_BOOTTIME), nothing is awaited. A deadline is stored data that is compared
with `now` on every use, not a timer: a lease past its deadline is dead even if nobody has come by to end it, so a
renewal never revives the dead; and whoever comes by to end it compares again, so an expiry never kills the renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from runtimes.backend import Kind, Spec
from warmpool.errors import BadLease, IllegalTransition, LeaseEnded, WrongState
from warmpool.pacing import NS
from warmpool.settings import LeaseLimits

LeaseState = Literal["starting", "running", "paused", "ended"]
EndReason = Literal["deleted", "ttl", "idle", "lost", "failed"]

TRANSITIONS: dict[LeaseState, frozenset[LeaseState]] = {
    "starting": frozenset({"running", "ended"}),
    "running": frozenset({"paused", "ended"}),
    "paused": frozenset({"running", "ended"}),
    "ended": frozenset(),
}


class IdempotencyKey(msgspec.Struct, frozen=True):
    """What makes a repeated request the same request. `body` is a digest of its body."""

    route: str
    key: str
    body: str


class LeaseAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for, validated in form and resolved to a spec. None for user, env, cwd: the image's own."""

    spec: Spec
    ttl_s: float = 3600.0
    idle_s: float | None = None
    user: str | None = None
    env: Mapping[str, str] = {}
    cwd: str | None = None
    metadata: Mapping[str, str] = {}

    def check(self, limits: LeaseLimits) -> None:
        """Raises BadLease for a field that is out of bounds."""
        check_deadlines(limits, ttl_s=self.ttl_s, idle_s=self.idle_s)
        check_metadata(limits, self.metadata)
        for field, value, most in (
            ("/resources/memory_mb", self.spec.memory_bytes, limits.max_memory_mb << 20),
            ("/resources/disk/mb", self.spec.disk_bytes, limits.max_disk_mb << 20),
            ("/resources/cpu", self.spec.cpu_milli, int(limits.max_cpu * 1000)),
            ("/resources/processes", self.spec.processes, limits.max_processes),
        ):
            if not 0 < value <= most:
                raise BadLease(field, "more than this node gives to a lease" if value > 0 else "must be greater than 0")


def check_deadlines(limits: LeaseLimits, *, ttl_s: float | None, idle_s: float | None) -> None:
    """Raises BadLease unless both are None or lie in (0, max_ttl_s]."""
    for field, value in (("/ttl_s", ttl_s), ("/idle_s", idle_s)):
        if value is not None and not 0 < value <= limits.max_ttl_s:
            raise BadLease(field, f"must be greater than 0 and at most {limits.max_ttl_s:g}")


def check_metadata(limits: LeaseLimits, metadata: Mapping[str, str]) -> None:
    """Raises BadLease for too many entries, empty or long keys, and long values."""
    if len(metadata) > limits.max_metadata:
        raise BadLease("/metadata", f"at most {limits.max_metadata} entries")
    for key, value in metadata.items():
        pointer = "/metadata/" + key[:64].replace("~", "~0").replace("/", "~1")
        if not 0 < len(key) <= 64:
            raise BadLease(pointer, "a key has 1 to 64 characters")
        if len(value) > 256:
            raise BadLease(pointer, "a value has at most 256 characters")


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """When (wall clock, ns since the epoch) and why a lease ended."""

    at: int
    reason: EndReason
    detail: str = ""


class Facts(msgspec.Struct, omit_defaults=True, kw_only=True):
    """All of a lease that outlives the gateway: what its record holds. Times named `_wall` are ns since the epoch."""

    id: str
    tenant: str
    kind: Kind
    backend: str
    spec: Spec
    created_wall: int
    """Unique on this node: also the order of listings."""
    expires_wall: int
    expires_at: int
    """The same moment in CLOCK_BOOTTIME: what is enforced."""
    idle_ns: int | None = None
    user: str | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    metadata: dict[str, str] = {}
    key: IdempotencyKey | None = None
    index: int = 0
    """Its place in the request that made it."""
    warmth: str = "cold"
    claim_ns: int = 0
    total_ns: int = 0
    """From the request to a sandbox in which a command can run."""


class Lease:
    """The state machine of one lease. Reading is free; changes go through its methods."""

    __slots__ = ("ended", "facts", "holders", "last_used", "sandbox", "scheduled", "state")

    def __init__(self, facts: Facts, now: int) -> None:
        self.facts = facts
        self.state: LeaseState = "starting"
        self.ended: Ended | None = None
        self.sandbox: str | None = None
        """The name of its sandbox, while it has one."""
        self.holders = 0
        """Uses that go on: each is activity as long as it lasts."""
        self.last_used = now
        self.scheduled: int | None = None
        """When the reaper will look at it next; kept by the reaper."""

    def __repr__(self) -> str:
        facts = self.facts
        over = f" {self.ended.reason}" if self.ended else ""
        return (f"<lease {facts.id} of {facts.tenant} {self.state}{over} sandbox={self.sandbox} holders={self.holders} "
                f"expires_at={facts.expires_at} idle_ns={facts.idle_ns} last_used={self.last_used}>")

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def tenant(self) -> str:
        return self.facts.tenant

    @property
    def kind(self) -> Kind:
        return self.facts.kind

    @property
    def backend(self) -> str:
        """The name of the backend that made it."""
        return self.facts.backend

    @property
    def spec(self) -> Spec:
        return self.facts.spec

    @property
    def user(self) -> str | None:
        """None: the image's own."""
        return self.facts.user

    @property
    def env(self) -> Mapping[str, str]:
        return self.facts.env

    @property
    def cwd(self) -> str | None:
        """None: the image's own."""
        return self.facts.cwd

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.facts.metadata

    @property
    def index(self) -> int:
        """Its place in the request that made it."""
        return self.facts.index

    @property
    def warmth(self) -> str:
        return self.facts.warmth

    @property
    def claim_ns(self) -> int:
        return self.facts.claim_ns

    @property
    def total_ns(self) -> int:
        """From the request to a sandbox in which a command can run."""
        return self.facts.total_ns

    @property
    def created_ns(self) -> int:
        """Wall clock, ns since the epoch."""
        return self.facts.created_wall

    @property
    def expires_ns(self) -> int:
        """Wall clock, ns since the epoch."""
        return self.facts.expires_wall

    @property
    def idle_s(self) -> float | None:
        return None if self.facts.idle_ns is None else self.facts.idle_ns / NS

    # -- deadlines

    def deadline(self) -> int | None:
        """When it will be due if nothing happens to it; None once it has ended."""
        if self.state == "ended":
            return None
        idle_ns = self.facts.idle_ns
        if idle_ns is None or self.state != "running" or self.holders:
            return self.facts.expires_at
        return min(self.facts.expires_at, self.last_used + idle_ns)

    def due(self, now: int) -> EndReason | None:
        """Why it is dead at `now` although nobody has ended it yet; None if it lives or has been ended."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return None
        return "ttl" if now >= self.facts.expires_at else "idle"

    # -- events

    def run(self, sandbox: str, now: int) -> None:
        """Its sandbox stands and its record is kept: commands can run."""
        self._to("running", now)
        self.sandbox = sandbox
        self.last_used = now

    def hold(self, now: int) -> None:
        """A use begins. Raises LeaseEnded if it is dead, WrongState unless it is running."""
        self.check_alive(now)
        if self.state != "running":
            raise WrongState(self.facts.id, self.state, "running")
        self.holders += 1
        self.last_used = now

    def let_go(self, now: int) -> None:
        """A use is over."""
        self.holders -= 1
        self.last_used = now

    def renew(self, now: int, wall: int, *, ttl_s: float | None, idle_s: float | msgspec.UnsetType | None) -> None:
        """A new expiry, `ttl_s` from now, and a new idle bound. Raises LeaseEnded if it is dead."""
        self.check_alive(now)
        if ttl_s is not None:
            self.facts.expires_at = now + int(ttl_s * NS)
            self.facts.expires_wall = wall + int(ttl_s * NS)
        if idle_s is not msgspec.UNSET:
            self.facts.idle_ns = None if idle_s is None else int(idle_s * NS)
            self.last_used = now

    def end(self, reason: EndReason, now: int, wall: int, detail: str = "") -> str | None:
        """It is over. Returns the name of the sandbox that it no longer holds, if it had one."""
        self._to("ended", now)
        self.ended = Ended(wall, reason, detail[:512])
        self.facts.env = {}  # nobody will need it again, and ended leases are kept for long
        sandbox, self.sandbox = self.sandbox, None
        return sandbox

    def check_alive(self, now: int) -> None:
        """Raises LeaseEnded if it has ended or should have."""
        if self.ended is not None:
            raise LeaseEnded(self.facts.id, self.ended.reason, self.ended.detail)
        reason = self.due(now)
        if reason is not None:
            raise LeaseEnded(self.facts.id, reason)

    def _to(self, target: LeaseState, now: int) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalTransition(self.facts.id, self.state, target, [(now, repr(self))])
        self.state = target
