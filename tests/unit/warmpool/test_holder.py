from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from runtimes.backend import Command
from runtimes.fake import FakeHost
from warmpool.errors import BadLease, Closing, KeyMismatch, LeaseEnded, NoCapacity, NotFound, QuotaExceeded, WrongState
from warmpool.leases import IdempotencyKey, Lease, LeaseAsk
from warmpool.order import LeaseProblem
from warmpool.settings import LeaseLimits

pytestmark = pytest.mark.anyio

KEY = IdempotencyKey("POST /v1/leases", "k1", "body1")


async def create(n, spec, count: int = 1, **arguments) -> list[Lease | LeaseProblem]:
    options = {name: arguments.pop(name) for name in ("wait_s", "key", "tenant") if name in arguments}
    ask = LeaseAsk(spec=spec, **arguments)
    return [item async for item in n.leases.create(ask, count=count, **{"tenant": "t", **options})]


async def one(n, spec, **arguments) -> Lease:
    (lease,) = await create(n, spec, **arguments)
    assert isinstance(lease, Lease), lease
    return lease


def held(n) -> int:
    return sum(counts["claimed"] for counts in n.controller.counts().values())


async def test_a_lease_is_recorded_with_the_host_before_it_is_handed_out(node, specs) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"], metadata={"job": "j1"}, env={"A": "b"}, ttl_s=60)
        assert (lease.state, lease.warmth, lease.backend, lease.index) == ("running", "staged", "fake", 0)
        box = n.host.boxes[lease.sandbox]
        assert b"j1" in box.kept and lease.id.encode() in box.kept
        assert n.events == [("running", lease.id)]
        async with n.leases.hold("t", lease.id) as sandbox:
            assert sandbox.name == lease.sandbox
            assert lease.holders == 1
        assert lease.holders == 0


async def test_many_at_once_are_distinct_and_in_no_need_of_a_pool(node, specs) -> None:
    async with node() as n:
        leases = await create(n, specs["lease"], count=200)
        assert {lease.index for lease in leases} == set(range(200))
        assert len({lease.id for lease in leases}) == len({lease.sandbox for lease in leases}) == 200
        assert n.leases.usage("t").leases == 200
        assert await n.leases.delete_matching("t", {"no": "match"}) == 0


async def test_deleting_is_idempotent_and_destroys(node, specs) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"])
        box = lease.sandbox
        over = await n.leases.delete("t", lease.id)
        assert (over.state, over.ended.reason) == ("ended", "deleted")
        assert (await n.leases.delete("t", lease.id)).ended == over.ended
        with pytest.raises(LeaseEnded) as refused:
            async with n.leases.hold("t", lease.id):
                pass
        assert refused.value.code == "lease_deleted"
        await n.controller.idle()
        assert box not in n.host.boxes
        assert n.leases.get("t", lease.id).state == "ended"
        assert n.events == [("running", lease.id), ("ended", lease.id)]


async def test_deleting_by_metadata_ends_those_and_no_others(node, specs) -> None:
    async with node() as n:
        for job in ("a", "b"):
            await create(n, specs["lease"], count=3, metadata={"job": job})
        await create(n, specs["lease"], metadata={"job": "a"}, tenant="other")
        assert await n.leases.delete_matching("t", {"job": "a"}) == 3
        assert await n.leases.delete_matching("t", {"job": "a"}) == 0
        assert len(n.leases.find("t", state="running").leases) == 3
        assert len(n.leases.find("other", state="running").leases) == 1
        with pytest.raises(BadLease):
            await n.leases.delete_matching("t", {})


async def test_other_tenants_see_nothing(node, specs) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"])
        for act in (n.leases.delete, n.leases.patch):
            with pytest.raises(NotFound):
                await act("other", lease.id)
        with pytest.raises(NotFound):
            async with n.leases.hold("other", lease.id):
                pass
        with pytest.raises(NotFound):
            n.leases.get("other", lease.id)


async def test_a_lease_ends_at_its_ttl_whatever_runs_in_it(node, specs, clock) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"], ttl_s=100)
        with pytest.raises(LeaseEnded) as refused:
            async with n.leases.hold("t", lease.id) as sandbox:
                running = asyncio.ensure_future(sandbox.run(Command(id="command001", argv=("cat",))))
                clock.forward(100)
                n.leases.reap()
                await n.controller.idle()
                await running
        assert (refused.value.reason, refused.value.code) == ("ttl", "lease_expired")
        assert lease.ended.reason == "ttl"


async def test_a_dead_lease_is_dead_before_the_reaper_comes(node, specs, clock) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"], ttl_s=10)
        clock.forward(10)
        with pytest.raises(LeaseEnded):
            await n.leases.patch("t", lease.id, ttl_s=100)
        assert n.leases.get("t", lease.id).ended.reason == "ttl"
        assert held(n) == 0


async def test_a_renewed_lease_outlives_its_old_deadline_and_the_host_knows(node, specs, clock) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"], ttl_s=10, metadata={"a": "1"})
        await n.leases.patch("t", lease.id, ttl_s=100, metadata={"b": "2"})
        clock.forward(99)
        n.leases.reap()
        assert lease.state == "running" and lease.metadata == {"b": "2"}
        assert b"\xa1b\xa12" in n.host.boxes[lease.sandbox].kept
        clock.forward(1)
        n.leases.reap()
        assert lease.ended.reason == "ttl"


async def test_a_refused_patch_changes_nothing(node, specs) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"], env={"A": "x" * 3000}, ttl_s=10)
        before = msgspec.structs.replace(lease.facts)
        with pytest.raises(BadLease):
            await n.leases.patch("t", lease.id, ttl_s=100, metadata={str(k): "v" * 200 for k in range(30)})
        with pytest.raises(BadLease):
            await n.leases.patch("t", lease.id, ttl_s=-1)
        assert lease.facts == before


async def test_idle_leases_end_and_a_use_keeps_them(node, specs, clock) -> None:
    async with node() as n:
        idle = await one(n, specs["lease"], idle_s=5, ttl_s=1000)
        used = await one(n, specs["lease"], idle_s=5, ttl_s=1000)
        async with n.leases.hold("t", used.id):
            clock.forward(50)
            n.leases.reap()
            assert idle.ended.reason == "idle" and used.state == "running"
        clock.forward(4)
        n.leases.get("t", used.id)  # looking is no use
        clock.forward(1)
        n.leases.reap()
        assert used.ended.reason == "idle"


async def test_the_reaper_wakes_by_itself(node, specs, clock) -> None:
    async with node() as n:
        clock.tick = 200_000_000  # every look at the clock takes 0.2 s
        over = asyncio.Event()
        n.leases._on_event = lambda what, lease: over.set() if what == "ended" else None
        lease = await one(n, specs["lease"], ttl_s=2)
        await over.wait()
        assert lease.ended.reason == "ttl"


@pytest.mark.parametrize(
    ("reason", "ended", "code"), [("ttl", "ttl", "lease_expired"), ("failed", "lost", "lease_lost")]
)
async def test_a_lost_sandbox_ends_its_lease(node, specs, reason, ended, code) -> None:
    async with node() as n:
        over = asyncio.Event()
        n.leases._on_event = lambda what, lease: over.set() if what == "ended" else None
        lease = await one(n, specs["lease"])
        n.host.lose(lease.sandbox, reason)
        await over.wait()
        assert n.leases.get("t", lease.id).ended.reason == ended
        with pytest.raises(LeaseEnded) as refused:
            async with n.leases.hold("t", lease.id):
                pass
        assert refused.value.code == code


async def test_a_loss_during_a_use_is_told_as_the_leases_end(node, specs) -> None:
    async with node() as n:
        lease = await one(n, specs["lease"])
        with pytest.raises(LeaseEnded) as refused:
            async with n.leases.hold("t", lease.id) as sandbox:
                n.host.lose(sandbox.name)
                await sandbox.run(Command(id="command001", argv=("true",)))
        assert refused.value.code == "lease_lost"


async def test_a_failed_start_is_a_problem_and_leaves_no_lease(node, specs, settings, clock) -> None:
    quick = msgspec.structs.replace(settings, fail_after_s=0.000001, backoff_cap_ms=1)
    clock.tick = 1_000_000
    async with node(host=FakeHost(refuse=lambda name: "no"), settings=quick, idle=False) as n:
        (problem,) = await create(n, specs["lease"])
        assert isinstance(problem, LeaseProblem) and "no" in str(problem.error)
        assert n.leases.find("t").leases == [] and n.leases.usage("t").leases == 0


async def test_beyond_capacity_there_are_problems_one_by_one(node, specs, settings) -> None:
    async with node(settings=msgspec.structs.replace(settings, max_sandboxes=6)) as n:
        items = await create(n, specs["lease"], count=10)
        problems = [item for item in items if isinstance(item, LeaseProblem)]
        assert len(items) - len(problems) == 6
        assert all(isinstance(problem.error, NoCapacity) for problem in problems)


async def test_a_tenant_holds_no_more_than_its_quota(node, specs, settings) -> None:
    async with node(settings=msgspec.structs.replace(settings, leases=LeaseLimits(max_per_tenant=3))) as n:
        items = await create(n, specs["lease"], count=5)
        problems = [item for item in items if isinstance(item, LeaseProblem)]
        assert [type(problem.error) for problem in problems] == [QuotaExceeded] * 2
        await one(n, specs["lease"], tenant="other")
        await n.leases.delete("t", next(item.id for item in items if isinstance(item, Lease)))
        await one(n, specs["lease"])


async def test_bad_asks_are_refused_before_anything_is_made(node, specs) -> None:
    async with node() as n:
        for bad in ({"ttl_s": 0}, {"count": 0}, {"env": {"A": "x" * 5000}}):
            with pytest.raises(BadLease):
                await create(n, specs["lease"], **bad)
        assert held(n) == 0


# -- a consumer that goes away


async def test_a_consumer_that_goes_away_accepts_all_but_the_last(node, specs) -> None:
    async with node() as n:
        async with aclosing(n.leases.create(LeaseAsk(spec=specs["lease"]), tenant="t", count=50)) as made:
            first = await anext(made)
            last = await anext(made)
        await n.controller.idle()
        assert n.leases.find("t").leases == [first]
        assert held(n) == 1
        assert last.sandbox is None or last.sandbox not in n.host.boxes
        with pytest.raises(NotFound):
            n.leases.get("t", last.id)


@pytest.mark.parametrize("steps", range(20))
async def test_a_cancelled_creation_leaks_nothing(node, specs, steps) -> None:
    async with node() as n:
        task = asyncio.ensure_future(create(n, specs["other"], count=10))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await n.controller.idle()
        assert held(n) == n.leases.usage("t").leases == len(n.leases.find("t", state="running").leases)
        for lease in n.leases.find("t").leases:
            await n.leases.delete("t", lease.id)
        await n.controller.idle()
        assert len(n.host.boxes) == 6


async def test_under_a_key_a_repeat_finds_what_was_made_for_one_who_went_away(node, specs) -> None:
    async with node() as n:
        async with aclosing(n.leases.create(LeaseAsk(spec=specs["lease"]), tenant="t", count=4, key=KEY)) as made:
            await anext(made)
        again = await create(n, specs["lease"], count=4, key=KEY)
        assert {lease.index for lease in again} == {0, 1, 2, 3}
        assert held(n) == n.leases.usage("t").leases == 4


async def test_a_repeat_under_a_key_gives_the_same_leases_even_at_the_same_time(node, specs) -> None:
    async with node() as n:
        first, second = await asyncio.gather(*(create(n, specs["other"], count=5, key=KEY) for _ in range(2)))
        assert {lease.id for lease in first} == {lease.id for lease in second}
        assert held(n) == 5
        await n.leases.delete("t", first[0].id)
        third = await create(n, specs["other"], count=5, key=KEY)
        assert {lease.id for lease in third} == {lease.id for lease in first}
        assert [lease.state for lease in third].count("ended") == 1
        with pytest.raises(KeyMismatch):
            await create(n, specs["other"], count=5, key=msgspec.structs.replace(KEY, body="body2"))
        other = await create(n, specs["other"], key=KEY, tenant="other")
        assert other[0].id not in {lease.id for lease in first}


# -- patience


async def test_after_its_wait_a_lease_is_handed_out_as_starting_and_goes_on(node, specs) -> None:
    async with node(host=FakeHost(create_s=0.001)) as n:
        all_run = asyncio.Event()
        n.leases._on_event = lambda what, lease: all_run.set() if n.leases.counts()["running"] == 100 else None
        leases = await create(n, specs["other"], count=100, wait_s=0)
        assert {lease.index for lease in leases} == set(range(100))
        starting = next(lease for lease in leases if lease.state == "starting")
        with pytest.raises(WrongState):
            async with n.leases.hold("t", starting.id):
                pass
        await all_run.wait()
        assert n.leases.counts()["running"] == held(n) == 100


async def test_one_that_fails_after_it_was_handed_out_ends_as_failed(node, specs, settings, clock) -> None:
    quick = msgspec.structs.replace(settings, fail_after_s=0.000001, backoff_cap_ms=1)
    clock.tick = 1_000_000
    async with node(host=FakeHost(refuse=lambda name: "no base"), settings=quick, idle=False) as n:
        over = asyncio.Event()
        n.leases._on_event = lambda what, lease: over.set()
        lease = await one(n, specs["lease"], wait_s=0)
        assert lease.state == "starting"
        await over.wait()
        shown = n.leases.get("t", lease.id)
        assert (shown.ended.reason, shown.ended.detail) == ("failed", "no base")


async def test_a_starting_lease_can_be_deleted(node, specs) -> None:
    async with node(host=FakeHost(create_s=0.001)) as n:
        lease = await one(n, specs["other"], wait_s=0)
        await n.leases.delete("t", lease.id)
        await n.controller.idle()
        assert held(n) == 0 and n.leases.get("t", lease.id).ended.reason == "deleted"


async def test_closing_ends_creation(node, specs) -> None:
    async with node() as n:
        await n.leases.aclose()
        with pytest.raises(Closing):
            await create(n, specs["lease"])


# -- restarts


async def test_a_restart_finds_every_lease_as_it_was(node, specs, tmp_path: Path, clock) -> None:
    host, path = FakeHost(), tmp_path / "journal"
    async with node(host=host, journal=path, keep_leases=True) as n:
        kept = await create(n, specs["lease"], count=20, metadata={"job": "j"}, key=KEY)
        over = await one(n, specs["lease"])
        await n.leases.delete("t", over.id)
        await n.leases.patch("t", kept[0].id, ttl_s=7200)
        expires = kept[0].expires_ns
    async with node(host=host, journal=path, keep_leases=True) as n:
        listed = n.leases.find("t", state="running").leases
        assert {(lease.id, lease.sandbox) for lease in listed} == {(lease.id, lease.sandbox) for lease in kept}
        assert [lease.created_ns for lease in listed] == sorted(lease.created_ns for lease in kept)
        assert n.leases.get("t", kept[0].id).expires_ns == expires
        assert n.leases.get("t", over.id).ended.reason == "deleted"
        async with n.leases.hold("t", kept[3].id) as sandbox:
            assert (await sandbox.run(Command(id="command001", argv=("true",)))).exit_code == 0
        again = await create(n, specs["lease"], count=20, key=KEY)
        assert {lease.id for lease in again} == {lease.id for lease in kept}


async def test_leases_that_vanished_meanwhile_are_lost_or_expired(node, specs, tmp_path: Path, clock) -> None:
    path = tmp_path / "journal"
    async with node(journal=path, keep_leases=True) as n:
        short, long = await one(n, specs["lease"], ttl_s=10), await one(n, specs["lease"], ttl_s=1000)
    clock.forward(60)
    for _ in range(2):  # a second restart tells the same
        async with node(journal=path) as n:
            assert n.leases.get("t", short.id).ended.reason == "ttl"
            assert n.leases.get("t", long.id).ended.reason == "lost"


async def test_an_expired_lease_is_ended_at_adoption(node, specs, tmp_path: Path, clock) -> None:
    host = FakeHost()
    async with node(host=host, keep_leases=True) as n:
        lease = await one(n, specs["lease"], ttl_s=10)
        box = lease.sandbox
    clock.forward(10)
    async with node(host=host) as n:
        assert n.leases.get("t", lease.id).ended.reason == "ttl"
        assert box not in host.boxes


async def test_an_unreadable_record_is_ended(node, specs) -> None:
    host = FakeHost()
    async with node(host=host, keep_leases=True) as n:
        box = n.host.boxes[(await one(n, specs["lease"])).sandbox]
        box.kept = b"\xff"
    async with node(host=host) as n:
        assert box.name not in host.boxes and held(n) == 0


async def test_ended_leases_are_readable_for_their_time(node, specs, settings, tmp_path: Path, clock) -> None:
    small = msgspec.structs.replace(settings, ended_in_memory=1, ended_retention_s=100.0)
    async with node(settings=small, journal=tmp_path / "journal") as n:
        leases = [await one(n, specs["lease"]) for _ in range(3)]
        for lease in leases:
            await n.leases.delete("t", lease.id)
        await asyncio.to_thread(n.leases._archive._journal.flush)
        assert [n.leases.get("t", lease.id).ended.reason for lease in leases] == ["deleted"] * 3
        with pytest.raises(LeaseEnded):
            async with n.leases.hold("t", leases[0].id):
                pass
        assert (await n.leases.delete("t", leases[0].id)).ended.reason == "deleted"
        with pytest.raises(NotFound):
            n.leases.get("other", leases[0].id)
        clock.forward(161)
        n.leases.reap()
        for lease in leases:
            with pytest.raises(NotFound):
                n.leases.get("t", lease.id)
