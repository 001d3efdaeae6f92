"""What a sandbox plants, and a client then reads, writes, lists, archives, moves and deletes through the file helper."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from runtimes.backend import Ended, File, FileFailure, Limits, SandboxLost
from runtimes.native.sandbox import NativeSandbox

from .arena import CALL, LEASE, MS, Arena, said
from .attacks import PRODUCT, arenas
from .planting import AT, archived, chunks, content, listed, plant, refused, setting

pytestmark = pytest.mark.anyio

FILES = ("to_sys", "to_setting", "to_environ", "to_status", "to_mem", "to_init", "to_fd", "to_talk", "to_exe", "to_zero", "to_random",
         "to_tty", "to_full", "to_fifo", "fifo", "socket", "loop", "dir_self/status", "dir_root/etc/passwd", "dir_fd/0",
         "dir_sys/hostname", "dir_proc/1/environ", "dir_proc/version", "dir_cwd/x")
DIRECTORIES = ("dir_sys", "dir_self", "dir_root", "dir_cwd", "dir_proc", "dir_fd", "dir_ns", "to_zero", "loop")


CODES = ("EACCES", "EINVAL", "ELOOP", "EXDEV", "ENOTDIR", "EPERM", "EROFS", "ENOENT", "ENXIO", "EISDIR")

Act = Callable[[NativeSandbox, str], Awaitable[object]]
ON_FILES: dict[str, Act] = {
    "read": lambda box, path: content(box, path, 100),
    "read_all": lambda box, path: content(box, path),
    "write": lambda box, path: box.write(path, chunks(b"1\n")),
    "append": lambda box, path: box.write(path, chunks(b"1\n"), append=True),
    "chmod": lambda box, path: box.chmod(path, 0o777),
    "list": lambda box, path: listed(box, path),
    "extract": lambda box, path: box.extract(path, chunks(bytes(1024))),
    "archive": lambda box, path: archived(box, path),
}
ON_DIRECTORIES: dict[str, Act] = {
    "list": lambda box, path: listed(box, path, 3),
    "archive": archived,
    "extract": lambda box, path: box.extract(path, chunks(bytes(1024))),
    "write": lambda box, path: box.write(f"{path}/new", chunks(b"1\n")),
    "mkdirs": lambda box, path: box.write(f"{path}/a/b", chunks(b"1\n"), mkdirs=True),
    "mkdir": lambda box, path: box.mkdir(f"{path}/a"),
    "move_in": lambda box, path: box.move(f"{AT}/plain", f"{path}/plain"),
    "delete": lambda box, path: box.delete(f"{path}/status", recursive=True),
    "chmod": lambda box, path: box.chmod(path, 0o777),
}


@arenas(PRODUCT)
async def test_planted_files_are_refused(arena: Arena) -> None:
    before = setting()
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        for name in FILES:
            for act, do in ON_FILES.items():
                code = await refused(do(box, f"{AT}/{name}"))
                assert code in CODES, (name, act, code)
    assert setting() == before


@arenas(PRODUCT)
async def test_planted_directories_are_refused(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        for name in DIRECTORIES:
            for do in ON_DIRECTORIES.values():
                await refused(do(box, f"{AT}/{name}"))


@arenas(PRODUCT)
async def test_the_tree_with_all_of_it_is_listed_archived_and_deleted(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        kinds = {entry.name: entry.type async for entry in box.list(AT, depth=9)}
        assert kinds["fifo"] == "fifo" and kinds["socket"] == "socket" and kinds["dir_proc"] == "symlink"
        assert not [path for path in await listed(box, "/", depth=2) if path.startswith("/proc/")]
        with tarfile.open(fileobj=io.BytesIO(await archived(box, AT))) as tar:
            members = {member.name: member for member in tar}
        assert members["dir_proc"].issym() and "fifo" not in members and "socket" not in members
        assert members["plain"].size == 5
        await box.delete(AT, recursive=True)
        await refused(box.stat(AT))


@arenas(PRODUCT, ("ordinary", ""))
@pytest.mark.parametrize("name", ["to_status", "dir_self/comm", "dir_proc/version", "dir_sys/hostname"])
async def test_procfs_is_not_read(arena: Arena, name: str) -> None:
    """Without the look at the file system it lies on, the helper would tell of itself, with rights that are not the program's."""
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        try:
            entry, pieces = await box.read(f"{AT}/{name}", length=100)
            harmed = entry.uid is not None
            [piece async for piece in pieces]
        except FileFailure:
            harmed = False
    assert harmed == bool(arena.without)


@arenas(PRODUCT, ("ordinary,roproc,beside", ""), ("ordinary,rootmap,beside", ""), ("roproc,rootmap,beside", ""),
        ("ordinary,roproc,rootmap", ""), ("ordinary,roproc,rootmap,beside", ""))
async def test_the_hosts_settings_are_not_written(arena: Arena) -> None:
    """Harmless: the setting is given the value that it has. `beside`: what is written is collected beside its target first, and
    /proc takes no new file."""
    value = setting()
    written = False
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        with contextlib.suppress(FileFailure):
            await box.write(f"{AT}/to_setting", chunks(value), append=True)
            written = True
    assert written == (arena.without == "ordinary,roproc,rootmap,beside")


@arenas(PRODUCT, ("look", ""), ("nonblock", ""), ("look,nonblock", ""))
async def test_a_fifo_holds_nobody_up(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        if arena.without == "look,nonblock":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await content(box, f"{AT}/fifo")
        else:
            assert await refused(content(box, f"{AT}/fifo")) == "EINVAL"


@arenas(PRODUCT, ("ordinary", ""))
async def test_what_changes_between_two_looks_leads_nowhere(arena: Arena) -> None:
    """A directory and a link to /proc/self take each other's place all the time; only what lies in the directory is ever read."""
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        await box.write(f"{AT}/real/status", chunks(b"mine"), mkdirs=True)
        swap = msgspec.structs.replace(arena.command("plant", "swap", "real", "dir_self", spec=LEASE, place=False), cwd=AT)
        seen: set[int] = set()
        async with arena.holding(box, swap, "SWAPPING"):
            for _ in range(200):
                try:
                    seen.add((await box.stat(f"{AT}/real/status")).size)
                    await content(box, f"{AT}/real/status", 4)
                    await box.write(f"{AT}/real/new", chunks(b"new"))
                    await listed(box, f"{AT}/real")
                except FileFailure:
                    pass
    assert 4 in seen
    assert (0 in seen) == bool(arena.without), "the other one's size, as /proc tells it"


@arenas(PRODUCT)
async def test_a_file_that_changes_gives_a_whole_archive(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "many", "50")
        churn = msgspec.structs.replace(arena.command("plant", "churn", "busy", spec=LEASE, place=False), cwd=AT)
        async with arena.holding(box, churn, "CHURNING"):
            for _ in range(30):
                with tarfile.open(fileobj=io.BytesIO(await archived(box, AT))) as tar:
                    assert {f"many{n}" for n in range(50)} <= {member.name for member in tar}
                await listed(box, AT)
                try:
                    await content(box, f"{AT}/busy")
                except Exception as error:  # it became shorter under the reader: said, never made up
                    assert "missing" in str(error)


@arenas(PRODUCT)
async def test_input_files_do_not_follow_planted_links(arena: Arena) -> None:
    value = setting()
    async with arena.sandbox(LEASE) as box:
        await plant(arena, box, "traps")
        for name in ("to_setting", "to_fifo", "fifo", "dir_sys/hostname", "dir_self/comm", "loop", "dir_root/tmp/x"):
            command = arena.command("see", "processes", spec=LEASE, place=False)
            command = msgspec.structs.replace(command, argv=("/usr/bin/true",), files=(File(f"{AT}/{name}", b"1\n"),))
            async with asyncio.timeout(10):
                outcome = await box.run(command)
            assert outcome.ended == Ended.EXEC, (name, outcome)
    assert setting() == value


@arenas(PRODUCT)
@pytest.mark.parametrize("trap", [
    "mkfifo /etc/passwd", "ln -s /proc/kmsg /etc/passwd", "ln -s /dev/zero /etc/passwd", "ln -s passwd /etc/passwd",
    "ln -s /proc/self/fd/301 /etc/passwd", "mkdir /etc/passwd", "yes nobody:x:1:1::/:/bin/sh | head -c 20000000 > /etc/passwd",
    "printf 'nobody:x:4294967295:0::/:/bin/sh\\n' > /etc/passwd", "printf 'nobody:x:-1:-1::/:/bin/sh\\n' > /etc/passwd",
])  # fmt: skip
async def test_a_planted_passwd_holds_nobody_up(arena: Arena, trap: str) -> None:
    """It is read by the helper before it has become anybody."""
    async with arena.sandbox(LEASE) as box:
        command = arena.command("see", spec=LEASE, place=False)
        shell = msgspec.structs.replace(command, argv=("/bin/sh", "-c", f"rm /etc/passwd; {trap}"), limits=Limits(wall_ns=5000 * MS))
        assert (await box.run(shell)).exit_code == 0
        async with asyncio.timeout(10):
            named = msgspec.structs.replace(command, id=arena.id(), argv=("/usr/bin/id", "-u"), user="nobody")
            outcome = await box.run(named)
            assert outcome.ended == Ended.EXEC or outcome.streams[1].head == b"1\n", outcome
            with contextlib.suppress(FileFailure):
                await box.stat("/etc", user="nobody")
            by_number = msgspec.structs.replace(command, id=arena.id(), argv=("/usr/bin/id", "-u"), user="1000")
            assert (await box.run(by_number)).streams[1].head == b"1000\n", "by number it works whatever stands there"


@arenas(PRODUCT)
async def test_a_client_acts_as_the_user_that_it_names(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        await box.write("/root/secret", chunks(b"secret"), mode=0o600)
        with pytest.raises(FileFailure):
            await box.read("/root/secret", user="1000")
        for do in (box.write("/etc/new", chunks(b""), user="1000"), box.delete("/etc/passwd", user="1000"),
                   box.chmod("/etc/passwd", 0o777, user="1000"), box.mkdir("/new", user="1000"),
                   box.move("/etc/passwd", "/tmp/passwd", user="1000")):
            await refused(do)


@arenas(PRODUCT)
async def test_a_call_shows_its_own_files_alone(arena: Arena) -> None:
    """files_out: after the run, by links that it planted."""
    async with arena.sandbox(CALL) as box:
        command = arena.command("plant", "traps")
        assert not said(await box.run(command)).harmed
        for name in FILES:
            await refused(content(box, f"/box/{name}"))
        assert await content(box, "/box/plain") == b"plain"
    with pytest.raises(SandboxLost):
        await content(box, "/box/plain")
