"""Going on in the background: a process of its own session that tells its starter how far it is. Knows nothing of
what it runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stokehold.service.supervisor import Failed

LOG_LINES = 6
LINE_CHARACTERS = 300


class Tell:
    """The background's side of the pipe: lines to show, then `done` or `failed`. All lines go to the log too."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, line: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%S"), line, flush=True)
        self._send("+", line)

    def done(self) -> None:
        self._send("=", "")
        self._close()

    def failed(self, problem: str) -> None:
        self._send("!", problem)
        self._close()

    def _send(self, mark: str, text: str) -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, f"{mark}{text}\0".encode())
        except BrokenPipeError:  # the starter did not wait
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def detached(log: Path, body: Callable[[Tell], None], say: Callable[[str], None]) -> None:
    """Run `body` in the background, its output in `log`; show what it says until it is done.

    Raises Failed with what it complained of, or with the log's end if it just ended."""
    reading, writing = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    if os.fork() == 0:
        os.setsid()
        os.close(reading)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        _background(Tell(writing), body)
    os.close(writing)
    os.close(output)
    rest = ""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while piece := pipe.read(4096):
            *messages, rest = (rest + piece.decode(errors="replace")).split("\0")
            for message in messages:
                if message.startswith("="):
                    return
                if message.startswith("!"):
                    raise Failed(message[1:])
                say(message[1:])
    raise Failed("the service ended at its start")


def _background(tell: Tell, body: Callable[[Tell], None]) -> None:
    code = 1
    try:
        body(tell)
        code = 0
    except BaseException as problem:
        if not isinstance(problem, Failed):
            sys.excepthook(type(problem), problem, problem.__traceback__)
        print(time.strftime("%Y-%m-%dT%H:%M:%S"), problem, flush=True)
        tell.failed(str(problem) or type(problem).__name__)
    finally:
        sys.stdout.flush()
        os._exit(code)


def sizes_of(logs: list[Path]) -> dict[Path, int]:
    """Where each log ends now."""
    return {log: log.stat().st_size if log.exists() else 0 for log in logs}


def ends_of(logs: dict[Path, int]) -> str:
    """The last lines that came to logs after `sizes_of`, for somebody whose service did not start."""
    parts = []
    for log, before in logs.items():
        try:
            lines = log.read_bytes()[before:].decode(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            continue
        if lines:
            parts.append(f"--- {log}\n" + "\n".join(line[:LINE_CHARACTERS] for line in lines))
    return "\n".join(parts)
