"""What is kept of an output, exact to the byte, and how it is read while it grows."""

from __future__ import annotations

import asyncio

import pytest

from runtimes.backend import Collect, Ended, Input, Null, Process, Same, Stream

from .site import Box, Site

pytestmark = pytest.mark.anyio


async def read_all(process: Process, stream: Stream = 1, limit: int = 1 << 20) -> tuple[bytes, list[int]]:
    """Everything to the end, and the offsets at which something had been dropped."""
    data, at, gaps = b"", 0, []
    async with asyncio.timeout(20):
        while True:
            chunk = await process.read(stream, at, limit)
            assert chunk.offset >= at and len(chunk.data) <= limit
            if chunk.offset > at:
                gaps.append(chunk.offset)
            data += chunk.data
            at = chunk.offset + len(chunk.data)
            if chunk.end:
                return data, gaps
            assert chunk.data


@pytest.mark.parametrize("limit", [1, 4096, 100_000])
async def test_exactly_the_limit_does_not_end_it(site: Site, box: Box, limit: int) -> None:
    outcome = await box.run(site.command(f"fill 1 {limit}", descriptors={0: Null(), 1: Collect(limit, "kill")}))
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert outcome.streams[1].head == b"x" * limit
    assert not outcome.streams[1].truncated


@pytest.mark.parametrize("limit", [0, 1, 4096, 100_000])
@pytest.mark.parametrize("stream", [1, 2])
async def test_the_first_byte_over_the_limit_ends_it(site: Site, box: Box, limit: int, stream: int) -> None:
    kept = {0: Null(), 1: Collect(limit, "kill"), 2: Collect(limit, "kill")}
    outcome = await box.run(site.command(f"fill {stream} {limit + 1}", "sleep 30", descriptors=kept))
    assert outcome.ended is Ended.OUTPUT
    assert outcome.exit_code is None
    end = outcome.streams[stream]
    assert end.head + end.tail == b"x" * limit
    assert end.total == limit + 1 and end.truncated


@pytest.mark.parametrize(("limit", "count"), [
    (1000, 1000), (1000, 1001), (1001, 5000), (64, 300_000), (200_000, 300_000)])
async def test_truncation_keeps_head_and_tail(site: Site, box: Box, limit: int, count: int) -> None:
    kept = {0: Null(), 1: Collect(limit), 2: Null()}
    outcome = await box.run(site.command("out BEGIN", f"fill 1 {count - 8}", "out END", descriptors=kept))
    end = outcome.streams[1]
    whole = b"BEGIN" + b"x" * (count - 8) + b"END"
    assert (outcome.ended, outcome.exit_code, end.total) == (Ended.EXIT, 0, count)
    if count <= limit:
        assert end.head + end.tail == whole and not end.truncated
    else:
        assert end.head == whole[: limit // 2]
        assert end.tail == whole[count - (limit - limit // 2) :]
        assert end.truncated


@pytest.mark.parametrize("count", [16_384, 16_385, 1 << 20])
async def test_large_outputs_are_whole(site: Site, box: Box, count: int) -> None:
    kept = {0: Null(), 1: Collect(1 << 20), 2: Collect(1 << 20)}
    outcome = await box.run(site.command(f"fill 1 {count}", "err e", descriptors=kept))
    assert outcome.streams[1].head + outcome.streams[1].tail == b"x" * count
    assert outcome.streams[2].head == b"e"


async def test_merged_streams_keep_their_order(site: Site, box: Box) -> None:
    kept = {0: Null(), 1: Collect(1000), 2: Same(1)}
    outcome = await box.run(site.command("out a", "err b", "out c", "err d", descriptors=kept))
    assert outcome.streams[1].head == b"abcd"
    assert 2 not in outcome.streams


async def test_what_is_not_collected_is_not_there(site: Site, box: Box) -> None:
    process = await box.start(site.command("out a", "err b", descriptors={0: Null(), 1: Collect(10), 2: Null()}))
    chunk = await process.read(2, 0, 10)
    assert (chunk.data, chunk.end) == (b"", True)
    assert list((await process.wait()).streams) == [1]


async def test_reading_follows_what_is_written(site: Site, box: Box) -> None:
    process = await box.start(site.command("out one", "line", "out three", descriptors={0: Input(), 1: Collect(1000)}))
    async with asyncio.timeout(20):
        assert (await process.read(1, 0, 100)).data == b"one"
        waiting = asyncio.ensure_future(process.read(1, 3, 100))
        await process.write(b"two\n")
        chunk = await waiting
        assert chunk.offset == 3 and b"[two]three".startswith(chunk.data) and chunk.data
        assert await read_all(process) == (b"one[two]three", [])
        assert (await process.read(1, 4, 3)).data == b"two"
        assert (await process.wait()).streams[1].head == b"one[two]three"


async def test_reading_in_small_pieces_and_after_the_end(site: Site, box: Box) -> None:
    process = await box.start(site.command("out 0123456789"))
    await process.wait()
    assert await read_all(process, limit=3) == (b"0123456789", [])
    chunk = await process.read(1, 10, 5)
    assert (chunk.offset, chunk.data, chunk.end) == (10, b"", True)


async def test_reading_skips_what_was_dropped(site: Site, box: Box) -> None:
    process = await box.start(site.command("out BEGIN", "fill 1 5000", "out END", descriptors={
        0: Null(), 1: Collect(100)}))
    await process.wait()
    data, gaps = await read_all(process)
    assert data == b"BEGIN" + b"x" * 45 + b"x" * 47 + b"END"
    assert gaps == [5008 - 50]


async def test_several_readers_get_the_same(site: Site, box: Box) -> None:
    process = await box.start(site.command("fill 1 300000", "err e"))
    found = await asyncio.gather(read_all(process), read_all(process), read_all(process, 2))
    assert [data for data, _ in found] == [b"x" * 300_000, b"x" * 300_000, b"e"]


async def test_a_program_never_waits_for_a_reader(site: Site, box: Box) -> None:
    outcome = await box.run(site.command("fill 1 20000000", "fill 2 20000000", descriptors={
        0: Null(), 1: Collect(1000), 2: Collect(1000)}))
    assert (outcome.exit_code, outcome.streams[1].total, outcome.streams[2].total) == (0, 20_000_000, 20_000_000)
