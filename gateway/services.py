"""What the routes are given: every object that answers a request, made once by the composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from gateway.admission import Admission
from gateway.auth import Authenticator
from gateway.errors import Unsupported
from gateway.execs import Execs
from gateway.idempotency import Idempotency
from gateway.processes import Processes
from gateway.settings import Settings
from gateway.telemetry import Metrics
from runtimes.calls import Engine
from runtimes.languages import Languages
from warmpool.holder import Leases


class Drain:
    """Whether the service is going away, and how much of its work is still going on."""

    def __init__(self) -> None:
        self.begun = False
        self.working = 0
        self.empty = asyncio.Event()
        """Set once it has begun and nothing is going on any more."""

    def begin(self) -> None:
        """From now on new work is refused."""
        self.begun = True
        self._look()

    def leave(self) -> None:
        """One request is over."""
        self.working -= 1
        self._look()

    def _look(self) -> None:
        if self.begun and not self.working:
            self.empty.set()


@dataclass(frozen=True)
class Services:
    """Everything behind the HTTP layer."""

    settings: Settings
    auth: Authenticator
    metrics: Metrics
    engine: Engine
    languages: Languages
    leases: Leases
    execs: Execs
    processes: Processes
    once: Idempotency
    admission: Admission
    ready: Callable[[], str | None]
    """None: ready; else why not."""
    kinds: frozenset[str] = frozenset({"container"})
    """Kinds of sandboxes that this node can make."""
    drain: Drain = field(default_factory=Drain)
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do it beside the request; `settle` waits for it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def need_kind(self, kind: str | None) -> None:
        """Raises Unsupported for a kind that this node cannot make."""
        if (kind or "container") not in self.kinds:
            raise Unsupported(f"kind {kind} is not part of this service: there is {', '.join(sorted(self.kinds))}", field="/kind")

    def need_backend(self, name: str | None) -> None:
        """Raises Unsupported for a backend that this node does not have. Unknown ones were refused."""
        if name not in (None, self.settings.backend):
            raise Unsupported(f"backend {name} is not part of this service: there is {self.settings.backend}", field="/backend")

    async def settle(self) -> None:
        """Wait for what is done beside requests."""
        await asyncio.gather(*self.tasks, return_exceptions=True)
