"""Our ends of pipes: non-blocking, awaited on the loop, closed exactly once. Who holds the other end is no matter."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os

CHUNK = 256 << 10


def pipe() -> tuple[int, int]:
    """A pipe (read end, write end), both close-on-exec and blocking, as large as our quota of pipe memory allows."""
    ends = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # beyond an unprivileged user's soft limit it stays at its default
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, CHUNK)
    return ends


class _End:
    """A descriptor that this object owns. Used by one task at a time."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class ReadEnd(_End):
    async def read(self, limit: int = CHUNK) -> bytes:
        """What is there, waiting for the first byte; empty at the end."""
        while True:
            try:
                return os.read(self.fd, limit)
            except BlockingIOError:
                await self._readable()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self.fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.fd)


class WriteEnd(_End):
    async def write(self, data: bytes) -> None:
        """All of it, waiting while the pipe is full. Raises BrokenPipeError once nobody can read."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self.fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self.fd)
