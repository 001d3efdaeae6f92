from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmpool.book import Book
from warmpool.errors import BadLease, IllegalTransition, LeaseEnded, NotFound, WrongState
from warmpool.leases import Ended, Facts, IdempotencyKey, Lease, LeaseAsk, check_metadata
from warmpool.record import RECORD_MAX, BadRecord, decode, encode
from warmpool.settings import LEASE_SPEC, LeaseLimits

SECOND = 1_000_000_000


def make_lease(id: str = "lease00001", *, ttl_s: float = 60, idle_s: float | None = None, tenant: str = "t",
               created: int = 1, now: int = 0, **metadata: str) -> Lease:
    return Lease(
        Facts(id=id, tenant=tenant, kind="container", backend="native", spec=LEASE_SPEC, created_wall=created,
              expires_wall=int(ttl_s * SECOND), expires_at=now + int(ttl_s * SECOND),
              idle_ns=None if idle_s is None else int(idle_s * SECOND), metadata=metadata),
        now,
    )


def running(**arguments: object) -> Lease:
    lease = make_lease(**arguments)  # type: ignore[arg-type]
    lease.run("sandbox001", 0)
    return lease


def test_a_lease_past_its_deadline_is_dead_though_nobody_ended_it() -> None:
    lease = running(ttl_s=10)
    assert lease.due(10 * SECOND - 1) is None
    assert lease.due(10 * SECOND) == "ttl"
    with pytest.raises(LeaseEnded) as over:
        lease.hold(10 * SECOND)
    assert over.value.code == "lease_expired"


def test_a_renewal_never_revives_the_dead() -> None:
    lease = running(ttl_s=10)
    with pytest.raises(LeaseEnded):
        lease.renew(10 * SECOND, 0, ttl_s=100, idle_s=msgspec.UNSET)
    assert lease.due(10 * SECOND) == "ttl"


def test_an_expiry_never_kills_the_renewed() -> None:
    lease = running(ttl_s=10)
    lease.renew(10 * SECOND - 1, 0, ttl_s=100, idle_s=msgspec.UNSET)
    assert lease.due(10 * SECOND) is None
    assert lease.deadline() == 110 * SECOND - 1


def test_a_use_is_activity_as_long_as_it_lasts() -> None:
    lease = running(ttl_s=1000, idle_s=5)
    lease.hold(4 * SECOND)
    assert lease.due(500 * SECOND) is None
    lease.let_go(500 * SECOND)
    assert lease.due(505 * SECOND - 1) is None
    assert lease.due(505 * SECOND) == "idle"


def test_the_ttl_ends_it_whoever_uses_it() -> None:
    lease = running(ttl_s=10, idle_s=5)
    lease.hold(4 * SECOND)
    assert lease.due(10 * SECOND) == "ttl"


def test_nothing_idles_before_it_runs() -> None:
    lease = make_lease(ttl_s=10, idle_s=1)
    assert lease.due(5 * SECOND) is None
    with pytest.raises(WrongState):
        lease.hold(5 * SECOND)


@pytest.mark.parametrize(("reason", "code"), [
    ("deleted", "lease_deleted"), ("ttl", "lease_expired"), ("idle", "lease_expired"), ("lost", "lease_lost"),
    ("failed", "lease_lost"),
])
def test_the_code_of_every_end(reason: str, code: str) -> None:
    lease = running()
    assert lease.end(reason, 1, 5, "why") == "sandbox001"  # type: ignore[arg-type]
    assert lease.ended == Ended(5, reason, "why")  # type: ignore[arg-type]
    with pytest.raises(LeaseEnded) as over:
        lease.hold(2)
    assert over.value.code == code
    with pytest.raises(IllegalTransition):
        lease.end("ttl", 3, 3)


def test_a_record_comes_back_whole() -> None:
    facts = make_lease(idle_s=3, job="j1").facts
    facts.env, facts.user, facts.cwd = {"A": "b"}, "u", "/w"
    facts.key = IdempotencyKey("POST /v1/leases", "k", "digest")
    assert decode(encode(facts)) == facts


def test_a_record_that_is_too_large_names_what_makes_it_so() -> None:
    facts = make_lease().facts
    facts.env = {"A": "x" * RECORD_MAX}
    with pytest.raises(BadLease) as refused:
        encode(facts)
    assert refused.value.field == "/env"


@pytest.mark.parametrize("data", [b"", b"\x02abc", b"\x01\x80", b"\x01" + b"\xff" * 9])
def test_damaged_records_are_told(data: bytes) -> None:
    with pytest.raises(BadRecord):
        decode(data)


@pytest.mark.parametrize(("metadata", "field"), [
    ({"": "v"}, "/metadata/"),
    ({"k" * 65: "v"}, "/metadata/" + "k" * 64),
    ({"a/b": "v" * 257}, "/metadata/a~1b"),
    ({str(n): "v" for n in range(33)}, "/metadata"),
])
def test_metadata_is_bounded(metadata: dict[str, str], field: str) -> None:
    with pytest.raises(BadLease) as refused:
        check_metadata(LeaseLimits(), metadata)
    assert refused.value.field == field


@pytest.mark.parametrize(("change", "field"), [
    ({"ttl_s": 0}, "/ttl_s"), ({"ttl_s": float("nan")}, "/ttl_s"), ({"ttl_s": 1e9}, "/ttl_s"),
    ({"idle_s": -1}, "/idle_s"),
    ({"spec": msgspec.structs.replace(LEASE_SPEC, memory_bytes=0)}, "/resources/memory_mb"),
    ({"spec": msgspec.structs.replace(LEASE_SPEC, disk_bytes=1 << 50)}, "/resources/disk/mb"),
])
def test_what_is_asked_for_is_bounded(change: dict[str, object], field: str) -> None:
    with pytest.raises(BadLease) as refused:
        msgspec.structs.replace(LeaseAsk(spec=LEASE_SPEC), **change).check(LeaseLimits())
    assert refused.value.field == field


def test_pages_come_in_order_and_end() -> None:
    book = Book(ended_kept=100)
    for n in range(7):
        book.add(make_lease(f"lease{n:05}", created=book.stamp(5), parity=str(n % 2)))
    seen, cursor = [], None
    while True:
        page = book.find("t", metadata={"parity": "0"}, limit=2, cursor=cursor)
        seen.append([lease.id for lease in page.leases])
        if (cursor := page.next) is None:
            break
    assert seen == [["lease00000", "lease00002"], ["lease00004", "lease00006"]]
    assert book.find("t", state="running").leases == []
    assert book.find("other").leases == []
    with pytest.raises(BadLease):
        book.find("t", cursor="%%%")


def test_another_tenants_lease_is_not_found() -> None:
    book = Book(ended_kept=100)
    book.add(make_lease())
    with pytest.raises(NotFound):
        book.get("other", "lease00001")


def test_the_oldest_ended_leave_memory_first() -> None:
    book = Book(ended_kept=2)
    leases = [make_lease(f"lease{n:05}", created=book.stamp(n)) for n in range(3)]
    for lease in leases:
        book.add(lease)
    for lease in leases:
        lease.end("deleted", 1, 1)
        book.over(lease)
    assert [lease.id for lease in book.find("t").leases] == ["lease00001", "lease00002"]
    assert book.usage("t").leases == 0


def test_short_leases_with_long_ttls_leave_no_deadlines_behind() -> None:
    book = Book(ended_kept=1)
    for n in range(5000):
        lease = make_lease(f"lease{n:05}", created=book.stamp(n))
        book.add(lease)
        lease.end("deleted", 1, 1)
        book.over(lease)
    assert len(book._deadlines) <= 1100


class BookMachine(RuleBasedStateMachine):
    """Leases against a plain model: who lives, who is due, what a tenant holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.count = 0
        self.live: list[Lease] = []
        self.ended: list[Lease] = []

    @initialize(kept=st.integers(1, 5))
    def begin(self, kept: int) -> None:
        self.kept = kept
        self.book = Book(ended_kept=kept)

    @rule(ttl_s=st.integers(1, 20), idle_s=st.none() | st.integers(1, 5))
    def add(self, ttl_s: int, idle_s: int | None) -> None:
        self.count += 1
        created = self.book.stamp(0)
        lease = make_lease(f"lease{self.count:05}", ttl_s=ttl_s, idle_s=idle_s, created=created, now=self.now)
        self.book.add(lease)
        self.live.append(lease)

    def pick(self, data: st.DataObject) -> Lease:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        lease = self.pick(data)
        if lease.due(self.now):
            return
        if lease.state == "starting":
            lease.run(f"sandbox{lease.id}", self.now)
        elif lease.holders and data.draw(st.booleans()):
            lease.let_go(self.now)
        else:
            lease.hold(self.now)
        self.book.schedule(lease)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), ttl_s=st.integers(1, 20), idle_s=st.none() | st.integers(1, 5))
    def renew(self, data: st.DataObject, ttl_s: int, idle_s: int | None) -> None:
        lease = self.pick(data)
        dead = lease.due(self.now)
        try:
            lease.renew(self.now, 0, ttl_s=ttl_s, idle_s=idle_s)
        except LeaseEnded as over:
            assert over.reason == dead
            return
        assert not dead and lease.due(self.now) is None
        self.book.schedule(lease)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.finish(self.pick(data), "deleted")

    def finish(self, lease: Lease, reason: str) -> None:
        lease.end(reason, self.now, self.now)  # type: ignore[arg-type]
        self.book.over(lease)
        self.live.remove(lease)
        self.ended.append(lease)

    @rule(seconds=st.integers(0, 10))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        due = {lease.id: lease.due(self.now) for lease in self.live if lease.due(self.now)}
        up = self.book.come_up(self.now)
        assert {lease.id for lease in up} == set(due), "every dead one comes up, and no living one"
        for lease in up:
            self.finish(lease, str(due[lease.id]))
        following = self.book.next_deadline()
        deadlines = [lease.deadline() for lease in self.live]
        if deadlines:
            assert following is not None and following <= min(at for at in deadlines if at is not None)

    @invariant()
    def counts_agree(self) -> None:
        if self.count:
            assert self.book.usage("t").leases == len(self.live)
            assert self.book.usage("t").memory_bytes == len(self.live) * LEASE_SPEC.memory_bytes
            kept = self.ended[-self.kept:]
            listed = self.book.find("t", limit=10**6).leases
            assert {lease.id for lease in listed} == {lease.id for lease in (*self.live, *kept)}


TestBookMachine = BookMachine.TestCase
TestBookMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
