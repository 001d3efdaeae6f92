"""The inbound side of one request, between a connection and its application. Knows no protocol.

The connection never waits to put something in; it is told what was consumed, and gives the peer credit for that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

DISCONNECT: dict[str, Any] = {"type": "http.disconnect"}


class Channel:
    """Body bytes on their way to the application, and whether the peer is still there.

    `on_consumed(n)` is called for every byte that was taken, or thrown away because nobody will ever ask for it."""

    def __init__(self, on_consumed: Callable[[int], None] = lambda count: None) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.buffered = 0
        self.discarded = 0
        """Bytes that came after the application had finished."""
        self._on_consumed = on_consumed
        self._parts: deque[bytes] = deque()
        self._ended = False
        self._given_end = False
        self._finished = False
        self._is_gone = False
        self._callbacks: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    # -- the connection's side

    def feed(self, data: bytes) -> None:
        """Body bytes came."""
        if self._finished or self._is_gone:
            self.discarded += len(data)
            self._on_consumed(len(data))
            return
        self._parts.append(data)
        self.buffered += len(data)
        self._changed.set()

    def end(self) -> None:
        """The body is whole."""
        self._ended = True
        self._changed.set()

    def gone(self) -> None:
        """The peer went away. The application hears of it, unless it is that task itself that closes the stream."""
        if self._is_gone:
            return
        self._is_gone = True
        self._changed.set()
        self._room.set()
        if not self._finished and asyncio.current_task() is not self.task:
            for callback in self._callbacks:
                callback()
        self._callbacks.clear()

    async def room(self, limit: int) -> None:
        """Wait until at most `limit` bytes are buffered, or nobody will read any more."""
        while self.buffered > limit and not self._finished and not self._is_gone:
            self._room.clear()
            await self._room.wait()

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    @property
    def ended(self) -> bool:
        """The whole body has come."""
        return self._ended

    # -- the application's side

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call it once when the peer goes away; at once if it has."""
        if self._is_gone:
            callback()
        else:
            self._callbacks.append(callback)

    async def receive(self) -> dict[str, Any]:
        """The ASGI receive. After the body's end, waits for the disconnect."""
        while True:
            if self._parts:
                data = self._parts.popleft() if len(self._parts) == 1 else self._join()
                self.buffered -= len(data)
                self._room.set()
                self._on_consumed(len(data))
                last = self._ended and not self._parts
                self._given_end = last
                return {"type": "http.request", "body": data, "more_body": not last}
            if self._ended and not self._given_end:
                self._given_end = True
                return {"type": "http.request", "body": b"", "more_body": False}
            if self._is_gone:
                return DISCONNECT
            self._changed.clear()
            await self._changed.wait()

    def _join(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def finish(self) -> None:
        """The application is done: what it has not read is thrown away, as is what still comes."""
        self._finished = True
        self._callbacks.clear()
        unread = self.buffered
        self._parts.clear()
        self.buffered = 0
        self._room.set()
        if unread:
            self._on_consumed(unread)
