"""Keeps the spawner and the gateway running until told to stop. One thread, one loop over pidfds, signals and due
times.

Both children get SIGTERM from the kernel when this process dies, so even its `kill -9` leaves nothing running: the
spawner ends every sandbox on its way out. (Leases survive the gateway, by design; they do not survive their
supervisor.)"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from stokehold.service.child import QUICK_DEATHS, Child
from stokehold.service.places import Places, Service, write_whole
from stokehold.service.probe import ready
from stokehold.version import __version__

SPAWNER_READY_S = 20.0
GATEWAY_READY_S = 60.0
DRAIN_S = 30.0
SPAWNER_END_S = 30.0
LOG_BYTES = 32 << 20
"""A log that grew beyond this is kept once under `.1` and begun anew."""


class Failed(Exception):
    """The service cannot go on. The message says why and where to look."""


class Supervisor:
    """Owns two children. `run()` returns after an orderly end and raises Failed otherwise; either way both are gone."""

    def __init__(
        self,
        where: Places,
        url: str,
        health: str,
        spawner: Child,
        gateway: Child,
        *,
        say: Callable[[str], None],
        on_ready: Callable[[], None],
        logs: tuple[Path, ...] = (),
    ) -> None:
        self._where = where
        self._url = url
        self._health = health
        self._spawner = spawner
        self._gateway = gateway
        self._say = say
        self._on_ready = on_ready
        self._logs = logs
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._stops = 0
        self._spawner_ready = False
        self._announced = False
        self._line = b""

    def run(self) -> None:
        """Start both, announce readiness once, restart what dies, end both on SIGTERM, SIGINT or SIGHUP."""
        self._catch_signals()
        try:
            self._start(self._spawner)
            self._await_spawner()
            self._start(self._gateway)
            began = time.monotonic()
            while not self._stops:
                self._turn(0.05 if not self._announced else 1.0)
                if not self._announced and self._gateway.process and ready(self._health, self._where.ca, 0.5):
                    self._announced = True
                    self._on_ready()
                if not self._announced and time.monotonic() - began > GATEWAY_READY_S:
                    raise Failed(f"the gateway was not ready within {GATEWAY_READY_S:.0f} s")
                self._bound_logs()
        finally:
            self._end()

    def _catch_signals(self) -> None:
        def stop(number: int, frame: object) -> None:
            self._stops += 1

        self._wake.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        self._selector.register(self._wake, selectors.EVENT_READ, self._drain_wake)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(64):
                pass

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as problem:
            raise Failed(f"the {child.name} cannot be started: {problem}") from problem
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._died(child))
        if child.process and child.process.stdout:
            output = child.process.stdout
            os.set_blocking(output.fileno(), False)
            self._selector.register(output, selectors.EVENT_READ, lambda: self._heard(output))
        self._publish()

    def _heard(self, output: IO[bytes]) -> None:
        """What the spawner says on stdout: `ready` once it listens; anything else goes to the log."""
        if output.closed:  # it died, and was told of, in this same turn
            return
        data = output.read(65536)
        if not data:
            if data is not None:
                self._forget(output)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.strip() == b"ready":
                self._spawner_ready = True
            else:
                self._say(f"spawner: {line.decode(errors='replace')[:500]}")
        self._line = self._line[-4096:]

    def _forget(self, output: IO[bytes]) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(output)

    def _await_spawner(self) -> None:
        limit = time.monotonic() + SPAWNER_READY_S
        while not self._spawner_ready and not self._stops:
            if time.monotonic() > limit:
                raise Failed(f"the spawner was not ready within {SPAWNER_READY_S:.0f} s")
            self._turn(0.2)

    def _died(self, child: Child) -> None:
        self._selector.unregister(child.pidfd)
        output = child.process.stdout if child.process else None
        if output is not None:
            self._heard(output)
            self._forget(output)
        how = child.died()
        self._publish()
        if child is self._spawner:
            self._spawner_ready, self._line = False, b""
        if child.given_up:
            raise Failed(f"the {child.name} {how}, {QUICK_DEATHS} times in a row within seconds of its start")
        if not self._announced and (child.refused or child.quick_deaths >= 3):
            raise Failed(f"the {child.name} {how} at its start")
        self._say(f"the {child.name} {how}; starting it again")

    def _turn(self, patience_s: float) -> None:
        """Wait for something, handle it, start what is due."""
        children = (self._spawner, self._gateway)
        now = time.monotonic()
        waits = [max(0.0, child.due - now) for child in children if child.due is not None]
        for key, _ in self._selector.select(min([patience_s, *waits])):
            key.data()
        if self._stops:
            return
        for child in children:
            if child.due is not None and child.due <= time.monotonic():
                self._start(child)

    def _publish(self) -> None:
        service = Service(
            pid=os.getpid(),
            url=self._url,
            version=__version__,
            gateway=self._gateway.pid,
            spawner=self._spawner.pid,
            health=self._health,
        )
        write_whole(self._where.service, msgspec.json.encode(service))

    def _bound_logs(self) -> None:
        for log in self._logs:
            with contextlib.suppress(OSError):
                if log.stat().st_size > LOG_BYTES:
                    log.with_suffix(log.suffix + ".1").write_bytes(log.read_bytes()[-LOG_BYTES:])
                    os.truncate(log, 0)

    def _end(self) -> None:
        asked = self._stops
        if not self._gateway.end(DRAIN_S, lambda: self._stops > max(asked, 1)):
            self._say(f"the gateway did not drain within {DRAIN_S:.0f} s and was killed")
        if not self._spawner.end(SPAWNER_END_S):
            self._say(f"the spawner did not end within {SPAWNER_END_S:.0f} s and was killed")
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wake.close()
        self._woken.close()
        self._where.service.unlink(missing_ok=True)
        sys.stdout.flush()
