"""The `native` backend: containers made by the spawner, reached over one connection.

Owns the sandboxes that this gateway knows, and brings every event to the one it is about. The spawner decides what is
true: after each greeting it is asked again what it holds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from guard import preflight
from runtimes.backend import Adopted, Command, Failure, Kind, Need, Process, Sandbox, Spec, StartFailed
from runtimes.native.client import Client
from runtimes.native.messages import exit_event, spec_fields
from runtimes.native.request import Refused, Reply, detail_of
from runtimes.native.sandbox import NativeSandbox, Owner, begin
from runtimes.native.wire import Frame, Op, T, fields, number, text

log = logging.getLogger(__name__)

_ACK_DELAY_S = 0.005
_ACKS_MAX = 512
_STATE_READY = 1


class NativeBackend(Owner):
    """Connects at the first request, and again whenever the connection breaks.

    A spawner that was restarted has nothing of before: every sandbox is lost (`lost`). One that is the same is asked
    for its list, and what is not in it is lost."""

    kind: ClassVar[Kind] = "container"

    def __init__(self, socket_path: str | Path, *, epoch: int | None = None, patience_s: float = 10.0) -> None:
        self.client = Client(socket_path, on_event=self._event, on_connected=self._connected, on_fenced=self._fenced,
                             epoch=epoch, patience_s=patience_s)
        self.followed = {}
        self._boxes: dict[str, NativeSandbox] = {}
        self._acks: list[str] = []
        self._ack_timer: asyncio.TimerHandle | None = None

    # -- Backend ------------------------------------------------------------------------------------------------------

    def needs(self) -> list[Need]:
        return [Need(*need) for need in preflight.check()]

    async def start_many(self, names: Sequence[str], spec: Spec) -> AsyncIterator[Sandbox | Failure]:
        """Each as soon as it stands. What was not yielded when the caller leaves is ended."""
        done: asyncio.Queue[tuple[str, asyncio.Future[Reply]]] = asyncio.Queue()
        left = dict.fromkeys(names)

        def create(name: str) -> None:
            future = self.client.request(Op.CREATE, spec_fields(name, spec), again="any")
            future.add_done_callback(lambda future: done.put_nowait((name, future)))

        for name in left:
            create(name)
        try:
            while left:
                name, future = await done.get()
                made = self._made(name, spec, future)
                del left[name]
                yield made
        finally:
            for name in left:
                self.client.request(Op.DESTROY, text(T.NAME, name))

    def _made(self, name: str, spec: Spec, future: asyncio.Future[Reply]) -> Sandbox | Failure:
        error = future.exception()
        if isinstance(error, Refused) and error.code != errno.EEXIST:
            return Failure(name=name, reason=error.reason)
        if error is not None and not isinstance(error, Refused):
            return Failure(name=name, reason=str(error))
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = NativeSandbox(self, name, spec)
        return box

    async def start_group(self, members: Sequence[tuple[Sandbox, Command]]) -> list[Process]:
        ours = [(box, command) for box, command in members if isinstance(box, NativeSandbox)]
        if len(ours) != len(members) or not ours:
            raise StartFailed("no sandbox, or one of another backend")
        return await begin(ours)

    async def stop_many(self, names: Sequence[str], reason: str) -> None:
        futures: list[asyncio.Future[Reply]] = []
        for name in names:
            box = self._boxes.get(name)
            if box is not None:
                futures.append(box.stopping(reason))
            else:
                futures.append(self.client.request(Op.DESTROY, text(T.NAME, name) + text(T.REASON, reason[:23])))
        if futures:
            await asyncio.wait(futures)

    async def adopt(self) -> list[Adopted]:
        """Everything that the spawner holds and that stands. Raises Unreachable."""
        found: list[Adopted] = []
        await self.client.request(Op.LIST, tell=lambda frame: self._item(frame, found, adopting=True), again="never")
        return found

    async def aclose(self) -> None:
        """Drop the connection. Sandboxes go on, and commands that may outlive us too."""
        self._flush_acks()
        await self.client.aclose()
        for box in list(self._boxes.values()):
            box.gone("closed")

    @property
    def connected(self) -> bool:
        """Whether a spawner listens to us at this moment."""
        return self.client.connected

    async def stats(self) -> dict[str, int]:
        """The spawner's own counters by name. Raises Unreachable."""
        reply = await self.client.ask(Op.STATS, again="any")
        lines = (line.split() for line in detail_of(reply.payload).splitlines())
        return {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2 and parts[1].isdigit()}

    # -- Owner --------------------------------------------------------------------------------------------------------

    def acknowledge(self, process: str) -> None:
        self._acks.append(process)
        if len(self._acks) >= _ACKS_MAX:
            self._flush_acks()
        elif self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(_ACK_DELAY_S, self._flush_acks)

    def drop(self, name: str) -> None:
        self._boxes.pop(name, None)

    def _flush_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self._acks:
            self.client.request(Op.ACK, b"".join([text(T.PROC, id) for id in self._acks]))
            self._acks = []

    # -- what the spawner tells ---------------------------------------------------------------------------------------

    def _event(self, frame: Frame) -> None:
        if frame.op == Op.EV_EXIT:
            event = exit_event(frame.payload)
            if (box := self._boxes.get(event.name)) is not None:
                box.on_exit(event)
            return
        found = dict(fields(frame.payload))
        if frame.op == Op.EV_OUTPUT:
            if (process := self.followed.get(found.get(T.PROC, b"").decode())) is not None:
                process.on_output(number(found.get(T.TARGET, b"")), number(found.get(T.CLOSED, b"")) != 0)
            return
        box = self._boxes.get(found.get(T.NAME, b"").decode())
        if box is None:
            return
        if frame.op == Op.EV_STARTED:
            if (process := box.known(found.get(T.PROC, b"").decode())) is not None:
                process.on_started(number(found.get(T.PID, b"")))
        elif frame.op == Op.EV_LOST:
            box.gone(found.get(T.REASON, b"lost").decode(errors="replace"))

    def _item(self, frame: Frame, found: list[Adopted], *, adopting: bool) -> None:
        """One sandbox of a LIST. Its commands' events follow it, so it must be known before they come."""
        if frame.op != Op.EV_ITEM:
            self._event(frame)
            return
        item = dict(fields(frame.payload))
        name = item.get(T.NAME, b"").decode()
        if number(item.get(T.STATE, b"\1")) != _STATE_READY:
            self.client.request(Op.DESTROY, text(T.NAME, name))
            return
        box = self._boxes.get(name)
        if box is None and not adopting:
            return  # being made or ended by us: its own answer is on its way
        if box is None:
            try:
                spec = msgspec.msgpack.decode(item.get(T.SPEC, b""), type=Spec)
            except msgspec.DecodeError as error:
                log.warning("sandbox %s has a spec of another version (%s): ended", name, error)
                self.client.request(Op.DESTROY, text(T.NAME, name))
                return
            box = self._boxes[name] = NativeSandbox(self, name, spec)
        found.append(Adopted(sandbox=box, record=item.get(T.RECORD, b""), used=number(item.get(T.USED, b"")) != 0))

    # -- the connection -----------------------------------------------------------------------------------------------

    def _connected(self, instance: int, same: bool) -> None:
        if not same:
            for box in list(self._boxes.values()):
                box.gone("lost")
            return
        if not self._boxes:
            return
        for box in self._boxes.values():
            box.on_reconnected()
        before = set(self._boxes)
        found: list[Adopted] = []
        answered = self.client.request(Op.LIST, tell=lambda frame: self._item(frame, found, adopting=False),
                                       again="never")
        answered.add_done_callback(lambda future: self._compared(before, found, future))

    def _compared(self, before: set[str], found: list[Adopted], answered: asyncio.Future[Reply]) -> None:
        """What was known before the connection broke and is not in the new list has ended meanwhile."""
        if answered.cancelled() or answered.exception() is not None:
            return
        there = {adopted.sandbox.name for adopted in found}
        for name in before - there:
            if (box := self._boxes.get(name)) is not None:
                box.gone("lost")

    def _fenced(self) -> None:
        log.error("a newer gateway has taken the spawner over")
        for box in list(self._boxes.values()):
            box.gone("fenced")


