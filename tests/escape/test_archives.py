"""Odd trees and hostile archives: names, times, sizes, depths, links, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile

import msgspec
import pytest

from runtimes.backend import Ended, File, FileFailure

from .arena import CALL, LEASE, Arena
from .attacks import PRODUCT, arenas
from .planting import AT, ROOMY, archived, chunks, content, listed, plant, refused

pytestmark = pytest.mark.anyio


@arenas(PRODUCT)
async def test_odd_names_times_and_sizes(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        await plant(arena, box, "odd")
        names = {entry.name: entry async for entry in box.list(AT)}
        odd = {"n" * 255, "new\nline", os.fsdecode(b"not-\xff\xfe-utf8"), " ", "..hidden", "-rf", "tab\there \x1b[31m\x07",
               *(f"time{n}" for n in range(6)), "hole", "hard", "closed"}
        assert odd <= set(names)
        assert names["hole"].size == 1 << 40
        for name in sorted(odd - {"hole", "closed"}):
            entry = await box.stat(f"{AT}/{name}")
            assert -(1 << 63) <= entry.mtime_ns < 1 << 63 and await content(box, f"{AT}/{name}")
        assert len(await content(box, f"{AT}/hole", 1000)) == 1000
        await box.delete(f"{AT}/hole")
        with tarfile.open(fileobj=io.BytesIO(await archived(box, AT)), errors="surrogateescape") as tar:
            assert odd - {"hole"} <= set(tar.getnames())
        async with arena.sandbox(LEASE) as other:
            await other.extract("/workspace/in", chunks(await archived(box, AT)))
            assert odd - {"hole"} <= {entry.name async for entry in other.list("/workspace/in")}, "what we write we can read"
        await box.move(f"{AT}/new\nline", f"{AT}/-")
        await box.delete(AT, recursive=True)


@arenas(PRODUCT)
async def test_a_sparse_file_does_not_fill_our_disk(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        await plant(arena, box, "odd")
        fd = os.memfd_create("archive")
        try:
            assert await refused(box.archive_to(AT, fd, limit=1 << 20)) == "EFBIG"
            assert os.fstat(fd).st_size <= 1 << 20
        finally:
            os.close(fd)


@arenas(PRODUCT)
async def test_deep_trees(arena: Arena) -> None:
    async with arena.sandbox(ROOMY) as box:
        await plant(arena, box, "deep", "10000")
        async with asyncio.timeout(20):
            assert len(await listed(box, AT, depth=1_000_000)) >= 100
            try:
                await archived(box, AT)
            except FileFailure as failure:
                assert failure.code == "ENAMETOOLONG"
            await box.delete(AT, recursive=True)
        assert await refused(box.stat(AT)) == "ENOENT"
        await plant(arena, box, "deep", "10000")  # and the sandbox goes with it


@arenas(PRODUCT)
async def test_large_directories(arena: Arena) -> None:
    async with arena.sandbox(ROOMY) as box:
        await plant(arena, box, "many", "10000")
        assert len(await listed(box, AT)) == 10_000
        await box.delete(AT, recursive=True)


def tar_of(*members: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return data.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, size, mode
    return info


HOSTILE = {
    "above": [member("../outside", size=1)],
    "absolute": [member("/workspace/outside", size=1)],
    "dots": [member("a/../../outside", size=1)],
    "through_a_link": [member("out", tarfile.SYMTYPE, "/workspace"), member("out/outside", size=1)],
    "through_a_relative_link": [member("out", tarfile.SYMTYPE, ".."), member("out/outside", size=1)],
    "hard_link": [member("out", tarfile.LNKTYPE, "../secret"), member("out", size=1)],
    "hard_link_absolute": [member("out", tarfile.LNKTYPE, "/workspace/secret"), member("out", size=1)],
    "link_to_link": [member("a", tarfile.SYMTYPE, "b"), member("b", tarfile.SYMTYPE, ".."), member("a/outside", size=1)],
    "device": [member("null", tarfile.CHRTYPE)],
    "fifo": [member("fifo", tarfile.FIFOTYPE)],
    "set_id": [member("program", size=1, mode=0o6755)],
    "empty_name": [member("", size=1)],
}


@arenas(PRODUCT)
@pytest.mark.parametrize("name", HOSTILE)
async def test_an_archive_stays_in_its_directory(arena: Arena, name: str) -> None:
    async with arena.sandbox(LEASE) as box:
        await box.write("/workspace/secret", chunks(b"secret"))
        await box.mkdir("/workspace/in")
        before = set(await listed(box, "/workspace"))
        with contextlib.suppress(FileFailure):
            await box.extract("/workspace/in", chunks(tar_of(*HOSTILE[name])))
        assert set(await listed(box, "/workspace")) == before
        assert await content(box, "/workspace/secret") == b"secret"
        types = {entry.name: entry async for entry in box.list("/workspace/in", depth=9)}
    assert not [entry for entry in types.values() if entry.type == "device"]


@arenas(PRODUCT)
@pytest.mark.parametrize("data", [b"\xff" * 512, b"\0" * 511, tar_of(member("a", size=5))[:600], b"x" * 1_000_000],
                         ids=["garbage", "short", "cut", "long"])
async def test_what_is_no_archive_is_refused(arena: Arena, data: bytes) -> None:
    async with arena.sandbox(LEASE) as box:
        with pytest.raises(FileFailure):
            async with asyncio.timeout(10):
                await box.extract("/workspace/in", chunks(data))


@arenas(PRODUCT)
async def test_an_artifact_is_hostile_too(arena: Arena) -> None:
    """What one sandbox made, extracted before a run in another: the run starts, or its input cannot be used, or it is not of
    our making (EBADMSG, our fault: no sandbox can make our archiver write one)."""
    for members in HOSTILE.values():
        async with arena.sandbox(CALL) as box:
            command = arena.command("see", "processes")
            files = (*command.files, File("/box/in", tar_of(*members), tar=True))
            outcome = await box.run(msgspec.structs.replace(command, files=files))
            assert outcome.ended in (Ended.EXIT, Ended.EXEC) or "EBADMSG" in str(outcome.error), outcome
