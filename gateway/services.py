"""What the routes are given: every object that answers a request, made once by the composition root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission import Admission
from gateway.auth import Authenticator
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

    def begin(self) -> None:
        """From now on new work is refused."""
        self.begun = True


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
    drain: Drain = field(default_factory=Drain)
