"""The gateway's process: `python -m gateway --config FILE [--http ADDR]`. The composition root: reads settings, builds
every object once, hands them to each other, serves, and takes them down in the reverse order."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import msgspec
import structlog
import uvloop

from gateway.admission import Admission, Quota
from gateway.app import create_app
from gateway.auth import Authenticator, secret_at
from gateway.execs import Execs
from gateway.idempotency import Answers, Idempotency
from gateway.processes import Processes
from gateway.server import Server, stopped
from gateway.services import Services
from gateway.settings import Settings, SettingsError, read_settings
from gateway.telemetry import Metrics, configure_logging
from gateway.tls import certificates
from runtimes.artifacts import CompileCache
from runtimes.backend import Backend
from runtimes.calls import Engine
from runtimes.fake import FakeBackend
from runtimes.languages import Languages
from runtimes.native.backend import NativeBackend
from warmpool.controller import Controller
from warmpool.holder import Leases
from warmpool.journal import Journal

log = structlog.get_logger("gateway")


def _backend(settings: Settings) -> Backend:
    return FakeBackend() if settings.backend == "fake" else NativeBackend(settings.spawner)


def _languages(settings: Settings) -> Languages:
    """Those that the base layer found. Raises SettingsError."""
    if settings.backend == "fake":
        return Languages({})
    file = settings.base / "languages.json"
    try:
        return Languages.read(file)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"{file}: {error}: make the base layer with python -m layers.host {settings.base}") from error


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError, BackendError."""
    cpus = len(os.sched_getaffinity(0))
    state = settings.state
    pair = certificates(settings.tls, state)
    auth = Authenticator(settings.auth, secret_at(state / "jwt.secret"))
    metrics, processes = Metrics(), Processes()
    async with contextlib.AsyncExitStack() as stack:
        backend = _backend(settings)
        stack.push_async_callback(backend.aclose)
        controller = Controller({settings.backend: backend}, settings.warmpool)
        stack.push_async_callback(controller.aclose)
        adopted = await controller.start()
        leases = Leases(controller, settings.warmpool, journal=Journal(state / "leases.sqlite"),
                        on_event=lambda what, lease: processes.drop(lease.id) if what == "ended" else None)
        stack.push_async_callback(leases.aclose)
        await leases.start(adopted)
        languages = _languages(settings)
        cache = CompileCache(state / "compiled", settings.calls.cache_mb << 20)
        engine = Engine(controller.claim, controller.release, languages, cache, settings.calls.slots or cpus)
        once = Idempotency(Answers(state / "answers.sqlite", settings.answers_s))
        stack.push_async_callback(once.aclose)
        quota = Quota(settings.admission.commands, "commands")
        execs = Execs(leases, once, quota, settings.maximum, metrics)
        stack.push_async_callback(execs.aclose)
        admission = Admission(settings.admission.running or max(4, 2 * cpus), settings.admission.queue)
        services = Services(
            settings=settings, auth=auth, metrics=metrics, engine=engine, languages=languages, leases=leases, execs=execs,
            processes=processes, once=once, admission=admission, ready=lambda: None, kinds=frozenset({backend.kind}))
        stack.push_async_callback(services.settle)
        metrics.watch("stokehold_sandboxes", "Sandboxes by pool and state", ("pool", "state"), controller.counts)
        metrics.watch("stokehold_leases", "Leases by state", ("node", "state"), lambda: {settings.node: leases.counts()})
        metrics.watch_value("stokehold_calls_running", "Calls that run", lambda: admission.running)
        metrics.watch_value("stokehold_calls_waiting", "Calls that wait for a place", lambda: admission.waiting)
        metrics.watch_value("stokehold_compile_cache_bytes", "Compiled programs on disk", lambda: cache.bytes)
        server = Server(create_app(services), settings, pair)
        stack.push_async_callback(server.aclose)
        await server.start()
        await stopped()
        await server.drain(services.drain)


def main() -> int:
    """Exit status: 0 stopped on request, 2 settings that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="The HTTP gateway of a Stokehold node.")
    parser.add_argument("--config", type=Path, required=True, help="settings (TOML)")
    parser.add_argument("--http", metavar="HOST:PORT", help="serve plain HTTP/1.1 and h2c here too")
    arguments = parser.parse_args()
    try:
        settings = read_settings(arguments.config)
        if arguments.http:
            settings = msgspec.structs.replace(settings, http=arguments.http)
        configure_logging(settings.log_level)
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        uvloop.run(serve(settings))
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
