"""What the tests of pools and leases share: the loop, a clock turned by hand, a node over the fake backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from runtimes.backend import Spec
from runtimes.fake import FakeBackend, FakeHost
from warmpool.controller import Controller
from warmpool.holder import Leases, boottime_ns
from warmpool.journal import Journal
from warmpool.leases import Lease
from warmpool.settings import CALL_SPEC, LEASE_SPEC, PoolSettings, Settings

CALL = msgspec.structs.replace(CALL_SPEC, kind="fake")
LEASE = msgspec.structs.replace(LEASE_SPEC, kind="fake")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Clock:
    """Nanoseconds that pass only when told to, and `tick` with each look."""

    now: int = 0
    tick: int = 0

    def __call__(self) -> int:
        self.now += self.tick
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock(boottime_ns())  # the fake host enforces records by the real clock: begin there


@pytest.fixture
def settings() -> Settings:
    return Settings(pools=(PoolSettings("calls", CALL, 2), PoolSettings("leases", LEASE, 4)))


@dataclass
class Node:
    """A controller and its leases over a fake host."""

    host: FakeHost
    controller: Controller
    leases: Leases
    events: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def specs() -> dict[str, Spec]:
    """One spec for each pool of `settings`, and one that is pooled by none."""
    return {"call": CALL, "lease": LEASE, "other": msgspec.structs.replace(LEASE, memory_bytes=64 << 20)}


NodeFactory = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture
def node(settings: Settings, clock: Clock) -> NodeFactory:
    """`async with node(host=…, settings=…, journal=…, keep_leases=…) as n`: a node whose pools are filled."""
    base = settings

    @asynccontextmanager
    async def make(
        host: FakeHost | None = None, settings: Settings | None = None, journal: Path | None = None,
        keep_leases: bool = False, idle: bool = True,
    ) -> AsyncIterator[Node]:
        used = settings or base
        host = host or FakeHost()
        backend = FakeBackend(host)
        controller = Controller({"fake": backend}, used, clock=clock, jitter=lambda: 0.0)
        events: list[tuple[str, str]] = []

        def heard(what: str, lease: Lease) -> None:
            events.append((what, lease.id))

        leases = Leases(
            controller, used, journal=None if journal is None else Journal(journal), on_event=heard, clock=clock,
            wall=lambda: 1_700_000_000_000_000_000 + clock(),
        )
        await leases.start(await controller.start())
        try:
            if idle:
                await controller.idle()
            yield Node(host, controller, leases, events)
        finally:
            await leases.aclose()
            await controller.aclose(keep_leases=keep_leases)
            await backend.aclose()

    return make
