"""What a command reads: bytes, a pipe that we feed, descriptors of ours, other commands, a terminal."""

from __future__ import annotations

import asyncio
import os

import pytest

from runtimes.backend import Collect, Data, Ended, Input, Null, Passed, Pipe, Same, StartFailed, Terminal

from .site import Box, Site
from .test_output import read_all

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [0, 5, 40_000, 3_000_000])
async def test_bytes(site: Site, box: Box, size: int) -> None:
    data = os.urandom(size)
    outcome = await box.run(site.program("cat", descriptors={0: Data(data), 1: Collect(8 << 20)}))
    assert outcome.streams[1].head + outcome.streams[1].tail == data


async def test_nothing(site: Site, box: Box) -> None:
    outcome = await box.run(site.program("cat", descriptors={0: Null(), 1: Collect(10)}))
    assert (outcome.exit_code, outcome.streams[1].total) == (0, 0)


async def test_a_pipe_that_we_feed_and_close(site: Site, box: Box) -> None:
    process = await box.start(site.program("cat", descriptors={0: Input(), 1: Collect(1 << 20)}))
    await process.write(b"one ")
    await process.write(b"two")
    await process.write(None)
    async with asyncio.timeout(20):
        outcome = await process.wait()
    assert (outcome.exit_code, outcome.streams[1].head) == (0, b"one two")


async def test_writing_waits_for_a_slow_reader(site: Site, box: Box) -> None:
    process = await box.start(site.command("line", "copy", descriptors={0: Input(), 1: Collect(8 << 20)}))
    data = b"first\n" + b"y" * 2_000_000
    async with asyncio.timeout(20):
        await process.write(data)
        await process.write(None)
        outcome = await process.wait()
    assert outcome.streams[1].total == len(data) + 1  # [first], without the newline
    assert outcome.streams[1].head.startswith(b"[first]yyy")


async def test_writing_to_what_has_ended(site: Site, box: Box) -> None:
    process = await box.start(site.program("true", descriptors={0: Input(), 1: Null()}))
    await process.wait()
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")


async def test_writing_after_the_close_and_without_a_pipe(site: Site, box: Box) -> None:
    process = await box.start(site.command("sleep 30", descriptors={0: Input(), 1: Null()}))
    await process.write(None)
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")
    await process.end()
    other = await box.start(site.command("sleep 30", descriptors={0: Null(), 1: Null()}))
    with pytest.raises(BrokenPipeError):
        await other.write(b"x")
    await other.end()


async def test_a_pipe_held_open_does_not_hold_the_outcome(site: Site, box: Box) -> None:
    process = await box.start(site.command("line", descriptors={0: Input(), 1: Collect(10)}))
    await process.write(b"x\n")
    async with asyncio.timeout(20):
        assert (await process.wait()).streams[1].head == b"[x]"


async def test_descriptors_of_ours(site: Site, box: Box) -> None:
    read, write = os.pipe()
    back, forth = os.pipe()
    try:
        process = await box.start(site.program("cat", descriptors={0: Passed(read), 1: Passed(forth)}))
        os.close(read)
        os.close(forth)
        os.write(write, b"passed on")
        os.close(write)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(os.read, back, 100) == b"passed on"
            assert (await process.wait()).exit_code == 0
            assert await asyncio.to_thread(os.read, back, 100) == b""
    finally:
        os.close(back)


async def test_commands_in_a_line(site: Site) -> None:
    first, second, third = await site.boxes(3)
    members = [
        (first, site.command("fill 1 200000", "out END", descriptors={0: Null(), 1: Pipe(0, "write"), 2: Null()})),
        (second, site.program("cat", descriptors={0: Pipe(0, "read"), 1: Pipe(1, "write"), 2: Null()})),
        (third, site.program("cat", descriptors={0: Pipe(1, "read"), 1: Collect(1 << 20), 2: Null()})),
    ]
    processes = await site.backend.start_group(members)
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*(process.wait() for process in processes))
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    assert outcomes[2].streams[1].total == 200_003
    assert (outcomes[2].streams[1].head + outcomes[2].streams[1].tail).endswith(b"xEND")


async def test_commands_that_talk_to_each_other(site: Site) -> None:
    judge, player = await site.boxes(2)
    processes = await site.backend.start_group([
        (judge, site.command("out question\n", "line", descriptors={
            0: Pipe(0, "read"), 1: Pipe(1, "write"), 2: Null()})),
        (player, site.command("line", "err seen", descriptors={
            0: Pipe(1, "read"), 1: Pipe(0, "write"), 2: Collect(100)})),
    ])
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*(process.wait() for process in processes))
    assert [outcome.ended for outcome in outcomes] == [Ended.EXIT, Ended.EXIT]
    assert outcomes[1].streams[2].head == b"seen"


async def test_a_pipe_whose_reader_is_gone(site: Site) -> None:
    writer, reader = await site.boxes(2)
    processes = await site.backend.start_group([
        (writer, site.program("yes", descriptors={0: Null(), 1: Pipe(0, "write"), 2: Null()})),
        (reader, site.command("line", descriptors={0: Pipe(0, "read"), 1: Collect(10), 2: Null()})),
    ])
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*(process.wait() for process in processes))
    assert outcomes[0].signal == 13
    assert outcomes[1].streams[1].head == b"[y]"


async def test_a_group_is_all_or_none(site: Site) -> None:
    (box,) = await site.boxes(1)
    known = site.program("true")
    await box.run(site.program("true"))
    await box.start(known)
    with pytest.raises(StartFailed):
        await site.backend.start_group([(box, known), (box, site.program("true"))])
    assert [process.id for process in await box.processes()] == [known.id]


TERMINAL = {0: Terminal(30, 90), 1: Terminal(30, 90), 2: Terminal(30, 90)}


async def test_a_terminal_has_its_size(site: Site, box: Box) -> None:
    process = await box.start(site.command("size", "line", "size", descriptors=TERMINAL))
    async with asyncio.timeout(20):
        while b"30 90" not in (await process.read(1, 0, 1000)).data:
            pass
        await process.resize(50, 132)
        await process.write(b"go\n")
        data, _ = await read_all(process)
    assert b"50 132" in data and b"[go]" in data
    assert (await process.wait()).exit_code == 0


async def test_the_end_of_a_terminals_input(site: Site, box: Box) -> None:
    process = await box.start(site.program("cat", descriptors=TERMINAL))
    await process.write(b"typed\n")
    async with asyncio.timeout(20):
        while b"typed" not in (await process.read(1, 0, 1000)).data:
            pass
        await process.write(None)
        assert (await process.wait()).exit_code == 0


async def test_both_outputs_into_one_of_ours(site: Site, box: Box) -> None:
    read, write = os.pipe()
    try:
        outcome = await box.run(site.command("out a", "err b", descriptors={0: Null(), 1: Passed(write), 2: Same(1)}))
        os.close(write)
        assert outcome.streams == {}
        assert os.read(read, 10) == b"ab"
    finally:
        os.close(read)
