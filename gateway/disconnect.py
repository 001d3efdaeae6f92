"""Ending what a request waits for: its client went away, or its deadline passed. Owns the one way in which a request is cancelled.

The work is cancelled as by `asyncio.timeout`: one CancelledError, whose clean-up may wait."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.deadline import deadline_of, remaining_s
from gateway.errors import ClientGone, DeadlineExceeded, Problem

GONE = "stokehold.gone"
"""Scope extension of our own server: a function that takes a callback for the moment when the client goes away."""
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class Interrupt:
    """Cancels the task that entered it; on leaving, the reason is raised in place of CancelledError."""

    def __init__(self) -> None:
        self.reason: Problem | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before = 0

    def strike(self, reason: Problem) -> None:
        """End the work, unless it ended already. Only the first reason counts."""
        if self._task is not None and self.reason is None:
            self.reason = reason
            self._task.cancel()

    async def __aenter__(self) -> Interrupt:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._before = self._task.cancelling()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self.reason is not None and task is not None and task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise self.reason from error


class Inbound:
    """A request's messages; once the body is over, it listens for the client's going away."""

    def __init__(self, scope: Scope, receive: Receive, interrupt: Interrupt) -> None:
        self._receive = receive
        self._interrupt = interrupt
        self._listener: asyncio.Task[None] | None = None
        self._closed = False
        register = scope.get("extensions", {}).get(GONE)
        self._told = register is not None
        if register is not None:
            register(self._gone)

    async def receive(self) -> Message:
        """The next message; after the body's end, waits for the disconnect."""
        if self._listener is not None:
            await asyncio.shield(self._listener)
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.listen()
        return message

    def listen(self) -> None:
        """From now on a disconnect ends the work."""
        if self._listener is None and not self._told and not self._closed:
            self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone()

    def _gone(self) -> None:
        if not self._closed:
            self._interrupt.strike(ClientGone("the client went away"))

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()


class Attended:
    """Middleware: a request's work ends when its client goes away or its `Stokehold-Timeout-Ms` has passed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        deadline_ns = scope["deadline_ns"] = deadline_of(scope["headers"])
        interrupt = scope["interrupt"] = Interrupt()
        inbound = Inbound(scope, receive, interrupt)
        timer: asyncio.TimerHandle | None = None
        try:
            async with interrupt:
                if deadline_ns is not None:
                    passed = DeadlineExceeded("Stokehold-Timeout-Ms has passed; the work was cancelled")
                    timer = asyncio.get_running_loop().call_later(remaining_s(deadline_ns), interrupt.strike, passed)
                if scope["method"] in _BODILESS:
                    inbound.listen()
                await self.app(scope, inbound.receive, send)
        finally:
            inbound.close()
            if timer is not None:
                timer.cancel()
