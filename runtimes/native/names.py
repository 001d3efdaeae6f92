"""The names of a sandbox's users and groups, as its own /etc/passwd and /etc/group have them.

They are the guest's text: parsed with bounds, shown, and never used to decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from runtimes.backend import Entry

_LINES_MAX: Final = 10_000
_STALE_NS: Final = 1_000_000_000


class Names:
    """Read when an id first needs a name, and again when one is unknown and a second has passed."""

    def __init__(self, read: Callable[[str], Awaitable[bytes]]) -> None:
        self._read = read
        self._users: dict[int, str] = {0: "root"}
        self._groups: dict[int, str] = {0: "root"}
        self._read_at: int | None = None

    async def of(self, entry: Entry) -> Entry:
        """`entry` with `user` and `group`, where they have names."""
        if (entry.uid not in self._users or entry.gid not in self._groups) and self._stale():
            self._read_at = time.monotonic_ns()
            self._users = {0: "root", **parse(await self._read("/etc/passwd"))}
            self._groups = {0: "root", **parse(await self._read("/etc/group"))}
        return msgspec.structs.replace(entry, user=self._users.get(entry.uid), group=self._groups.get(entry.gid))

    def _stale(self) -> bool:
        return self._read_at is None or time.monotonic_ns() - self._read_at > _STALE_NS


def parse(content: bytes) -> dict[int, str]:
    """Names by id from lines `name:password:id:…`; the first of an id wins, as for getpwuid."""
    names: dict[int, str] = {}
    for line in content.decode(errors="replace").split("\n")[:_LINES_MAX]:
        parts = line.split(":", 3)
        if len(parts) >= 3 and 0 < len(parts[0]) <= 64 and parts[2].isascii() and parts[2].isdigit():
            names.setdefault(int(parts[2][:10]), parts[0])
    return names
