"""How a command is started, what it is given, and how its end is told."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile

import pytest

from runtimes.backend import Collect, Data, Ended, File, Passed, StartFailed

from .site import Box, Site

pytestmark = pytest.mark.anyio


async def test_streams_and_exit_code(site: Site, box: Box) -> None:
    outcome = await box.run(site.command("out hello", "err oops", "exit 3"))
    assert (outcome.ended, outcome.exit_code, outcome.signal, outcome.error) == (Ended.EXIT, 3, None, None)
    assert outcome.streams[1].head + outcome.streams[1].tail == b"hello"
    assert outcome.streams[2].head + outcome.streams[2].tail == b"oops"
    assert (outcome.streams[1].total, outcome.streams[2].total) == (5, 4)
    assert outcome.wall_ns > 0


@pytest.mark.parametrize("number", [6, 9, 11, 15])
async def test_a_signal_of_its_own(site: Site, box: Box, number: int) -> None:
    outcome = await box.run(site.command(f"kill {number}"))
    assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.EXIT, None, number)


async def test_what_cannot_be_executed_is_a_value(site: Site, box: Box) -> None:
    outcome = await box.run(site.program("nosuchprogram"))
    assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.EXEC, None, None)
    assert outcome.error is not None and "ENOENT" in outcome.error
    process = await box.start(site.program("nosuchprogram"))
    assert await process.started() is False
    assert (await process.wait()).ended is Ended.EXEC


async def test_arguments_go_through_as_they_are(site: Site, box: Box) -> None:
    outcome = await box.run(site.program("echo", "a b", "", "ü*$(x)", "'\""))
    assert outcome.streams[1].head == "a b  ü*$(x) '\"\n".encode()


async def test_the_environment_is_what_was_given_and_home(site: Site, box: Box) -> None:
    outcome = await box.run(site.program("env", env={"PATH": "/usr/bin:/bin", "A": "1=2"}))
    lines = outcome.streams[1].head.decode().splitlines()
    assert sorted(lines) == ["A=1=2", "HOME=/root", "PATH=/usr/bin:/bin"]
    outcome = await box.run(site.program("env", env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"}))
    assert "HOME=/tmp" in outcome.streams[1].head.decode().splitlines()


@pytest.mark.parametrize("cwd", ["/", "/tmp", "/workspace"])
async def test_the_working_directory(site: Site, box: Box, cwd: str) -> None:
    outcome = await box.run(site.program("pwd", cwd=cwd))
    assert outcome.streams[1].head.decode() == cwd + "\n"


@pytest.mark.parametrize(("user", "uid"), [("0", 0), ("1000", 1000), ("1000:1000", 1000), ("root", 0), ("user", 1000)])
async def test_the_user(site: Site, box: Box, user: str, uid: int) -> None:
    outcome = await box.run(site.program("id", "-u", user=user))
    assert outcome.streams[1].head.decode() == f"{uid}\n"


async def test_files_are_placed_before_it_starts(site: Site) -> None:
    box = await site.box("call")
    outcome = await box.run(site.program("cat", "a", "deep/er/b", user="1000", cwd="/box", files=(
        File("a", b"one,"), File("deep/er/b", b"two", 0o600))))
    assert outcome.streams[1].head == b"one,two", outcome
    entry = await box.stat("/box/deep/er/b", user="1000")
    assert (entry.uid, entry.mode & 0o7777, entry.size) == (1000, 0o600, 3)


async def test_a_file_from_a_descriptor_and_an_archive(site: Site) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("inside/x")
        member.size, member.mode = 4, 0o755
        tar.addfile(member, io.BytesIO(b"tar!"))
    fds = [os.memfd_create("file"), os.memfd_create("tar")]
    try:
        os.pwrite(fds[0], b"memory,", 0)
        os.pwrite(fds[1], archive.getvalue(), 0)
        box = await site.box("call")
        outcome = await box.run(site.program("cat", "m", "t/inside/x", user="1000", cwd="/box", files=(
            File("m", fd=fds[0]), File("t", fd=fds[1], tar=True))))
        assert outcome.streams[1].head == b"memory,tar!", outcome
        assert (await box.stat("/box/t/inside/x")).mode & 0o7777 == 0o755
    finally:
        for fd in fds:
            os.close(fd)


async def test_an_input_that_cannot_be_placed_is_a_value(site: Site) -> None:
    box = await site.box("call")
    outcome = await box.run(site.program("true", user="1000", cwd="/box", files=(File("a", b""), File("a/b", b""))))
    assert (outcome.ended, outcome.exit_code) == (Ended.EXEC, None)
    assert outcome.error is not None and "ENOTDIR" in outcome.error


async def test_the_same_id_is_the_same_process(site: Site, box: Box) -> None:
    command = site.command("append /tmp/log x", "out once")
    first = await box.start(command)
    outcome = await first.wait()
    again = await box.start(command)
    assert await again.wait() == outcome
    assert [process.id for process in await box.processes()] == [command.id]
    _, content = await box.read("/tmp/log")
    assert b"".join([piece async for piece in content]) == b"x"


async def test_an_outcome_is_kept_until_it_is_forgotten(site: Site, box: Box) -> None:
    process = await box.start(site.command("out kept"))
    outcome = await process.wait()
    assert await process.wait() == outcome
    assert [found.id for found in await box.processes()] == [process.id]
    await process.forget()
    assert await box.processes() == []
    await process.forget()


async def test_run_forgets(site: Site, box: Box) -> None:
    await box.run(site.program("true"))
    assert await box.processes() == []


async def test_a_started_command_has_its_pid(site: Site, box: Box) -> None:
    process = await box.start(site.command("sleep 30"))
    assert await process.started() is True
    assert process.pid is not None and process.pid > 1
    await process.end()
    assert (await process.wait()).ended is Ended.KILLED


async def test_cancelling_a_run_ends_the_command(site: Site, box: Box) -> None:
    read, write = os.pipe()
    try:
        command = site.command("out begun", "sleep 30", descriptors={0: Data(b""), 1: Passed(write), 2: Collect(10)})
        run = asyncio.ensure_future(box.run(command))
        await asyncio.to_thread(os.read, read, 5)
        os.close(write)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(os.read, read, 5) == b""  # nobody holds the other end any more
        assert await box.processes() == []
    finally:
        os.close(read)


async def test_nothing_to_run_is_refused(site: Site, box: Box) -> None:
    with pytest.raises(StartFailed):
        await box.start(site.program())


async def test_many_at_once(site: Site, box: Box) -> None:
    outcomes = await asyncio.gather(*(box.run(site.program("echo", str(n))) for n in range(30)))
    assert [outcome.streams[1].head for outcome in outcomes] == [f"{n}\n".encode() for n in range(30)]
