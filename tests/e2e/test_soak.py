"""Many calls and many leases at once: no failure, nothing left, and memory that does not grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.service import Service

ROUNDS = 1000
CONCURRENCY = 32
WARM = 200
GROWTH_KB = {"gateway": 8 << 10, "spawner": 1 << 10}
"""What may be added between the warm round and the last: caches of the interpreter and of the allocator, no more."""


def rounds(service: Service, one: Callable[[int], None]) -> dict[str, int]:
    """Run ROUNDS of `one`, CONCURRENCY at a time; by how many KiB each process grew after the first WARM."""
    before: dict[str, int] = {}
    done = 0
    lock = threading.Lock()

    def numbered(number: int) -> None:
        nonlocal done
        one(number)
        with lock:
            done += 1
            if done == WARM:
                before.update({name: service.rss_kb(name) for name in GROWTH_KB})

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(numbered, range(ROUNDS)))
    return {name: service.rss_kb(name) - was for name, was in before.items()}


def settled(service: Service) -> dict[str, int]:
    """What exists on the host, once the pools are full and nothing is being ended."""
    full = {"starting": 0, "claimed": 0, "ending": 0, "waiting": 0}
    stop = time.monotonic() + 60
    while True:
        status = service.status()
        if status["sandboxes"] == {**full, "ready": 32}:
            return dict(status["resources"])
        assert time.monotonic() < stop, status


def test_calls(service: Service) -> None:
    before = settled(service)
    with service.client(timeout_s=120) as client:
        def one(number: int) -> None:
            reply = client.run(argv=["/bin/echo", str(number)])
            assert (reply.status, reply.runs[0].stdout) == ("Accepted", f"{number}\n")

        grown = rounds(service, one)
    assert all(grown[name] <= GROWTH_KB[name] for name in GROWTH_KB), grown
    assert settled(service) == before


def test_leases(service: Service) -> None:
    before = settled(service)
    with service.client(timeout_s=120) as client:
        def one(number: int) -> None:
            with client.lease(metadata={"job": "soak"}) as lease:
                assert lease.exec(f"echo {number} > n; cat n").stdout == f"{number}\n"

        grown = rounds(service, one)
        assert list(client.list_leases(state="running", metadata={"job": "soak"})) == []
    assert all(grown[name] <= GROWTH_KB[name] for name in GROWTH_KB), grown
    assert settled(service) == before
