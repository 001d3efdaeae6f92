"""What a backend makes of the spawner's answers and events, and of a connection that breaks and comes back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtimes.backend import Command, Ended, Failure, SandboxLost, Spec, StartFailed
from runtimes.native.backend import NativeBackend
from runtimes.native.sandbox import NativeSandbox
from runtimes.native.wire import Frame, Op, T, blob, fields, frame, text, u32

from .peer import Peer

pytestmark = pytest.mark.anyio
SPEC = Spec()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    made = Peer(tmp_path / "socket")
    yield made
    made.close()


@pytest.fixture
async def backend(peer: Peer) -> AsyncIterator[NativeBackend]:
    made = NativeBackend(peer.path, patience_s=0.5)
    yield made
    await made.aclose()


def named(name: str, proc: str = "") -> bytes:
    return text(T.NAME, name) + (text(T.PROC, proc) if proc else b"")


def ended(name: str, proc: str, ended: int = 0, code: int = 0) -> bytes:
    return frame(Op.EV_EXIT, 0, named(name, proc) + u32(T.ENDED, ended) + u32(T.EXIT, code))


def item(seq: int, name: str) -> bytes:
    return frame(Op.EV_ITEM, seq, named(name) + blob(T.SPEC, msgspec.msgpack.encode(SPEC)) + u32(T.STATE, 1))


async def take(peer: Peer, op: int) -> Frame:
    request = await peer.next()
    assert request.op == op
    return request


async def make(backend: NativeBackend, peer: Peer, name: str = "sandboxone") -> NativeSandbox:
    making = asyncio.ensure_future(anext(aiter(backend.start_many([name], SPEC))))
    await peer.greet()
    peer.reply(await take(peer, Op.CREATE))
    box = await making
    assert isinstance(box, NativeSandbox)
    return box


def command(id: str, **more: Any) -> Command:
    return Command(id=id, argv=("true",), **more)


async def test_sandboxes_come_in_the_order_in_which_they_stand(backend: NativeBackend, peer: Peer) -> None:
    names = ["sandboxone", "sandboxtwo", "sandboxthree"]
    found: list[object] = []

    async def collect() -> None:
        async for made in backend.start_many(names, SPEC):
            found.append(made if isinstance(made, Failure) else made.name)

    collecting = asyncio.ensure_future(collect())
    await peer.greet()
    requests = [await take(peer, Op.CREATE) for _ in names]
    peer.reply(requests[2])
    peer.reply(requests[0], errno.ENOSPC, text(T.DETAIL, "no range of uids is free"))
    peer.reply(requests[1], errno.EEXIST)
    await collecting
    assert found == ["sandboxthree", Failure("sandboxone", "no range of uids is free: ENOSPC"), "sandboxtwo"]


async def test_who_leaves_early_leaves_nothing(backend: NativeBackend, peer: Peer) -> None:
    making = backend.start_many(["sandboxone", "sandboxtwo"], SPEC)
    first = asyncio.ensure_future(anext(making))
    await peer.greet()
    peer.reply(await take(peer, Op.CREATE))
    await first
    await making.aclose()  # type: ignore[attr-defined]
    await take(peer, Op.CREATE)
    assert dict(fields((await take(peer, Op.DESTROY)).payload))[T.NAME] == b"sandboxtwo"


async def test_a_run_is_one_message_and_acknowledgements_are_gathered(backend: NativeBackend, peer: Peer) -> None:
    box = await make(backend, peer)
    runs = [asyncio.ensure_future(box.run(command(f"command{n}"))) for n in range(3)]
    starts = [await take(peer, Op.START) for _ in runs]
    for n, request in enumerate(starts):
        peer.reply(request)
        peer.send(ended("sandboxone", f"command{n}", code=n))
    assert [(await run).exit_code for run in runs] == [0, 1, 2]
    acks = [value for _, value in fields((await take(peer, Op.ACK)).payload)]
    assert acks == [b"command0", b"command1", b"command2"]


async def test_a_refused_start_is_ours(backend: NativeBackend, peer: Peer) -> None:
    box = await make(backend, peer)
    starting = asyncio.ensure_future(box.start(command("commandone")))
    peer.reply(await take(peer, Op.START), errno.EINVAL, text(T.DETAIL, "why"))
    with pytest.raises(StartFailed, match="why"):
        await starting
    assert await box.processes() == []
    running = asyncio.ensure_future(box.run(command("commandtwo")))
    peer.reply(await take(peer, Op.START), errno.ENOENT)
    with pytest.raises(SandboxLost):
        await running


async def test_a_forgotten_command_is_not_met_again(backend: NativeBackend, peer: Peer) -> None:
    box = await make(backend, peer)
    starting = asyncio.ensure_future(box.start(command("commandone")))
    peer.reply(await take(peer, Op.START))
    process = await starting
    await process.forget()
    peer.send(frame(Op.EV_STARTED, 0, named("sandboxone", "commandone") + u32(T.PID, 5)), ended("sandboxone", "commandone"))
    await take(peer, Op.ACK)
    assert await box.processes() == []


async def test_the_same_spawner_again(backend: NativeBackend, peer: Peer) -> None:
    """What it lists goes on; what it would not keep without us, and what it does not list, is over."""
    box = await make(backend, peer)
    other = asyncio.ensure_future(anext(aiter(backend.start_many(["sandboxtwo"], SPEC))))
    peer.reply(await take(peer, Op.CREATE))
    second = await other
    assert isinstance(second, NativeSandbox)
    kept, dropped = command("commandkeep", orphan="keep"), command("commandkill")
    starting = asyncio.gather(box.start(kept), box.start(dropped))
    for _ in range(2):
        peer.reply(await take(peer, Op.START))
    processes = await starting
    waits = [asyncio.ensure_future(process.wait()) for process in processes]
    await asyncio.sleep(0)
    await peer.greet()
    listing = await take(peer, Op.LIST)
    outcome = await waits[1]
    assert (outcome.ended, outcome.exit_code) == (Ended.FAULT, None)
    peer.send(item(listing.seq, "sandboxone"), item(listing.seq, "unknownname"), ended("sandboxone", "commandkeep", code=7),
              frame(Op.LIST | Op.REPLY, listing.seq, u32(T.CODE, 0)))
    assert (await waits[0]).exit_code == 7
    assert await second.lost() == "lost"
    with pytest.raises(SandboxLost):
        await second.run(command("commandlost"))


async def test_another_spawner_has_nothing_of_before(backend: NativeBackend, peer: Peer) -> None:
    box = await make(backend, peer)
    running = asyncio.ensure_future(box.run(command("commandone", orphan="keep")))
    await take(peer, Op.START)
    peer.instance = 2
    await peer.greet()
    with pytest.raises(SandboxLost):
        await running
    assert await box.lost() == "lost"


async def test_a_newer_gateway_takes_over(backend: NativeBackend, peer: Peer) -> None:
    box = await make(backend, peer)
    await peer.greet(errno.ESTALE)
    assert await box.lost() == "fenced"


async def test_adopting(backend: NativeBackend, peer: Peer) -> None:
    adopting = asyncio.ensure_future(backend.adopt())
    await peer.greet()
    listing = await take(peer, Op.LIST)
    strange = frame(Op.EV_ITEM, listing.seq, named("strangename") + blob(T.SPEC, b"\xc1") + u32(T.STATE, 1))
    unmade = frame(Op.EV_ITEM, listing.seq, named("unmadename") + u32(T.STATE, 0))
    used = frame(Op.EV_ITEM, listing.seq, named("sandboxtwo") + blob(T.SPEC, msgspec.msgpack.encode(SPEC))
                 + blob(T.RECORD, b"record") + u32(T.USED, 1) + u32(T.STATE, 1))
    peer.send(item(listing.seq, "sandboxone"), strange, unmade, used,
              frame(Op.EV_STARTED, 0, named("sandboxtwo", "commandone") + u32(T.PID, 9)),
              frame(Op.LIST | Op.REPLY, listing.seq, u32(T.CODE, 0)))
    found = await adopting
    assert [(it.sandbox.name, it.record, it.used) for it in found] == [
        ("sandboxone", b"", False), ("sandboxtwo", b"record", True)]
    (process,) = await found[1].sandbox.processes()
    assert (process.id, process.pid, await process.started()) == ("commandone", 9, True)
    destroyed = [dict(fields((await take(peer, Op.DESTROY)).payload))[T.NAME] for _ in range(2)]
    assert destroyed == [b"strangename", b"unmadename"]


async def test_stats(backend: NativeBackend, peer: Peer) -> None:
    asking = asyncio.ensure_future(backend.stats())
    await peer.greet()
    peer.reply(await take(peer, Op.STATS), more=text(T.DETAIL, "sandboxes 3\nfaults 0\n"))
    assert await asking == {"sandboxes": 3, "faults": 0}
