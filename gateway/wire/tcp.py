"""One TCP connection: HTTP/1.1 or HTTP/2 by ALPN or prior knowledge. Hypercorn's server with our tasks and our HTTP/2.

A peer that stalls while we send is cut off; one that still sends when its answer is done is listened to for a moment, so
that it gets to read the answer before the connection closes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import h11
import structlog
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from gateway.wire.apps import AppTasks
from gateway.wire.h2 import H2

log = structlog.get_logger("server")
STALL_S = 120.0
LINGER_S = 10.0
LINGER_BYTES = 128 << 20
_ENDINGS = (OSError, RuntimeError, asyncio.IncompleteReadError)


class H11(H11Protocol):
    """HTTP/1.1. Notices when an answer was given before the request's body was whole."""

    answered_early = False

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response) and event.status_code >= 200 and self.connection.their_state is h11.SEND_BODY:
            event.headers.append((b"connection", b"close"))
        await super().stream_send(event)

    async def _maybe_recycle(self) -> None:
        ours, theirs = self.connection.our_state, self.connection.their_state
        if ours in (h11.DONE, h11.MUST_CLOSE) and theirs is h11.SEND_BODY:
            self.answered_early = True
        await super()._maybe_recycle()


class Connection(TCPServer):
    """Serves one accepted connection to its end."""

    def __init__(self, app: Any, config: Config, context: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(app, asyncio.get_running_loop(), config, context, {}, reader, writer)
        self._engine: H11 | H2
        self._tasks: AppTasks
        self._closing = False

    async def serve(self) -> None:
        """Returns when the connection is closed and everything that worked for it has ended. Never raises but when cancelled."""
        try:
            await self.run()
        except Exception as error:
            log.warning("connection failed", exc_info=error)

    async def run(self) -> None:
        raw = self.writer.get_extra_info("socket")
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            client, server = (parse_socket_addr(raw.family, name) for name in (raw.getpeername(), raw.getsockname()))
            tls = self.writer.get_extra_info("ssl_object")
            many = tls is not None and tls.selected_alpn_protocol() == "h2"
            tasks = self._task_group = self._tasks = AppTasks(self.loop, waits=not many)
            async with tasks:
                self._parts = (
                    self.app,
                    self.config,
                    self.context,
                    tasks,
                    ConnectionState({}),
                    tls is not None,
                    client,
                    server,
                    self.protocol_send,
                )
                self._engine = H2(*self._parts) if many else H11(*self._parts)
                self.protocol = self  # type: ignore[assignment]
                await self._engine.initiate()
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except* _ENDINGS:
            pass
        finally:
            await self._close()

    async def handle(self, event: Event) -> None:
        """Give an event to the engine; HTTP/1.1 may turn out to be HTTP/2 (h2c)."""
        try:
            await self._engine.handle(event)
        except (H2ProtocolAssumedError, H2CProtocolRequiredError) as error:
            self._tasks.waits = False
            self._engine = engine = H2(*self._parts)
            upgrade = (error.headers, error.settings) if isinstance(error, H2CProtocolRequiredError) else ()
            await engine.initiate(*upgrade)
            if error.data:
                await engine.handle(RawData(data=error.data))

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            async with self.send_lock:
                try:
                    self.writer.write(event.data)
                    await asyncio.wait_for(self.writer.drain(), STALL_S)
                except (OSError, RuntimeError, TimeoutError):
                    self.writer.transport.abort()
                    await self.handle(Closed())
        elif isinstance(event, Closed):
            if isinstance(self._engine, H11) and self._engine.answered_early:
                self.loop.call_later(LINGER_S, self.writer.close)  # the reader lingers, then closes
                return
            await self._close()
        else:
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        while not self.reader.at_eof():
            try:
                data = await self.reader.read(64 << 10)
            except OSError:
                break
            await self.handle(RawData(data))
            if isinstance(self._engine, H11) and self._engine.answered_early:
                await self._linger()
                break
        await self.handle(Closed())

    async def _linger(self) -> None:
        seen = 0
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_S):
                while seen < LINGER_BYTES and (data := await self.reader.read(256 << 10)):
                    seen += len(data)

    async def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        try:
            with contextlib.suppress(*_ENDINGS):
                self.writer.close()
                async with asyncio.timeout(5):
                    await self.writer.wait_closed()
        except TimeoutError:
            self.writer.transport.abort()
        finally:
            await self.idle_task.stop()
