"""HTTP/3 on one QUIC connection: streams as ASGI requests. Headers, body and end leave in as few packets as they fit in."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.h3.exceptions import H3Error
from aioquic.quic.events import QuicEvent, StopSendingReceived, StreamReset
from hypercorn.utils import filter_pseudo_headers, suppress_body

from gateway.disconnect import GONE
from gateway.errors import ClientGone
from gateway.wire.apps import run_app
from gateway.wire.channel import Channel

if TYPE_CHECKING:
    from gateway.wire.quic import Connection

HIGH_WATER = 256 << 10
"""Bytes of one answer that wait for the peer's acknowledgement before the application waits."""
DISCARD_MAX = 128 << 20
STALL_S = 120.0


class Exchange:
    """One request and its answer."""

    def __init__(self, owner: H3, stream_id: int, request: HeadersReceived) -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.channel = Channel(self._consumed)
        self.room = asyncio.Event()
        self._start: dict[str, Any] | None = None
        self._headers_sent = False
        self._ended = False
        self.scope = owner.scope(request)
        self.scope["extensions"] = {GONE: self.channel.on_gone}

    async def run(self) -> None:
        """The application, and then the stream's end whatever it did."""
        try:
            await run_app(self.owner.app, self.scope, self.channel, self.send)
        finally:
            self._close()

    async def send(self, message: Any) -> None:
        """The ASGI send: waits while too much is unacknowledged. Raises ClientGone."""
        kind = message["type"]
        if self.channel.is_gone and not self._ended:
            raise ClientGone("the client went away")
        if kind == "http.response.start":
            self._start = message
        elif kind == "http.response.body" and self._start is not None:
            await self._body(message)

    async def _body(self, message: Any) -> None:
        start = self._start
        assert start is not None
        more, data = message.get("more_body", False), bytes(message.get("body", b""))
        if suppress_body(self.scope["method"], int(start["status"])):
            data = b""
        if not self._headers_sent:
            self._headers_sent = True
            headers = [(b":status", b"%d" % start["status"]), *((bytes(n).lower(), bytes(v)) for n, v in start.get("headers", []))]
            self.owner.send_headers(self.stream_id, headers, end=not more and not data)
            self._ended = not more and not data
        if data:
            self.owner.send_data(self.stream_id, data, end=not more)
            self._ended = not more
        elif not more and not self._ended:
            self.owner.send_data(self.stream_id, b"", end=True)
            self._ended = True
        if more:
            await self._drained()

    async def _drained(self) -> None:
        """Wait until little enough is unacknowledged."""
        while self.owner.unsent(self.stream_id) > HIGH_WATER:
            if self.channel.is_gone:
                raise ClientGone("the client went away")
            self.room.clear()
            try:
                await asyncio.wait_for(self.room.wait(), STALL_S)
            except TimeoutError:
                raise ClientGone("the client takes nothing") from None

    def _consumed(self, count: int) -> None:
        if self.channel.discarded > DISCARD_MAX:
            self.owner.stop(self.stream_id)
        self.owner.consumed(self.stream_id, count)

    def gone(self) -> None:
        """The peer went away."""
        self.channel.gone()
        self.room.set()

    def _close(self) -> None:
        if not self._ended and not self.channel.is_gone:
            if self._start is None:
                self.owner.send_headers(self.stream_id, [(b":status", b"500"), (b"content-length", b"0")], end=True)
            else:
                self.owner.reset(self.stream_id)
        self.owner.over(self.stream_id)


class H3:
    """The requests of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.app = connection.server.app
        self._connection = connection
        self._quic = connection.quic
        self._h3 = H3Connection(connection.quic)
        self._exchanges: dict[int, Exchange] = {}
        self._late: dict[int, Channel] = {}
        """Bodies that still come although their answer is over."""

    @property
    def busy(self) -> bool:
        return bool(self._exchanges)

    def handle(self, event: QuicEvent) -> None:
        """Something happened on the connection."""
        if isinstance(event, StreamReset | StopSendingReceived):
            exchange = self._exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.gone()
            self._late.pop(event.stream_id, None)
        for found in self._h3.handle_event(event):
            if isinstance(found, HeadersReceived):
                self._headers(found)
            elif isinstance(found, DataReceived):
                self._data(found.stream_id, found.data, found.stream_ended)

    def _headers(self, found: HeadersReceived) -> None:
        stream_id = found.stream_id
        if stream_id in self._exchanges or stream_id in self._late:  # trailers
            self._data(stream_id, b"", found.stream_ended)
            return
        exchange = self._exchanges[stream_id] = Exchange(self, stream_id, found)
        if found.stream_ended:
            exchange.channel.end()
        self._connection.server.spawn(exchange.run())

    def _data(self, stream_id: int, data: bytes, ended: bool) -> None:
        exchange = self._exchanges.get(stream_id)
        channel = exchange.channel if exchange is not None else self._late.get(stream_id)
        if channel is None:
            return
        if data:
            self._quic.unread[stream_id] = self._quic.unread.get(stream_id, 0) + len(data)
            channel.feed(data)
        if ended:
            channel.end()
            if self._late.pop(stream_id, None) is not None:
                self._quic.unread.pop(stream_id, None)

    def acknowledged(self) -> None:
        """The peer may have taken something: those who wait look again."""
        for exchange in self._exchanges.values():
            exchange.room.set()

    def lost(self) -> None:
        """The connection is gone."""
        for exchange in list(self._exchanges.values()):
            exchange.gone()
        self._late.clear()

    # -- for exchanges

    def scope(self, request: HeadersReceived) -> dict[str, Any]:
        """The ASGI scope of a request."""
        pseudo = {name: value for name, value in request.headers if name.startswith(b":")}
        raw_path, _, query = pseudo.get(b":path", b"/").partition(b"?")
        method = pseudo.get(b":method", b"GET").decode("ascii", "replace").upper()
        return {
            "type": "http",
            "http_version": "3",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "method": method,
            "scheme": "https",
            "path": unquote(raw_path.decode("ascii", "replace")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": filter_pseudo_headers(request.headers),
            "client": self._connection.client,
            "server": None,
            "state": {},
        }

    def send_headers(self, stream_id: int, headers: list[tuple[bytes, bytes]], *, end: bool) -> None:
        headers.append((b"date", formatdate(usegmt=True).encode()))
        self._try(lambda: self._h3.send_headers(stream_id, headers, end))

    def send_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        self._try(lambda: self._h3.send_data(stream_id, data, end))

    def reset(self, stream_id: int) -> None:
        self._try(lambda: self._quic.reset_stream(stream_id, ErrorCode.H3_INTERNAL_ERROR))

    def stop(self, stream_id: int) -> None:
        self._try(lambda: self._quic.stop_stream(stream_id, ErrorCode.H3_NO_ERROR))

    def _try(self, act: Any) -> None:
        """A stream may be over on the peer's side at any moment; then there is nobody to tell."""
        try:
            act()
        except (H3Error, AssertionError, ValueError, KeyError):
            return
        self._connection.transmit_soon()

    def unsent(self, stream_id: int) -> int:
        return self._quic.unsent(stream_id)

    def consumed(self, stream_id: int, count: int) -> None:
        """Body bytes were taken: the peer may send more."""
        left = self._quic.unread.get(stream_id, 0) - count
        self._quic.unread[stream_id] = max(0, left)
        self._connection.transmit_soon()

    def over(self, stream_id: int) -> None:
        """The answer is over; the rest of the body, if there is one, is thrown away as it comes."""
        exchange = self._exchanges.pop(stream_id)
        if not exchange.channel.ended and not exchange.channel.is_gone:
            self._late[stream_id] = exchange.channel
        else:
            self._quic.unread.pop(stream_id, None)
