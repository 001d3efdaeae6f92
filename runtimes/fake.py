"""The `fake` backend: sandboxes in memory, without any isolation, that pass the same contract suite as real ones.

`FakeHost` is what outlives a client (the spawner's part), `FakeBackend` is one client of it: closing a backend and
opening another over the same host is a gateway's restart. Programs are those of `fake_programs`, and what a test adds.
Nothing here starts a process, and no argument of a command is ever executed.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import ClassVar

from runtimes.backend import (
    Adopted,
    BackendError,
    Command,
    Failure,
    File,
    Kind,
    Need,
    Outcome,
    Process,
    Sandbox,
    SandboxLost,
    Spec,
    StartFailed,
)
from runtimes.backend import Pipe as PipeEnd
from runtimes.fake_files import FakeFiles, Tree
from runtimes.fake_io import Pipe
from runtimes.fake_process import FakeProcess
from runtimes.fake_programs import BUILT_IN, Program
from runtimes.wake import Wake


class FakeHost:
    """Everything that outlives a client. `refuse(name)` may return the reason why a sandbox cannot be made."""

    def __init__(self, programs: Mapping[str, Program] | None = None, *, capacity: int = 100_000,
                 refuse: Callable[[str], str | None] = lambda name: None, create_s: float = 0.0,
                 bases: Sequence[str] = ("host",)) -> None:
        self.programs = {**BUILT_IN, **(programs or {})}
        self.capacity = capacity
        self.refuse = refuse
        self.create_s = create_s
        self.bases = bases
        self.boxes: dict[str, FakeSandbox] = {}

    def lose(self, name: str, reason: str = "failed") -> None:
        """End a sandbox behind its holder's back."""
        box = self.boxes.pop(name, None)
        if box is not None:
            box.gone(reason)

    def make(self, name: str, spec: Spec) -> FakeSandbox | Failure:
        """The sandbox of that name; a repeated name is the same sandbox."""
        if name in self.boxes:
            return self.boxes[name]
        reason = self.refuse(name)
        if reason is None and spec.base not in self.bases:
            reason = f"no such base layer: {spec.base}"
        if reason is None and len(self.boxes) >= self.capacity:
            reason = "ENOSPC: no uid range is free"
        if reason is not None:
            return Failure(name=name, reason=reason)
        box = self.boxes[name] = FakeSandbox(self, name, spec)
        return box


class FakeSandbox(FakeFiles):
    """One sandbox: a tree of files and the commands that ran in it."""

    def __init__(self, host: FakeHost, name: str, spec: Spec) -> None:
        self.name = name
        self.spec = spec
        self.host = host
        self.tree = Tree(spec.disk_bytes)
        self.used = False
        self.kept = b""
        self._processes: dict[str, FakeProcess] = {}
        self._reason: str | None = None
        self._lost = Wake()
        self._expiry: asyncio.TimerHandle | None = None
        self._next_pid = 2

    async def start(self, command: Command) -> Process:
        return (await self.start_all([(self, command)]))[0]

    async def run(self, command: Command) -> Outcome:
        process = await self.start(command)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            await process.end()
            raise
        finally:
            await process.forget()

    async def processes(self) -> list[Process]:
        self.check()
        return list(self._processes.values())

    async def stop(self, reason: str) -> None:
        self.host.lose(self.name, "destroyed")

    async def lost(self) -> str:
        while self._reason is None:
            await self._lost.wait()
        return self._reason

    async def record(self, data: bytes, expires_at_ns: int | None) -> None:
        self.check()
        if len(data) > 4096:
            raise BackendError(f"record of {len(data)} bytes: at most 4096")
        self.kept, self.used = data, True
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if expires_at_ns is not None:
            after_ns = expires_at_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(max(0, after_ns) / 1e9, self.host.lose, self.name, "ttl")

    def check(self) -> None:
        """Raises SandboxLost if it is gone."""
        if self._reason is not None:
            raise SandboxLost(self.name, self._reason)

    @staticmethod
    async def start_all(members: Sequence[tuple[FakeSandbox, Command]]) -> list[Process]:
        """Begin commands together, with the pipes they share."""
        pipes: dict[int, Pipe] = {}
        for box, command in members:
            box.check()
            if not command.argv:
                raise StartFailed(f"{command.id}: no argv")
            for what in command.descriptors.values():
                if isinstance(what, PipeEnd):
                    pipes.setdefault(what.number, Pipe())
        known = [command.id in box._processes for box, command in members]
        if any(known) and not all(known):
            raise StartFailed("some of these commands exist")
        begun: list[Process] = []
        fresh: list[FakeProcess] = []
        for box, command in members:
            process = box._processes.get(command.id)
            if process is None:
                process = FakeProcess(box, command, box._next_pid)
                box._next_pid += 1
                box._processes[command.id] = process
                box.used = True
                fresh.append(process)
            begun.append(process)
        for process in fresh:
            process.connect(pipes)
        for process in fresh:
            process.begin()
        return begun

    def place(self, command: Command, file: File, uid: int) -> None:
        """Put one of a command's files under its working directory. Raises FileFailure."""
        data = file.data if file.fd is None else os.pread(file.fd, os.fstat(file.fd).st_size, 0)
        at = posixpath.join(command.cwd, file.path)
        if file.tar:
            self.tree.unpack(at, data, uid)
        else:
            self.tree.put(at, data, uid=uid, mode=file.mode, mkdirs=True)

    def forget(self, id: str) -> None:
        self._processes.pop(id, None)

    def disconnected(self) -> None:
        """The client went away: what must not outlive it ends."""
        for process in self._processes.values():
            process.disconnected()

    def gone(self, reason: str) -> None:
        self._reason = reason
        if self._expiry is not None:
            self._expiry.cancel()
        for process in self._processes.values():
            process.abandon()
        self._lost.fire()

    def _files(self) -> Tree:
        self.check()
        return self.tree


class FakeBackend:
    """One client of a `FakeHost`."""

    kind: ClassVar[Kind] = "fake"

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host if host is not None else FakeHost()

    def needs(self) -> list[Need]:
        return []

    async def start_many(self, names: Sequence[str], spec: Spec) -> AsyncIterator[Sandbox | Failure]:
        for name in names:
            await asyncio.sleep(self.host.create_s)
            yield self.host.make(name, spec)

    async def start_group(self, members: Sequence[tuple[Sandbox, Command]]) -> list[Process]:
        """Begin commands in one or more sandboxes together, sharing the pipes that their descriptors name."""
        ours = [(box, command) for box, command in members if isinstance(box, FakeSandbox)]
        if len(ours) != len(members):
            raise StartFailed("a sandbox of another backend")
        return await FakeSandbox.start_all(ours)

    async def stop_many(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            self.host.lose(name, "destroyed")

    async def adopt(self) -> list[Adopted]:
        return [Adopted(sandbox=box, record=box.kept, used=box.used) for box in self.host.boxes.values()]

    async def aclose(self) -> None:
        for box in self.host.boxes.values():
            box.disconnected()
