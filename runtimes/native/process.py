"""One command in a native sandbox, as the gateway sees it: its outcome, its streams, its stdin.

Follows the spawner's events; what the guest did is in the outcome, what we failed to do is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, NoReturn

import msgspec

from runtimes.backend import (
    BackendError,
    Chunk,
    Command,
    Ended,
    NoSuchProcess,
    Outcome,
    SandboxLost,
    StartFailed,
    Stream,
    StreamEnd,
)
from runtimes.native.follow import Follower, NotCollected, read_all
from runtimes.native.messages import Exit
from runtimes.native.pipes import WriteEnd
from runtimes.native.request import Refused, Reply, Unreachable
from runtimes.native.wire import Op, T, text, u32
from runtimes.wake import Wake

if TYPE_CHECKING:
    from runtimes.native.sandbox import NativeSandbox

_EOT = b"\x04"  # what a terminal takes for the end of input
_INPUT_IDLE_S = 2.0


class NativeProcess:
    """`command` is None for one that an earlier gateway started."""

    def __init__(self, box: NativeSandbox, id: str, command: Command | None) -> None:
        self.id = id
        self.pid: int | None = None
        self.command = command
        self._box = box
        self._client = box.client
        self._exit: Exit | None = None
        self._failure: BackendError | None = None
        self._executed = False
        self._changed = Wake()
        self._complete: asyncio.Task[Outcome] | None = None
        self._followers: dict[int, Follower] = {}
        self._input: WriteEnd | None = None
        self._input_ended = False
        self._input_turn = asyncio.Lock()
        self._input_idle: asyncio.TimerHandle | None = None

    # -- what the spawner tells ---------------------------------------------------------------------------------------

    def on_started(self, pid: int) -> None:
        self.pid = pid or None
        self._executed = True
        self._changed.fire()

    def on_exit(self, event: Exit) -> None:
        if self._exit is None:
            self._exit = event
            self._changed.fire()

    def on_output(self, stream: int, closed: bool) -> None:
        if (follower := self._followers.get(stream)) is not None:
            follower.told(closed)

    def on_reconnected(self) -> None:
        """To the same spawner. What it would not keep without us is over, by no act of the program's."""
        if self._exit is None and self.command is not None and self.command.orphan == "kill":
            outcome = Outcome(Ended.FAULT, error="the connection to the spawner broke")
            self.on_exit(Exit(self._box.name, self.id, outcome, ()))
        for follower in self._followers.values():
            follower.watch()

    def fail(self, error: BackendError) -> None:
        """It was never started, or its sandbox is gone: nothing more can be learned."""
        if self._failure is None:
            self._failure = error
            self._let_go()
            self._changed.fire()

    def never(self, error: BackendError) -> None:
        """START was refused, or nobody can say whether it arrived. Its sandbox's end explains more than that."""
        self._box.abandon(self)
        failure = self._box.translate(error)
        self.fail(failure if isinstance(failure, SandboxLost) else StartFailed(f"{self.id}: {failure}"))

    @property
    def failure(self) -> BackendError | None:
        return self._failure

    @property
    def over(self) -> bool:
        return self._exit is not None or self._failure is not None

    # -- Process ------------------------------------------------------------------------------------------------------

    async def wait(self) -> Outcome:
        while self._exit is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        if not self._exit.unread:
            return self._exit.outcome
        if self._failure is not None and self._complete is None:
            raise self._failure
        if self._complete is None:
            self._complete = asyncio.get_running_loop().create_task(self._fetch(self._exit))
        return await asyncio.shield(self._complete)

    async def started(self) -> bool:
        while not self._executed and self._exit is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        return self._executed or (self._exit is not None and self._exit.outcome.ended not in (Ended.EXEC, Ended.FAULT))

    async def read(self, stream: Stream, offset: int, limit: int) -> Chunk:
        self._check()
        follower = self._followers.get(stream)
        if follower is None:
            follower = self._followers[stream] = Follower(self._client, self.id, stream)
            self._box.owner.followed[self.id] = self
        try:
            return await follower.read(offset, limit)
        except BackendError as error:
            self._raise(error)

    async def write(self, data: bytes | None) -> None:
        async with self._input_turn:
            self._check()
            if self._input_idle is not None:
                self._input_idle.cancel()
            if self._input_ended:
                raise BrokenPipeError(f"{self.id}: stdin was closed")
            end = await self._open_input()
            try:
                if data is not None:
                    await end.write(data)
                elif os.isatty(end.fd):
                    await end.write(_EOT)
                else:
                    self._input_ended = True
                    self._drop_input()
                    await self._tell(Op.CLOSE)
            except OSError as error:
                self._check()
                if error.errno in (errno.EPIPE, errno.EIO):
                    raise BrokenPipeError(f"{self.id}: nobody reads its stdin") from error
                raise
            finally:
                if self._input is not None:
                    loop = asyncio.get_running_loop()
                    self._input_idle = loop.call_later(_INPUT_IDLE_S, self._close_input)

    async def signal(self, number: int) -> None:
        """To the main process; nothing happens if it has ended."""
        self._check()
        if self._exit is None:
            await self._tell(Op.SIGNAL, u32(T.SIGNAL, number))

    async def end(self) -> None:
        self._check()
        await self._tell(Op.END)

    async def resize(self, rows: int, columns: int) -> None:
        if await self.started():
            await self._tell(Op.RESIZE, u32(T.ROWS, rows) + u32(T.COLUMNS, columns), errno.ENOTTY, errno.EIO)

    async def forget(self) -> None:
        self.drop()

    # -- for its sandbox ----------------------------------------------------------------------------------------------

    def end_soon(self) -> None:
        """As `end`, without waiting for the spawner's word."""
        if not self.over:
            self._client.request(Op.END, text(T.PROC, self.id))

    def drop(self) -> None:
        """As `forget`."""
        self._let_go()
        self._box.forget(self)

    # -- inner --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _raise(self, error: BackendError) -> NoReturn:
        self._box.check()
        self._check()
        if isinstance(error, Unreachable):
            raise SandboxLost(self._box.name, "lost") from error
        raise error

    async def _tell(self, op: int, rest: bytes = b"", *harmless: int) -> Reply | None:
        """One request about this command. One that is over needs no telling."""
        try:
            return await self._client.ask(op, text(T.PROC, self.id) + rest)
        except Refused as refused:
            if refused.code == errno.ESRCH or refused.code in harmless:
                return None
            self._raise(refused)
        except BackendError as error:
            self._raise(error)

    async def _open_input(self) -> WriteEnd:
        if self._input is None:
            if self.command is None or any(kind == "Terminal" for kind in self._kinds()):
                await self.started()  # a terminal is there once its program is
            try:
                reply = await self._client.ask(Op.OPEN, text(T.PROC, self.id) + u32(T.TARGET, 0))
            except Refused as refused:
                if refused.code == errno.EBADF:
                    raise BrokenPipeError(f"{self.id} has no open stdin") from refused
                if refused.code == errno.ESRCH:
                    self._box.check()
                    raise NoSuchProcess(self.id) from refused
                self._raise(refused)
            except BackendError as error:
                self._raise(error)
            self._input = WriteEnd(reply.fds[0])
        return self._input

    def _kinds(self) -> set[str]:
        return {type(what).__name__ for what in self.command.descriptors.values()} if self.command else set()

    async def _fetch(self, event: Exit) -> Outcome:
        """The outcome with the streams that were too large to come along. Raises SandboxLost."""
        streams: dict[int, StreamEnd] = dict(event.outcome.streams)
        try:
            for stream in event.unread:
                with contextlib.suppress(NotCollected):
                    streams[stream] = await read_all(self._client, self.id, stream)
        except BackendError as error:
            self._box.check()
            raise SandboxLost(self._box.name, "lost") from error
        return msgspec.structs.replace(event.outcome, streams=streams)

    def _close_input(self) -> None:
        if not self._input_turn.locked():
            self._drop_input()

    def _drop_input(self) -> None:
        if self._input is not None:
            self._input.close()
            self._input = None

    def _let_go(self) -> None:
        if self._input_idle is not None:
            self._input_idle.cancel()
        self._close_input()
        for follower in self._followers.values():
            follower.close()
        self._box.owner.followed.pop(self.id, None)
