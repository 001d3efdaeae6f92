"""Middleware: whatever is raised below becomes a problem reply, or breaks the connection off if an answer had begun."""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ClientGone, Failed, Unsupported, kind_of, respond, tell
from gateway.telemetry import Metrics
from runtimes.backend import FileFailure


class Broken(Exception):
    """An answer had begun and cannot be finished: the server must break it off. It was told in the log already."""


class Problems:
    """The only place where exceptions are turned into answers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics
        self.log = structlog.get_logger("gateway")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _no_websocket(scope, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_watched)
        except ClientGone:
            raise Broken from None
        except Exception as error:
            self._note(error, scope)
            if begun:
                raise Broken from None
            await respond(error, scope["request_id"])(scope, receive, send_watched)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._note(Failed("cancelled"), scope)
            if begun:
                raise Broken from None
            await respond(Failed("the work was cancelled"), scope["request_id"])(scope, receive, send_watched)

    def _note(self, error: BaseException, scope: Scope) -> None:
        self.metrics.problems.labels(tell(error, "").body["code"]).inc()
        kind = kind_of(error)
        if kind is None and not isinstance(error, FileFailure) and not hasattr(error, "status_code"):
            self.metrics.unexpected.inc()
            self.log.error("unexpected", request_id=scope["request_id"], path=scope["path"][:200], exc_info=error)
        elif kind is not None and kind.status == 503:
            self.log.warning("failed", request_id=scope["request_id"], code=kind.code, detail=str(error)[:500])


async def _no_websocket(scope: Scope, send: Send) -> None:
    """No route of this service speaks WebSocket: 501 where the server can say so before the handshake, else a refusal."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    response = respond(Unsupported("WebSocket routes are not part of this service: use a process with stdin"), "")
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "websocket.http.response.body", "body": bytes(response.body), "more_body": False})
