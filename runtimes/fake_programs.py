"""The programs that a fake sandbox can run: a few of coreutils' names, and `steps`, a script of small effects.

A program is `async def program(io: Io) -> int`: it reads and writes through `io`, sleeps on the loop's clock, and
returns its exit code. Tests add their own through `FakeHost(programs=…)`. Nothing here starts a real process.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from runtimes.backend import FileFailure

if TYPE_CHECKING:
    from runtimes.fake_files import Tree
    from runtimes.fake_io import ReadEnd, WriteEnd


class Io:
    """What a fake program sees of its sandbox. Programs hold nothing else."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, uid: int, tree: Tree) -> None:
        self.argv = list(argv)
        self.env = dict(env)
        self.cwd = cwd
        self.uid = uid
        self.tree = tree
        self.readers: dict[int, ReadEnd] = {}
        self.writers: dict[int, WriteEnd] = {}
        self.ignored: set[int] = set()
        """Signals that do not end the program (SIGKILL always does)."""
        self.size = (24, 80)
        """Rows and columns of its terminal."""
        self.burn: Callable[[float], Awaitable[None]]
        """Use CPU for that many seconds."""
        self.allocate: Callable[[int], Awaitable[None]]
        """Touch that many bytes more of memory."""
        self.fork: Callable[[Callable[[], Awaitable[None]]], None]
        """Leave a child behind that runs this, holding the same descriptors."""
        self.kill: Callable[[int], Awaitable[None]]
        """Signal oneself."""

    async def read(self, fd: int = 0, limit: int = 65536) -> bytes:
        end = self.readers.get(fd)
        return await end.read(limit) if end is not None else b""

    async def read_line(self, fd: int = 0) -> bytes:
        """One line with its newline, or what is left before the end. Reads byte by byte, as a shell's `read` does."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = await self.read(fd, 1)
            if not byte:
                break
            line += byte
        return bytes(line)

    async def write(self, data: bytes | str, fd: int = 1) -> None:
        end = self.writers.get(fd)
        if end is not None:
            await end.write(data.encode() if isinstance(data, str) else data)

    def path(self, path: str) -> str:
        return posixpath.join(self.cwd, path)


Program = Callable[[Io], Awaitable[int]]


async def echo(io: Io) -> int:
    await io.write(" ".join(io.argv[1:]) + "\n")
    return 0


async def cat(io: Io) -> int:
    for path in io.argv[1:]:
        try:
            await io.write(io.tree.content(io.path(path), io.uid))
        except FileFailure as failure:
            await io.write(f"cat: {path}: {failure.code}\n", 2)
            return 1
    while not io.argv[1:] and (data := await io.read()):
        await io.write(data)
    return 0


async def true(io: Io) -> int:
    return 0


async def false(io: Io) -> int:
    return 1


async def sleep(io: Io) -> int:
    await asyncio.sleep(float(io.argv[1]))
    return 0


async def env(io: Io) -> int:
    for name, value in io.env.items():
        await io.write(f"{name}={value}\n")
    return 0


async def pwd(io: Io) -> int:
    await io.write(io.cwd + "\n")
    return 0


async def identity(io: Io) -> int:
    await io.write(f"{io.uid}\n")
    return 0


async def tee(io: Io) -> int:
    """Copies stdin to stdout and into the files named."""
    kept = bytearray()
    while data := await io.read():
        kept += data
        await io.write(data)
    for path in io.argv[1:]:
        io.tree.put(io.path(path), bytes(kept), uid=io.uid)
    return 0


async def yes(io: Io) -> int:
    while True:
        await io.write(b"y\n" * 1024)
        await asyncio.sleep(0)


async def steps(io: Io) -> int:
    """Each argument is one step, `verb rest`; see the branches. The exit code is `exit`'s, else 0."""
    for step in io.argv[1:]:
        verb, _, rest = step.partition(" ")
        match verb:
            case "out":
                await io.write(rest)
            case "err":
                await io.write(rest, 2)
            case "fill":  # fd, count: that many bytes `x`
                fd, count = rest.split()
                left = int(count)
                while left:
                    await io.write(b"x" * min(left, 65536), int(fd))
                    left -= min(left, 65536)
            case "line":  # a line from fd 0, printed as `[line]`
                await io.write(b"[" + (await io.read_line()).rstrip(b"\n") + b"]")
            case "copy":
                while data := await io.read():
                    await io.write(data)
            case "sleep":
                await asyncio.sleep(float(rest))
            case "burn":
                await io.burn(float(rest))
            case "memory":
                await io.allocate(int(rest))
            case "leave":  # a child that sleeps and then prints `late`
                async def late(seconds: float = float(rest)) -> None:
                    await asyncio.sleep(seconds)
                    await io.write("late")
                io.fork(late)
            case "ignore":
                io.ignored.add(int(rest))
            case "kill":
                await io.kill(int(rest))
            case "save":
                path, _, text = rest.partition(" ")
                io.tree.put(io.path(path), text.encode(), uid=io.uid)
            case "append":
                path, _, text = rest.partition(" ")
                io.tree.put(io.path(path), text.encode(), uid=io.uid, append=True)
            case "size":
                await io.write("{} {}\n".format(*io.size))
            case "exit":
                return int(rest)
            case _:
                await io.write(f"steps: {verb}?\n", 2)
                return 2
    return 0


BUILT_IN: Mapping[str, Program] = {
    "echo": echo, "cat": cat, "true": true, "false": false, "sleep": sleep, "env": env, "pwd": pwd, "id": identity,
    "tee": tee, "yes": yes, "steps": steps,
}
