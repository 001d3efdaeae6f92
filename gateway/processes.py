"""Background processes of leases: what was asked for them, and finding them again. Their state itself lies in the sandbox.

After a restart of this process they are found through the sandbox, without what only the request knew (argv, tag)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from gateway.commands import RunObject, run_object
from gateway.errors import Missing
from gateway.schema import Reply
from runtimes.backend import BackendError, Outcome, Process, Sandbox
from warmpool.holder import Leases

PREFIX = "p"
"""First letter of the command ids of background processes; those of execs begin with x."""
ENDED_KEPT = 256
"""Ended processes of one lease that can still be read; the ones started first are forgotten first."""
LEASES_KEPT = 65_536


class ProcessObject(Reply):
    """One process as lists and `POST …/processes` show it; `status` and what follows are null while it runs."""

    pid: int | None
    id: str
    state: str
    argv: list[str] | None
    tag: str | None
    started_at: str | None
    status: str | None = None
    limit: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    error: str | None = None
    cpu_ns: int | None = None
    wall_ns: int | None = None
    memory_bytes: int | None = None


class Asked(Reply):
    """What the request said, for the replies."""

    argv: list[str]
    tag: str | None
    started_at: str


class Processes:
    """What is known of processes beside the sandboxes."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, OrderedDict[str, Asked]] = OrderedDict()
        self._watched: set[asyncio.Task[None]] = set()

    def add(self, lease: str, id: str, argv: list[str], tag: str | None) -> None:
        """A process was started. A repeat changes nothing."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._asked.setdefault(lease, OrderedDict()).setdefault(id, Asked(argv=argv, tag=tag, started_at=now))
        self._asked.move_to_end(lease)
        while len(self._asked) > LEASES_KEPT:
            self._asked.popitem(last=False)

    def watch(self, hold: AbstractAsyncContextManager[Sandbox], process: Process) -> None:
        """Keep the lease in use for as long as the process runs: a running command is activity."""

        async def until_over() -> None:
            with contextlib.suppress(Exception):
                async with hold:
                    await process.wait()

        self._keep(until_over())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._watched.add(task)
        task.add_done_callback(self._watched.discard)

    def rewatch(self, leases: Leases) -> None:
        """Watch what an earlier process of ours has started."""

        async def look() -> None:
            for lease, sandbox in leases.running():
                with contextlib.suppress(BackendError):
                    for process in await self.list(sandbox, lease.id):
                        if await glance(process) is None:
                            self.watch(leases.hold(lease.tenant, lease.id), process)

        self._keep(look())

    async def aclose(self) -> None:
        """Watch no more."""
        for task in self._watched:
            task.cancel()
        await asyncio.gather(*self._watched, return_exceptions=True)

    def drop(self, lease: str) -> None:
        """The lease is over."""
        self._asked.pop(lease, None)

    async def list(self, sandbox: Sandbox, lease: str) -> list[Process]:
        """The background processes of a sandbox, in the order of their start as far as it is known."""
        order = {id: number for number, id in enumerate(self._asked.get(lease, ()))}
        found = [process for process in await sandbox.processes() if process.id.startswith(PREFIX)]
        return sorted(found, key=lambda process: (order.get(process.id, -1), process.pid or 0))

    async def find(self, sandbox: Sandbox, lease: str, name: str) -> Process:
        """By pid (inside) or id. A pid may have been used again: the running one is meant, else the latest. Raises Missing."""
        found = [process for process in await self.list(sandbox, lease) if name in (process.id, str(process.pid))]
        if not found:
            raise Missing(f"there is no process {name[:40]}")
        if len(found) > 1:
            for process in reversed(found):
                if await glance(process) is None:
                    return process
        return found[-1]

    async def show(self, lease: str, process: Process) -> ProcessObject:
        """As lists show it."""
        asked, outcome = self._of(lease, process.id), await glance(process)
        common = ProcessObject(
            pid=process.pid,
            id=process.id,
            state="running" if outcome is None else "ended",
            argv=asked.argv if asked else None,
            tag=asked.tag if asked else None,
            started_at=asked.started_at if asked else None,
        )
        if outcome is None:
            return common
        run = self.result(lease, process, outcome)
        return ProcessObject(
            pid=common.pid,
            id=common.id,
            state="ended",
            argv=common.argv,
            tag=common.tag,
            started_at=common.started_at,
            status=run.status,
            limit=run.limit,
            exit_code=run.exit_code,
            signal=run.signal,
            error=run.error,
            cpu_ns=run.cpu_ns,
            wall_ns=run.wall_ns,
            memory_bytes=run.memory_bytes,
        )

    async def trim(self, sandbox: Sandbox, lease: str) -> None:
        """Forget the oldest ended ones beyond what is kept."""
        if len(self._asked.get(lease, ())) <= ENDED_KEPT:
            return
        over = [process for process in await self.list(sandbox, lease) if await glance(process) is not None]
        for process in over[: max(0, len(over) - ENDED_KEPT)]:
            self._asked.get(lease, OrderedDict()).pop(process.id, None)
            await process.forget()

    def result(self, lease: str, process: Process, outcome: Outcome) -> RunObject:
        """The run object of an ended process. Raises Failed."""
        asked = self._of(lease, process.id)
        return run_object(outcome, id=process.id, pid=process.pid, tag=asked.tag if asked else None)

    def _of(self, lease: str, id: str) -> Asked | None:
        asked = self._asked.get(lease)
        return asked.get(id) if asked else None


async def glance(process: Process, patience_s: float = 0.0) -> Outcome | None:
    """Its outcome if it is there, else None. Raises SandboxLost."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        for _ in range(3):
            await asyncio.sleep(0)
            if waiting.done():
                return waiting.result()
        await asyncio.wait({waiting}, timeout=patience_s)
        return waiting.result() if waiting.done() else None
    finally:
        if not waiting.done():
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await waiting
