"""Limits, to the millisecond and the byte. The machine must be idle for the times: the best of a few tries counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.service import Service

MS = 1_000_000
SLACK_MS = 20


def best(service: Service, tries: int, **fields: Any) -> Any:
    """The run that took the least wall time: noise only ever adds."""
    with service.client() as client:
        return min((client.run(**fields).runs[0] for _ in range(tries)), key=lambda run: run.wall_ns)


@pytest.mark.parametrize("wall_ms", [100, 700])
def test_wall(service: Service, wall_ms: int) -> None:
    run = best(service, 3, argv=["sleep", "30"], limits={"wall_ms": wall_ms})
    assert (run.status, run.limit) == ("Time Limit Exceeded", "wall")
    assert wall_ms * MS <= run.wall_ns <= (wall_ms + SLACK_MS) * MS


@pytest.mark.parametrize("cpu_ms", [100, 500])
def test_cpu(service: Service, cpu_ms: int) -> None:
    run = best(service, 3, argv=["sh", "-c", "while :; do :; done"], limits={"cpu_ms": cpu_ms})
    assert (run.status, run.limit) == ("Time Limit Exceeded", "cpu")
    assert cpu_ms * MS <= run.cpu_ns <= (cpu_ms + SLACK_MS) * MS


@pytest.mark.parametrize(("kb", "count", "status"), [(1, 1024, "Accepted"), (1, 1025, "Output Limit Exceeded"), (0.5, 512, "Accepted")])
def test_output(service: Service, kb: float, count: int, status: str) -> None:
    with service.client() as client:
        run = client.run(argv=["head", "-c", str(count), "/dev/zero"], limits={"output_kb": kb}).runs[0]
    assert run.status == status
    assert len(run.out) == min(count, int(kb * 1024))


def test_a_program_within_its_limits_is_not_touched(service: Service) -> None:
    with service.client() as client:
        run = client.run(argv=["sleep", "0.5"], limits={"wall_ms": 600}).runs[0]
    assert run.status == "Accepted"
    assert 500 * MS <= run.wall_ns < 600 * MS


def test_limits_of_one_command_in_a_lease(service: Service) -> None:
    forks = """
import os
n = 0
try:
    while n < 50:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        n += 1
except OSError:
    print(n, flush=True)
os._exit(0)
"""
    eats = "b'x' * (200 << 20); print('had it')"
    with service.client() as client, client.lease() as lease:
        few = lease.exec(["python3", "-c", forks], limits={"processes": 8}, background="end")
        assert few.stdout == "7\n"
        own = lease.exec(["python3", "-c", eats], limits={"memory_mb": 64})
        assert (own.status, own.limit) == ("Memory Limit Exceeded", "memory")
        assert lease.exec(["python3", "-c", eats]).stdout == "had it\n"
        shares = lease.exec(["python3", "-c", "b'x' * (600 << 20); print('had it')"])
        assert shares.status == "Memory Limit Exceeded"
        busy = lease.exec("while :; do :; done", limits={"cpu_ms": 300})
        assert (busy.status, busy.limit) == ("Time Limit Exceeded", "cpu")
        assert lease.exec("echo still here").stdout == "still here\n"
        lease.spawn("sleep 100 & sleep 100 & wait")
        assert lease.exec("true").processes_peak == 1
