"""`stokehold serve`: from a bare host to two running processes. The composition root of the service on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from stokehold.service import clientfile, hostlimits, privilege, slot, toml
from stokehold.service.child import Child
from stokehold.service.leftovers import clean
from stokehold.service.places import GATEWAY_UID, Places, read_service
from stokehold.service.probe import local_url, ready
from stokehold.service.supervisor import Failed, Supervisor

PREFLIGHT_S = 4.5
RUNNING_WAIT_S = 60.0
SOCKET_PATH_MAX = 100


class CannotServe(Exception):
    """This host or these settings cannot serve. The message holds the remedy."""


class Ask(msgspec.Struct, frozen=True):
    """What the command line asked for. `listen` and `http` are HOST:PORT; `config` a TOML file laid over the
    defaults."""

    listen: str = "127.0.0.1:8443"
    http: str | None = None
    config: Path | None = None
    detach: bool = False


def serve(where: Places, ask: Ask, say: Callable[[str], None]) -> int:
    """Serve until told to stop (or, detached, until ready); the exit code. Needs root. Raises CannotServe, Failed."""
    url = _url(ask.listen)
    health = local_url(ask.http, "http") if ask.http else url
    settings = _settings(where, ask)
    preflight()
    binary = spawner_binary()
    _make_directories(where)
    lock = _lock_or_find_running(where, say)
    if lock is None:
        return 0
    try:
        if ask.detach:
            return _detached(
                where, lambda tell: _serve_locked(where, url, health, settings, binary, tell.say, tell.done), say
            )
        _serve_locked(where, url, health, settings, binary, say, lambda: say(f"serving at {url}"))
        return 0
    finally:
        os.close(lock)


def preflight() -> None:
    """Ask `guard.preflight`, in a process of its own, whether this host can make sandboxes. Raises CannotServe."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", "guard.preflight", "--json"],
            capture_output=True,
            timeout=PREFLIGHT_S,
            check=False,
        )
        report = json.loads(asked.stdout)
    except subprocess.TimeoutExpired as problem:
        raise CannotServe("this host did not answer the preflight checks in time; see `stokehold doctor`") from problem
    except ValueError as problem:
        raise CannotServe(f"the preflight checks failed: {asked.stderr.decode(errors='replace')[-500:]}") from problem
    missing = [need for need in report["needs"] if not need["met"]]
    if missing:
        lines = [f"  {need['name']}: {need['found']}\n    remedy: {need['remedy']}" for need in missing]
        raise CannotServe("this host cannot run sandboxes:\n" + "\n".join(lines))


def spawner_binary() -> Path:
    """The built spawner. Raises CannotServe with the command that builds it."""
    found = importlib.util.find_spec("runtimes.native")
    folder = Path(found.origin).parent if found and found.origin else None
    binary = folder / "bin" / "stokehold-spawner" if folder else None
    if binary is None or not os.access(binary, os.X_OK):
        raise CannotServe(
            f"the spawner is not built: run `make -C {folder or 'runtimes/native'}` (needs gcc and libseccomp-dev)"
        )
    return binary


def _url(listen: str) -> str:
    try:
        return local_url(listen)
    except ValueError as problem:
        raise CannotServe(f"--listen {problem}") from problem


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


def _lock_or_find_running(where: Places, say: Callable[[str], None]) -> int | None:
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
    raise CannotServe(f"another `stokehold serve` holds {where.lock} but its gateway does not answer; see {where.log}")


def _serve_locked(
    where: Places,
    url: str,
    health: str,
    settings: dict[str, object],
    binary: Path,
    say: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    for line in hostlimits.raise_limits():
        say(f"raised {line}")
    try:
        number, held = slot.claim_slot()
    except OSError as problem:
        raise CannotServe(str(problem)) from problem
    try:
        clean(where)
        host = where.layers / "host"
        made = subprocess.run([sys.executable, "-P", "-m", "layers.host", str(host)], capture_output=True, check=False)
        if made.returncode != 0:
            raise Failed(f"the base layer cannot be made: {made.stderr.decode(errors='replace')[-500:]}")
        where.config.write_text(toml.dumps(settings))
        output = _child_output(where)
        spawner = Child(
            "spawner",
            [
                str(binary),
                "serve",
                "--socket",
                str(where.socket),
                "--gateway-uid",
                str(GATEWAY_UID),
                "--cgroup",
                where.cgroup,
                "--slot",
                str(number),
                "--layer",
                f"host={host}",
            ],
            {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")},
            output("spawner.log"),
            announces=True,
        )
        gateway = Child("gateway", _gateway_argv(where, binary), _gateway_environment(where), output("gateway.log"))

        def announce() -> None:
            clientfile.write(where, url)
            on_ready()

        logs = tuple(where.log / name for name in ("spawner.log", "gateway.log", "serve.log"))
        Supervisor(where, url, health, spawner, gateway, say=say, on_ready=announce, logs=logs).run()
    finally:
        clean(where)
        os.close(held)


def _child_output(where: Places) -> Callable[[str], IO[bytes] | None]:
    """Children write to logs when this process does, else to this process's own terminal."""
    detached = (where.log / "serve.log").exists() and os.fstat(2).st_ino == (where.log / "serve.log").stat().st_ino

    def output(name: str) -> IO[bytes] | None:
        return (where.log / name).open("ab", buffering=0) if detached else None

    return output


def _gateway_argv(where: Places, binary: Path) -> list[str]:
    found = importlib.util.find_spec("gateway")
    if found is None or found.origin is None:
        raise CannotServe("the gateway package is not installed: run `make setup`")
    shown = dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(found.origin).resolve().parent.parent)))
    exposed = [part for folder in shown if folder != "/usr" for part in ("--expose", folder)]
    return [
        str(binary),
        "launch",
        "--uid",
        str(GATEWAY_UID),
        "--gid",
        str(GATEWAY_UID),
        *exposed,
        "--",
        sys.executable,
        "-P",
        "-m",
        "gateway",
        "--config",
        str(where.config),
    ]


def _gateway_environment(where: Places) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(where.gateway),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class _Tell:
    """What a detached service tells the command that started it: lines to show, then `done`, over a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, line: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%S"), line, flush=True)

    def done(self) -> None:
        if self._fd >= 0:
            os.write(self._fd, b"ok\n")
            os.close(self._fd)
            self._fd = -1

    def failed(self, problem: str) -> None:
        if self._fd >= 0:
            os.write(self._fd, problem.encode())
            os.close(self._fd)
            self._fd = -1


def _detached(where: Places, body: Callable[[_Tell], None], say: Callable[[str], None]) -> int:
    """Run `body` in a process of its own session; return once it says `done`. Raises Failed with what it says
    otherwise."""
    reading, writing = os.pipe()
    log = os.open(where.log / "serve.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        tell = _Tell(writing)
        code = 1
        try:
            body(tell)
            code = 0
        except (CannotServe, Failed) as problem:
            tell.say(str(problem))
            tell.failed(str(problem))
        except BaseException as problem:
            sys.excepthook(type(problem), problem, problem.__traceback__)
            tell.failed(f"{type(problem).__name__}: {problem}")
        finally:
            os._exit(code)
    os.close(writing)
    os.close(log)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    if answer == "ok\n":
        running = read_service(where)
        say(running.url if running else "serving")
        return 0
    raise Failed(f"{answer.strip() or 'the service ended at its start'}\n{_tails(where)}".rstrip())


def _tails(where: Places) -> str:
    """The last lines of the logs, for somebody whose service did not start."""
    parts = []
    for name in ("serve.log", "spawner.log", "gateway.log"):
        try:
            lines = (where.log / name).read_text(errors="replace").splitlines()[-6:]
        except OSError:
            continue
        if lines:
            parts.append(f"--- {where.log / name}\n" + "\n".join(line[:300] for line in lines))
    return "\n".join(parts)


def require(arguments: list[str]) -> None:
    """Root, by sudo if need be. Raises CannotServe with the remedy."""
    try:
        privilege.require_root(arguments)
    except (privilege.NotRoot, OSError, subprocess.SubprocessError) as problem:
        raise CannotServe(str(problem)) from problem


def languages_present() -> list[str]:
    """Which compilers and interpreters the base `host` will show, by the name of their command."""
    return [name for name in ("gcc", "g++", "python3", "node", "java", "go", "rustc", "bash") if shutil.which(name)]
