"""Waiting for a change without missing one: look, and if nothing is there, wait, with no `await` between the two."""

from __future__ import annotations

import asyncio


class Wake:
    """Wakes everybody who waits at this moment."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def fire(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        self._future = None

    async def wait(self) -> None:
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._future)
