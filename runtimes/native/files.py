"""Files of a native sandbox: each operation is one FILE request, and the end of a pipe where bytes flow.

A helper inside the sandbox does the work as the asked user; nothing here resolves a path. What its file system refuses
is a FileFailure; a helper that broke is a BackendError.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from runtimes.backend import BackendError, Entry, FileFailure, SandboxLost
from runtimes.native.client import Client
from runtimes.native.messages import entry, entry_length
from runtimes.native.names import Names
from runtimes.native.pipes import CHUNK, ReadEnd, WriteEnd, pipe
from runtimes.native.request import Refused, Reply
from runtimes.native.wire import Op, T, blob, fields, number, text, u32, u64

_OURS: Final = 1000
"""Codes from here on are ours: an errno of a helper that broke, not of the file system."""

_STAT, _LIST, _READ, _WRITE, _DELETE, _MOVE, _MKDIR, _CHMOD, _ARCHIVE, _EXTRACT = range(1, 11)
_FOLLOW, _MKDIRS, _APPEND, _RECURSIVE, _HAS_MODE, _UNCHARGED = 1, 2, 4, 8, 16, 32
_ACCOUNTS_MAX: Final = 256 << 10


class NativeFiles:
    """The `Files` protocol of one sandbox."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._names = Names(self._small)

    def check(self) -> None:
        """Raises SandboxLost if it is gone."""
        raise NotImplementedError

    # -- operations ---------------------------------------------------------------------------------------------------

    async def stat(self, path: str, *, user: str = "0", follow: bool = False) -> Entry:
        reply = await self._do(_STAT, path, user, u32(T.FLAGS, _FOLLOW * follow))
        return await self._names.of(_entry(reply, path))

    async def list(self, path: str, *, user: str = "0", depth: int = 1) -> AsyncIterator[Entry]:
        source, answered = self._reading(_LIST, path, user, u32(T.DEPTH, depth))
        waiting = bytearray()
        try:
            while data := await source.read():
                waiting += data
                at = 0
                while (length := entry_length(waiting, at)) is not None:
                    found = await self._names.of(entry(waiting, path, at))
                    at += length
                    yield found
                del waiting[:at]
            await self._over(answered, path)
            if waiting:
                raise BackendError(f"{path}: a listing was cut short")
        finally:
            source.close()
            self._leave(answered)

    async def read(self, path: str, *, user: str = "0", offset: int = 0,
                   length: int | None = None) -> tuple[Entry, AsyncIterator[bytes]]:
        """The bytes come in pieces of at most 256 KiB. A file that shrinks meanwhile, or a broken helper, raises."""
        more = u64(T.OFFSET, offset) + (b"" if length is None else u64(T.LENGTH, length))
        source, answered = self._reading(_READ, path, user, more)
        try:
            found = _entry(await self._over(answered, path), path)
        except BaseException:
            source.close()
            self._leave(answered)
            raise
        left = max(0, found.size - offset)
        pieces = _Pieces(self, source, None, path, left if length is None else min(left, length))
        return await self._names.of(found), pieces

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0", mode: int | None = None,
                    mkdirs: bool = False, append: bool = False) -> Entry:
        flags = _MKDIRS * mkdirs | _APPEND * append | _HAS_MODE * (mode is not None)
        reply = await self._writing(_WRITE, path, user, u32(T.FLAGS, flags) + u32(T.MODE, mode or 0), chunks)
        return await self._names.of(_entry(reply, path))

    async def delete(self, path: str, *, user: str = "0", recursive: bool = False) -> None:
        await self._do(_DELETE, path, user, u32(T.FLAGS, _RECURSIVE * recursive))

    async def move(self, source: str, target: str, *, user: str = "0") -> None:
        await self._do(_MOVE, source, user, blob(T.PATH2, _path(target)))

    async def mkdir(self, path: str, *, user: str = "0", mode: int = 0o755) -> None:
        await self._do(_MKDIR, path, user, u32(T.FLAGS, _MKDIRS | _HAS_MODE) + u32(T.MODE, mode))

    async def chmod(self, path: str, mode: int, *, user: str = "0") -> None:
        await self._do(_CHMOD, path, user, u32(T.FLAGS, _HAS_MODE) + u32(T.MODE, mode))

    async def archive(self, path: str, *, user: str = "0") -> AsyncIterator[bytes]:
        source, answered = self._reading(_ARCHIVE, path, user)
        pieces = _Pieces(self, source, answered, path, None)
        await pieces.begin()
        return pieces

    async def extract(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0") -> None:
        await self._writing(_EXTRACT, path, user, b"", chunks)

    async def archive_to(self, path: str, fd: int, *, user: str = "0", limit: int) -> int:
        """Raises FileFailure EFBIG once it would be larger than `limit` bytes. The file is ours: so is its memory."""
        more = u32(T.FLAGS, _UNCHARGED) + u64(T.LIMIT, limit)
        reply = await self._do(_ARCHIVE, path, user, more, fd)
        return next((number(value) for tag, value in fields(reply.payload) if tag == T.SIZE), 0)

    # -- how they travel ----------------------------------------------------------------------------------------------

    def _payload(self, fop: int, path: str, user: str, more: bytes) -> bytes:
        """Raises FileFailure for what is no path, SandboxLost: before any descriptor is made."""
        self.check()
        return text(T.NAME, self.name) + u32(T.FOP, fop) + blob(T.PATH, _path(path)) + text(T.USER, user) + more

    def _ask(self, payload: bytes, fds: Sequence[int]) -> tuple[int, asyncio.Future[Reply]]:
        """The operation's number and its answer. Takes `fds` over."""
        return self.client.numbered(Op.FILE, payload, fds, again="never")

    async def _do(self, fop: int, path: str, user: str, more: bytes, into: int | None = None) -> Reply:
        """An operation without a pipe of ours; `into` is a file of the caller's that it writes to."""
        payload = self._payload(fop, path, user, more)
        seq, answered = self._ask(payload, [] if into is None else [os.dup(into)])
        try:
            return await self._over(answered, path)
        except asyncio.CancelledError:
            self.client.request(Op.FILE_CANCEL, u64(T.SIZE, seq))
            raise

    def _reading(self, fop: int, path: str, user: str, more: bytes = b"") -> tuple[ReadEnd, asyncio.Future[Reply]]:
        payload = self._payload(fop, path, user, more)
        ours, theirs = pipe()
        return ReadEnd(ours), self._ask(payload, [theirs])[1]

    async def _writing(self, fop: int, path: str, user: str, more: bytes, chunks: AsyncIterator[bytes]) -> Reply:
        """Pump, close, commit. Whatever goes wrong before the commit leaves no trace."""
        payload = self._payload(fop, path, user, more)
        theirs, ours = pipe()
        sink = WriteEnd(ours)
        seq, answered = self._ask(payload, [theirs])
        try:
            async for chunk in chunks:
                try:
                    await sink.write(chunk)
                except BrokenPipeError:
                    break  # the helper has given up: its answer says why
                if answered.done():
                    break
            sink.close()
            if not answered.done():
                self.client.request(Op.FILE_COMMIT, u64(T.SIZE, seq), again="never")
            return await self._over(answered, path)
        except BaseException:
            if not answered.done() or answered.cancelled():
                self.client.request(Op.FILE_CANCEL, u64(T.SIZE, seq))
            raise
        finally:
            sink.close()

    async def _over(self, answered: asyncio.Future[Reply], path: str) -> Reply:
        """The operation's answer. Raises FileFailure, SandboxLost, BackendError."""
        try:
            return await answered
        except Refused as refused:
            if refused.code < _OURS:
                raise FileFailure(errno.errorcode.get(refused.code, str(refused.code)), path, refused.detail) from None
            self.check()
            if refused.code == _OURS + errno.ENOENT and refused.detail == "no such sandbox":
                raise SandboxLost(self.name, "lost") from refused
            raise BackendError(f"{path}: {refused.detail}: {os.strerror(refused.code - _OURS)}") from refused
        except BackendError:
            self.check()
            raise

    def _leave(self, answered: asyncio.Future[Reply]) -> None:
        """Nobody waits for it any more. The closed pipe ends the helper."""
        answered.cancel()

    async def _small(self, path: str) -> bytes:
        """A small file, whole or cut; empty if it cannot be read."""
        try:
            _, pieces = await self.read(path, length=_ACCOUNTS_MAX)
            return b"".join([piece async for piece in pieces])
        except (FileFailure, BackendError):
            return b""


class _Pieces:
    """Bytes from a helper's pipe, until its end. `left`: so many must come; else its answer tells whether all came."""

    def __init__(self, files: NativeFiles, source: ReadEnd, answered: asyncio.Future[Reply] | None, path: str,
                 left: int | None) -> None:
        self._files = files
        self._source = source
        self._answered = answered
        self._path = path
        self._left = left
        self._first: bytes | None = None

    async def begin(self) -> None:
        """Wait for the first bytes, so that what cannot be done at all raises here."""
        try:
            self._first = await self.__anext__()
        except StopAsyncIteration:
            self._first = b""

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            data, self._first = self._first, None
            if data:
                return data
        if self._source.fd < 0 or self._left == 0:
            self._source.close()
            raise StopAsyncIteration
        try:
            data = await self._source.read(CHUNK if self._left is None else min(CHUNK, self._left))
            if not data:
                self._source.close()
                await self._end()
        except BaseException:
            await self.aclose()
            raise
        if not data:
            raise StopAsyncIteration
        if self._left is not None:
            self._left -= len(data)
        return data

    async def _end(self) -> None:
        if self._answered is not None:
            await self._files._over(self._answered, self._path)
        elif self._left:
            self._files.check()
            raise BackendError(f"{self._path}: {self._left} bytes are missing at its end")

    async def aclose(self) -> None:
        self._source.close()
        if self._answered is not None:
            self._files._leave(self._answered)


def _path(path: str) -> bytes:
    encoded = os.fsencode(path)
    if 0 in encoded or not encoded:
        raise FileFailure("EINVAL", path, "not a path")
    if len(encoded) > 4095:
        raise FileFailure("ENAMETOOLONG", path)
    return encoded


def _entry(reply: Reply, path: str) -> Entry:
    """The entry that an answer carries, under the path that was asked for."""
    for tag, value in fields(reply.payload):
        if tag == T.ENTRY and entry_length(value) is not None:
            name = posixpath.basename(path.rstrip("/")) or "/"
            return msgspec.structs.replace(entry(value, path), path=path, name=name)
    raise BackendError(f"{path}: an answer without an entry")
