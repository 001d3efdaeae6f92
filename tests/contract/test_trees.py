"""What a command leaves behind, and what goes with it. A pipe that every descendant holds tells when all are gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtimes.backend import Collect, Ended, Limits, Null, Passed

from .site import Box, Site
from .test_output import read_all

pytestmark = pytest.mark.anyio


class Held:
    """A pipe whose write end a command and all its descendants hold as stderr."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def descriptors(self) -> dict[int, Any]:
        return {0: Null(), 1: Collect(1000), 2: Passed(self.write)}

    def started(self) -> None:
        """The command has its own copy now."""
        os.close(self.write)
        self.write = -1

    async def gone(self) -> None:
        """Wait until nobody holds it."""
        async with asyncio.timeout(15):
            while await asyncio.to_thread(os.read, self.read, 1000):
                pass

    def held(self) -> bool:
        os.set_blocking(self.read, False)
        try:
            return os.read(self.read, 1) != b""
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self.read, True)

    def close(self) -> None:
        for fd in (self.read, self.write):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    made = Held()
    yield made
    made.close()


async def test_what_is_left_goes_on_and_does_not_hold_the_outcome(site: Site, box: Box, held: Held) -> None:
    process = await box.start(site.command("leave 0.5", "out now,", descriptors=held.descriptors()))
    held.started()
    async with asyncio.timeout(15):
        outcome = await process.wait()
    assert (outcome.ended, outcome.exit_code, outcome.streams[1].head) == (Ended.EXIT, 0, b"now,")
    assert held.held()
    assert await read_all(process) == (b"now,late", [])
    await held.gone()


@pytest.mark.parametrize("role", ["call", "lease"])
async def test_what_is_left_ends_with_it(site: Site, held: Held, role: str) -> None:
    box = await site.box(role)
    more: dict[str, Any] = {"exclusive": True, "user": "1000"} if role == "call" else {"background": "end"}
    process = await box.start(site.command("leave 30", "out now", descriptors=held.descriptors(), **more))
    held.started()
    async with asyncio.timeout(10):
        outcome = await process.wait()
    assert (outcome.ended, outcome.exit_code, outcome.streams[1].head) == (Ended.EXIT, 0, b"now")
    await held.gone()


async def test_ending_a_command_ends_its_tree(site: Site, box: Box, held: Held) -> None:
    process = await box.start(site.command("leave 30", "out up", "sleep 30", descriptors=held.descriptors()))
    held.started()
    await process.read(1, 0, 2)
    await process.end()
    async with asyncio.timeout(10):
        outcome = await process.wait()
    assert (outcome.ended, outcome.exit_code, outcome.streams[1].head) == (Ended.KILLED, None, b"up")
    await held.gone()
    await process.end()


async def test_ending_what_was_left_behind(site: Site, box: Box, held: Held) -> None:
    process = await box.start(site.command("leave 30", descriptors=held.descriptors()))
    held.started()
    assert (await process.wait()).ended is Ended.EXIT
    assert held.held()
    await process.end()
    await held.gone()


async def test_a_limit_ends_the_tree(site: Site, box: Box, held: Held) -> None:
    process = await box.start(site.command("leave 30", "sleep 30", descriptors=held.descriptors(),
                                           limits=Limits(wall_ns=200_000_000)))
    held.started()
    assert (await process.wait()).ended is Ended.WALL
    await held.gone()


async def test_too_much_output_ends_the_tree(site: Site, box: Box, held: Held) -> None:
    descriptors = {**held.descriptors(), 1: Collect(10, "kill")}
    process = await box.start(site.command("leave 30", "fill 1 11", "sleep 30", descriptors=descriptors))
    held.started()
    assert (await process.wait()).ended is Ended.OUTPUT
    await held.gone()


async def test_stopping_the_sandbox_ends_everything(site: Site, box: Box, held: Held) -> None:
    await box.start(site.command("leave 30", "sleep 30", descriptors=held.descriptors()))
    held.started()
    await box.stop("test")
    await held.gone()


async def test_signals(site: Site, box: Box) -> None:
    process = await box.start(site.command("out up", "sleep 30"))
    await process.read(1, 0, 2)
    await process.signal(15)
    outcome = await process.wait()
    assert (outcome.ended, outcome.signal) == (Ended.EXIT, 15)
    await process.signal(15)


async def test_a_signal_that_is_ignored(site: Site, box: Box) -> None:
    process = await box.start(site.command("ignore 15", "out up", "sleep 0.3", "out still"))
    await process.read(1, 0, 2)
    await process.signal(15)
    outcome = await process.wait()
    assert (outcome.exit_code, outcome.streams[1].head) == (0, b"upstill")
    stubborn = await box.start(site.command("ignore 15", "out up", "sleep 30"))
    await stubborn.read(1, 0, 2)
    await stubborn.signal(9)
    assert (await stubborn.wait()).signal == 9


@pytest.mark.parametrize("hide", [
    "setsid sleep 30 &", "(setsid sh -c 'sleep 30 & exit')", "nohup sleep 30 >/dev/null &",
    "(trap '' 1 2 15; sleep 30) &",
])
async def test_no_way_to_hide_from_the_end(real_site: Site, real_box: Box, held: Held, hide: str) -> None:
    process = await real_box.start(real_site.program("/bin/sh", "-c", hide + "\nprintf up; wait; sleep 30",
                                                     descriptors=held.descriptors()))
    held.started()
    await process.read(1, 0, 2)
    await process.end()
    assert (await process.wait()).ended is Ended.KILLED
    await held.gone()
