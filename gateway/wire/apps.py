"""Starting the application for a request, and noticing how it ended. Hypercorn's TaskGroup with our channel in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from hypercorn.asyncio.task_group import TaskGroup

from gateway.disconnect import GONE
from gateway.errors import ClientGone
from gateway.problems import Broken
from gateway.wire.channel import Channel

log = structlog.get_logger("server")
READ_AHEAD = 256 << 10
"""Body bytes of one HTTP/1.1 request that wait for the application before the connection is read no further."""

Send = Callable[[Any], Awaitable[None]]


async def run_app(app: Any, scope: Any, channel: Channel, send: Send) -> None:
    """Run the application for one request to its end. Errors are logged, never raised."""
    channel.task = asyncio.current_task()
    try:
        await app(scope, channel.receive, send, _no_threads, _no_threads)
    except (Broken, ClientGone):
        pass
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.error("application failed", path=str(scope.get("path"))[:200], exc_info=error)
    finally:
        channel.finish()


def _no_threads(*_: Any) -> Any:
    raise NotImplementedError("the application is asynchronous")


class AppTasks(TaskGroup):
    """Tasks of one connection; each request gets a channel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, waits: bool) -> None:
        """`waits`: putting body bytes in waits for room (a connection with one request at a time)."""
        super().__init__(loop)
        self.waits = waits
        self._next: Channel | None = None

    def expect(self, channel: Channel) -> None:
        """The next application to be spawned gets this channel."""
        self._next = channel

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:
        channel, self._next = self._next or Channel(), None
        if scope["type"] == "http":
            scope["extensions"][GONE] = channel.on_gone
        self.spawn(self._run, app, scope, channel, send)

        async def put(message: Any) -> None:
            if message["type"] == "http.request":
                if message["body"]:
                    channel.feed(message["body"])
                if not message["more_body"]:
                    channel.end()
                elif self.waits:
                    await channel.room(READ_AHEAD)
            else:
                channel.gone()

        return put

    async def _run(self, app: Any, scope: Any, channel: Channel, send: Send) -> None:
        try:
            await run_app(app, scope, channel, send)
        finally:
            await send(None)
