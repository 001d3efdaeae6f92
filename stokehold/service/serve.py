"""`stokehold serve`: from a bare host to two running processes. The composition root of the service on this machine."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from stokehold.service import clientfile, hostlimits, programs, slot, toml
from stokehold.service.child import Child
from stokehold.service.detach import Tell, detached, ends_of, sizes_of
from stokehold.service.leftovers import clean
from stokehold.service.places import GATEWAY_UID, Places, read_service
from stokehold.service.probe import local_url, ready
from stokehold.service.programs import CannotServe
from stokehold.service.supervisor import Failed, Supervisor

RUNNING_WAIT_S = 60.0
SOCKET_PATH_MAX = 100
LOGS = ("serve.log", "spawner.log", "gateway.log")

Say = Callable[[str], None]


class Ask(msgspec.Struct, frozen=True):
    """What the command line asked for. `listen` and `http` are HOST:PORT; `config` a TOML file laid over the
    defaults."""

    listen: str = "127.0.0.1:8443"
    http: str | None = None
    config: Path | None = None
    detach: bool = False


def serve(where: Places, ask: Ask, say: Say) -> None:
    """Serve until told to stop, or, detached, until it is ready. Returns at once if it serves already.

    Needs root. Raises CannotServe, Failed."""
    url = _address("--listen", ask.listen, "https")
    health = _address("--http", ask.http, "http") if ask.http else url
    settings = _settings(where, ask)
    programs.preflight()
    programs.spawner_binary()
    _make_directories(where)
    lock = _lock_or_find_running(where, say)
    if lock is None:
        return
    try:
        if not ask.detach:
            _serve(where, url, health, settings, say, lambda: say(f"serving at {url}"), logged=False)
            return

        def background(tell: Tell) -> None:
            _serve(where, url, health, settings, tell.say, tell.done, logged=True)

        before = sizes_of([where.log / name for name in LOGS[1:]])
        try:
            detached(where.log / "serve.log", background, say)
        except Failed as problem:
            raise Failed(f"{problem}\n{ends_of(before)}".rstrip()) from None
        say(f"serving at {url}")
    finally:
        os.close(lock)


def _address(option: str, listen: str, scheme: str) -> str:
    try:
        return local_url(listen, scheme)
    except ValueError as problem:
        raise CannotServe(f"{option} {problem}") from problem


def _settings(where: Places, ask: Ask) -> dict[str, object]:
    """The gateway's settings: the operator's file with our places laid over it."""
    settings: dict[str, object] = {}
    if ask.config:
        try:
            settings = tomllib.loads(ask.config.read_text())
        except (OSError, ValueError) as problem:
            raise CannotServe(f"{ask.config}: {problem}") from problem
    settings["state"] = str(where.gateway)
    settings["spawner"] = str(where.socket)
    settings["listen"] = ask.listen
    if ask.http:
        settings["http"] = ask.http
    return settings


def _make_directories(where: Places) -> None:
    if len(str(where.socket)) > SOCKET_PATH_MAX:
        raise CannotServe(f"{where.socket} is too long for a socket's name: choose a shorter --state")
    for folder in (where.state, where.run, where.layers, where.log):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    where.log.chmod(0o750)
    where.gateway.mkdir(mode=0o700, exist_ok=True)
    if where.gateway.stat().st_uid != GATEWAY_UID:
        os.chown(where.gateway, GATEWAY_UID, GATEWAY_UID, follow_symlinks=False)
    for folder in (where.state, where.run, *where.state.parents, *where.run.parents):
        if not folder.stat().st_mode & 0o001:
            raise CannotServe(f"the gateway's user cannot pass {folder}: chmod o+x {folder}, or choose another --state")


def _lock_or_find_running(where: Places, say: Say) -> int | None:
    """The lock; or None once the service that holds it has answered. Raises CannotServe if it never does."""
    limit = time.monotonic() + RUNNING_WAIT_S
    while time.monotonic() < limit:
        fd = slot.try_lock(where.lock)
        if fd is not None:
            return fd
        running = read_service(where)
        if running and ready(running.health or running.url, where.ca, 1.0):
            say(f"already running at {running.url} (pid {running.pid})")
            return None
        time.sleep(0.1)
    raise CannotServe(f"a service holds {where.lock} but its gateway does not answer; see {where.log}")


def _serve(
    where: Places,
    url: str,
    health: str,
    settings: dict[str, object],
    say: Say,
    on_ready: Callable[[], None],
    *,
    logged: bool,
) -> None:
    """Everything under the lock: what is raised, claimed and made here is given back at the end, whatever happens."""
    for line in hostlimits.raise_limits():
        say(f"raised {line}")
    try:
        number, held = slot.claim_slot()
    except OSError as problem:
        raise CannotServe(str(problem)) from problem
    try:
        clean(where)
        if not (where.layers / "host").exists():
            say("making the base layer (once)")
        programs.make_layer(where.layers / "host")
        where.config.write_text(toml.dumps(settings))

        def output(name: str) -> IO[bytes] | None:
            return (where.log / name).open("ab", buffering=0) if logged else None

        spawner = Child(
            "spawner",
            programs.spawner_argv(where, number),
            programs.spawner_environment(),
            output("spawner.log"),
            announces=True,
        )
        gateway = Child("gateway", programs.gateway_argv(where), programs.gateway_environment(where), output("gateway.log"))

        def announce() -> None:
            clientfile.write(where, url)
            on_ready()

        logs = tuple(where.log / name for name in LOGS) if logged else ()
        Supervisor(where, url, health, spawner, gateway, say=say, on_ready=announce, logs=logs).run()
    finally:
        clean(where)
        os.close(held)
