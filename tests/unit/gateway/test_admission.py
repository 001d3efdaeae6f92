"""Who runs next: fair between tenants, by urgency within one, and never more than may wait."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission import Admission, Quota, urgency_of
from gateway.errors import QueueFull, QuotaExceeded

pytestmark = pytest.mark.anyio


class Line:
    """Work that waits its turn, and the order in which it came to it."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, name: str, tenant: str, urgency: int = 3) -> None:
        self.gates[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._work(name, tenant, urgency))
        await asyncio.sleep(0)

    async def _work(self, name: str, tenant: str, urgency: int) -> None:
        async with self.admission.turn(tenant, urgency):
            self.order.append(name)
            await self.gates[name].wait()

    async def done(self, name: str) -> None:
        self.gates[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)


async def test_a_tenant_with_much_does_not_starve_another() -> None:
    line = Line(Admission(1, 100))
    for number in range(4):
        await line.join(f"a{number}", "a")
    await line.join("b0", "b")
    await line.done("a0")
    assert line.order == ["a0", "b0"]
    for name in ("b0", "a1", "a2", "a3"):
        await line.done(name)
    assert line.order == ["a0", "b0", "a1", "a2", "a3"]
    assert repr(line.admission) == "<Admission 0/1 []>"


async def test_places_are_shared_out() -> None:
    line = Line(Admission(2, 100))
    for name, tenant in (("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b"), ("c0", "c")):
        await line.join(name, tenant)
    await line.done("a0")
    assert line.order[-1] == "b0"
    await line.done("a1")
    assert line.order[-1] == "c0"
    for name in ("b0", "c0", "a2"):
        await line.done(name)


async def test_urgency_then_arrival() -> None:
    line = Line(Admission(1, 100))
    for name, urgency in (("first", 3), ("late", 3), ("low", 7), ("high", 0)):
        await line.join(name, "a", urgency)
    for name in ("first", "high", "late", "low"):
        await line.done(name)
    assert line.order == ["first", "high", "late", "low"]


async def test_a_full_queue_refuses_at_once_and_only_its_tenant() -> None:
    line = Line(Admission(1, 1))
    await line.join("a0", "a")
    await line.join("a1", "a")
    with pytest.raises(QueueFull):
        async with line.admission.turn("a"):
            pass
    await line.join("b0", "b")
    assert line.admission.waiting == 2
    for name in ("a0", "b0", "a1"):
        await line.done(name)


async def test_who_stops_waiting_holds_nothing() -> None:
    line = Line(Admission(1, 100))
    await line.join("a0", "a")
    await line.join("a1", "a")
    await line.join("b0", "b")
    line.tasks["a1"].cancel()
    await asyncio.sleep(0)
    assert line.admission.waiting == 1
    line.gates["a0"].set()
    line.tasks["b0"].cancel()
    await asyncio.gather(*line.tasks.values(), return_exceptions=True)
    assert (line.admission.running, line.admission.waiting) == (0, 0)


async def test_all_leave_at_once() -> None:
    line = Line(Admission(2, 100))
    for number in range(8):
        await line.join(str(number), "ab"[number % 2])
    for task in line.tasks.values():
        task.cancel()
    ended = await asyncio.gather(*line.tasks.values(), return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in ended)
    assert repr(line.admission) == "<Admission 0/2 []>"


async def test_a_place_given_to_one_who_is_cancelled_goes_on() -> None:
    line = Line(Admission(1, 100))
    for name in ("a0", "a1", "a2"):
        await line.join(name, "a")
    line.gates["a0"].set()
    await line.tasks["a0"]  # the place is a1's now, which has not run yet
    line.tasks["a1"].cancel()
    await asyncio.gather(line.tasks["a1"], return_exceptions=True)
    await asyncio.sleep(0)
    assert line.order[-1] == "a2" or line.order[-1] == "a1"
    await line.done("a2")
    assert line.admission.running == 0


def test_quotas() -> None:
    quota = Quota(1, "things")
    quota.take("a")
    quota.take("b")
    with pytest.raises(QuotaExceeded):
        quota.take("a")
    quota.give_back("a")
    quota.take("a")


@pytest.mark.parametrize(
    ("text", "urgency"), [(None, 3), ("", 3), ("u=0", 0), ("u=7, i", 7), ("i, u=1", 1), ("u=9", 3), ("menu=1", 3), ("u = 2;x", 2)]
)
def test_priorities(text: str | None, urgency: int) -> None:
    assert urgency_of(text) == urgency
