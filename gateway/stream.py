"""Responses that go out piece by piece: files, archives, NDJSON and server-sent events. Knows nothing of what they carry.

Each piece is taken only when the one before was accepted by the connection, so a slow reader holds one piece and no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ClientGone

KEEP_ALIVE_S = 15.0
PIECE = 256 << 10


class Whole(Response):
    """A body that is known whole. A large one goes to the connection piece by piece, as fast as the client reads: other
    requests have their turn in between."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self.body) - PIECE, PIECE):
            await send({"type": "http.response.body", "body": self.body[at : at + PIECE], "more_body": True})
        rest = (len(self.body) - 1) // PIECE * PIECE if self.body else 0
        await send({"type": "http.response.body", "body": self.body[rest:], "more_body": False})


class Stream(Response):
    """`pieces` as a response. An error before the first piece is raised as from any endpoint.

    Later, `on_error` makes the last piece from it; without `on_error` the connection is broken off, so that nobody takes a
    part for the whole. `closing` is left when the response is over, however it ends."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str,
        closing: contextlib.AsyncExitStack | None = None,
        on_error: Callable[[BaseException], bytes] | None = None,
    ) -> None:
        super().__init__(None, status, dict(headers or {}), media_type)
        if "content-length" not in {name.lower() for name in headers or {}}:
            del self.headers["content-length"]
        self.pieces = pieces
        self.closing = closing or contextlib.AsyncExitStack()
        self.on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.closing:
            try:
                await self._send(scope, send)
            finally:
                if hasattr(self.pieces, "aclose"):
                    await self.pieces.aclose()

    async def _send(self, scope: Scope, send: Send) -> None:
        piece = await anext(self.pieces, None)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            while piece is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await anext(self.pieces, None)
        except (Exception, asyncio.CancelledError) as error:
            interrupt = scope.get("interrupt")
            reason = (interrupt.reason if interrupt else None) if isinstance(error, asyncio.CancelledError) else error
            if self.on_error is None or reason is None or isinstance(reason, ClientGone):
                raise
            await send({"type": "http.response.body", "body": self.on_error(reason), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def kept_alive(pieces: AsyncIterator[bytes], filler: bytes, every_s: float = KEEP_ALIVE_S) -> AsyncIterator[bytes]:
    """`pieces`, with `filler` between them whenever none came for `every_s`."""
    step: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            step = step or asyncio.ensure_future(_next(pieces))
            done, _ = await asyncio.wait({step}, timeout=every_s)
            if not done:
                yield filler
                continue
            piece, step = step.result(), None
            if piece is None:
                return
            yield piece
    finally:
        if step is not None:
            step.cancel()
            with contextlib.suppress(BaseException):
                await step
        if hasattr(pieces, "aclose"):
            await pieces.aclose()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
