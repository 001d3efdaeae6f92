"""The supervisor over two small programs: what dies is started again, an end is orderly, nothing outlives it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stokehold.service.places import Service, places, read_service

SPAWNER = "echo ready; exec sleep 1000"
GATEWAY = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *a): pass
signal.signal(signal.SIGTERM, lambda *a: (print("drained", flush=True), sys.exit(0)))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
RUN = """
import os, sys
from pathlib import Path
from stokehold.service.child import Child
from stokehold.service.places import places
from stokehold.service.supervisor import Failed, Supervisor
state, port, spawner, gateway = sys.argv[1:]
where = places(state)
url = f"http://127.0.0.1:{port}"
children = (Child("spawner", ["sh", "-c", spawner], os.environ, None, announces=True),
            Child("gateway", [sys.executable, "-c", gateway, port], os.environ, None))
say = lambda line: print(line, flush=True)
try:
    Supervisor(where, url, url, *children, say=say, on_ready=lambda: say("serving")).run()
except Failed as problem:
    say(f"failed: {problem}")
    sys.exit(4)
say("ended")
"""
PATIENCE_S = 20.0


class Running:
    """A supervisor in a process of its own."""

    def __init__(self, state: Path, spawner: str = SPAWNER) -> None:
        self.where = places(state)
        self.where.run.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", RUN, str(state), str(port), spawner, GATEWAY], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout

    def until(self, text: str) -> str:
        """Its next line that contains `text`."""
        return next(line for line in self.lines if text in line)

    def service(self, wanted: Callable[[Service], bool]) -> Service:
        """What it says of itself, once that is as wanted."""
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            found = read_service(self.where)
            if found and wanted(found):
                return found
            os.sched_yield()
        raise AssertionError(f"not within {PATIENCE_S} s: {read_service(self.where)}")


def gone(pid: int | None) -> None:
    """Wait until that process has ended."""
    assert pid is not None
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], PATIENCE_S)[0]
    finally:
        os.close(fd)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path / "s")
    yield one
    one.process.kill()
    one.process.wait()
    one.lines.close()


@pytest.mark.parametrize("name", ["spawner", "gateway"])
def test_what_dies_is_started_again_within_a_second(running: Running, name: str) -> None:
    running.until("serving")
    before = running.service(lambda found: found.spawner is not None and found.gateway is not None)
    killed = getattr(before, name)
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    after = running.service(lambda found: getattr(found, name) not in (None, killed))
    assert time.monotonic() - began < 1
    other = "gateway" if name == "spawner" else "spawner"
    assert getattr(after, other) == getattr(before, other)
    assert running.until(name) == f"the {name} was ended by SIGKILL; starting it again\n"


def test_sigterm_drains_the_gateway_first_and_leaves_nothing(running: Running) -> None:
    running.until("serving")
    found = running.service(lambda found: True)
    running.process.send_signal(signal.SIGTERM)
    assert running.until("drained")
    assert running.until("ended")
    assert running.process.wait(PATIENCE_S) == 0
    gone(found.spawner)
    gone(found.gateway)
    assert read_service(running.where) is None


def test_its_own_death_leaves_no_orphans(running: Running) -> None:
    running.until("serving")
    found = running.service(lambda found: True)
    running.process.kill()
    gone(found.spawner)
    gone(found.gateway)


def test_a_spawner_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    one = Running(tmp_path / "s", spawner="exit 3")
    assert one.until("failed") == "failed: the spawner exited with 3 at its start\n"
    assert one.process.wait(PATIENCE_S) == 4
    one.lines.close()


def test_what_the_spawner_says_is_told(tmp_path: Path) -> None:
    one = Running(tmp_path / "s", spawner="echo hello; exit 3")
    assert one.until("hello") == "spawner: hello\n"
    one.until("failed")
    assert one.process.wait(PATIENCE_S) == 4
    one.lines.close()
