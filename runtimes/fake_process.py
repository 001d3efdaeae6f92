"""One command of a fake sandbox: a program in a task, its descriptors, its limits, and what became of it.

Time is the loop's, CPU and memory are what the program says that it used. Owns nothing of other commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from runtimes.backend import (
    Chunk,
    Collect,
    Command,
    Data,
    Ended,
    FileFailure,
    Input,
    Null,
    Outcome,
    Passed,
    Same,
    Stream,
    Terminal,
)
from runtimes.backend import Pipe as PipeEnd
from runtimes.fake_files import uid_of
from runtimes.fake_io import Bytes, OurDescriptor, Pipe, PipeReader, PipeWriter, Ring
from runtimes.fake_programs import Io, Program
from runtimes.wake import Wake

if TYPE_CHECKING:
    from runtimes.fake import FakeSandbox

_HARMLESS = {17, 18, 28}  # SIGCHLD, SIGCONT, SIGWINCH: ignored by default
_SIGKILL, _SIGPIPE = 9, 13


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode(errors="surrogateescape")


class FakeProcess:
    """One run of a program, in a task of its own."""

    def __init__(self, box: FakeSandbox, command: Command, pid: int) -> None:
        self.id = command.id
        self.pid: int | None = pid
        self.command = command
        self.rings: dict[int, Ring] = {}
        self.outcome: Outcome | None = None
        self._box = box
        self._changed = Wake()
        self._stdin: Pipe | None = None
        self._io: Io | None = None
        self._program: Program | None = None
        self._main: asyncio.Task[None] | None = None
        self._children: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ends: list[Bytes | OurDescriptor | PipeReader | PipeWriter] = []
        self._holders = 0
        self._cpu_ns = 0
        self._memory = 0
        self._began = asyncio.get_running_loop().time()

    # -- Process ------------------------------------------------------------------------------------------------------

    async def wait(self) -> Outcome:
        self._box.check()
        while self.outcome is None:
            await self._changed.wait()
            self._box.check()
        return self.outcome

    async def started(self) -> bool:
        self._box.check()
        return self.outcome is None or self.outcome.ended not in (Ended.EXEC, Ended.FAULT)

    async def read(self, stream: Stream, offset: int, limit: int) -> Chunk:
        self._box.check()
        ring = self.rings.get(stream)
        if ring is None:
            return Chunk(offset=offset, data=b"", end=True)
        chunk = await ring.read(offset, limit)
        if not chunk.data:
            self._box.check()
        return chunk

    async def write(self, data: bytes | None) -> None:
        self._box.check()
        if self._stdin is None:
            raise BrokenPipeError(f"{self.id} has no open stdin")
        if data is None:
            self._stdin.add(writers=-1)
            self._stdin = None
        else:
            await self._stdin.write(data)

    async def signal(self, number: int) -> None:
        self._box.check()
        if self.outcome is None and self._io is not None and number not in _HARMLESS and (
            number == _SIGKILL or number not in self._io.ignored
        ):
            self._finish(Ended.EXIT, signal=number)

    async def end(self) -> None:
        self._box.check()
        self.kill(Ended.KILLED)

    async def resize(self, rows: int, columns: int) -> None:
        self._box.check()
        if self._io is not None:
            self._io.size = (rows, columns)

    async def forget(self) -> None:
        self._box.forget(self.id)

    # -- the run ------------------------------------------------------------------------------------------------------

    def connect(self, pipes: Mapping[int, Pipe]) -> None:
        """Give it its descriptors and files. What cannot be executed ends here, as a value."""
        command = self.command
        name = posixpath.basename(_text(command.argv[0]))
        self._program = self._box.host.programs.get(name)
        uid = 0
        try:
            uid = uid_of(command.user)
            for file in command.files:
                self._box.place(command, file, uid)
        except FileFailure as failure:
            self.outcome = Outcome(Ended.EXEC, error=f"put {failure.path}: {failure.code}")
        if self._program is None and self.outcome is None:
            self.outcome = Outcome(Ended.EXEC, error=f"execve {name}: ENOENT")
        env = {**command.env, "HOME": command.env.get("HOME", "/root" if uid == 0 else "/box")}
        io = Io([_text(word) for word in command.argv], env, command.cwd, uid, self._box.tree)
        io.burn, io.allocate, io.kill, io.fork = self._burn, self._allocate, self.signal, self._fork
        self._io = io
        self._connect(io, pipes)

    def begin(self) -> None:
        if self.outcome is not None or self._program is None or self._io is None:
            self._close_all()
            return
        limits = self.command.limits
        self._arm("wall", limits.wall_ns, Ended.WALL)
        self._arm("silence", limits.silence_ns, Ended.SILENCE)
        self._holders = 1
        self._main = asyncio.get_running_loop().create_task(self._run(self._program, self._io), name=f"fake {self.id}")

    def kill(self, why: Ended) -> None:
        """End it and everything that it started, whatever it is doing."""
        if self.outcome is None:
            self._finish(why, signal=_SIGKILL)
        self._end_children()

    def abandon(self) -> None:
        """The sandbox is gone, and with it the outcome."""
        self.kill(Ended.KILLED)
        self.outcome = None
        self._changed.fire()

    def disconnected(self) -> None:
        if self.command.orphan == "kill":
            self.kill(Ended.KILLED)

    async def _run(self, program: Program, io: Io) -> None:
        try:
            code = await program(io)
        except BrokenPipeError:
            self._finish(Ended.EXIT, signal=_SIGPIPE)
        else:
            self._finish(Ended.EXIT, exit_code=code)

    def _finish(self, ended: Ended, *, exit_code: int | None = None, signal: int | None = None) -> None:
        if self.outcome is not None:
            return
        for timer in self._timers.values():
            timer.cancel()
        command = self.command
        if command.exclusive or command.background == "end" or ended is not Ended.EXIT:
            self._end_children()
        wall = asyncio.get_running_loop().time() - self._began
        self.outcome = Outcome(
            ended, exit_code, signal, cpu_ns=self._cpu_ns, wall_ns=int(wall * 1e9), memory_bytes=self._memory,
            processes_peak=1 + len(self._children), streams={fd: ring.end() for fd, ring in self.rings.items()})
        if self._main is not None and self._main is not asyncio.current_task():
            self._main.cancel()
        self._release()
        self._changed.fire()

    def _end_children(self) -> None:
        for child in list(self._children):
            child.cancel()

    def _fork(self, child: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            with contextlib.suppress(BrokenPipeError):
                await child()

        self._holders += 1
        task = asyncio.get_running_loop().create_task(run(), name=f"fake child of {self.id}")
        self._children.add(task)
        task.add_done_callback(self._child_ended)

    def _child_ended(self, task: asyncio.Task[None]) -> None:
        self._children.discard(task)
        self._release()

    def _release(self) -> None:
        self._holders -= 1
        if self._holders <= 0:
            self._close_all()

    def _close_all(self) -> None:
        for end in self._ends:
            end.drop()
        self._ends.clear()
        for ring in self.rings.values():
            ring.close()

    async def _burn(self, seconds: float) -> None:
        limit = self.command.limits.cpu_ns
        wanted = int(seconds * 1e9)
        spent = wanted if limit is None else min(wanted, max(0, limit - self._cpu_ns))
        await asyncio.sleep(spent / 1e9)
        self._cpu_ns += spent
        if spent < wanted:
            await self._die(Ended.CPU)

    async def _allocate(self, size: int) -> None:
        limit = self.command.limits.memory_bytes or self._box.spec.memory_bytes or None
        self._memory = min(self._memory + size, limit or self._memory + size)
        if limit is not None and size > limit:
            await self._die(Ended.MEMORY)

    async def _die(self, why: Ended) -> None:
        self.kill(why)
        await asyncio.get_running_loop().create_future()  # a killed program does not go on

    def _arm(self, name: str, after_ns: int | None, why: Ended) -> None:
        if after_ns is not None:
            if name in self._timers:
                self._timers[name].cancel()
            self._timers[name] = asyncio.get_running_loop().call_later(after_ns / 1e9, self.kill, why)

    # -- descriptors --------------------------------------------------------------------------------------------------

    def _connect(self, io: Io, pipes: Mapping[int, Pipe]) -> None:
        terminal: tuple[Pipe, _Collected] | None = None
        for fd, what in self.command.descriptors.items():
            match what:
                case Null():
                    self._attach(io, fd, Bytes(), Bytes())
                case Data(data=data):
                    self._attach(io, fd, Bytes(data), None)
                case Passed(fd=ours):
                    end = OurDescriptor(ours)
                    self._attach(io, fd, end, end)
                case Collect(limit=limit, on_full=on_full):
                    self.rings[fd] = Ring(limit, kill=on_full == "kill")
                    io.writers[fd] = _Collected(self, fd)
                case Input():
                    self._stdin = Pipe()
                    self._stdin.add(writers=1)
                    self._attach(io, fd, PipeReader(self._stdin), None)
                case Terminal(rows=rows, columns=columns, limit=limit):
                    if terminal is None:
                        self._stdin = Pipe()
                        self._stdin.add(writers=1)
                        self.rings[1] = Ring(limit, kill=False)
                        terminal = (self._stdin, _Collected(self, 1))
                        io.size = (rows, columns)
                    self._attach(io, fd, PipeReader(terminal[0]), None)
                    io.writers[fd] = terminal[1]
                case PipeEnd(number=number, end="read"):
                    self._attach(io, fd, PipeReader(pipes[number]), None)
                case PipeEnd(number=number):
                    self._attach(io, fd, None, PipeWriter(pipes[number]))
        for fd, what in self.command.descriptors.items():
            if isinstance(what, Same):
                if what.fd in io.readers:
                    io.readers[fd] = io.readers[what.fd]
                if what.fd in io.writers:
                    io.writers[fd] = io.writers[what.fd]

    def _attach(self, io: Io, fd: int, reader: Bytes | OurDescriptor | PipeReader | None,
                writer: Bytes | OurDescriptor | PipeWriter | None) -> None:
        if reader is not None:
            io.readers[fd] = reader
            reader.hold()
            self._ends.append(reader)
        if writer is not None:
            io.writers[fd] = writer
            writer.hold()
            self._ends.append(writer)

    async def collect(self, fd: int, data: bytes) -> None:
        self._arm("silence", self.command.limits.silence_ns, Ended.SILENCE)
        if not self.rings[fd].append(data):
            await self._die(Ended.OUTPUT)
        await asyncio.sleep(0)


class _Collected:
    """The write end of a collected stream."""

    def __init__(self, process: FakeProcess, fd: int) -> None:
        self._process = process
        self._fd = fd

    async def write(self, data: bytes) -> None:
        await self._process.collect(self._fd, data)

    def hold(self) -> None:
        pass

    def drop(self) -> None:
        pass
