"""Files of a sandbox, reached from outside as one of its users."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from posixpath import normpath

import pytest

from runtimes.backend import FileFailure

from .site import Box, Site

pytestmark = pytest.mark.anyio


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        await asyncio.sleep(0)
        yield piece


async def content(box: Box, path: str, **more: object) -> bytes:
    _, chunks = await box.read(path, **more)  # type: ignore[arg-type]
    data = b""
    async for chunk in chunks:
        assert 0 < len(chunk) <= 256 << 10
        data += chunk
    return data


async def names(box: Box, path: str, depth: int = 1) -> list[str]:
    return sorted([entry.path async for entry in box.list(path, depth=depth)])


async def refused(code: str, attempt: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(FileFailure) as failure:
        await attempt()
    assert failure.value.code == code


async def test_write_and_read(box: Box) -> None:
    entry = await box.write("/workspace/a.txt", pieces(b"one ", b"", b"two"))
    assert (entry.name, entry.path, entry.type, entry.size) == ("a.txt", "/workspace/a.txt", "file", 7)
    assert (entry.uid, entry.gid, entry.user, entry.group) == (0, 0, "root", "root")
    assert await content(box, "/workspace/a.txt") == b"one two"
    found, _ = await box.read("/workspace/a.txt")
    assert found == await box.stat("/workspace/a.txt") == entry


@pytest.mark.parametrize("size", [0, 1, 256 << 10, 3_000_001])
async def test_any_size_goes_and_comes(box: Box, size: int) -> None:
    data = os.urandom(size)
    step = 100_000
    await box.write("/tmp/blob", pieces(*(data[at : at + step] for at in range(0, size, step))))
    assert await content(box, "/tmp/blob") == data


async def test_ranges(box: Box) -> None:
    await box.write("/tmp/r", pieces(b"0123456789"))
    for offset, length, expected in ((0, 4, b"0123"), (4, None, b"456789"), (8, 100, b"89"), (10, None, b""),
                                     (50, 5, b""), (3, 0, b"")):
        assert await content(box, "/tmp/r", offset=offset, length=length) == expected


async def test_the_mode(box: Box) -> None:
    assert (await box.write("/tmp/m", pieces(b"x"), mode=0o600)).mode & 0o7777 == 0o600
    assert (await box.write("/tmp/m", pieces(b"y"))).mode & 0o7777 == 0o600
    assert (await box.write("/tmp/m", pieces(b"z"), mode=0o755)).mode & 0o7777 == 0o755
    await box.chmod("/tmp/m", 0o4711)
    assert (await box.stat("/tmp/m")).mode & 0o7777 == 0o4711
    assert (await box.write("/tmp/n", pieces(b"x"))).mode & 0o7777 == 0o644


async def test_parents_are_made_only_if_asked(box: Box) -> None:
    await refused("ENOENT", lambda: box.write("/tmp/a/b/c", pieces(b"x")))
    await box.write("/tmp/a/b/c", pieces(b"x"), mkdirs=True)
    assert await names(box, "/tmp", 3) == ["/tmp/a", "/tmp/a/b", "/tmp/a/b/c"]


async def test_appending(box: Box) -> None:
    await box.write("/tmp/log", pieces(b"one"), append=True)
    entry = await box.write("/tmp/log", pieces(b"two"), append=True)
    assert (await content(box, "/tmp/log"), entry.size) == (b"onetwo", 6)


async def test_users_own_what_they_write(box: Box) -> None:
    entry = await box.write("/tmp/u", pieces(b"x"), user="1000")
    assert (entry.uid, entry.gid, entry.user) == (1000, 1000, "user")
    await refused("EACCES", lambda: box.write("/u", pieces(b"x"), user="1000"))
    assert (await box.write("/workspace/u", pieces(b"x"), user="1000")).uid == 1000
    await box.write("/tmp/secret", pieces(b"x"), mode=0o600)
    await refused("EACCES", lambda: content(box, "/tmp/secret", user="1000"))
    await refused("EPERM", lambda: box.chmod("/tmp/secret", 0o644, user="1000"))


async def test_programs_see_what_was_written(site: Site, box: Box) -> None:
    await box.write("/workspace/in", pieces(b"from outside"))
    assert (await box.run(site.program("cat", "/workspace/in"))).streams[1].head == b"from outside"
    await box.run(site.command("save /workspace/out inside"))
    assert await content(box, "/workspace/out") == b"inside"


async def test_a_broken_source_leaves_nothing(box: Box) -> None:
    await box.write("/tmp/f", pieces(b"before"))

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("the client went away")

    with pytest.raises(ValueError, match="went away"):
        await box.write("/tmp/f", broken())
    with pytest.raises(ValueError, match="went away"):
        await box.write("/tmp/new", broken())
    with pytest.raises(ValueError, match="went away"):
        await box.write("/tmp/f", broken(), append=True)
    assert await content(box, "/tmp/f") == b"before"
    assert await names(box, "/tmp") == ["/tmp/f"]


async def test_a_cancelled_write_leaves_nothing(box: Box) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            begun.set()
            await asyncio.Event().wait()

    writing = asyncio.ensure_future(box.write("/tmp/f", endless()))
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await names(box, "/tmp") == []


async def test_reading_may_stop_half_way(box: Box) -> None:
    await box.write("/tmp/big", pieces(b"x" * 3_000_000))
    _, chunks = await box.read("/tmp/big")
    assert await anext(chunks)
    del chunks
    listing = box.list("/etc")
    await anext(aiter(listing))
    await listing.aclose()  # type: ignore[attr-defined]
    assert (await box.stat("/tmp/big")).size == 3_000_000


async def test_stat(site: Site, box: Box) -> None:
    root = await box.stat("/")
    assert (root.name, root.path, root.type) == ("/", "/", "directory")
    folder = await box.stat("/workspace")
    assert (folder.name, folder.type, folder.uid) == ("workspace", "directory", 0)
    await box.write("/tmp/f", pieces(b"12345"))
    entry = await box.stat("/tmp/f")
    assert entry.size == 5 and entry.mtime_ns > 1_600_000_000 * 10**9
    assert await box.stat("/tmp/../tmp/./f") is not None


@pytest.mark.parametrize(("code", "path"), [
    ("ENOENT", "/tmp/none"), ("ENOENT", "/none/none"), ("ENOTDIR", "/etc/passwd/x"), ("EINVAL", "/tmp/a\0b"),
    ("EINVAL", ""), ("ENAMETOOLONG", "/" + "x/" * 3000),
])
async def test_paths_that_cannot_be(box: Box, code: str, path: str) -> None:
    await refused(code, lambda: box.stat(path))
    await refused(code, lambda: content(box, path))
    await refused(code, lambda: anext(aiter(box.list(path))))
    await refused(code, lambda: box.delete(path))
    await refused(code, lambda: box.archive(path))


async def test_directories_are_not_files(box: Box) -> None:
    await refused("EISDIR", lambda: content(box, "/tmp"))
    await refused("EISDIR", lambda: box.write("/tmp", pieces(b"x")))
    await refused("ENOTDIR", lambda: anext(aiter(box.list("/etc/passwd"))))


async def test_listing(box: Box) -> None:
    for path in ("/workspace/a", "/workspace/d/b", "/workspace/d/e/c"):
        await box.write(path, pieces(path.encode()), mkdirs=True)
    assert await names(box, "/workspace") == ["/workspace/a", "/workspace/d"]
    assert await names(box, "/workspace", 2) == ["/workspace/a", "/workspace/d", "/workspace/d/b", "/workspace/d/e"]
    everything = {entry.path: entry async for entry in box.list("/workspace", depth=9)}
    assert everything["/workspace/d/e/c"].size == 16
    assert everything["/workspace/d"].type == "directory"
    assert everything["/workspace/d/e/c"].name == "c"
    await box.mkdir("/workspace/empty")
    assert await names(box, "/workspace/empty") == []


async def test_a_long_listing_is_whole(box: Box) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for n in range(1500):
            tar.addfile(tarfile.TarInfo(f"file-{n:04}-" + "x" * 80))
    await box.extract("/workspace/many", pieces(archive.getvalue()))
    assert len(await names(box, "/workspace/many")) == 1500


async def test_deleting(box: Box) -> None:
    await box.write("/tmp/d/e/f", pieces(b"x"), mkdirs=True)
    await refused("ENOTEMPTY", lambda: box.delete("/tmp/d"))
    await box.delete("/tmp/d/e/f")
    await box.delete("/tmp/d/e")
    await box.write("/tmp/d/g", pieces(b"x"))
    await box.delete("/tmp/d", recursive=True)
    await refused("ENOENT", lambda: box.delete("/tmp/d", recursive=True))
    assert await names(box, "/tmp") == []


async def test_moving(box: Box) -> None:
    await box.write("/tmp/a", pieces(b"one"))
    await box.write("/tmp/b", pieces(b"two"))
    await box.move("/tmp/a", "/tmp/b")
    assert await content(box, "/tmp/b") == b"one"
    await refused("ENOENT", lambda: box.move("/tmp/a", "/tmp/c"))
    await refused("ENOENT", lambda: box.move("/tmp/b", "/none/c"))
    await box.mkdir("/tmp/d/e")
    await box.move("/tmp/d", "/tmp/moved")
    assert await names(box, "/tmp", 2) == ["/tmp/b", "/tmp/moved", "/tmp/moved/e"]


async def test_making_directories(box: Box) -> None:
    await box.mkdir("/tmp/a/b/c", mode=0o700)
    await box.mkdir("/tmp/a/b/c")
    assert (await box.stat("/tmp/a/b/c")).mode & 0o7777 == 0o700
    await box.write("/tmp/file", pieces(b""))
    await refused("EEXIST", lambda: box.mkdir("/tmp/file"))
    await refused("ENOTDIR", lambda: box.mkdir("/tmp/file/below"))


async def test_archives_go_out_and_come_in(box: Box) -> None:
    await box.write("/workspace/src/a", pieces(b"alpha"), mkdirs=True, mode=0o755)
    await box.write("/workspace/src/d/b", pieces(b"b" * 700_000), mkdirs=True)
    await box.mkdir("/workspace/src/empty")
    data = b"".join([piece async for piece in await box.archive("/workspace/src")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {normpath(member.name): member for member in tar}
        assert {"a", "d", "d/b", "empty"} <= set(members)
        assert members["a"].mode & 0o777 == 0o755
        content_of = tar.extractfile(members["a"])
        assert content_of is not None and content_of.read() == b"alpha"
    await box.extract("/workspace/copy", pieces(*(data[at : at + 10_000] for at in range(0, len(data), 10_000))))
    assert await content(box, "/workspace/copy/d/b") == b"b" * 700_000
    assert (await box.stat("/workspace/copy/a")).mode & 0o777 == 0o755
    assert await names(box, "/workspace/copy", 2) == [f"/workspace/copy/{name}" for name in ("a", "d", "d/b", "empty")]


async def test_links_in_archives(box: Box) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "target"
        tar.addfile(link)
    await box.extract("/workspace", pieces(archive.getvalue()))
    await box.write("/workspace/target", pieces(b"behind"))
    entry = await box.stat("/workspace/link")
    assert (entry.type, entry.target) == ("symlink", "target")
    assert (await box.stat("/workspace/link", follow=True)).type == "file"
    assert await content(box, "/workspace/link") == b"behind"


async def test_members_do_not_leave_the_target(box: Box) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("../../tmp/escaped")
        tar.addfile(member)
    with contextlib.suppress(FileFailure):
        await box.extract("/workspace/target", pieces(archive.getvalue()))
    assert await names(box, "/tmp") == []


async def test_a_broken_archive_is_refused(box: Box) -> None:
    with pytest.raises(FileFailure):
        await box.extract("/workspace/x", pieces(b"this is no tar" * 100))


async def test_an_archive_into_a_file_of_ours(box: Box) -> None:
    await box.write("/workspace/out/a", pieces(b"x" * 100_000), mkdirs=True)
    fd = os.memfd_create("archive")
    try:
        size = await box.archive_to("/workspace/out", fd, limit=1 << 20)
        assert size == os.fstat(fd).st_size
        with tarfile.open(fileobj=io.BytesIO(os.pread(fd, size, 0))) as tar:
            assert {normpath(member.name) for member in tar} >= {"a"}
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        await refused("EFBIG", lambda: box.archive_to("/workspace/out", fd, limit=50_000))
        await refused("ENOENT", lambda: box.archive_to("/workspace/none", fd, limit=50_000))
    finally:
        os.close(fd)


async def test_a_full_disk(box: Box) -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * (1 << 20)

    await refused("ENOSPC", lambda: box.write("/workspace/large", large()))
    assert await names(box, "/workspace") == []
    await box.write("/workspace/small", pieces(b"x"))


async def test_many_at_once(box: Box) -> None:
    await asyncio.gather(*(box.write(f"/tmp/{n}", pieces(str(n).encode() * 1000)) for n in range(20)))
    found = await asyncio.gather(*(content(box, f"/tmp/{n}") for n in range(20)))
    assert found == [str(n).encode() * 1000 for n in range(20)]


async def test_only_ordinary_files_are_touched(real_site: Site, real_box: Box) -> None:
    script = "mkfifo /tmp/fifo; ln -s /proc/self/status /tmp/proc; ln -s /dev/null /tmp/null; ln -s loop /tmp/loop"
    await real_box.run(real_site.program("/bin/sh", "-c", script))
    for path in ("/tmp/fifo", "/tmp/proc", "/tmp/null", "/tmp/loop", "/proc/self/status", "/dev/null"):
        with pytest.raises(FileFailure):
            await content(real_box, path)
        if path != "/tmp/loop":
            with pytest.raises(FileFailure):
                await real_box.archive_to(path, 1, limit=10)
    assert (await real_box.stat("/tmp/fifo")).type == "fifo"
    listed = {entry.name: entry.type async for entry in real_box.list("/tmp")}
    assert listed == {"fifo": "fifo", "proc": "symlink", "null": "symlink", "loop": "symlink"}
