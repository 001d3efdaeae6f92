"""A spawner's end of the socket for tests: it answers what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from runtimes.native.wire import Frame, Op, T, frame, packet, split, u32, u64


class Peer:
    """Listens at `path`; `greet` takes the next connection and its HELLO."""

    def __init__(self, path: Path, instance: int = 1) -> None:
        self.path = path
        self.instance = instance
        self.packets = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._link: socket.socket | None = None
        self._early: list[Frame] = []

    @property
    def link(self) -> socket.socket:
        assert self._link is not None
        return self._link

    async def greet(self, code: int = 0) -> Frame:
        loop = asyncio.get_running_loop()
        self.hang_up()
        self._link, _ = await loop.sock_accept(self._listener)
        self._link.setblocking(False)
        hello = await self.next()
        answer = u32(T.CODE, code) + u64(T.INSTANCE, self.instance) + u32(T.PID, 7)
        self.send(frame(Op.HELLO | Op.REPLY, hello.seq, answer))
        return hello

    async def next(self) -> Frame:
        """The next request."""
        while not self._early:
            await self._readable()
            data, fds, _, _ = socket.recv_fds(self.link, 65536, 253)
            if not data:
                raise EOFError
            self.packets += 1
            self._early = split(data, fds)
        return self._early.pop(0)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self.link.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.link.fileno())

    def send(self, *frames: bytes, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.link, [packet(frames)], list(fds))

    def reply(self, request: Frame, code: int = 0, more: bytes = b"", fds: Sequence[int] = ()) -> None:
        self.send(frame(request.op | Op.REPLY, request.seq, u32(T.CODE, code) + more, len(fds)), fds=fds)

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._early = []

    def close(self) -> None:
        """As if the process had died: the socket file stays behind."""
        self.hang_up()
        self._listener.close()
