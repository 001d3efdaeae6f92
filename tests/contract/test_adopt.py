"""A gateway dies and another one comes: what it finds. What holds the sandboxes dies: what is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from runtimes.backend import Adopted, BackendError, Collect, Command, Ended, Input, Null, SandboxLost

from .native_site import Spawner
from .site import Box, Site
from .test_output import read_all
from .test_trees import Held

pytestmark = pytest.mark.anyio


async def adopted(site: Site, *, close: bool = True) -> dict[str, Adopted]:
    backend = await site.reconnect(close=close)
    return {found.sandbox.name: found for found in await backend.adopt()}


async def test_records_and_use_are_found_again(site: Site) -> None:
    fresh, held, ran, ended = await site.boxes(4)
    await held.record(b"\0record", None)
    await held.record(b"\0newer", time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 3600 * 10**9)
    await ran.run(site.program("true"))
    await ended.stop("test")
    found = await adopted(site)
    assert {name: (it.record, it.used) for name, it in found.items()} == {
        fresh.name: (b"", False), held.name: (b"\0newer", True), ran.name: (b"", True)}
    assert {it.sandbox.spec for it in found.values()} == {site.spec()}


async def test_an_adopted_sandbox_works(site: Site, box: Box) -> None:
    await box.run(site.command("save /workspace/kept text"))
    again = (await adopted(site))[box.name].sandbox
    assert (await again.run(site.program("cat", "/workspace/kept"))).streams[1].head == b"text"
    await again.stop("test")
    assert await again.lost() == "destroyed"


async def test_what_may_outlive_us_goes_on_and_keeps_its_outcome(site: Site, box: Box) -> None:
    running = site.command("out begin,", "line", "out end", orphan="keep", descriptors={0: Input(), 1: Collect(1000)})
    over = site.command("out over", "exit 4", orphan="keep")
    process = await box.start(running)
    assert (await process.read(1, 0, 100)).data == b"begin,"
    outcome = await (await box.start(over)).wait()

    again = (await adopted(site))[box.name].sandbox
    found = {process.id: process for process in await again.processes()}
    assert sorted(found) == sorted([running.id, over.id])
    assert await found[over.id].wait() == outcome
    assert await found[running.id].started() is True
    assert found[running.id].pid is not None
    await found[running.id].write(b"go\n")
    async with asyncio.timeout(10):
        assert await read_all(found[running.id]) == (b"begin,[go]end", [])
        assert (await found[running.id].wait()).exit_code == 0


async def test_a_command_is_not_run_again(site: Site, box: Box) -> None:
    command = site.command("append /tmp/log x", "out once", orphan="keep")
    outcome = await (await box.start(command)).wait()
    again = (await adopted(site))[box.name].sandbox
    assert await (await again.start(command)).wait() == outcome
    assert (await again.run(site.program("cat", "/tmp/log"))).streams[1].head == b"x"


async def test_what_was_forgotten_stays_forgotten(site: Site, box: Box) -> None:
    process = await box.start(site.command("out x", orphan="keep"))
    await process.wait()
    await process.forget()
    again = (await adopted(site))[box.name].sandbox
    assert await again.processes() == []


async def test_what_may_not_outlive_us_ends(site: Site, box: Box) -> None:
    held = Held()
    try:
        process = await box.start(site.command("leave 30", "out up", "sleep 30", descriptors=held.descriptors()))
        held.started()
        await process.read(1, 0, 2)
        again = (await adopted(site))[box.name].sandbox
        await held.gone()
        assert (await again.run(site.program("echo", "alive"))).streams[1].head == b"alive\n"
    finally:
        held.close()


async def test_a_large_output_is_found_again(site: Site, box: Box) -> None:
    command = site.command("fill 1 300000", orphan="keep", descriptors={0: Null(), 1: Collect(1 << 20)})
    await (await box.start(command)).wait()
    again = (await adopted(site))[box.name].sandbox
    (process,) = await again.processes()
    outcome = await process.wait()
    assert outcome.streams[1].head + outcome.streams[1].tail == b"x" * 300_000


async def test_a_crash_loses_everything_and_new_ones_work(site: Site) -> None:
    first, second = await site.boxes(2)
    await first.record(b"lease", None)
    process = await first.start(site.command("out up", "sleep 30", orphan="keep"))
    await process.read(1, 0, 2)
    other = await second.start(site.command("sleep 30"))
    waiting = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(other.wait())]
    lost = asyncio.ensure_future(first.lost())
    await asyncio.sleep(0)
    await site.crash()
    async with asyncio.timeout(10):
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [SandboxLost] * 2, found
        assert await lost == "lost"
        with pytest.raises(SandboxLost):
            await second.run(site.program("true"))
        assert await site.backend.adopt() == []
        (fresh,) = await site.boxes(1)
        assert (await fresh.run(site.program("echo", "new"))).streams[1].head == b"new\n"


async def test_a_pid_1_that_dies_is_no_outcome(real_site: Site, spawner: Spawner) -> None:
    """All that runs in the sandbox dies by SIGKILL before its PID 1 is seen to be gone."""
    box = await real_site.box()
    for _ in range(5):
        process = await box.start(real_site.command("out up", "sleep 30"))
        await process.read(1, 0, 2)
        waiting = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(box.run(real_site.command("sleep 30")))]
        await asyncio.sleep(0.1)
        for pid in spawner.inits():
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [SandboxLost] * 2, found
        box = await real_site.box()
    run = await box.run(real_site.command("kill 9"))
    assert (run.ended, run.signal) == (Ended.EXIT, 9)


async def test_many_commands_survive_together(site: Site) -> None:
    boxes = await site.boxes(6)
    commands: dict[str, list[Command]] = {}
    for box in boxes:
        commands[box.name] = [site.command(f"out {n}", "sleep 0.3", f"exit {n}", orphan="keep") for n in range(5)]
        for command in commands[box.name]:
            await box.start(command)
    found = await adopted(site)
    assert sorted(found) == sorted(commands)
    for name, started in commands.items():
        processes = {process.id: process for process in await found[name].sandbox.processes()}
        for n, command in enumerate(started):
            process = processes.get(command.id) or await found[name].sandbox.start(command)
            async with asyncio.timeout(10):
                outcome = await process.wait()
            assert (outcome.ended, outcome.exit_code, outcome.streams[1].head) == (Ended.EXIT, n, str(n).encode())


async def test_an_older_gateway_is_fenced_off(real_site: Site) -> None:
    box = await real_site.box()
    old = real_site.backend
    found = await adopted(real_site, close=False)
    async with asyncio.timeout(10):
        assert await box.lost() == "fenced"
    with pytest.raises(BackendError):
        await old.adopt()
    assert (await found[box.name].sandbox.run(real_site.program("echo", "on"))).streams[1].head == b"on\n"
    await old.aclose()
