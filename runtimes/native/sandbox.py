"""One native sandbox: its commands, its record, its end. Files are in `files.py`, each command in `process.py`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence

from runtimes.backend import BackendError, Command, Outcome, Process, SandboxLost, Spec, StartFailed
from runtimes.native.client import Client
from runtimes.native.files import NativeFiles
from runtimes.native.messages import Exit, start_fields
from runtimes.native.process import NativeProcess
from runtimes.native.request import Refused, Reply, Unreachable
from runtimes.native.wire import RECORD_MAX, Op, T, blob, text, u32, u64
from runtimes.wake import Wake


class Owner:
    """What a sandbox needs of its backend: the connection, acknowledgements gathered, and its name given back."""

    client: Client
    followed: dict[str, NativeProcess]
    """Commands whose output somebody reads: they want OUTPUT events."""

    def acknowledge(self, process: str) -> None:
        raise NotImplementedError

    def drop(self, name: str) -> None:
        raise NotImplementedError


class NativeSandbox(NativeFiles):
    """One sandbox that the spawner holds. Once it is gone, every method but `stop` and `lost` raises SandboxLost."""

    def __init__(self, owner: Owner, name: str, spec: Spec) -> None:
        super().__init__(owner.client, name)
        self.spec = spec
        self.owner = owner
        self._processes: dict[str, NativeProcess] = {}
        self._forgotten: set[str] = set()
        self._reason: str | None = None
        self._ended = Wake()

    # -- commands -----------------------------------------------------------------------------------------------------

    async def start(self, command: Command) -> Process:
        return (await begin([(self, command)]))[0]

    async def run(self, command: Command) -> Outcome:
        process = self._begin(command)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.end_soon()
            raise
        finally:
            process.drop()

    async def processes(self) -> list[Process]:
        self.check()
        return list(self._processes.values())

    def _begin(self, command: Command) -> NativeProcess:
        """START without waiting for its answer: the outcome tells."""
        if known := self._processes.get(command.id):
            return known
        processes, answered = send([(self, command)])
        answered.add_done_callback(lambda future: _judge(future, processes))
        return processes[0]

    # -- life ---------------------------------------------------------------------------------------------------------

    async def stop(self, reason: str) -> None:
        with contextlib.suppress(Refused, Unreachable):  # without its spawner no sandbox lives
            await asyncio.shield(self.stopping(reason))

    def stopping(self, reason: str) -> asyncio.Future[Reply]:
        """Ask for its end; the future is done once nothing of it is left."""
        future = self.client.request(Op.DESTROY, text(T.NAME, self.name) + text(T.REASON, reason[:23]))
        self.gone("destroyed")
        return future

    async def lost(self) -> str:
        while self._reason is None:
            await self._ended.wait()
        return self._reason

    async def record(self, data: bytes, expires_at_ns: int | None) -> None:
        if len(data) > RECORD_MAX:
            raise BackendError(f"record of {len(data)} bytes: at most {RECORD_MAX}")
        await self.ask(Op.CLAIM, blob(T.RECORD, data) + u64(T.EXPIRES, expires_at_ns or 0))

    async def freeze(self, on: bool) -> None:
        """Stop everything in it from running, or let it go on."""
        await self.ask(Op.FREEZE, u32(T.MODE, on))

    async def ask(self, op: int, rest: bytes = b"") -> Reply:
        """One request about this sandbox. Raises SandboxLost, BackendError."""
        self.check()
        try:
            return await self.client.ask(op, text(T.NAME, self.name) + rest)
        except BackendError as error:
            raise self.translate(error) from error

    def translate(self, error: BackendError) -> BackendError:
        """What a failed request about this sandbox means. An unknown name is a sandbox that is gone."""
        if self._reason is None and isinstance(error, Refused) and error.code == errno.ENOENT:
            self.gone("lost")
        return SandboxLost(self.name, self._reason) if self._reason is not None else error

    def check(self) -> None:
        if self._reason is not None:
            raise SandboxLost(self.name, self._reason)

    # -- for the backend ----------------------------------------------------------------------------------------------

    def known(self, id: str) -> NativeProcess | None:
        """The command of that id; one that an earlier gateway started is met here first. None if it was forgotten."""
        process = self._processes.get(id)
        if process is None and id not in self._forgotten and self._reason is None:
            process = self._processes[id] = NativeProcess(self, id, None)
        return process

    def on_exit(self, event: Exit) -> None:
        if (process := self.known(event.proc)) is not None:
            process.on_exit(event)
        self._forgotten.discard(event.proc)

    def add(self, command: Command) -> NativeProcess:
        process = self._processes[command.id] = NativeProcess(self, command.id, command)
        return process

    def find(self, id: str) -> NativeProcess | None:
        return self._processes.get(id)

    def forget(self, process: NativeProcess) -> None:
        if self._processes.pop(process.id, None) is None or self._reason is not None:
            return
        if not process.over:
            self._forgotten.add(process.id)
        self.owner.acknowledge(process.id)

    def abandon(self, process: NativeProcess) -> None:
        """It was never started."""
        self._processes.pop(process.id, None)

    def on_reconnected(self) -> None:
        for process in list(self._processes.values()):
            process.on_reconnected()

    def gone(self, reason: str) -> None:
        """It ended, by whatever act."""
        if self._reason is not None:
            return
        self._reason = reason
        self.owner.drop(self.name)
        for process in list(self._processes.values()):
            process.fail(SandboxLost(self.name, reason))
        self._ended.fire()


def send(members: Sequence[tuple[NativeSandbox, Command]]) -> tuple[list[NativeProcess], asyncio.Future[Reply]]:
    """One START of commands that are not known yet. Raises SandboxLost, StartFailed."""
    for box, command in members:
        box.check()
        if not command.argv:
            raise StartFailed(f"{command.id}: no argv")
    message = start_fields([(box.name, command) for box, command in members])
    kept = all(command.orphan == "keep" for _, command in members)
    processes = [box.add(command) for box, command in members]
    client = members[0][0].client
    # What ends with the connection must not be begun a second time on the next one.
    return processes, client.request(Op.START, message.payload, message.fds, again="same" if kept else "never")


async def begin(members: Sequence[tuple[NativeSandbox, Command]]) -> list[Process]:
    """Commands started together, or found running. Raises SandboxLost, StartFailed."""
    found = [box.find(command.id) for box, command in members]
    if any(found):
        if not all(found):
            raise StartFailed("some of these commands exist")
        return [process for process in found if process is not None]
    processes, answered = send(members)
    try:
        await asyncio.shield(answered)
    except asyncio.CancelledError:
        answered.add_done_callback(lambda future: _judge(future, processes))
        raise
    except BackendError as error:
        _judge(answered, processes)
        raise (processes[0].failure or error) from error
    return list(processes)


def _judge(answered: asyncio.Future[Reply], processes: Sequence[NativeProcess]) -> None:
    """If a START was refused, its commands never were."""
    error = None if answered.cancelled() else answered.exception()
    if isinstance(error, BackendError):
        for process in processes:
            process.never(error)
