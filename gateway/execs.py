"""Commands in leases, from a request to the run object. Owns who waits for a command, and what happens when nobody does.

Without an idempotency key a command ends with its client. With one it goes on: its id is derived from the key, so that a
repeat meets the same command, even after a restart of this process; its result is written down before it is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.admission import Quota
from gateway.commands import Home, RunObject, command_of, digest_of, keyed_id, random_id, run_object
from gateway.errors import Failed
from gateway.feed import event, output_events, recorded_events
from gateway.idempotency import Answer, Idempotency
from gateway.requests import ExecAsk
from gateway.settings import Maximum
from gateway.telemetry import Metrics
from runtimes.backend import Command, NoSuchProcess, Process, Sandbox, SandboxLost, Stream
from warmpool.errors import LeaseEnded
from warmpool.holder import Leases


@asynccontextmanager
async def held(leases: Leases, tenant: str, id: str) -> AsyncIterator[Sandbox]:
    """The lease's sandbox, in use while inside. Raises NotFound, LeaseEnded (also when it ends meanwhile), WrongState, and
    LeaseEnded in place of SandboxLost."""
    try:
        async with leases.hold(tenant, id) as sandbox:
            yield sandbox
    except SandboxLost as lost:
        raise LeaseEnded(id, "lost", str(lost)) from lost


class Execs:
    """Runs commands in leases and waits for them."""

    def __init__(self, leases: Leases, once: Idempotency, quota: Quota, maximum: Maximum, metrics: Metrics) -> None:
        self.leases = leases
        self._once = once
        self._quota = quota
        self._maximum = maximum
        self._metrics = metrics
        self._cleaning: set[asyncio.Task[None]] = set()

    def command(self, tenant: str, lease: Home, ask: ExecAsk, key: str | None, *, prefix: str = "x", interactive: bool = False) -> Command:
        """The command of a request. Raises BadRequest."""
        id = random_id(prefix) if key is None else keyed_id(prefix, tenant, lease.id, key)
        orphan = "kill" if key is None and not interactive else "keep"
        return command_of(ask, lease, self._maximum, id=id, orphan=orphan, interactive=interactive)  # type: ignore[arg-type]

    async def run(self, tenant: str, lease_id: str, ask: ExecAsk, key: str | None, body: bytes) -> RunObject:
        """The run object once the command has ended."""
        command = self.command(tenant, self.leases.get(tenant, lease_id), ask, key)
        if key is None:
            async with held(self.leases, tenant, lease_id) as sandbox, self.counted(tenant):
                return await self._wait(sandbox, command, ask.tag)
        return await self._run_once(tenant, lease_id, ask, key, body, command)

    async def _run_once(self, tenant: str, lease_id: str, ask: ExecAsk, key: str, body: bytes, command: Command) -> RunObject:
        async def work() -> Answer:
            async with held(self.leases, tenant, lease_id) as sandbox, self.counted(tenant):
                process = await sandbox.start(command)
                outcome = await process.wait()
                try:
                    run = run_object(outcome, id=command.id, pid=process.pid, tag=ask.tag)
                except Failed:
                    await process.forget()
                    raise
                self._metrics.exec_ended(run.status)
            return Answer(200, "", msgspec.msgpack.encode(run))

        where = (tenant, f"exec {lease_id}", key)
        answer, replayed = await self._once.once(where, digest_of(body), work, keep_working=True, claim=True)
        self._clean(self._forget(tenant, lease_id, command.id))
        return msgspec.structs.replace(msgspec.msgpack.decode(answer.body, type=RunObject), replayed=replayed)

    async def events(
        self, tenant: str, lease_id: str, ask: ExecAsk, key: str | None, body: bytes, offsets: dict[Stream, int]
    ) -> AsyncIterator[bytes]:
        """`start`, the output as it comes, `exit`. Closing the generator ends a command without a key."""
        command = self.command(tenant, self.leases.get(tenant, lease_id), ask, key)
        if key is not None:
            result = asyncio.create_task(self._run_once(tenant, lease_id, ask, key, body, command))
            try:
                async for piece in self._keyed_events(tenant, lease_id, command, result, offsets):
                    yield piece
            finally:
                result.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await result
            return
        async with held(self.leases, tenant, lease_id) as sandbox, self.counted(tenant):
            process = await self.start(sandbox, command)
            try:
                await process.started()
                yield event("start", {"id": command.id, "pid": process.pid, "tag": ask.tag}, f"{offsets[1]}.{offsets[2]}")
                async for piece in output_events(process, offsets):
                    yield piece
                outcome = await process.wait()
            except BaseException:
                self._clean(_end(process))
                raise
            self._clean(_quiet(process.forget))
            run = run_object(outcome, id=command.id, pid=process.pid, tag=ask.tag)
            self._metrics.exec_ended(run.status)
            yield event("exit", _without_output(run))

    async def _keyed_events(
        self, tenant: str, lease_id: str, command: Command, result: asyncio.Task[RunObject], offsets: dict[Stream, int]
    ) -> AsyncIterator[bytes]:
        """Of a command that another task waits for: live while it runs, else from its recorded result."""
        await asyncio.sleep(0)
        process = await self._find(tenant, lease_id, command.id, result)
        if process is None:
            await result  # what it raises is the whole answer, no event of a stream
        at = dict(offsets)
        yield event("start", {"id": command.id, "pid": process.pid if process else None}, f"{at[1]}.{at[2]}")
        live = False
        if process is not None:
            try:
                async with held(self.leases, tenant, lease_id):
                    async for piece in output_events(process, offsets):
                        live = True
                        yield piece
                    live = True
            except NoSuchProcess:
                if live:
                    raise
        run = await result
        if not live:
            for piece in recorded_events(run, offsets):
                yield piece
        yield event("exit", _without_output(run))

    async def _find(self, tenant: str, lease_id: str, id: str, result: asyncio.Task[RunObject]) -> Process | None:
        """The process of a command that `result` waits for, once it was started; None if its result came first."""
        while not result.done():
            async with held(self.leases, tenant, lease_id) as sandbox:
                for process in await sandbox.processes():
                    if process.id == id:
                        return process
            await asyncio.wait({result}, timeout=0.01)
        return None

    async def start(self, sandbox: Sandbox, command: Command) -> Process:
        """Start it; if this is cancelled meanwhile, what was started is ended."""
        starting = asyncio.ensure_future(sandbox.start(command))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._clean(_end_when_started(starting))
            raise

    async def _wait(self, sandbox: Sandbox, command: Command, tag: str | None) -> RunObject:
        process = await self.start(sandbox, command)
        try:
            outcome = await process.wait()
        except BaseException:
            self._clean(_end(process))
            raise
        self._clean(_quiet(process.forget))
        run = run_object(outcome, id=command.id, pid=process.pid, tag=tag)
        self._metrics.exec_ended(run.status)
        return run

    async def _forget(self, tenant: str, lease_id: str, id: str) -> None:
        with contextlib.suppress(Exception):
            async with self.leases.hold(tenant, lease_id) as sandbox:
                for process in await sandbox.processes():
                    if process.id == id:
                        await process.forget()

    @asynccontextmanager
    async def counted(self, tenant: str) -> AsyncIterator[None]:
        """One of the tenant's running commands. Raises QuotaExceeded."""
        self._quota.take(tenant)
        try:
            yield
        finally:
            self._quota.give_back(tenant)

    def _clean(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def aclose(self) -> None:
        """Wait for what is being ended or forgotten."""
        await asyncio.gather(*self._cleaning, return_exceptions=True)


def _without_output(run: RunObject) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(run)
    return {name: value for name, value in built.items() if name not in ("stdout", "stderr")}


async def _quiet(act: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        await act()


async def _end(process: Process) -> None:
    await _quiet(process.end)
    with contextlib.suppress(Exception):
        await process.wait()
    await _quiet(process.forget)


async def _end_when_started(starting: asyncio.Future[Process]) -> None:
    with contextlib.suppress(Exception):
        await _end(await starting)
