"""The asynchronous SDK: `AsyncClient` and the `AsyncLease` that it hands out. Sends what `wire` builds; `client` is
its twin.

async with AsyncClient() as client:
    reply = await client.run(language="python", source="print(6 * 7)")
    async with await client.lease() as box:
        await box.write("notes.txt", b"hello")
        print((await box.exec("cat notes.txt")).stdout)
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import niquests

from stokehold import errors, replies, retry, settings, transport, wire
from stokehold.sse import Events, Lines

T = TypeVar("T")
PIECE = 1 << 18


async def _read(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE):
        yield piece


class AsyncClient:
    """One service, one token. Safe to share between threads. Close it, or use it in a `with`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        ca: str | None = None,
        *,
        http: transport.Http = "auto",
        timeout_s: float = transport.TIMEOUT_S,
        state: str | os.PathLike[str] | None = None,
    ) -> None:
        """`url`, `token`, `ca` default to STOKEHOLD_URL, STOKEHOLD_TOKEN, STOKEHOLD_CA, else to what `stokehold
        serve` wrote (below `state`, if it serves with a state directory of its own). Raises SettingsError."""
        self.settings = settings.load(url, token, ca, state=state)
        self._timeout_s = timeout_s
        self._known = False
        self._session = niquests.AsyncSession(**transport.options(http, self.settings.url))
        transport.configure(self._session, self.settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def send(self, ask: wire.Ask[T], content: Any = None) -> T:
        """Send a request and decode its reply, repeating it as `retry` says. Raises StokeholdError."""
        attempt = 0
        while True:
            attempt += 1
            error: errors.StokeholdError
            try:
                reply = await self._open(ask, content)
                self._known = True
                return transport.decode(ask, reply.status_code or 0, reply.content or b"")
            except errors.StokeholdError as problem:
                error = problem
            wait = retry.delay_s(error, attempt, repeatable=ask.repeatable, known=self._known, random=random.random())
            if wait is None:
                raise error
            await asyncio.sleep(wait)

    async def _open(self, ask: wire.Ask[Any], content: Any) -> niquests.Response:
        """Send a request once and read its reply. Raises ConnectionFailed."""
        try:
            return await self._session.request(
                ask.method,
                self.settings.url + ask.path,
                data=ask.body if content is None else content,
                headers=ask.headers,
                stream=False,
                timeout=transport.timeout(ask, self._timeout_s),
                allow_redirects=False,
            )
        except transport.FAILURES as problem:
            raise transport.broken(ask, problem) from problem

    async def pieces(self, ask: wire.Ask[Any]) -> AsyncIterator[bytes]:
        """The reply's body as it arrives. Raises StokeholdError; closing the iterator closes the request."""
        try:
            reply = await self._session.request(
                ask.method,
                self.settings.url + ask.path,
                data=ask.body,
                headers=ask.headers,
                stream=True,
                timeout=transport.timeout(ask, self._timeout_s),
                allow_redirects=False,
            )
        except transport.FAILURES as problem:
            raise transport.broken(ask, problem) from problem
        try:
            if (reply.status_code or 0) >= 400:
                raise errors.of_reply(reply.status_code or 0, await reply.content or b"")
            async for piece in await reply.iter_content(-1):
                yield piece
        except transport.FAILURES as problem:
            raise transport.broken(ask, problem) from problem
        finally:
            await reply.close()

    async def run(
        self,
        *,
        language: str | None = None,
        source: wire.Content | None = None,
        files: Mapping[str, wire.Content] | None = None,
        argv: Sequence[str] | None = None,
        stdin: wire.Content | None = None,
        tests: Sequence[Mapping[str, Any]] | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> replies.RunReply:
        """Run a program once, or against tests, and judge it. `timeout_s` is the whole patience, queue included:
        when it passes, DeadlineExceeded is raised. `fields`: `args`, `env`, `entry`, `limits`, `compile`,
        `checker`, `files_out`, …"""
        return await self.send(
            wire.run(
                language=language,
                source=source,
                files=files,
                argv=argv,
                stdin=stdin,
                tests=tests,
                timeout_s=timeout_s,
                **fields,
            )
        )

    async def languages(self) -> list[replies.Language]:
        return (await self.send(wire.languages())).languages

    async def lease(self, *, key: str | None = None, **fields: Any) -> AsyncLease:
        """A sandbox of one's own, deleted at the end of the `with`. `fields`: `resources`, `ttl_s`, `idle_s`,
        `metadata`, `env`, …"""
        return AsyncLease(self, await self.send(wire.create_lease(fields, key)))

    async def leases(self, count: int, **fields: Any) -> AsyncIterator[AsyncLease | errors.ApiError]:
        """Many at once, each as soon as it is ready, or the problem that took its place."""
        lines = Lines()
        async for piece in self.pieces(wire.create_leases(fields, count)):
            for line in lines.feed(piece):
                if line:
                    yield self._lease_line(line)
        if rest := lines.end():
            yield self._lease_line(rest)

    def _lease_line(self, line: bytes) -> AsyncLease | errors.ApiError:
        read = transport.lease_line(line)
        return read if isinstance(read, errors.ApiError) else AsyncLease(self, read)

    async def attach(self, lease: str) -> AsyncLease:
        """A lease by its id. Raises NotFound."""
        return AsyncLease(self, await self.send(wire.get_lease(lease)))

    async def list_leases(
        self, *, state: str | None = None, metadata: Mapping[str, str] | None = None, page: int | None = None
    ) -> AsyncIterator[replies.LeaseInfo]:
        """All leases that fit, `page` to a request."""
        cursor = None
        while True:
            found = await self.send(wire.list_leases(state, metadata, page, cursor))
            for item in found.leases:
                yield item
            cursor = found.next
            if not cursor:
                return

    async def delete_leases(self, metadata: Mapping[str, str]) -> None:
        """Delete every lease with these metadata."""
        await self.send(wire.delete_leases(metadata))


class AsyncLease:
    """A held sandbox. Relative paths are below its working directory."""

    def __init__(self, client: AsyncClient, info: replies.LeaseInfo) -> None:
        self._client = client
        self.info = info
        self.id = info.id

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.delete()

    def __repr__(self) -> str:
        return f"<Lease {self.id} {self.info.state}>"

    async def refresh(self) -> replies.LeaseInfo:
        self.info = await self._client.send(wire.get_lease(self.id))
        return self.info

    async def renew(
        self, *, ttl_s: float | None = None, idle_s: float | None = None, metadata: Mapping[str, str] | None = None
    ) -> replies.LeaseInfo:
        """Change its deadline (seconds from now), idle time or metadata."""
        fields = {"ttl_s": ttl_s, "idle_s": idle_s, "metadata": metadata}
        self.info = await self._client.send(wire.patch_lease(self.id, fields))
        return self.info

    async def delete(self) -> None:
        """End it. Deleting what has ended is no error."""
        try:
            await self._client.send(wire.delete_lease(self.id))
        except errors.LeaseEnded:
            return

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: wire.Content | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> replies.ExecReply:
        """Run a command (a string: by the sandbox's shell) to its end. With `key` it runs once, however often it
        is asked for."""
        asked = wire.command(command, {"timeout_s": timeout_s, "stdin": stdin, "key": key, **fields})
        return await self._client.send(wire.exec(self.id, **asked))

    async def stream(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: wire.Content | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> AsyncIterator[replies.Event]:
        """Run a command and yield its events as they come: `start`, `stdout`, `stderr`, `dropped`, `exit`. Raises
        ApiError for a `problem` event. Closing the iterator ends the command, unless a `key` was given."""
        asked = wire.command(command, {"timeout_s": timeout_s, "stdin": stdin, "key": key, **fields})
        events = Events()
        async for piece in self._client.pieces(wire.exec(self.id, stream=True, **asked)):
            for event in events.feed(piece):
                yield transport.checked(event)

    async def spawn(self, command: str | Sequence[str], **fields: Any) -> AsyncProcess:
        """Start a command in the background."""
        info = await self._client.send(wire.start_process(self.id, **wire.command(command, fields)))
        return AsyncProcess(self._client, self.id, info)

    async def processes(self) -> list[AsyncProcess]:
        found = (await self._client.send(wire.list_processes(self.id))).processes
        return [AsyncProcess(self._client, self.id, info) for info in found]

    async def read(self, path: str, first: int | None = None, last: int | None = None) -> bytes:
        """A file's bytes, or those from position `first` to `last` (included)."""
        return await self._client.send(wire.read_file(self.id, path, first, last))

    async def write(self, path: str, data: bytes | str, *, mode: str | None = None, append: bool = False, mkdirs: bool = True) -> None:
        """Write a file whole. It appears at once, or not at all."""
        raw = data.encode() if isinstance(data, str) else data
        await self._client.send(wire.write_file(self.id, path, raw, mode=mode, append=append, mkdirs=mkdirs))

    async def upload(self, source: str | os.PathLike[str], path: str) -> None:
        """Copy a local file into the lease, keeping whether it is executable. Streams."""
        local = Path(source)
        mode = f"{(await asyncio.to_thread(local.stat)).st_mode & 0o777:04o}"
        file = await asyncio.to_thread(local.open, "rb")
        with file:
            await self._client.send(wire.write_file(self.id, path, None, mode=mode), _read(file))

    async def download(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copy a file of the lease to a local one. Streams; the target appears whole or not at all."""
        with transport.whole(Path(target)) as file:
            async for piece in self._client.pieces(wire.read_file(self.id, path)):
                file.write(piece)

    def archive(self, path: str) -> AsyncIterator[bytes]:
        """A tar of the tree at `path`, in pieces."""
        return self._client.pieces(wire.get_archive(self.id, path))

    async def extract(self, path: str, pieces: AsyncIterable[bytes]) -> None:
        """Extract a tar at `path`."""
        await self._client.send(wire.put_archive(self.id, path), aiter(pieces))

    async def stat(self, path: str) -> replies.Entry:
        return await self._client.send(wire.stat(self.id, path))

    async def list(self, path: str = ".", depth: int | None = None) -> AsyncIterator[replies.Entry]:
        cursor = None
        while True:
            found = await self._client.send(wire.list_files(self.id, path, depth, cursor))
            for item in found.entries:
                yield item
            cursor = found.next
            if not cursor:
                return

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._client.send(wire.delete_file(self.id, path, recursive))

    async def move(self, source: str, target: str) -> None:
        await self._client.send(wire.move_file(self.id, source, target))

    async def mkdir(self, path: str) -> None:
        await self._client.send(wire.make_directory(self.id, path))

    async def chmod(self, path: str, mode: str) -> None:
        await self._client.send(wire.change_mode(self.id, path, mode))


class AsyncProcess:
    """A command in the background of a lease, named by its `pid` there."""

    def __init__(self, client: AsyncClient, lease: str, info: replies.ProcessInfo) -> None:
        self._client = client
        self._lease = lease
        self.info = info
        self.pid: int | str = info.pid if info.pid is not None else info.id

    async def wait(self) -> replies.ExecReply:
        """Its result, whenever it ends."""
        return await self._client.send(wire.process_wait(self._lease, self.pid))

    async def output(self, stream: str = "stdout", offset: int = 0) -> replies.Output:
        """What it wrote at and after `offset`, as far as it is there."""
        return await self._client.send(wire.process_output(self._lease, self.pid, stream, offset))

    async def write(self, data: bytes, *, close: bool = False) -> None:
        """Feed its stdin; `close` ends it."""
        await self._client.send(wire.process_stdin(self._lease, self.pid, data, close))

    async def signal(self, name: str = "SIGTERM") -> None:
        await self._client.send(wire.process_signal(self._lease, self.pid, name))
