"""Taking all of something. Each attempt is bounded, by its own count and by the weak build, to what this machine does not
notice; beside each, a neighbour does a little of everything and lacks nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from runtimes.backend import Collect, Ended, Input, Limits, Outcome, Terminal

from .arena import CALL, LEASE, LIMITS, MS, Arena, said
from .attacks import PRODUCT, Attack, arenas, attacks
from .planting import content

pytestmark = pytest.mark.anyio

INSTANCES = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
TIGHT = Limits(cpu_ns=10_000 * MS, wall_ns=20_000 * MS, memory_bytes=32 << 20, processes=32, cpu_milli=1000)
DISK = msgspec.structs.replace(CALL, disk_bytes=4 << 20)


async def neighbour(arena: Arena) -> Outcome:
    async with arena.sandbox(CALL) as box:
        outcome = await box.run(arena.command("exhaust", "neighbour"))
    assert outcome.ended == Ended.EXIT and not said(outcome).harmed, outcome
    return outcome


def take(thing: str, count: int, *stopped_by: str, more: tuple[str, ...] = ()) -> Attack:
    return Attack("exhaust", ("take", thing, str(count)), stopped_by, more=more)


# Refused with an error, at the limit.
@attacks([
    take("process", 100, "pids"), take("thread", 100, "pids"),
    take("disk", 8, "size"), take("hole", 8, "size"), take("inode", 20_000, "size"),
    take("tcp", 64, "memory"),
    take("timer", 5000, "rlimits"), take("signal", 5000, "rlimits"), take("file", 8000, "rlimits"), take("core", 1, "rlimits"),
])  # fmt: skip
async def test_it_ends_at_the_limit(arena: Arena, attack: Attack, bites: bool) -> None:
    async with arena.sandbox(DISK) as box:
        command = arena.command("exhaust", *attack.arguments, "hold", limits=TIGHT)
        async with arena.holding(box, command, "HELD") as process:
            if not bites:
                await neighbour(arena)
            await process.write(None)
            result = said(await process.wait())
    assert result.harmed == bites, result


# What cannot be refused ends the run.
@attacks([take("memory", 64, "memory"), take("shared", 64, "memory"), take("memfd", 64, "memory")])
async def test_memory_ends_the_run(arena: Arena, attack: Attack, bites: bool) -> None:
    async with arena.sandbox(CALL) as box:
        outcome, _ = await asyncio.gather(box.run(arena.command("exhaust", *attack.arguments, limits=TIGHT)),
                                          neighbour(arena))
    assert (outcome.ended == Ended.MEMORY) != bites, outcome
    assert not bites or said(outcome).harmed
    assert outcome.ended != Ended.MEMORY or outcome.memory_bytes <= 33 << 20


@arenas(PRODUCT)
@pytest.mark.parametrize("role", ["call", "lease"])
async def test_files_in_memory_count_as_such(arena: Arena, role: str) -> None:
    """A file in /dev/shm larger than the call's memory: the run ends; a lease pays for files apart, and is told ENOSPC."""
    spec = CALL if role == "call" else LEASE
    limits = msgspec.structs.replace(TIGHT, memory_bytes=8 << 20) if role == "call" else None
    async with arena.sandbox(spec) as box:
        outcome = await box.run(arena.command("exhaust", "take", "hole", "40", spec=spec, limits=limits))
        if role == "call":
            assert outcome.ended == Ended.MEMORY, outcome
        else:
            assert said(outcome).text.endswith("ENOSPC"), outcome
            again = await box.run(arena.command("exhaust", "take", "memory", "8", spec=spec, place=False))
            assert said(again).harmed, "a full disk must not end the lease"


@arenas(PRODUCT)
@pytest.mark.parametrize("kib", [32_000, 32_400, 32_500, 32_520, 40_000])
async def test_a_full_memory_still_gives_its_files_out(arena: Arena, kib: int) -> None:
    """A program that leaves no room for the helper that reads its files must not turn its verdict into a fault of ours."""
    spec = msgspec.structs.replace(CALL, disk_bytes=64 << 20)
    limits = msgspec.structs.replace(TIGHT, memory_bytes=32 << 20)
    fill = ("/usr/bin/dd", "if=/dev/zero", "of=/box/out.txt", "bs=1k", f"count={kib}", "status=none")
    async with arena.sandbox(spec) as box:
        command = msgspec.structs.replace(arena.command("exhaust", place=False, limits=limits), argv=fill)
        outcome = await box.run(command)
        assert outcome.ended in (Ended.EXIT, Ended.MEMORY), outcome
        assert len(await content(box, "/box/out.txt", 100)) == 100


@arenas(PRODUCT, ("output", ""))
@pytest.mark.parametrize("target", [1, 2])
async def test_output_ends_the_run(arena: Arena, target: int) -> None:
    """Exactly the limit is kept. Harmless: 4 MiB, which nobody keeps."""
    async with arena.sandbox(CALL) as box:
        descriptors = {1: Collect(10_000, "kill"), 2: Collect(10_000, "kill")}
        command = arena.command("exhaust", "take", "output", "1024", descriptors=descriptors)
        outcome = await box.run(command)
    end = outcome.streams[1]
    if arena.without:
        assert outcome.ended == Ended.EXIT and end.total > 4 << 20
    else:
        assert outcome.ended == Ended.OUTPUT and len(end.head) == 10_000 and end.total < 1 << 20, outcome


@arenas(PRODUCT)
async def test_output_that_is_cut_keeps_its_ends_and_holds_nobody_up(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        command = arena.command("exhaust", "take", "output", "16384", spec=LEASE, descriptors={1: Collect(8192)})
        outcome, _ = await asyncio.gather(box.run(command), neighbour(arena))
    end = outcome.streams[1]
    assert outcome.ended == Ended.EXIT and end.total > 64 << 20
    assert len(end.head) == len(end.tail) == 4096 and end.tail.endswith(b"HARM got all 16384\n")


# Counted by user, and by who made the users: were two sandboxes' users made by the same one, the first could take all of it.
@arenas(PRODUCT, ("identity", ""))
@pytest.mark.parametrize(("thing", "count", "users"), [("inotify", 1000, INSTANCES // 1000 + 1), ("timer", 4096, 3), ("signal", 4096, 3),
                                                       ("queue", 200, 2)])
async def test_what_is_counted_by_user(arena: Arena, thing: str, count: int, users: int) -> None:
    command = arena.command("exhaust", "crowd", thing, str(count), str(users), spec=LEASE)
    async with arena.sandbox(LEASE) as box, arena.holding(box, command, "HELD"), arena.sandbox(CALL) as other:
        result = said(await other.run(arena.command("exhaust", "neighbour")))
    assert result.harmed == bool(arena.without), result
    assert not arena.without or result.text.split()[3] in (thing, "signal"), "timers hold a signal each"


@arenas(PRODUCT, ("ptymax", ""))
async def test_terminals_end_at_the_limit(arena: Arena) -> None:
    """The kernel counts those of all sandboxes together, 4096 less those kept for the host. Harmless: 200."""
    terminal = Terminal()
    async with arena.sandbox(LEASE) as box:
        command = arena.command("exhaust", "take", "terminal", "200", spec=LEASE, descriptors={0: terminal, 1: terminal, 2: terminal})
        result = said(await box.run(command))
    assert result.harmed == bool(arena.without), result
    assert result.harmed or result.text.startswith("63 of 200"), result


# Kernel memory that is no page of the program's: it must end somewhere, and nobody else may notice.
@arenas(PRODUCT)
@pytest.mark.parametrize(("thing", "count"), [("pipe", 1500), ("socket", 1500), ("flight", 20_000), ("name", 2000), ("lock", 20_000),
                                              ("message", 20_000), ("inotify", 3000), ("timer", 5000), ("signal", 5000), ("queue", 190)])
async def test_a_neighbour_notices_nothing(arena: Arena, thing: str, count: int) -> None:
    async with arena.sandbox(DISK) as box:
        command = arena.command("exhaust", "take", thing, str(count), "hold", limits=msgspec.structs.replace(
            TIGHT, memory_bytes=64 << 20))
        command = msgspec.structs.replace(command, descriptors={0: Input(), 1: Collect(1 << 16), 2: Collect(1 << 16)})
        process = await box.start(command)
        for _ in range(2):
            await neighbour(arena)
        await process.end()
        outcome = await process.wait()
        await process.forget()
    assert outcome.ended in (Ended.KILLED, Ended.MEMORY), outcome


@arenas(PRODUCT)
async def test_cpu_is_shared(arena: Arena) -> None:
    """Eight busy processes get the one CPU that their call has."""
    async with arena.sandbox(CALL) as box:
        outcome, _ = await asyncio.gather(box.run(arena.command("exhaust", "spin", limits=LIMITS)), neighbour(arena))
    assert outcome.ended == Ended.EXIT
    assert outcome.cpu_ns < outcome.wall_ns * 1.15 + 50 * MS, outcome
