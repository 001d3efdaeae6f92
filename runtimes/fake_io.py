"""What a fake program reads from and writes to: rings, pipes, bytes, our own descriptors.

Owns the arithmetic of what is kept of an output (the same as the native spawner's ring) and nothing of processes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from runtimes.backend import Chunk, StreamEnd
from runtimes.wake import Wake


class ReadEnd(Protocol):
    """Where a program reads from."""

    async def read(self, limit: int) -> bytes: ...
    def hold(self) -> None: ...
    def drop(self) -> None: ...


class WriteEnd(Protocol):
    """Where a program writes to."""

    async def write(self, data: bytes) -> None: ...
    def hold(self) -> None: ...
    def drop(self) -> None: ...


class Ring:
    """A collected output: `head` bytes of its beginning and `tail` bytes of its end are kept, all are counted."""

    def __init__(self, limit: int, *, kill: bool) -> None:
        self.kill = kill
        self.head_capacity = limit if kill else limit // 2
        self.tail_capacity = 0 if kill else limit - limit // 2
        self.limit = limit
        self.total = 0
        self.closed = False
        self._head = bytearray()
        self._tail = bytearray()
        self._changed = Wake()

    def append(self, data: bytes) -> bool:
        """Count and keep `data`. False if that passed the limit of a `kill` stream."""
        room = self.head_capacity - len(self._head)
        if room > 0:
            self._head += data[:room]
        rest = data[room:] if room > 0 else data
        if rest and self.tail_capacity:
            self._tail += rest
            del self._tail[: max(0, len(self._tail) - self.tail_capacity)]
        self.total += len(data)
        self._changed.fire()
        return not (self.kill and self.total > self.limit)

    def close(self) -> None:
        self.closed = True
        self._changed.fire()

    def end(self) -> StreamEnd:
        return StreamEnd(total=self.total, head=bytes(self._head), tail=bytes(self._tail))

    async def read(self, offset: int, limit: int) -> Chunk:
        """As `Process.read`."""
        while True:
            chunk = self._cut(offset, limit)
            if chunk.data or chunk.end:
                return chunk
            await self._changed.wait()

    def _cut(self, offset: int, limit: int) -> Chunk:
        if offset < len(self._head):
            data = bytes(self._head[offset : offset + limit])
        else:
            begin = self.total - len(self._tail)
            offset = max(offset, begin)
            data = bytes(self._tail[offset - begin : offset - begin + limit])
        return Chunk(offset=offset, data=data, end=self.closed and offset + len(data) >= self.total)


class Pipe:
    """A pipe between programs, or from us to a program. Its ends are counted, as the kernel does."""

    CAPACITY = 65536

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._readers = 0
        self._writers = 0
        self._had_writer = False
        self._changed = Wake()

    def add(self, *, readers: int = 0, writers: int = 0) -> None:
        self._readers += readers
        self._writers += writers
        self._had_writer = self._had_writer or writers > 0
        self._changed.fire()

    async def read(self, limit: int) -> bytes:
        while not self._buffer:
            if self._writers <= 0:
                return b""
            await self._changed.wait()
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        self._changed.fire()
        return data

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError once nobody can read."""
        view = memoryview(data)
        while view:
            if self._readers <= 0:
                raise BrokenPipeError
            room = self.CAPACITY - len(self._buffer)
            if room <= 0:
                await self._changed.wait()
                continue
            self._buffer += view[:room]
            view = view[room:]
            self._changed.fire()


class PipeReader:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def read(self, limit: int) -> bytes:
        return await self._pipe.read(limit)

    def hold(self) -> None:
        self._pipe.add(readers=1)

    def drop(self) -> None:
        self._pipe.add(readers=-1)


class PipeWriter:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def write(self, data: bytes) -> None:
        await self._pipe.write(data)

    def hold(self) -> None:
        self._pipe.add(writers=1)

    def drop(self) -> None:
        self._pipe.add(writers=-1)


class Bytes:
    """Fixed bytes to read, or /dev/null in both directions when there are none."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data
        self._at = 0

    async def read(self, limit: int) -> bytes:
        data = self._data[self._at : self._at + limit]
        self._at += len(data)
        return data

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)

    def hold(self) -> None:
        pass

    def drop(self) -> None:
        pass


class OurDescriptor:
    """A duplicate of a descriptor of the caller's. Pipes and sockets are awaited; other files never block."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._holders = 0

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            os.close(self._fd)

    async def read(self, limit: int) -> bytes:
        await self._ready(write=False)
        return os.read(self._fd, limit)

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), 4096):  # a writable pipe takes PIPE_BUF bytes without blocking
            await self._ready(write=True)
            os.write(self._fd, data[at : at + 4096])

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

        def become_ready() -> None:
            if not ready.done():
                ready.set_result(None)

        try:
            add(self._fd, become_ready)
        except PermissionError:  # epoll refuses regular files: they are always ready
            return
        try:
            await ready
        finally:
            remove(self._fd)
