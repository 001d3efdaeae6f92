"""A load generator that costs little: one prepared request, sent again and again over HTTP/1.1, 2 or 3.

It is not a client for people (`stokehold.client` is): no redirects, no retries; every reply is read whole and
checked."""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived as H2Data
from h2.events import ResponseReceived, StreamEnded, StreamReset

STREAMS = 8
"""Requests at once on one connection of HTTP/2 or 3."""


class Target(msgspec.Struct, frozen=True):
    """The one request. `good(status, body)`: whether the reply is the one that was wanted."""

    url: str
    method: str
    path: str
    token: str
    ca: str | None
    body: bytes
    good: Callable[[int, bytes], bool]

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Pseudo headers and headers of HTTP/2 and 3."""
        sent = [
            (b":method", self.method.encode()),
            (b":scheme", b"https"),
            (b":path", self.path.encode()),
            (b":authority", f"{self.host}:{self.port}".encode()),
            (b"authorization", f"Bearer {self.token}".encode()),
        ]
        return [*sent, (b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())] if self.body else sent

    def context(self, alpn: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols([alpn])
        return context


class Loaded(msgspec.Struct, frozen=True):
    """What a load brought: latencies of good replies in seconds, and the client's own CPU seconds."""

    seconds: float
    latencies: list[float]
    failed: int
    cpu_s: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 if ordered else 0.0


class Connection(Protocol):
    async def ask(self) -> tuple[int, bytes]: ...
    def close(self) -> None: ...


def load(target: Target, *, seconds: float, http: int, concurrency: int) -> Loaded:
    """Send the request over and over for `seconds`, `concurrency` at once. Raises OSError if no connection can be
    made."""
    return asyncio.run(_load(target, seconds, http, concurrency))


async def _load(target: Target, seconds: float, http: int, concurrency: int) -> Loaded:
    count = concurrency if http == 1 else max(1, concurrency // STREAMS)
    connections: list[Connection] = []
    managers = []
    for _ in range(count):
        if http == 3:
            configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, cafile=target.ca, server_name=target.host)
            manager = connect(target.host, target.port, configuration=configuration, create_protocol=_H3)
            quic = await manager.__aenter__()
            assert isinstance(quic, _H3)
            quic.target = target
            managers.append(manager)
            connections.append(quic)
        else:
            connections.append(await (_H1 if http == 1 else _H2).open(target))
    try:
        latencies: list[float] = []
        failed = 0
        for connection in connections:
            await connection.ask()
        before, began = _cpu_s(), time.perf_counter()
        until = began + seconds

        async def work(connection: Connection) -> None:
            nonlocal failed
            while (start := time.perf_counter()) < until:
                try:
                    status, body = await asyncio.wait_for(connection.ask(), 60)
                except (OSError, TimeoutError, EOFError):
                    failed += 1
                    return
                if target.good(status, body):
                    latencies.append(time.perf_counter() - start)
                else:
                    failed += 1

        await asyncio.gather(*(work(connections[n % count]) for n in range(concurrency)))
        return Loaded(time.perf_counter() - began, latencies, failed, _cpu_s() - before)
    finally:
        for connection in connections:
            connection.close()
        for manager in managers:
            await manager.__aexit__(None, None, None)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _H1:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target) -> None:
        self._reader, self._writer = reader, writer
        lines = [
            f"{target.method} {target.path} HTTP/1.1",
            f"host: {target.host}:{target.port}",
            f"authorization: Bearer {target.token}",
        ]
        if target.body:
            lines += ["content-type: application/json", f"content-length: {len(target.body)}"]
        self._request = "\r\n".join(lines).encode() + b"\r\n\r\n" + target.body

    @classmethod
    async def open(cls, target: Target) -> _H1:
        context = target.context("http/1.1") if target.url.startswith("https") else None
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        return cls(reader, writer, target)

    async def ask(self) -> tuple[int, bytes]:
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        named = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        if "content-length" in named:
            body = await self._reader.readexactly(int(named["content-length"]))
        else:
            body = b""
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                body += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        return int(head[0].split()[1]), body

    def close(self) -> None:
        self._writer.close()


class _Replies:
    """Replies that are being put together, by stream."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[asyncio.Future[tuple[int, bytes]], list[int], list[bytes]]] = {}

    def expect(self, stream: int) -> asyncio.Future[tuple[int, bytes]]:
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = (future, [], [])
        return future

    def head(self, stream: int, status: int) -> None:
        if stream in self._waiting:
            self._waiting[stream][1].append(status)

    def piece(self, stream: int, data: bytes) -> None:
        if stream in self._waiting:
            self._waiting[stream][2].append(data)

    def end(self, stream: int) -> None:
        future, status, pieces = self._waiting.pop(stream, (None, [0], []))
        if future and not future.done():
            future.set_result((status[-1] if status else 0, b"".join(pieces)))

    def broken(self) -> None:
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the connection was closed"))
        self._waiting.clear()


class _H2(asyncio.Protocol):
    def __init__(self, target: Target) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._target = target
        self._headers = target.headers()
        self._replies = _Replies()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, target: Target) -> _H2:
        context = target.context("h2") if target.url.startswith("https") else None
        _, protocol = await asyncio.get_running_loop().create_connection(lambda: cls(target), target.host, target.port, ssl=context)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, ResponseReceived) and event.stream_id is not None:
                headers = dict(event.headers or [])
                self._replies.head(event.stream_id, int(headers[b":status"]))
            elif isinstance(event, H2Data) and event.stream_id is not None:
                self._replies.piece(event.stream_id, event.data or b"")
                if event.flow_controlled_length:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded | StreamReset) and event.stream_id is not None:
                self._replies.end(event.stream_id)
        self._flush()

    def connection_lost(self, problem: Exception | None) -> None:
        self._replies.broken()

    async def ask(self) -> tuple[int, bytes]:
        stream = self._h2.get_next_available_stream_id()
        answer = self._replies.expect(stream)
        self._h2.send_headers(stream, self._headers, end_stream=not self._target.body)
        if self._target.body:
            self._h2.send_data(stream, self._target.body, end_stream=True)
        self._flush()
        return await answer

    def _flush(self) -> None:
        if self._transport and (data := self._h2.data_to_send()):
            self._transport.write(data)

    def close(self) -> None:
        if self._transport:
            self._transport.close()


class _H3(QuicConnectionProtocol):
    target: Target

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._h3 = H3Connection(self._quic)
        self._replies = _Replies()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self._replies.broken()
        for found in self._h3.handle_event(event):
            if isinstance(found, HeadersReceived):
                self._replies.head(found.stream_id, int(dict(found.headers)[b":status"]))
            elif isinstance(found, DataReceived):
                self._replies.piece(found.stream_id, found.data)
            if isinstance(found, HeadersReceived | DataReceived) and found.stream_ended:
                self._replies.end(found.stream_id)

    async def ask(self) -> tuple[int, bytes]:
        stream = self._quic.get_next_available_stream_id()
        answer = self._replies.expect(stream)
        self._h3.send_headers(stream, self.target.headers(), end_stream=not self.target.body)
        if self.target.body:
            self._h3.send_data(stream, self.target.body, end_stream=True)
        self.transmit()
        return await answer
