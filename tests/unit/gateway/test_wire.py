"""Real connections on loopback: HTTP/1.1, 2 and 3, plain HTTP, clients that leave, stall, or send too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import pytest
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamReset

from gateway.server import Server
from gateway.settings import Bodies
from gateway.tls import certificates

pytestmark = pytest.mark.anyio
Headers = list[tuple[bytes, bytes]]


class Reply:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.reset = False
        self.over = asyncio.Event()

    def json(self) -> Any:
        return json.loads(bytes(self.body))


class H1:
    """A hand-made HTTP/1.1 client: one connection per request."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self.port, self.context = port, context
        self.writers: list[asyncio.StreamWriter] = []

    async def begin(self, method: str, path: str, headers: Headers, body: bytes | None = None, *, whole: bool = True) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        self.writers.append(writer)
        reply = Reply()
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body)) if whole else (b"transfer-encoding", b"chunked")]
        lines = [f"{method} {path} HTTP/1.1".encode(), b"host: localhost", *(n + b": " + v for n, v in headers)]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        if body and whole:
            writer.write(body)
        elif body:
            writer.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.task = asyncio.create_task(self._read(reader, reply))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        return reply

    async def _read(self, reader: asyncio.StreamReader, reply: Reply) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            reply.status = int(head.split()[1])
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
            if b"content-length" in fields:
                reply.body += await reader.readexactly(int(fields[b"content-length"]))
            elif fields.get(b"transfer-encoding") == b"chunked":
                while size := int(await reader.readline(), 16):
                    reply.body += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            reply.reset = True
        reply.over.set()

    async def leave(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def aclose(self) -> None:
        await self.leave()


class H2:
    """A hand-made HTTP/2 client: one connection for all."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self.port, self.context = port, context
        self.replies: dict[int, Reply] = {}
        self.engine = h2.connection.H2Connection()
        self.writer: asyncio.StreamWriter | None = None
        self.waiting: dict[int, bytearray] = {}

    async def begin(self, method: str, path: str, headers: Headers, body: bytes | None = None, *, whole: bool = True) -> Reply:
        if self.writer is None:
            if self.context is not None:
                self.context.set_alpn_protocols(["h2"])
            reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
            self.engine.initiate_connection()
            self.task = asyncio.create_task(self._read(reader))
        number = self.engine.get_next_available_stream_id()
        reply = self.replies[number] = Reply()
        pseudo = [(b":method", method.encode()), (b":path", path.encode()), (b":scheme", b"https"), (b":authority", b"localhost")]
        self.engine.send_headers(number, pseudo + headers, end_stream=body is None)
        if body is not None:
            self.waiting[number] = bytearray(body)
            self.whole = whole
        self._push()
        return reply

    def _push(self) -> None:
        assert self.writer is not None
        for number, data in list(self.waiting.items()):
            with contextlib.suppress(h2.exceptions.ProtocolError):
                while data:
                    room = min(self.engine.local_flow_control_window(number), self.engine.max_outbound_frame_size, len(data))
                    if not room:
                        break
                    self.engine.send_data(number, bytes(data[:room]))
                    del data[:room]
                if not data:
                    del self.waiting[number]
                    if self.whole:
                        self.engine.end_stream(number)
        self.writer.write(self.engine.data_to_send())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            for event in self.engine.receive_data(data):
                reply = self.replies.get(getattr(event, "stream_id", 0) or 0)
                if isinstance(event, h2.events.ResponseReceived) and reply:
                    reply.status = int(dict(event.headers)[b":status"])
                elif isinstance(event, h2.events.DataReceived) and reply:
                    reply.body += event.data
                    self.engine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamReset) and reply:
                    reply.reset = True
                    reply.over.set()
                elif isinstance(event, h2.events.StreamEnded) and reply:
                    reply.over.set()
            self._push()
        for reply in self.replies.values():
            reply.reset = reply.reset or not reply.over.is_set()
            reply.over.set()

    async def leave(self) -> None:
        for number in self.replies:
            self.engine.reset_stream(number)
        self._push()

    async def aclose(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()


class _Protocol(QuicConnectionProtocol):
    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.h3 = H3Connection(self._quic)
        self.replies: dict[int, Reply] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamReset) and event.stream_id in self.replies:
            self.replies[event.stream_id].reset = True
            self.replies[event.stream_id].over.set()
        for found in self.h3.handle_event(event):
            if isinstance(found, HeadersReceived | DataReceived) and (reply := self.replies.get(found.stream_id)):
                if isinstance(found, HeadersReceived):
                    reply.status = int(dict(found.headers)[b":status"])
                else:
                    reply.body += found.data
                if found.stream_ended:
                    reply.over.set()


class H3:
    """An HTTP/3 client on aioquic: one connection for all."""

    def __init__(self, port: int, ca: Path) -> None:
        self.port, self.ca = port, ca
        self.stack = contextlib.AsyncExitStack()
        self.protocol: _Protocol | None = None

    async def begin(self, method: str, path: str, headers: Headers, body: bytes | None = None, *, whole: bool = True) -> Reply:
        if self.protocol is None:
            configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
            configuration.load_verify_locations(str(self.ca))
            found = await self.stack.enter_async_context(
                connect("127.0.0.1", self.port, configuration=configuration, create_protocol=_Protocol)
            )
            assert isinstance(found, _Protocol)
            self.protocol = found
        protocol = self.protocol
        number = protocol._quic.get_next_available_stream_id()
        reply = protocol.replies[number] = Reply()
        pseudo = [(b":method", method.encode()), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path.encode())]
        protocol.h3.send_headers(number, pseudo + headers, end_stream=body is None)
        if body is not None:
            protocol.h3.send_data(number, body, end_stream=whole)
        protocol.transmit()
        return reply

    async def leave(self) -> None:
        assert self.protocol is not None
        for number in self.protocol.replies:
            self.protocol._quic.reset_stream(number, 0x10C)
            self.protocol._quic.stop_stream(number, 0x10C)
        self.protocol.transmit()

    async def aclose(self) -> None:
        await self.stack.aclose()


@pytest.fixture
async def stage(make_stage: Any, tmp_path: Path) -> AsyncIterator[Any]:
    async with make_stage(tmp_path, bodies=Bodies(request_mb=2)) as stage:
        yield stage


@pytest.fixture
async def server(stage: Any, tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(stage.app, stage.services.settings, certificates(stage.services.settings.tls, tmp_path))
    await server.start()
    yield server
    await server.aclose()


@pytest.fixture(params=[1, 2, 3], ids=["h1", "h2", "h3"])
async def wire(request: Any, server: Server, tmp_path: Path) -> AsyncIterator[Any]:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    made: dict[int, Callable[[], Any]] = {
        1: lambda: H1(server.port, context),
        2: lambda: H2(server.port, context),
        3: lambda: H3(server.port, tmp_path / "ca.pem"),
    }
    client = made[request.param]()
    yield client
    await client.aclose()


@pytest.fixture
def auth(client: Any) -> Headers:
    return [(b"authorization", f"Bearer {client.token}".encode()), (b"content-type", b"application/json")]


async def over(reply: Reply) -> Reply:
    await asyncio.wait_for(reply.over.wait(), 20)
    return reply


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 (other tasks make it so)
            await asyncio.sleep(0.002)


async def test_a_call(wire: Any, auth: Headers) -> None:
    reply = await over(await wire.begin("POST", "/v1/run", auth, b'{"kind":"fake","argv":["echo","x"]}'))
    assert reply.status == 200 and reply.json()["runs"][0]["stdout"] == "x\n"


async def test_megabytes_both_ways(wire: Any, auth: Headers, client: Any) -> None:
    id, data = await client.lease(), bytes(range(256)) * (3 << 12)
    put = await over(await wire.begin("PUT", f"/v1/leases/{id}/files?path=/tmp/f", auth, data))
    assert put.status == 201 and put.json()["size"] == len(data)
    got = await over(await wire.begin("GET", f"/v1/leases/{id}/files?path=/tmp/f", auth))
    assert got.status == 200 and bytes(got.body) == data


async def test_a_client_that_leaves_ends_its_command(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    id = await client.lease()
    box = next(iter(stage.host.boxes.values()))
    await wire.begin("POST", f"/v1/leases/{id}/exec", auth, b'{"argv":["sleep","60"]}')
    await until(lambda: box._processes)
    await wire.leave()
    await until(lambda: not box._processes)


async def test_a_connection_that_goes_ends_its_streams(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    id = await client.lease()
    box = next(iter(stage.host.boxes.values()))
    reply = await wire.begin("POST", f"/v1/leases/{id}/exec", [*auth, (b"accept", b"text/event-stream")], b'{"argv":["yes"]}')
    await until(lambda: len(reply.body) > 1000)
    await wire.aclose()
    await until(lambda: not box._processes)
    await until(lambda: not stage.services.drain.working)


async def test_an_upload_that_breaks_off_leaves_nothing(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    id = await client.lease()
    await wire.begin("PUT", f"/v1/leases/{id}/files?path=/tmp/f", auth, b"x" * 10_000, whole=False)
    await until(lambda: stage.services.drain.working)
    await wire.leave()
    await until(lambda: not stage.services.drain.working)
    assert (await client("GET", f"/v1/leases/{id}/files?path=/tmp/f")).status == 404


async def test_an_early_answer_is_read_although_the_body_goes_on(wire: Any, auth: Headers) -> None:
    reply = await over(await wire.begin("POST", "/v1/nowhere", auth, b"x" * (2 << 20)))
    assert reply.status == 404
    again = await over(await wire.begin("POST", "/v1/run", auth, b'{"kind":"fake","argv":["echo","x"]}'))
    assert again.status == 200


async def test_too_large_without_a_length(wire: Any, auth: Headers) -> None:
    reply = await over(await wire.begin("POST", "/v1/run", auth, b"x" * (5 << 20), whole=False))
    assert reply.status == 413 and reply.json()["code"] == "too_large"


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    id = await client.lease()
    made = await client("POST", f"/v1/leases/{id}/processes", {"argv": ["yes"]})
    reply = await wire.begin(
        "GET", f"/v1/leases/{id}/processes/{made.json()['pid']}/output?follow=true", [*auth, (b"accept", b"application/octet-stream")]
    )
    await until(lambda: len(reply.body) > 1000)
    for name in list(stage.host.boxes):
        stage.host.lose(name)
    assert (await over(reply)).reset


async def test_a_reader_that_stops_holds_little(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    """The rest of a large file stays where it is while nobody reads."""
    id = await client.lease()
    await client("PUT", f"/v1/leases/{id}/files?path=/tmp/f", body=b"x" * (16 << 20))
    if isinstance(wire, H1):
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port, ssl=wire.context, limit=1024)
        wire.writers.append(writer)
        writer.write(
            f"GET /v1/leases/{id}/files?path=/tmp/f HTTP/1.1\r\nhost: x\r\n".encode()
            + b"\r\n".join(n + b": " + v for n, v in auth)
            + b"\r\n\r\n"
        )
        assert (await reader.read(10)).startswith(b"HTTP/1.1")
    elif isinstance(wire, H2):
        reply = await wire.begin("GET", f"/v1/leases/{id}/files?path=/tmp/f", auth)
        await until(lambda: reply.status)
        wire.task.cancel()
    else:
        pytest.skip("aioquic's client cannot stop reading")
    await asyncio.sleep(0.2)
    assert stage.services.drain.working == 1
    await wire.aclose()
    await until(lambda: not stage.services.drain.working)


async def test_many_streams_and_one_that_is_not_read(wire: Any, auth: Headers, client: Any, stage: Any) -> None:
    """A body that its application does not take stalls itself alone."""
    id = await client.lease()
    pid = (await client("POST", f"/v1/leases/{id}/processes", {"argv": ["sleep", "60"]})).json()["pid"]
    stuck = await wire.begin("POST", f"/v1/leases/{id}/processes/{pid}/stdin", auth, b"x" * (4 << 20))
    for _ in range(5):
        reply = await over(await wire.begin("POST", "/v1/run", auth, b'{"kind":"fake","argv":["echo","x"]}'))
        assert reply.status == 200
    assert not stuck.over.is_set()
    await client("POST", f"/v1/leases/{id}/processes/{pid}/signal", {"signal": 9})
    assert (await over(stuck)).status == 409


async def test_what_is_no_http_hurts_nobody(wire: Any, auth: Headers, server: Server) -> None:
    for junk in (b"\x00" * 1300, b"GET / HTTP/1.1\r\nHost", b"\xc0" + b"\xff" * 1400):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(junk)
        writer.transport.abort()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", server.port)
        )
        transport.sendto(junk)
        transport.close()
    reply = await over(await wire.begin("GET", "/v1/languages", auth))
    assert reply.status == 200


async def test_a_websocket_is_refused_in_words(server: Server, tmp_path: Path) -> None:
    client = H1(server.port, ssl.create_default_context(cafile=str(tmp_path / "ca.pem")))
    upgrade = [
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", b"x" * 22 + b"=="),
    ]
    reply = await over(await client.begin("GET", "/v1/leases/abcdefgh/pty", upgrade))
    assert reply.status == 501 and reply.json()["code"] == "unsupported"
    await client.aclose()


async def test_plain_http(make_stage: Any, tmp_path: Path) -> None:
    async with make_stage(tmp_path, listen="127.0.0.1:0", http="127.0.0.1:0") as stage:
        server = Server(stage.app, stage.services.settings, certificates(stage.services.settings.tls, tmp_path))
        await server.start()
        plain = server.plain_port
        assert plain is not None
        try:
            token = [(b"authorization", f"Bearer {stage.client().token}".encode())]
            for client in (H1(plain, None), H2(plain, None)):
                reply = await over(await client.begin("GET", "/v1/languages", token))
                assert reply.status == 200
                await client.aclose()
        finally:
            await server.aclose()
