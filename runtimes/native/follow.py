"""Reading one stream of a command while it runs: its ring, and the spawner's word that there is more.

The descriptor is let go a moment after the last reader left: an idle lease holds none of ours.
"""

from __future__ import annotations

import asyncio
import errno

from runtimes.backend import Chunk, NoSuchProcess, StreamEnd
from runtimes.native.client import Client
from runtimes.native.request import Refused
from runtimes.native.rings import Descriptor, Ring
from runtimes.native.wire import Op, T, text, u32
from runtimes.wake import Wake

_IDLE_S = 2.0


class NotCollected(Exception):
    """The command's descriptor goes elsewhere: there is nothing to read."""


async def open_ring(client: Client, process: str, stream: int) -> Descriptor:
    """The ring's descriptor. Raises NotCollected, NoSuchProcess, Unreachable."""
    try:
        reply = await client.ask(Op.OPEN, text(T.PROC, process) + u32(T.TARGET, stream))
    except Refused as refused:
        if refused.code == errno.EBADF:
            raise NotCollected from refused
        if refused.code == errno.ESRCH:
            raise NoSuchProcess(process) from refused
        raise
    return Descriptor(reply.fds[0])


async def read_all(client: Client, process: str, stream: int) -> StreamEnd:
    """What is kept of a stream. Raises as `open_ring`."""
    source = await open_ring(client, process, stream)
    try:
        return Ring(source).all()
    finally:
        source.close()


class Follower:
    """One stream, for any number of readers."""

    def __init__(self, client: Client, process: str, stream: int) -> None:
        self._client = client
        self._ask = text(T.PROC, process) + u32(T.TARGET, stream)
        self._process = process
        self._stream = stream
        self._source: Descriptor | None = None
        self._opening = asyncio.Lock()
        self._changed = Wake()
        self._closed = False
        self._readers = 0
        self._idle: asyncio.TimerHandle | None = None

    async def read(self, offset: int, limit: int) -> Chunk:
        """As `Process.read`. Raises NoSuchProcess, BackendError; waits for ever if told of nothing more."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._readers += 1
        try:
            async with self._opening:
                if self._source is None:
                    self._source = await open_ring(self._client, self._process, self._stream)
                    self.watch()
            ring = Ring(self._source)
            while True:
                chunk = ring.read(offset, limit, closed=self._closed)
                if chunk.data or chunk.end:
                    return chunk
                await self._changed.wait()
                if self._source is None:
                    raise NoSuchProcess(self._process)
        except NotCollected:
            return Chunk(offset=offset, data=b"", end=True)
        finally:
            self._readers -= 1
            if not self._readers:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._let_go)

    def watch(self) -> None:
        """Ask for OUTPUT events (again, on a new connection); one comes at once."""
        if self._source is not None:
            self._client.request(Op.WATCH, self._ask + u32(T.MODE, 1))

    def told(self, closed: bool) -> None:
        """An OUTPUT event came."""
        self._closed = self._closed or closed
        self._changed.fire()

    def close(self) -> None:
        """The command is forgotten or its sandbox gone: readers look again and find out."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._source is not None:
            self._source.close()
            self._source = None
        self._changed.fire()

    def _let_go(self) -> None:
        self._idle = None
        if self._source is not None and not self._readers:
            self._client.request(Op.WATCH, self._ask + u32(T.MODE, 0))
            self._source.close()
            self._source = None
