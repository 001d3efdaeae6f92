"""The listening side: sockets, TLS, HTTP/1.1, 2 and 3 on one port number, draining. Knows nothing of what is served.

The order at the end: new work is refused, running work goes on up to `drain_s`, then connections are closed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from typing import Any

import structlog
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from starlette.types import ASGIApp

from gateway.services import Drain
from gateway.settings import Settings, SettingsError, split_address
from gateway.tls import Pair
from gateway.wire.quic import QuicServer
from gateway.wire.tcp import Connection

BACKLOG = 4096
UDP_BUFFER = 4 << 20
CLOSE_S = 3.0
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def configuration(settings: Settings, port: int) -> Config:
    """Hypercorn's settings for the protocol engines that are used here."""
    config = Config()
    config.alt_svc_headers = [f'h3=":{port}"; ma=3600']
    config.include_server_header = False
    config.keep_alive_timeout = settings.keep_alive_s
    config.keep_alive_max_requests = 1_000_000
    config.h2_max_concurrent_streams = 256
    config.h11_max_incomplete_size = 64 << 10
    config.errorlog = None
    config.accesslog = None
    return config


def tls_context(pair: Pair) -> ssl.SSLContext:
    """TLS 1.2 and up, ALPN for HTTP/2 and 1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def _bind(address: str, kind: socket.SocketKind) -> socket.socket:
    """A bound, non-blocking socket. Raises SettingsError if the address cannot be had."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, UDP_BUFFER)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise SettingsError(f"cannot listen on {address}: {error}") from error
    sock.setblocking(False)
    return sock


class Server:
    """All listeners of one gateway."""

    def __init__(self, app: ASGIApp, settings: Settings, pair: Pair) -> None:
        self._app = ASGIWrapper(app)  # type: ignore[arg-type]
        self._settings = settings
        self._pair = pair
        self._context = WorkerContext(None)
        self._connections: set[asyncio.Task[Any]] = set()
        self._listeners: list[asyncio.Server] = []
        self._quic: QuicServer | None = None
        self._log = structlog.get_logger("server")
        self.port = 0
        """Of the TLS listener, once it listens."""
        self.plain_port: int | None = None

    async def start(self) -> None:
        """Listen. Raises SettingsError."""
        settings = self._settings
        stream = _bind(settings.listen, socket.SOCK_STREAM)
        host, port = stream.getsockname()[:2]
        self.port = port
        datagrams = _bind(f"[{host}]:{port}", socket.SOCK_DGRAM)
        config = configuration(settings, port)
        context = tls_context(self._pair)
        await self._listen(stream, config, context)
        if settings.http is not None:
            plain = configuration(settings, port)
            plain.alt_svc_headers = []
            sock = _bind(settings.http, socket.SOCK_STREAM)
            self.plain_port = sock.getsockname()[1]
            await self._listen(sock, plain, None)
        quic = self._quic = QuicServer(self._app, config, self._context, self._pair)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: quic, sock=datagrams)
        self._log.info("listening", listen=f"{host}:{port}", http=settings.http)

    async def _listen(self, sock: socket.socket, config: Config, context: ssl.SSLContext | None) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            await Connection(self._app, config, self._context, reader, writer).serve()

        handshake_s, shutdown_s = (None, None) if context is None else (20.0, 2.0)
        self._listeners.append(
            await asyncio.start_server(
                connected, sock=sock, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s, ssl_shutdown_timeout=shutdown_s
            )
        )

    async def drain(self, drain: Drain) -> None:
        """Refuse new work, and wait for what is going on, at most `drain_s`."""
        drain.begin()
        self._log.info("draining", working=drain.working)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drain.empty.wait(), self._settings.drain_s)

    async def aclose(self) -> None:
        """Close listeners and connections; what still runs is cancelled."""
        await self._context.terminated.set()
        for listener in self._listeners:
            listener.close()
        if self._quic is not None:
            self._quic.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=CLOSE_S)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._quic is not None:
            await self._quic.aclose()


async def stopped() -> None:
    """Returns at the first SIGTERM or SIGINT."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    await event.wait()
