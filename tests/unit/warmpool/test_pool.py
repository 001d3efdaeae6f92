from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from runtimes.backend import Spec
from warmpool.errors import IllegalTransition
from warmpool.pacing import Backoff, Want
from warmpool.policy import Fixed
from warmpool.pool import STATES, Command, Give, Pool, Refuse, Start, Stop, Waiter

SECOND = 1_000_000_000


def make_pool(target: int = 2) -> Pool:
    counter = itertools.count()
    backoff = Backoff(20_000_000, 500_000_000, lambda: 0.0)
    return Pool("p", Spec(), Fixed(target), backoff, lambda: f"box{next(counter):05}", fail_after_ns=SECOND)


def started(pool: Pool, count: int, now: int = 0) -> list[str]:
    (command,) = pool.start(count, now)
    assert isinstance(command, Start)
    return list(command.names)


def test_repr_is_the_debugging_view() -> None:
    pool = make_pool(3)
    a, b, _ = started(pool, 3)
    pool.born(a, 1)
    pool.born(b, 1)
    pool.claim(2)
    assert repr(pool) == "<pool p target=3 ready=1 starting=1 claimed=1 ending=0 waiting=0>"


def test_a_claim_takes_what_is_ready_longest() -> None:
    pool = make_pool()
    a, b = started(pool, 2)
    pool.born(b, 1)
    pool.born(a, 2)
    assert [pool.claim(3), pool.claim(3), pool.claim(3)] == [b, a, None]


def test_waiters_are_served_in_order_before_anything_becomes_ready() -> None:
    pool = make_pool(0)
    first, second = pool.wait(0, SECOND), pool.wait(0, SECOND)
    assert pool.wants(0) == Want(2, 0)
    a, b = started(pool, 2)
    assert pool.wants(0) == Want(0, 0)
    assert pool.born(b, 1) == [Give(first, b)]
    assert pool.born(a, 1) == [Give(second, a)]
    assert pool.count("ready") == 0


def test_wants_fill_up_to_the_target_beside_the_waiters() -> None:
    pool = make_pool(3)
    assert pool.wants(0) == Want(0, 3)
    pool.wait(0, SECOND)
    assert pool.wants(0) == Want(1, 3)
    started(pool, 2)
    assert pool.wants(0) == Want(0, 2)


def test_a_waiter_is_refused_at_its_deadline() -> None:
    pool = make_pool(0)
    early, late = pool.wait(0, 5), pool.wait(0, 9)
    assert pool.wakes_at(0) == 5
    assert pool.expire(4) == []
    assert pool.expire(5) == [Refuse(early, None)]
    assert pool.wakes_at(5) == 9
    pool.leave(late)
    assert pool.wakes_at(5) is None


def test_what_was_claimed_never_becomes_ready_again() -> None:
    pool = make_pool(1)
    (name,) = started(pool, 1)
    pool.born(name, 1)
    assert pool.claim(1) == name
    assert pool.release(name, "done", 2) == [Stop(name, "done")]
    assert pool.release(name, "done", 2) == []
    pool.stopped(name, 3)
    assert pool.state(name) is None and len(pool) == 0
    assert pool.release(name, "done", 4) == []


def test_an_illegal_transition_tells_its_story() -> None:
    pool = make_pool(1)
    (name,) = started(pool, 1, now=7)
    pool.born(name, 8)
    with pytest.raises(IllegalTransition, match=rf"{name}: ready → ready .*7 asked for; 8 born"):
        pool.born(name, 9)


def test_a_lost_ready_one_is_replaced() -> None:
    pool = make_pool(1)
    (name,) = started(pool, 1)
    pool.born(name, 1)
    pool.lost(name, 2)
    assert pool.claim(3) is None
    assert pool.wants(3) == Want(0, 1)


def test_failures_hold_back_then_refuse_those_who_waited_long_enough() -> None:
    pool = make_pool(0)
    waiter = pool.wait(0, 60 * SECOND)
    now, refused = 0, []
    while not refused:
        now = max(now, pool.backoff.ready_at)
        (name,) = started(pool, pool.wants(now).urgent, now)
        refused = pool.failed(name, "no base", now)
        assert pool.wants(now) == Want(0, 0)
    assert refused == [Refuse(waiter, "no base")]
    assert SECOND <= now < 2 * SECOND
    assert pool.failures >= 3


def test_surplus_is_shed() -> None:
    pool = make_pool(1)
    for name in started(pool, 3):
        pool.born(name, 1)
    assert len(pool.expire(2)) == 2
    assert pool.count("ready") == 1


def test_one_stopped_while_it_was_made_is_not_ready() -> None:
    pool = make_pool(1)
    (name,) = started(pool, 1)
    assert pool.close("shutdown", 1, ready=True, claimed=False) == [Stop(name, "shutdown")]
    assert pool.born(name, 2) == []
    pool.stopped(name, 3)
    assert pool.born(name, 4) == [Stop(name, "born too late")]


def test_unused_means_nothing_there_and_nobody_waiting() -> None:
    pool = make_pool(0)
    assert pool.is_unused(0)
    waiter = pool.wait(0, 1)
    assert not pool.is_unused(0)
    pool.leave(waiter)
    assert pool.is_unused(0)


class PoolMachine(RuleBasedStateMachine):
    """Any order of events: nothing is given twice, nothing leaks, counts stay bounded, waiters never starve."""

    starting = Bundle("starting")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.held: set[str] = set()
        self.ever_held: set[str] = set()
        self.alive: set[str] = set()  # asked for and not yet known to be gone
        self.stops: set[str] = set()
        self.waiting: set[Waiter] = set()

    @initialize(size=st.integers(0, 4))
    def begin(self, size: int) -> None:
        self.pool = make_pool(size)
        self.size = size

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Give):
                assert command.waiter in self.waiting
                self.waiting.remove(command.waiter)
                self.take(command.name)
            elif isinstance(command, Refuse):
                self.waiting.remove(command.waiter)
            elif isinstance(command, Stop):
                assert command.name in self.alive and command.name not in self.stops
                self.stops.add(command.name)
                self.held.discard(command.name)

    def take(self, name: str) -> None:
        assert name not in self.ever_held, "claimed twice"
        assert name in self.alive and name not in self.stops
        self.held.add(name)
        self.ever_held.add(name)

    @rule(target=starting, extra=st.integers(0, 1))
    def fill(self, extra: int) -> object:
        want = self.pool.wants(self.now)
        names: list[str] = []
        for command in self.pool.start(want.urgent + want.refill + extra, self.now):
            assert isinstance(command, Start)
            names += command.names
        self.alive.update(names)
        return multiple(*names)

    @rule(name=consumes(starting))
    def born(self, name: str) -> None:
        self.obey(self.pool.born(name, self.now) if name in self.alive else [])

    @rule(name=consumes(starting))
    def failed(self, name: str) -> None:
        if self.pool.state(name) == "starting":
            self.alive.discard(name)
            self.obey(self.pool.failed(name, "no", self.now))

    @rule(patience=st.integers(1, 5))
    def claim(self, patience: int) -> None:
        name = self.pool.claim(self.now)
        if name is not None:
            self.take(name)
        else:
            self.waiting.add(self.pool.wait(self.now, self.now + patience))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.waiting:
            waiter = data.draw(st.sampled_from(sorted(self.waiting, key=lambda each: (each.since, each.deadline))))
            self.waiting.remove(waiter)
            self.pool.leave(waiter)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.ever_held:
            self.obey(self.pool.release(data.draw(st.sampled_from(sorted(self.ever_held))), "done", self.now))

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        if self.alive:
            name = data.draw(st.sampled_from(sorted(self.alive)))
            state = self.pool.state(name)
            if state in ("ready", "claimed"):
                self.alive.discard(name)
                self.held.discard(name)
                self.pool.lost(name, self.now)

    @rule(data=st.data())
    def stopped(self, data: st.DataObject) -> None:
        if self.stops:
            name = data.draw(st.sampled_from(sorted(self.stops)))
            self.stops.discard(name)
            self.alive.discard(name)
            self.pool.stopped(name, self.now)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.obey(self.pool.expire(self.now))
        assert all(waiter.deadline > self.now for waiter in self.waiting)

    @invariant()
    def book_and_pool_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert len(pool) == len(self.alive) == sum(pool.count(state) for state in STATES)
        assert set(pool.names("claimed")) == self.held
        assert set(pool.names("ending")) == self.stops
        assert pool.waiting == len(self.waiting)
        assert not (pool.count("ready") and pool.waiting), "somebody waits beside a ready sandbox"
        wants = pool.wants(self.now)
        assert wants.urgent <= pool.waiting and wants.urgent + wants.refill <= pool.waiting + self.size


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
