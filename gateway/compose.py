"""Building every object of a gateway once, and handing them to each other. Taken down in the reverse order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from gateway.admission import Admission, Quota
from gateway.auth import Authenticator, secret_at
from gateway.execs import Execs
from gateway.idempotency import Answers, Idempotency
from gateway.processes import Processes
from gateway.services import Services
from gateway.settings import Settings
from gateway.telemetry import Metrics
from runtimes.artifacts import CompileCache
from runtimes.backend import Backend
from runtimes.calls import Engine
from runtimes.languages import Languages
from warmpool.controller import Controller
from warmpool.holder import Leases
from warmpool.journal import Journal


@contextlib.asynccontextmanager
async def composed(settings: Settings, backend: Backend, languages: Languages) -> AsyncIterator[Services]:
    """All services over `backend`, started: what ran before is taken over. Leases go on when this is left.

    Raises SettingsError, BackendError."""
    cpus, state = len(os.sched_getaffinity(0)), settings.state
    auth = Authenticator(settings.auth, secret_at(state / "jwt.secret"))
    metrics, processes = Metrics(), Processes()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.aclose)
        controller = Controller({settings.backend: backend}, settings.warmpool)
        stack.push_async_callback(controller.aclose)
        adopted = await controller.start()
        leases = Leases(
            controller,
            settings.warmpool,
            journal=Journal(state / "leases.sqlite"),
            on_event=lambda what, lease: processes.drop(lease.id) if what == "ended" else None,
        )
        stack.push_async_callback(leases.aclose)
        await leases.start(adopted)
        stack.push_async_callback(processes.aclose)
        processes.rewatch(leases)
        cache = CompileCache(state / "compiled", settings.calls.cache_mb << 20)
        engine = Engine(controller.claim, controller.release, languages, cache, settings.calls.slots or cpus)
        once = Idempotency(Answers(state / "answers.sqlite", settings.answers_s))
        stack.push_async_callback(once.aclose)
        execs = Execs(leases, once, Quota(settings.admission.commands, "commands"), settings.maximum, metrics)
        stack.push_async_callback(execs.aclose)
        admission = Admission(settings.admission.running or max(4, 2 * cpus), settings.admission.queue)
        services = Services(
            settings=settings,
            auth=auth,
            metrics=metrics,
            engine=engine,
            languages=languages,
            leases=leases,
            execs=execs,
            processes=processes,
            once=once,
            admission=admission,
            ready=lambda: None if getattr(backend, "connected", True) else "no spawner answers",
            kinds=frozenset({backend.kind}),
        )
        stack.push_async_callback(services.settle)
        metrics.watch("stokehold_sandboxes", "Sandboxes by pool and state", ("pool", "state"), controller.counts)
        metrics.watch("stokehold_leases", "Leases by state", ("node", "state"), lambda: {settings.node: leases.counts()})
        metrics.watch_value("stokehold_calls_running", "Calls that run", lambda: admission.running)
        metrics.watch_value("stokehold_calls_waiting", "Calls that wait for a place", lambda: admission.waiting)
        metrics.watch_value("stokehold_compile_cache_bytes", "Compiled programs on disk", lambda: cache.bytes)
        yield services
