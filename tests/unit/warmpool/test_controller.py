from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from runtimes.backend import Command, Failure, Sandbox, Spec, StartFailed
from runtimes.fake import FakeBackend, FakeHost
from warmpool.controller import Controller
from warmpool.errors import Closing, NoCapacity, PoolEmpty, QueueFull
from warmpool.settings import Settings

pytestmark = pytest.mark.anyio


class Gated(FakeBackend):
    """Makes nothing until the gate is opened; `asked` and `ended` list the batches."""

    def __init__(self, host: FakeHost | None = None) -> None:
        super().__init__(host)
        self.gate = asyncio.Event()
        self.asked: list[list[str]] = []
        self.ended: list[tuple[list[str], str]] = []
        self.was_asked = asyncio.Event()

    async def start_many(self, names: Sequence[str], spec: Spec) -> AsyncIterator[Sandbox | Failure]:
        self.asked.append(list(names))
        self.was_asked.set()
        await self.gate.wait()
        async for made in super().start_many(names, spec):
            yield made

    async def stop_many(self, names: Sequence[str], reason: str) -> None:
        self.ended.append((list(names), reason))
        await super().stop_many(names, reason)


def only_on_demand(**changes: object) -> Settings:
    return msgspec.structs.replace(Settings(), pools=(), **changes)


async def test_pools_are_filled_and_a_claim_from_one_awaits_nothing(node, specs) -> None:
    async with node() as n:
        assert n.controller.counts()["leases"] == {"starting": 0, "ready": 4, "claimed": 0, "ending": 0, "waiting": 0}
        claiming = n.controller.claim(specs["lease"])
        with pytest.raises(StopIteration) as done:  # a coroutine that never suspends ends at its first step
            claiming.send(None)
        claim = done.value.value
        assert claim.warmth == "staged" and claim.sandbox.spec == specs["lease"]
        await n.controller.idle()
        assert n.controller.counts()["leases"]["ready"] == 4
        assert n.controller.counts()["leases"]["claimed"] == 1


async def test_a_released_sandbox_is_destroyed_and_never_given_again(node, specs) -> None:
    async with node() as n:
        claim = await n.controller.claim(specs["call"])
        n.controller.release(claim.sandbox, "done")
        n.controller.release(claim.sandbox, "done")
        await n.controller.idle()
        assert claim.sandbox.name not in n.host.boxes
        assert len(n.host.boxes) == 6
        others = [await n.controller.claim(specs["call"]) for _ in range(10)]
        assert claim.sandbox.name not in {other.sandbox.name for other in others}
        assert len({other.sandbox.name for other in others}) == 10


async def test_a_spec_that_is_not_pooled_is_made_on_demand_and_its_pool_vanishes(node, specs) -> None:
    async with node() as n:
        claim = await n.controller.claim(specs["other"])
        assert claim.warmth == "cold" and claim.sandbox.spec == specs["other"]
        assert n.controller.counts()["other"]["claimed"] == 1
        n.controller.release(claim.sandbox, "done")
        await n.controller.idle()
        assert "other" not in n.controller.counts()


async def test_more_claims_than_ready_ones_get_cold_ones(node, specs) -> None:
    async with node() as n:
        claims = await asyncio.gather(*(n.controller.claim(specs["lease"]) for _ in range(40)))
        assert len({claim.sandbox.name for claim in claims}) == 40
        assert [claim.warmth for claim in claims].count("staged") == 4


async def test_a_lost_ready_one_is_replaced(node, specs) -> None:
    async with node() as n:
        before = set(n.host.boxes)
        gone = next(name for name, box in n.host.boxes.items() if box.spec == specs["lease"])
        made, make = asyncio.Event(), n.host.make
        n.host.make = lambda name, spec: (made.set(), make(name, spec))[1]
        n.host.lose(gone)
        await made.wait()
        await n.controller.idle()
        assert len(set(n.host.boxes)) == 6 and gone not in n.host.boxes
        assert len(set(n.host.boxes) - before) == 1


async def test_a_lost_claimed_one_is_told_and_its_release_is_no_error(node, specs) -> None:
    async with node() as n:
        told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        n.controller.on_lost = lambda sandbox, reason: told.put_nowait((sandbox.name, reason))
        claim = await n.controller.claim(specs["lease"])
        assert n.controller.holds(claim.sandbox)
        n.host.lose(claim.sandbox.name, "ttl")
        assert await told.get() == (claim.sandbox.name, "ttl")
        assert not n.controller.holds(claim.sandbox)
        n.controller.release(claim.sandbox, "done")


async def test_a_claim_gives_up_at_its_deadline(clock, specs) -> None:
    backend = Gated()
    controller = Controller({"fake": backend}, only_on_demand(), clock=clock)
    await controller.start()
    claiming = asyncio.ensure_future(controller.claim(specs["lease"], wait_s=5))
    await backend.was_asked.wait()
    clock.forward(4.9)
    controller.kick()
    await asyncio.sleep(0)
    assert not claiming.done()
    clock.forward(0.2)
    controller.kick()
    with pytest.raises(PoolEmpty):
        await claiming
    backend.gate.set()  # what comes too late is surplus
    await controller.idle()
    assert not backend.host.boxes
    await controller.aclose()


@pytest.mark.parametrize("when", ["before it is made", "after it was given"])
async def test_a_cancelled_claimer_leaks_nothing(clock, specs, when) -> None:
    backend = Gated()
    controller = Controller({"fake": backend}, only_on_demand(), clock=clock)
    await controller.start()
    claiming = asyncio.ensure_future(controller.claim(specs["lease"]))
    await backend.was_asked.wait()
    if when == "after it was given":
        backend.gate.set()
        for _ in range(100):  # turns of the loop, until it is given and the claimer has not had its turn yet
            if controller.counts()["other"]["claimed"]:
                break
            await asyncio.sleep(0)
        assert controller.counts()["other"]["claimed"] == 1
    claiming.cancel()
    backend.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await controller.idle()
    assert not backend.host.boxes and not controller.counts()
    await controller.aclose()


async def test_a_burst_of_cancellations_leaks_nothing(node, specs) -> None:
    async with node() as n:
        tasks = [asyncio.ensure_future(n.controller.claim(specs["other"])) for _ in range(50)]
        for step in range(50):
            await asyncio.sleep(0)
            tasks[step].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if not isinstance(result, BaseException):
                n.controller.release(result.sandbox, "done")
        await n.controller.idle()
        assert len(n.host.boxes) == 6


async def test_starts_come_in_batches_of_bounded_size_and_number(clock, specs) -> None:
    backend = Gated()
    controller = Controller({"fake": backend}, only_on_demand(max_starting=10, start_batch=4), clock=clock)
    await controller.start()
    claims = [asyncio.ensure_future(controller.claim(specs["lease"])) for _ in range(25)]
    await backend.was_asked.wait()
    assert [len(names) for names in backend.asked] == [4, 4, 2]
    backend.gate.set()
    await asyncio.gather(*claims)
    assert sum(len(names) for names in backend.asked) == 25
    await controller.aclose(keep_leases=False)
    assert not backend.host.boxes


async def test_releases_are_destroyed_in_batches(clock, specs) -> None:
    backend = Gated()
    backend.gate.set()
    controller = Controller({"fake": backend}, only_on_demand(stop_batch=8), clock=clock)
    await controller.start()
    claims = await asyncio.gather(*(controller.claim(specs["lease"]) for _ in range(20)))
    for claim in claims:
        controller.release(claim.sandbox, "done")
    await controller.idle()
    assert [len(names) for names, _ in backend.ended] == [8, 8, 4]
    await controller.aclose()


async def test_no_more_than_max_sandboxes_exist(clock, specs) -> None:
    host = FakeHost()
    controller = Controller({"fake": FakeBackend(host)}, only_on_demand(max_sandboxes=3), clock=clock)
    await controller.start()
    claims = [await controller.claim(specs["lease"]) for _ in range(3)]
    with pytest.raises(NoCapacity) as refused:
        await controller.claim(specs["lease"])
    assert refused.value.retry_after_ms > 0
    controller.release(claims[0].sandbox, "done")
    assert await controller.claim(specs["other"])  # waits for the place
    assert len(host.boxes) == 3
    await controller.aclose(keep_leases=False)


async def test_what_is_merely_ready_gives_way_to_a_claim_of_another_spec(node, settings, specs) -> None:
    full = msgspec.structs.replace(settings, max_sandboxes=6)
    async with node(settings=full) as n:
        assert n.controller.counts()["leases"]["ready"] == 4
        claim = await n.controller.claim(specs["other"])
        assert claim.sandbox.spec == specs["other"]
        assert len(n.host.boxes) <= 6


async def test_the_queue_is_bounded(clock, specs) -> None:
    backend = Gated()
    controller = Controller({"fake": backend}, only_on_demand(queue_bound=2), clock=clock)
    await controller.start()
    waiting = [asyncio.ensure_future(controller.claim(specs["lease"])) for _ in range(2)]
    await backend.was_asked.wait()
    with pytest.raises(QueueFull):
        await controller.claim(specs["lease"])
    backend.gate.set()
    await asyncio.gather(*waiting)
    await controller.aclose(keep_leases=False)


async def test_failing_starts_refuse_a_claim_only_after_a_while(clock, specs) -> None:
    clock.tick = 1_000_000
    tries = 0

    def refuse(name: str) -> str | None:
        nonlocal tries
        tries += 1
        clock.forward(0.4)
        return "no base"

    backend = FakeBackend(FakeHost(refuse=refuse))
    controller = Controller({"fake": backend}, only_on_demand(backoff_cap_ms=1), clock=clock)
    await controller.start()
    with pytest.raises(StartFailed, match="no base"):
        await controller.claim(specs["lease"])
    assert tries >= 3
    await controller.aclose()


async def test_a_short_failure_is_not_seen_by_a_claim(clock, specs) -> None:
    clock.tick = 1_000_000
    answers = iter(["spawner is gone", "spawner is gone"])

    def refuse(name: str) -> str | None:
        clock.forward(0.1)
        return next(answers, None)

    backend = FakeBackend(FakeHost(refuse=refuse))
    controller = Controller({"fake": backend}, only_on_demand(backoff_cap_ms=1), clock=clock)
    await controller.start()
    assert (await controller.claim(specs["lease"])).warmth == "cold"
    await controller.aclose(keep_leases=False)


async def test_a_backend_that_breaks_or_says_nothing_counts_as_failed(clock, specs) -> None:
    class Broken(FakeBackend):
        turns = 0

        async def start_many(self, names: Sequence[str], spec: Spec) -> AsyncIterator[Sandbox | Failure]:
            self.turns += 1
            clock.forward(0.2)
            if self.turns == 1:
                raise StartFailed("cut off")
            if self.turns == 2:
                return
            async for made in super().start_many(names, spec):
                yield made

    clock.tick = 1_000_000
    backend = Broken()
    controller = Controller({"fake": backend}, only_on_demand(backoff_cap_ms=1), clock=clock)
    await controller.start()
    assert await controller.claim(specs["lease"])
    assert backend.turns == 3
    await controller.aclose(keep_leases=False)


async def test_a_kind_without_a_backend_is_refused(node, specs) -> None:
    async with node() as n:
        with pytest.raises(StartFailed, match="microvm"):
            await n.controller.claim(msgspec.structs.replace(specs["lease"], kind="microvm"))


async def test_a_restart_pools_the_unused_ends_the_used_and_returns_the_recorded(node, clock, settings, specs) -> None:
    host = FakeHost()
    async with node(host=host, keep_leases=True) as n:
        leased = await n.controller.claim(specs["lease"])
        await leased.sandbox.record(b"whose", None)
        called = await n.controller.claim(specs["call"])
        await called.sandbox.run(Command(id="command001", argv=("true",)))
        await n.controller.idle()
        unused = set(host.boxes) - {leased.sandbox.name, called.sandbox.name}
    again = Controller({"fake": FakeBackend(host)}, settings, clock=clock)
    adopted = await again.start()
    await again.idle()
    assert [(each.sandbox.name, each.record) for each in adopted] == [(leased.sandbox.name, b"whose")]
    assert set(host.boxes) == unused | {leased.sandbox.name}
    assert again.holds(adopted[0].sandbox)
    await again.aclose(keep_leases=False)
    assert not host.boxes


async def test_closing_refuses_those_who_wait_and_ends_what_is_being_made(clock, specs) -> None:
    backend = Gated()
    controller = Controller({"fake": backend}, only_on_demand(), clock=clock)
    await controller.start()
    waiting = asyncio.ensure_future(controller.claim(specs["lease"]))
    await backend.was_asked.wait()
    await controller.aclose()
    with pytest.raises(Closing):
        await waiting
    with pytest.raises(Closing):
        await controller.claim(specs["lease"])
    assert [reason for _, reason in backend.ended] == ["shutdown"]
    assert backend.ended[0][0] == backend.asked[0]
