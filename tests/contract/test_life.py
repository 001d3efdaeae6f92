"""How sandboxes are made and ended, and what everybody who uses one learns of its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from runtimes.backend import BackendError, Failure, SandboxLost

from .site import Box, Site, new_name

pytestmark = pytest.mark.anyio


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def test_many_come_as_they_are_made(site: Site) -> None:
    names = [new_name() for _ in range(12)]
    found = [made async for made in site.backend.start_many(names, site.spec())]
    assert sorted(made.name for made in found) == sorted(names)
    assert {made.spec for made in found if not isinstance(made, Failure)} == {site.spec()}


async def test_the_same_name_is_the_same_sandbox(site: Site) -> None:
    name = new_name()
    (first,) = [made async for made in site.backend.start_many([name], site.spec())]
    (again,) = [made async for made in site.backend.start_many([name], site.spec())]
    assert first is again


async def test_what_cannot_be_made_is_a_value(site: Site) -> None:
    wrong = msgspec.structs.replace(site.spec(), base="nosuch")
    names = [new_name(), new_name()]
    found = [made async for made in site.backend.start_many(names, wrong)]
    assert sorted(made.name for made in found) == sorted(names)
    assert all(isinstance(made, Failure) and "base layer" in made.reason for made in found)


async def test_sandboxes_are_apart(site: Site) -> None:
    one, two = await site.boxes(2)
    await one.run(site.command("save /tmp/mine secret"))
    assert (await two.run(site.program("cat", "/tmp/mine"))).exit_code == 1


async def test_files_stay_between_commands(site: Site, box: Box) -> None:
    await box.run(site.command("save /workspace/kept text"))
    assert (await box.run(site.program("cat", "kept", cwd="/workspace"))).streams[1].head == b"text"


async def test_stop_is_idempotent(site: Site, box: Box) -> None:
    await box.stop("test")
    await box.stop("again")
    await site.backend.stop_many([box.name, new_name()], "once more")
    await site.backend.stop_many([], "nothing")


async def none() -> AsyncIterator[bytes]:
    for chunk in ():
        yield chunk


async def test_everything_says_that_it_is_gone(site: Site, box: Box) -> None:
    ended = await box.start(site.program("true"))
    await ended.wait()
    await box.stop("test")
    for attempt in (
        lambda: box.start(site.program("true")), lambda: box.run(site.program("true")), lambda: box.processes(),
        lambda: box.record(b"", None), lambda: box.stat("/"), lambda: anext(aiter(box.list("/"))),
        lambda: box.read("/etc/passwd"), lambda: box.write("/tmp/a", none()), lambda: box.delete("/tmp/a"),
        lambda: box.mkdir("/tmp/a"), lambda: box.move("/tmp/a", "/tmp/b"), lambda: box.chmod("/tmp/a", 0),
        lambda: box.archive("/tmp"), lambda: box.extract("/tmp", none()),
        lambda: ended.read(1, 0, 10), lambda: ended.write(b""), lambda: ended.signal(15), lambda: ended.end(),
        lambda: site.backend.start_group([(box, site.program("true"))]),
    ):
        with pytest.raises(SandboxLost) as lost:
            await attempt()
        assert lost.value.name == box.name
    assert await box.lost() == "destroyed"


async def test_who_waits_learns_of_the_end(site: Site, box: Box) -> None:
    process = await box.start(site.command("out a", "sleep 30"))
    await process.read(1, 0, 1)
    waiting = [asyncio.ensure_future(found) for found in (
        process.wait(), process.read(1, 1, 10), box.run(site.command("sleep 30")))]
    lost = asyncio.ensure_future(box.lost())
    await asyncio.sleep(0)
    await box.stop("test")
    async with asyncio.timeout(10):
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [SandboxLost] * 3
        assert await lost == "destroyed"


async def test_it_ends_at_its_time(site: Site, box: Box) -> None:
    await box.record(b"lease", boot_ns() + 300_000_000)
    process = await box.start(site.command("sleep 30"))
    async with asyncio.timeout(10):
        assert await box.lost() == "ttl"
        with pytest.raises(SandboxLost) as lost:
            await process.wait()
    assert lost.value.reason == "ttl"


async def test_a_renewal_moves_its_time(site: Site, box: Box) -> None:
    await box.record(b"lease", boot_ns() + 200_000_000)
    await box.record(b"lease", None)
    outcome = await box.run(site.command("sleep 0.5", "out alive"))
    assert outcome.streams[1].head == b"alive"
    await box.record(b"lease", boot_ns() - 1)
    async with asyncio.timeout(10):
        assert await box.lost() == "ttl"


async def test_a_record_has_a_size(site: Site, box: Box) -> None:
    await box.record(b"x" * 4096, None)
    with pytest.raises(BackendError):
        await box.record(b"x" * 4097, None)


async def test_leaving_while_they_are_made(site: Site) -> None:
    names = [new_name() for _ in range(6)]
    making = site.backend.start_many(names, site.spec())
    first = await anext(aiter(making))
    await making.aclose()  # type: ignore[attr-defined]
    await site.backend.stop_many([first.name], "test")
    await site.backend.stop_many(names, "test")
    assert await site.backend.adopt() == []


async def test_ending_in_the_middle_of_a_burst(site: Site) -> None:
    boxes = await site.boxes(4)
    runs = [asyncio.ensure_future(box.run(site.command("sleep 0.05", "out done"))) for box in boxes for _ in range(4)]
    await asyncio.sleep(0)
    await site.backend.stop_many([box.name for box in boxes[:2]], "test")
    async with asyncio.timeout(20):
        found = await asyncio.gather(*runs, return_exceptions=True)
    assert [isinstance(outcome, SandboxLost) for outcome in found] == [True] * 8 + [False] * 8
