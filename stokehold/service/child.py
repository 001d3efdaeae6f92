"""One process that the supervisor keeps running: how it is started, how often it may die, how it is ended.

Decides nothing about the other one. Holds no timer: `due` says when to look again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

QUICK_S = 5.0
"""A process that lived shorter than this died quickly."""
QUICK_DEATHS = 8
"""After so many quick deaths in a row it is given up."""
REFUSED = 2
"""Exit status of a program that cannot use its settings."""
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child, before exec: SIGTERM when the supervisor is gone, so that its death by -9 leaves nothing behind.

    Dropping privileges clears this, so `stokehold-spawner launch` sets it again."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def delay_s(quick_deaths: int) -> float:
    """How long to wait before the next start: none after a first death, then doubling from 50 ms to 5 s."""
    return 0.0 if quick_deaths <= 1 else min(0.05 * 2 ** (quick_deaths - 2), 5.0)


class Child:
    """A command kept running. After `died()`, `due` is when to `start()` it again; None: it runs, or was given up."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes] | None,
        *,
        announces: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.due: float | None = None
        self.quick_deaths = 0
        self.given_up = False
        self._environment = dict(environment)
        self._output = output
        self._announces = announces
        self._clock = clock
        self._started = 0.0
        self.refused = False
        """It ended because of its settings (exit status 2): starting it again would not help."""

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self) -> None:
        """Start it. `announces`: its stdout is a pipe, `process.stdout`, else it goes where stderr goes. Raises
        OSError."""
        self.due = None
        self._started = self._clock()
        self.process = subprocess.Popen(
            self.argv,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._announces else self._output,
            stderr=self._output,
            bufsize=0,
            process_group=0,
            preexec_fn=_die_with_parent,
            cwd="/",
        )
        self.pidfd = os.pidfd_open(self.process.pid)

    def died(self) -> str:
        """Reap it; how it ended, in words. Sets `due`, or `given_up` after too many quick deaths."""
        assert self.process is not None
        code = self.process.wait()
        self.refused = code == REFUSED
        self._close()
        now = self._clock()
        self.quick_deaths = self.quick_deaths + 1 if now - self._started < QUICK_S else 1
        if self.quick_deaths >= QUICK_DEATHS:
            self.given_up = True
        else:
            self.due = now + delay_s(self.quick_deaths)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def send(self, number: signal.Signals) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def end(self, patience_s: float, poke: Callable[[], bool] = lambda: False) -> bool:
        """SIGTERM, then SIGKILL once `patience_s` passed or `poke()` says that the operator is tired. True if it
        went by itself."""
        self.due = None
        if self.process is None:
            return True
        self.send(signal.SIGTERM)
        limit = self._clock() + patience_s
        willing = False
        while not willing and self._clock() < limit and not poke():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.1)
                willing = True
        if not willing:
            self.send(signal.SIGKILL)
            self.process.wait()
        self._close()
        return willing

    def _close(self) -> None:
        if self.process and self.process.stdout:
            self.process.stdout.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.process, self.pidfd = None, -1
