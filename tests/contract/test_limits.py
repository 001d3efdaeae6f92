"""The bounds of a command, which of them ended it, and what was measured."""

from __future__ import annotations

import asyncio

import pytest

from runtimes.backend import Collect, Ended, Input, Limits, Null

from .site import Box, Site

pytestmark = pytest.mark.anyio

MS = 1_000_000


async def test_wall(site: Site, box: Box) -> None:
    outcome = await box.run(site.command("out a", "sleep 30", limits=Limits(wall_ns=200 * MS)))
    assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.WALL, None, 9)
    assert outcome.wall_ns >= 200 * MS
    assert outcome.streams[1].head == b"a"


@pytest.mark.parametrize("exclusive", [True, False])
async def test_cpu(site: Site, exclusive: bool) -> None:
    box = await site.box("call" if exclusive else "lease")
    user = "1000" if exclusive else "0"
    outcome = await box.run(site.command("burn 30", limits=Limits(cpu_ns=300 * MS), exclusive=exclusive, user=user))
    assert (outcome.ended, outcome.exit_code) == (Ended.CPU, None)
    assert 300 * MS <= outcome.cpu_ns < 600 * MS


async def test_cpu_below_the_limit(site: Site, box: Box) -> None:
    outcome = await box.run(site.command("burn 0.2", limits=Limits(cpu_ns=5000 * MS)))
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert outcome.cpu_ns >= 200 * MS


@pytest.mark.parametrize("exclusive", [True, False])
async def test_memory(site: Site, exclusive: bool) -> None:
    box = await site.box("call" if exclusive else "lease")
    limits = Limits(memory_bytes=64 << 20)
    more = {"limits": limits, "exclusive": exclusive, "user": "1000" if exclusive else "0"}
    async with asyncio.timeout(10):  # the rest of the tree goes with the first that is killed
        outcome = await box.run(site.command(f"memory {200 << 20}", "sleep 30", **more))
    assert outcome.ended is Ended.MEMORY
    assert outcome.exit_code is None
    assert outcome.memory_bytes > 48 << 20


@pytest.mark.parametrize("exclusive", [True, False])
async def test_memory_below_the_limit(site: Site, exclusive: bool) -> None:
    box = await site.box("call" if exclusive else "lease")
    more = {"limits": Limits(memory_bytes=128 << 20), "exclusive": exclusive, "user": "1000" if exclusive else "0"}
    outcome = await box.run(site.command(f"memory {50 << 20}", **more))
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert 50 << 20 <= outcome.memory_bytes < 80 << 20


async def test_silence(site: Site, box: Box) -> None:
    limits = Limits(silence_ns=1000 * MS, wall_ns=20_000 * MS)
    outcome = await box.run(site.command("out a", "sleep 0.6", "out b", "sleep 0.6", "out c", "sleep 9", limits=limits))
    assert outcome.ended is Ended.SILENCE
    assert outcome.streams[1].head == b"abc"


async def test_a_limit_that_is_not_reached_leaves_no_trace(site: Site, box: Box) -> None:
    limits = Limits(cpu_ns=5000 * MS, wall_ns=10_000 * MS, silence_ns=5000 * MS, memory_bytes=128 << 20, processes=50,
                    file_bytes=1 << 20, cpu_milli=1000)
    outcome = await box.run(site.command("out fine", limits=limits))
    assert (outcome.ended, outcome.exit_code, outcome.streams[1].head) == (Ended.EXIT, 0, b"fine")


async def test_waiting_for_input_is_wall_time(site: Site, box: Box) -> None:
    limits = Limits(wall_ns=300 * MS)
    outcome = await box.run(site.command("line", limits=limits, descriptors={0: Input(), 1: Collect(10)}))
    assert outcome.ended is Ended.WALL
    assert outcome.cpu_ns < 200 * MS


async def test_a_file_over_its_limit(real_site: Site, real_box: Box) -> None:
    limits = Limits(file_bytes=100_000)
    argv = ("dd", "if=/dev/zero", "of=/tmp/f", "bs=100000", "count=2")
    outcome = await real_box.run(real_site.program(*argv, limits=limits))
    assert (outcome.ended, outcome.signal) == (Ended.EXIT, 25)
    assert (await real_box.stat("/tmp/f")).size == 100_000


async def test_too_many_processes(real_site: Site) -> None:
    box = await real_site.box("call")
    script = "i=0; while [ $i -lt 40 ]; do sleep 30 & i=$((i+1)); done 2>/dev/null; echo made"
    outcome = await box.run(real_site.program("/bin/sh", "-c", script, limits=Limits(processes=10, wall_ns=10_000 * MS),
                                              exclusive=True, user="1000"))
    assert outcome.ended is Ended.EXIT and outcome.exit_code != 0
    assert 5 <= outcome.processes_peak <= 10


async def test_cpu_of_children_counts(real_site: Site, real_box: Box) -> None:
    script = "python3 -c 'while True: pass' & python3 -c 'while True: pass' & wait"
    outcome = await real_box.run(real_site.program("/bin/sh", "-c", script, limits=Limits(cpu_ns=500 * MS)))
    assert outcome.ended is Ended.CPU
    assert 500 * MS <= outcome.cpu_ns < 900 * MS


async def test_memory_of_children_counts(real_site: Site, real_box: Box) -> None:
    child = "python3 -c 'kept = b\"x\" * 40000000; import time; time.sleep(30)' &"
    script = f"{child} {child} {child} wait"
    outcome = await real_box.run(real_site.program("/bin/sh", "-c", script, limits=Limits(
        memory_bytes=90 << 20, wall_ns=20_000 * MS)))
    assert outcome.ended is Ended.MEMORY


async def test_reading_files_is_not_memory(real_site: Site) -> None:
    box = await real_site.box("call")
    script = "cat /usr/lib/*-linux-gnu/*.so* | head -c 200000000 >/dev/null"
    outcome = await box.run(real_site.program("/bin/sh", "-c", script, exclusive=True, user="1000", limits=Limits(
        memory_bytes=64 << 20, wall_ns=20_000 * MS)))
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert outcome.memory_bytes < 20 << 20


async def test_limits_do_not_wait_for_the_caller(real_site: Site, real_box: Box) -> None:
    process = await real_box.start(real_site.command("sleep 30", limits=Limits(wall_ns=100 * MS), descriptors={
        0: Null(), 1: Null()}))
    async with asyncio.timeout(10):
        outcome = await process.wait()
    assert outcome.ended is Ended.WALL
    assert outcome.wall_ns < 400 * MS
