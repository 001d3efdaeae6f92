"""The connection: gathering, matching, descriptors, large payloads, and coming back."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from runtimes.native.client import Client
from runtimes.native.request import Refused, Unreachable
from runtimes.native.wire import Frame, Op, T, blob, frame, text, u32

from .peer import Peer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": uvloop.new_event_loop} if request.param == "uvloop" else {}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    found = Peer(tmp_path / "socket")
    yield found
    found.close()


class Heard:
    """What a client tells its owner."""

    def __init__(self) -> None:
        self.events: list[Frame] = []
        self.greetings: list[tuple[int, bool]] = []
        self.greeted = asyncio.Event()
        self.fenced = 0

    def connected(self, instance: int, same: bool) -> None:
        self.greetings.append((instance, same))
        self.greeted.set()

    def fence(self) -> None:
        self.fenced += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def client(peer: Peer, heard: Heard) -> AsyncIterator[Client]:
    made = Client(peer.path, on_event=heard.events.append, on_connected=heard.connected, on_fenced=heard.fence, epoch=5,
                  patience_s=0.3)
    yield made
    await made.aclose()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_what_is_asked_in_one_turn_travels_in_one_packet(client: Client, peer: Peer) -> None:
    futures = [client.request(Op.DESTROY, text(T.NAME, f"sandbox{n}")) for n in range(50)]
    await peer.greet()
    requests = [await peer.next() for _ in futures]
    assert peer.packets == 2  # HELLO, and all the others
    for request in reversed(requests):
        peer.reply(request, more=blob(T.DATA, request.payload))
    replies = await asyncio.gather(*futures)
    assert [reply.payload[12 + 8 :] for reply in replies] == [request.payload for request in requests]


async def test_packets_stay_within_their_size(client: Client, peer: Peer) -> None:
    futures = [client.request(Op.CLAIM, blob(T.RECORD, bytes(4000))) for _ in range(40)]
    await peer.greet()
    for _ in futures:
        peer.reply(await peer.next())
    await asyncio.gather(*futures)
    assert peer.packets == 4


async def test_a_refusal_has_its_errno(client: Client, peer: Peer) -> None:
    future = client.request(Op.DESTROY)
    await peer.greet()
    peer.reply(await peer.next(), errno.ENOSPC, text(T.DETAIL, "full"))
    with pytest.raises(Refused, match=r"ENOSPC.*full") as refused:
        await future
    assert refused.value.code == errno.ENOSPC


async def test_descriptors_go_and_come(client: Client, peer: Peer) -> None:
    before = open_files()
    read, write = os.pipe()
    future = client.request(Op.FILE, b"", [write], again="never")
    await peer.greet()
    request = await peer.next()
    (theirs,) = request.fds
    os.write(theirs, b"hello")
    os.close(theirs)
    assert os.read(read, 10) == b"hello"
    assert os.read(read, 10) == b""  # the client holds no copy once it was sent
    peer.reply(request, fds=[read])
    os.close(read)
    reply = await future
    assert os.read(reply.fds[0], 10) == b""
    os.close(reply.fds[0])
    assert open_files() == before + 2  # the connection's two ends


async def test_a_reply_that_nobody_waits_for_is_closed(client: Client, peer: Peer) -> None:
    await_open = asyncio.ensure_future(client.ask(Op.OPEN))
    await peer.greet()
    request = await peer.next()
    before = open_files()
    await_open.cancel()
    await asyncio.wait([await_open])
    read, write = os.pipe()
    os.close(write)
    peer.reply(request, fds=[read])
    os.close(read)
    follow = client.request(Op.STATS)
    peer.reply(await peer.next())
    await follow
    assert open_files() == before


async def test_a_large_payload_travels_as_a_memfd(client: Client, peer: Peer) -> None:
    payload = blob(T.DATA, os.urandom(200_000))
    future = client.request(Op.START, payload, [os.open("/dev/null", os.O_RDONLY)])
    await peer.greet()
    await peer._readable()
    data, fds, _, _ = socket.recv_fds(peer.link, 65536, 253)
    assert len(data) == 16 + 24 and len(fds) == 2
    assert os.pread(fds[0], 300_000, 0) == payload
    for fd in fds:
        os.close(fd)
    future.cancel()


async def test_events_come_in_order_and_those_with_a_number_go_to_their_request(client: Client, peer: Peer,
                                                                                heard: Heard) -> None:
    items: list[Frame] = []
    future = client.request(Op.LIST, tell=items.append)
    await peer.greet()
    request = await peer.next()
    peer.send(frame(Op.EV_ITEM, request.seq), frame(Op.EV_STARTED, 0), frame(Op.EV_ITEM, request.seq),
              frame(Op.LIST | Op.REPLY, request.seq, u32(T.CODE, 0)))
    await future
    assert [event.op for event in items] == [Op.EV_ITEM, Op.EV_ITEM]
    assert [event.op for event in heard.events] == [Op.EV_STARTED]


async def test_the_same_spawner_gets_the_unanswered_again(client: Client, peer: Peer, heard: Heard) -> None:
    again = client.request(Op.DESTROY, b"")
    never = client.request(Op.FILE, b"", again="never")
    await peer.greet()
    assert [(await peer.next()).op for _ in range(2)] == [Op.DESTROY, Op.FILE]
    peer.hang_up()
    await peer.greet()
    request = await peer.next()
    assert request.op == Op.DESTROY
    peer.reply(request)
    await again
    with pytest.raises(Unreachable):
        await never
    assert heard.greetings == [(1, True), (1, True)]


async def test_another_spawner_gets_only_what_fits_any(client: Client, peer: Peer, heard: Heard) -> None:
    gone = client.request(Op.CLAIM, b"")
    fits = client.request(Op.CREATE, b"", again="any")
    await peer.greet()
    for _ in range(2):
        await peer.next()
    peer.close()
    peer.path.unlink()
    second = Peer(peer.path, instance=2)
    try:
        await second.greet()
        request = await second.next()
        assert request.op == Op.CREATE
        second.reply(request)
        await fits
        with pytest.raises(Unreachable):
            await gone
        assert heard.greetings == [(1, True), (2, False)]
    finally:
        second.close()


async def test_patience_ends_but_trying_goes_on(client: Client, peer: Peer, heard: Heard) -> None:
    peer.close()
    with pytest.raises(Unreachable):
        await client.request(Op.STATS)
    with pytest.raises(Unreachable):
        await client.request(Op.STATS)
    peer.path.unlink()
    second = Peer(peer.path)
    try:
        await second.greet()
        await heard.greeted.wait()
        future = client.request(Op.STATS)
        second.reply(await second.next())
        await future
    finally:
        second.close()


async def test_a_newer_gateway_fences_this_one_off(client: Client, peer: Peer, heard: Heard) -> None:
    future = client.request(Op.STATS)
    await peer.greet(errno.ESTALE)
    with pytest.raises(Refused, match="ESTALE"):
        await future
    assert heard.fenced == 1
    with pytest.raises(Refused, match="ESTALE"):
        await client.request(Op.STATS)


async def test_garbage_breaks_the_connection_and_it_comes_back(client: Client, peer: Peer) -> None:
    future = client.request(Op.STATS)
    await peer.greet()
    await peer.next()
    peer.link.send(b"garbage")
    await peer.greet()
    peer.reply(await peer.next())
    await future


async def test_a_full_socket_is_waited_for(client: Client, peer: Peer) -> None:
    futures = [client.request(Op.CLAIM, blob(T.RECORD, bytes(30_000))) for _ in range(400)]
    await peer.greet()
    for _ in futures:
        peer.reply(await peer.next())
    await asyncio.gather(*futures)


async def test_closing_fails_what_waits(client: Client, peer: Peer) -> None:
    future = client.request(Op.STATS)
    await peer.greet()
    await peer.next()
    await client.aclose()
    with pytest.raises(Unreachable):
        await future
