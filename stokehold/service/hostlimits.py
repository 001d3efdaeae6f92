"""Limits of the host that a service meets first, and raising them. Knows files under /proc/sys; changes nothing
downwards."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import msgspec

PROC_SYS = Path("/proc/sys")


class Wanted(msgspec.Struct, frozen=True):
    """One setting under /proc/sys that should be at least `value`, and what runs out when it is not."""

    key: str
    value: int
    why: str

    @property
    def path(self) -> Path:
        return PROC_SYS / self.key.replace(".", "/")

    def now(self) -> int | None:
        """Its value on this host, None where the kernel has no such setting."""
        try:
            return int(self.path.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None


WANTED = (
    Wanted("kernel.pid_max", 4_194_304, "each lease holds at least one process"),
    Wanted("kernel.threads-max", 1_000_000, "each lease holds at least one process"),
    Wanted("fs.nr_open", 1_048_576, "each idle lease holds up to three descriptors of the spawner"),
    Wanted("fs.mount-max", 1_000_000, "mounts of one mount namespace"),
    Wanted("fs.inotify.max_user_instances", 8192, "the spawner watches control groups, programs watch files"),
    Wanted("fs.inotify.max_user_watches", 1_048_576, "the spawner watches control groups, programs watch files"),
    Wanted("net.core.rmem_max", 7_500_000, "receive buffer of HTTP/3"),
    Wanted("net.core.wmem_max", 7_500_000, "send buffer of HTTP/3"),
)


def raise_limits() -> list[str]:
    """Raise what this process may raise, for itself, its children and the host; a line for each setting that changed.

    Host settings stay raised afterwards: other programs may have come to rely on them."""
    changed = []
    for wanted in WANTED:
        now = wanted.now()
        if now is not None and now < wanted.value:
            try:
                wanted.path.write_text(str(wanted.value))
            except OSError:
                continue
            changed.append(f"{wanted.key}: {now} → {wanted.now()}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = max(hard, next((w.now() or 0 for w in WANTED if w.key == "fs.nr_open"), 0))
    for attempt in (target, hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (attempt, attempt))
        except (OSError, ValueError):
            continue
        if attempt != hard:
            changed.append(f"open files: {hard} → {attempt}")
        break
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return changed
