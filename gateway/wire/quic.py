"""QUIC: datagrams in and out, connections by id, timers. HTTP/3 is in `h3`. Nothing here waits for an application.

What many requests have to say in one turn of the event loop goes out together."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from aioquic._buffer import Buffer
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import MAX_STREAM_DATA_FRAME_CAPACITY, QuicConnection
from aioquic.quic.events import ConnectionIdIssued, ConnectionIdRetired, ConnectionTerminated, HandshakeCompleted, ProtocolNegotiated
from aioquic.quic.packet import PACKET_TYPE_INITIAL, QuicFrameType, encode_quic_version_negotiation, pull_quic_header
from hypercorn.config import Config

from gateway.tls import Pair
from gateway.wire.h3 import H3

log = structlog.get_logger("server")
IDS_MAX = 131_072
"""Connection ids that are known at once; a connection has about eight."""
HANDSHAKES_MAX = 1024
"""Connections that have not shown yet that their address is theirs."""
IDLE_S = 120.0
HANDSHAKE_S = 10.0
PING_S = 15.0
STREAM_WINDOW = 512 << 10
"""What a peer may send on one stream before the application has taken it."""
SMALLEST_INITIAL = 1200


class PacedQuic(QuicConnection):
    """Gives credit on request streams for what was consumed; the library itself doubles the limit as data comes."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.unread: dict[int, int] = {}
        """Bytes of request streams that wait for their application."""

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if stream.stream_id % 4:  # not a client's bidirectional stream
            super()._write_stream_limits(builder, space, stream)
            return
        limit = stream.receiver.highest_offset + STREAM_WINDOW - self.unread.get(stream.stream_id, 0)
        if limit - stream.max_stream_data_local >= STREAM_WINDOW // 4:
            stream.max_stream_data_local = limit
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            buffer = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            buffer.push_uint_var(stream.stream_id)
            buffer.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local

    def unsent(self, stream_id: int) -> int:
        """Bytes of a stream that the peer has not acknowledged."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)


class Connection:
    """One QUIC connection and the HTTP/3 on it."""

    def __init__(self, server: QuicServer, quic: PacedQuic, client: Any) -> None:
        self.server = server
        self.quic = quic
        self.ids: set[bytes] = set()
        self.client = client
        self.h3: H3 | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._scheduled = False

    def receive(self, data: bytes, address: Any) -> None:
        """A datagram came."""
        self.quic.receive_datagram(data, address, now=self.server.loop.time())
        self.process()

    def process(self) -> None:
        """Take what the library has found out, and send what is to be sent."""
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ConnectionTerminated):
                self._ended()
                return
            if isinstance(event, ConnectionIdIssued):
                self.server.add(event.connection_id, self)
            elif isinstance(event, ConnectionIdRetired):
                self.server.remove(event.connection_id, self)
            elif isinstance(event, HandshakeCompleted):
                self.server.handshakes.discard(self)
            elif isinstance(event, ProtocolNegotiated):
                self.h3 = H3(self)
                self._keep_alive()
            if self.h3 is not None:
                self.h3.handle(event)
        if self.h3 is not None:
            self.h3.acknowledged()
        self.transmit_soon()

    def transmit_soon(self) -> None:
        """Send at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self.server.loop.call_soon(self._transmit)

    def _transmit(self) -> None:
        self._scheduled = False
        loop, send = self.server.loop, self.server.send
        for data, address in self.quic.datagrams_to_send(now=loop.time()):
            send(data, address)
        at = self.quic.get_timer()
        if at != self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = None if at is None else loop.call_at(at, self._timed)

    def _timed(self) -> None:
        self._timer = self._timer_at = None
        self.quic.handle_timer(now=self.server.loop.time())
        self.process()

    def _keep_alive(self) -> None:
        """While requests are going on, silence is not idleness."""
        self._ping = self.server.loop.call_later(PING_S, self._keep_alive)
        if self.h3 is not None and self.h3.busy:
            self.quic.send_ping(0)
            self.transmit_soon()

    def close(self) -> None:
        """Tell the peer and stop."""
        self.quic.close()
        self._transmit()

    def _ended(self) -> None:
        for handle in (self._timer, self._ping):
            if handle is not None:
                handle.cancel()
        self.server.handshakes.discard(self)
        for id in list(self.ids):
            self.server.remove(id, self)
        if self.h3 is not None:
            self.h3.lost()


class QuicServer(asyncio.DatagramProtocol):
    """All QUIC connections of one socket."""

    def __init__(self, app: Any, config: Config, context: Any, pair: Pair) -> None:
        self.app = app
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.handshakes: set[Connection] = set()
        self._context = context
        self._connections: dict[bytes, Connection] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._quic = QuicConfiguration(
            alpn_protocols=H3_ALPN, is_client=False, idle_timeout=IDLE_S, max_stream_data=STREAM_WINDOW, max_data=4 << 20
        )
        self._quic.load_cert_chain(pair.certificate, pair.key)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=8)
            known = self._connections.get(header.destination_cid)
            if header.version is not None and header.version not in self._quic.supported_versions:
                if known is None and len(data) >= SMALLEST_INITIAL:
                    self.send(
                        encode_quic_version_negotiation(
                            source_cid=header.destination_cid,
                            destination_cid=header.source_cid,
                            supported_versions=self._quic.supported_versions,
                        ),
                        address,
                    )
                return
            if known is None:
                known = self._accept(header, data, address)
            if known is not None:
                known.receive(data, address)
        except ValueError:
            return
        except Exception as error:  # one peer's datagram must not end the others' service
            log.warning("datagram failed", exc_info=error)

    def _accept(self, header: Any, data: bytes, address: Any) -> Connection | None:
        if (
            len(data) < SMALLEST_INITIAL
            or header.packet_type != PACKET_TYPE_INITIAL
            or self._context.terminated.is_set()
            or len(self._connections) >= IDS_MAX
            or len(self.handshakes) >= HANDSHAKES_MAX
        ):
            return None
        quic = PacedQuic(configuration=self._quic, original_destination_connection_id=header.destination_cid)
        connection = Connection(self, quic, address[:2])
        self.handshakes.add(connection)
        self.loop.call_later(HANDSHAKE_S, self._impatient, connection)
        self.add(header.destination_cid, connection)
        self.add(quic.host_cid, connection)
        return connection

    def _impatient(self, connection: Connection) -> None:
        if connection in self.handshakes:
            self.handshakes.discard(connection)
            connection.close()

    def error_received(self, error: Exception) -> None:
        """ICMP says that somebody is gone; QUIC finds out by itself."""

    def add(self, id: bytes, connection: Connection) -> None:
        connection.ids.add(id)
        self._connections[id] = connection

    def remove(self, id: bytes, connection: Connection) -> None:
        connection.ids.discard(id)
        self._connections.pop(id, None)

    def send(self, data: bytes, address: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, address)

    def spawn(self, work: Any) -> None:
        """A task that is waited for at the end."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def close(self) -> None:
        """Say goodbye on every connection."""
        for connection in set(self._connections.values()):
            connection.close()

    async def aclose(self) -> None:
        """Cancel what still runs, and close the socket."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
