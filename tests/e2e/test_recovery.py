"""What a death costs: of the gateway nothing, of the spawner its sandboxes and no more."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stokehold import errors
from stokehold.client import Client, Lease
from tests.e2e.service import Service

LEASES = 200


def eventually(what: Callable[[], bool], within_s: float) -> float:
    """Ask until it holds; how long it took in seconds."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within_s, f"not within {within_s} s"
    return time.monotonic() - began


def kill(service: Service, name: str) -> int:
    """End it as no program can prevent, and wait until it is another one."""
    old = service.pid(name)
    os.kill(old, signal.SIGKILL)
    eventually(lambda: service.status()[name]["pid"] not in (old, None), 20)
    return old


def answers(client: Client) -> bool:
    try:
        client.languages()
    except errors.StokeholdError:
        return False
    return True


def persistent(ask: Callable[[], object], stop: float) -> object:
    """What a client with a key does: ask again until it is answered."""
    while True:
        try:
            return ask()
        except (errors.ConnectionFailed, errors.Unavailable):
            assert time.monotonic() < stop, "never answered"


@pytest.fixture
def held(service: Service) -> list[Lease]:
    client = service.client()
    made = list(client.leases(LEASES, metadata={"job": "recovery"}, resources={"memory_mb": 64, "disk": {"mb": 16, "on": "memory"}}))
    leases = [lease for lease in made if isinstance(lease, Lease)]
    assert len(leases) == LEASES, [x for x in made if not isinstance(x, Lease)][:1]
    yield leases
    client.delete_leases({"job": "recovery"})
    client.close()


def test_a_killed_gateway_loses_no_lease_file_or_outcome(service: Service, held: list[Lease]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda pair: pair[1].write("/workspace/mark", f"mark {pair[0]}"), enumerate(held)))
        background = [lease.spawn("sleep 3; echo survived; exit 5") for lease in held[:20]]
        before = service.pid("gateway")
        half_way = threading.Barrier(41)

        def counted(lease: Lease) -> object:
            """A command under a key, asked for again and again over the gateway's death: it must run once."""
            half_way.wait()
            stop = time.monotonic() + 60
            return persistent(
                lambda: lease.exec("echo x >> /workspace/ran; sleep 1.5; wc -l < /workspace/ran", key=f"once-{lease.id}"), stop)

        with ThreadPoolExecutor(40) as callers:
            running = [callers.submit(counted, lease) for lease in held[20:60]]
            half_way.wait()
            time_until_all_run = time.monotonic() + 0.8
            eventually(lambda: time.monotonic() > time_until_all_run, 5)
            kill(service, "gateway")
            outcomes = [done.result() for done in running]
        assert service.pid("gateway") != before
        assert [out.stdout for out in outcomes] == ["1\n"] * 40

        eventually(lambda: answers(held[0]._client), 20)
        marks = list(pool.map(lambda lease: lease.exec(["cat", "/workspace/mark"]).stdout, held))
        assert marks == [f"mark {number}" for number in range(LEASES)]
        for process in background:
            ended = process.wait()
            assert (ended.exit_code, ended.stdout) == (5, "survived\n")
        listed = list(held[0]._client.list_leases(state="running", metadata={"job": "recovery"}))
        assert len(listed) == LEASES


def test_a_killed_spawner_loses_its_leases_and_serves_new_ones_at_once(service: Service) -> None:
    with service.client() as client:
        old = client.lease(metadata={"job": "lost"})
        old.exec("true")
        began = time.monotonic()
        os.kill(service.pid("spawner"), signal.SIGKILL)
        new = persistent(lambda: client.lease(metadata={"job": "after"}), began + 10)
        assert isinstance(new, Lease)
        assert new.exec("echo ok").stdout == "ok\n"
        took = time.monotonic() - began
        with pytest.raises(errors.LeaseEnded) as lost:
            old.exec("true")
        assert lost.value.code == "lease_lost"
        assert old.refresh().state == "ended"
        new.delete()
        assert took < 2.0, f"{took:.2f} s to the first answer of a new lease"


def test_a_stopped_service_leaves_nothing(service: Service) -> None:
    with service.client() as client:
        lease = client.lease()
        lease.spawn("sleep 1000")
    service.stop()
    assert set(service.status()["resources"].values()) == {0}
    service.start()
    with service.client() as client, pytest.raises(errors.ApiError) as gone:
        client.attach(lease.id).exec("true")
    assert gone.value.status in (404, 410)
