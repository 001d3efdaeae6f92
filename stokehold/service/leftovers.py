"""Removing what a service left that died without its orderly end. Only while its lock is held by the caller.

Sandboxes die with their spawner, so what can be left is processes that are just going, control groups and files."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from stokehold.service.places import Places
from stokehold.service.resources import group_directories, group_roots, our_processes

PATIENCE_S = 10.0


def clean(where: Places) -> None:
    """End processes of this service that have no supervisor any more; remove its control groups, socket and state
    files."""
    where.service.unlink(missing_ok=True)  # its pid may be somebody else by now
    names = {where.cgroup}
    own = {os.getpid(), os.getppid()}
    limit = time.monotonic() + PATIENCE_S
    while (left := our_processes(where, every=False) - own) and time.monotonic() < limit:
        for root in group_roots(names):
            with contextlib.suppress(OSError):
                (root / "cgroup.kill").write_text("1")
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    while time.monotonic() < limit:
        failed = False
        for folder in group_directories(names):
            failed |= not _remove(folder)
        if not failed:
            break
        time.sleep(0.02)
    for file in (where.socket, where.config):
        file.unlink(missing_ok=True)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
