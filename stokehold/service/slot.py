"""The lock of a service and its slot of user ids. Both are flocks: they end with the process, whatever ends it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stokehold.service.places import SLOT_COUNT, SLOTS


def try_lock(path: Path) -> int | None:
    """A descriptor that holds `path` locked until it is closed, or None while another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def held(path: Path) -> bool:
    """Whether some process holds `path` locked now. Needs only read access."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def claim_slot() -> tuple[int, int]:
    """A free slot of uid ranges and the descriptor that holds it. Raises OSError when all are taken."""
    SLOTS.mkdir(mode=0o755, parents=True, exist_ok=True)
    for number in range(SLOT_COUNT):
        fd = try_lock(SLOTS / str(number))
        if fd is not None:
            return number, fd
    raise OSError(f"{SLOT_COUNT} services run on this host already: each needs uid ranges of its own; stop one")
