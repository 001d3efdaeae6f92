"""The tasks in which backends make and end sandboxes, a batch each. They report what became of each name."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from runtimes.backend import Backend, BackendError, Failure, Kind, Sandbox, Spec

log = logging.getLogger(__name__)


class Starts:
    """Batches that are being made. `made` hears of every name exactly once, unless the batch is cancelled."""

    def __init__(self, backends: Mapping[Kind, Backend], size: int, made: Callable[[Sandbox | Failure], None]) -> None:
        self._backends = backends
        self._size = size
        self._made = made
        self._tasks: set[asyncio.Task[None]] = set()

    def launch(self, names: Sequence[str], spec: Spec) -> None:
        """Begins to make `names`, in as many batches as it takes."""
        for at in range(0, len(names), self._size):
            task = asyncio.get_running_loop().create_task(self._run(names[at : at + self._size], spec))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Gives up on all of them. Names that nothing was heard of may or may not exist: stop them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, names: Sequence[str], spec: Spec) -> None:
        reason = "the backend said nothing about it"
        left = set(names)
        try:
            async for made in self._backends[spec.kind].start_many(names, spec):
                left.discard(made.name)
                self._made(made)
        except Exception as error:
            reason = str(error) or repr(error)
            if not isinstance(error, BackendError):
                log.exception("starting %d sandboxes failed", len(names))
        for name in left:
            self._made(Failure(name, reason))


class Stops:
    """What is to be ended, and the batches that are being ended, at most `concurrency` at a time."""

    def __init__(
        self, backends: Mapping[Kind, Backend], size: int, concurrency: int, stopped: Callable[[Sequence[str]], None]
    ) -> None:
        self._backends = backends
        self._size = size
        self._concurrency = concurrency
        self._stopped = stopped
        self._queued: dict[tuple[Kind, str], list[str]] = defaultdict(list)
        self._tasks: dict[asyncio.Task[None], list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._queued or self._tasks)

    def add(self, name: str, kind: Kind, reason: str) -> None:
        """Queues `name`; `launch` sees to it."""
        self._queued[kind, reason].append(name)

    def launch(self) -> None:
        """Begins as many batches as may run."""
        while self._queued and len(self._tasks) < self._concurrency:
            kind, reason = next(iter(self._queued))
            names = self._queued.pop((kind, reason))
            if rest := names[self._size :]:
                self._queued[kind, reason] = rest
            batch = names[: self._size]
            task = asyncio.get_running_loop().create_task(self._run(self._backends[kind], batch, reason))
            self._tasks[task] = batch
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        names = self._tasks.pop(task)
        self.launch()
        self._stopped(names)

    async def drain(self) -> None:
        """Waits until everything that was added is ended."""
        self.launch()
        while self._tasks:
            await asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _run(self, backend: Backend, names: Sequence[str], reason: str) -> None:
        try:
            await backend.stop_many(names, reason)
        except Exception:
            log.exception("stop_many raised, which it must not")
