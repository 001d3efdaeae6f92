"""Files of a lease: content (with ranges), entries, moving and making, archives. Everything streams, in both directions.

What a path means is decided inside the sandbox, by `runtimes.backend.Files`; nothing here resolves one."""

from __future__ import annotations

import base64
import binascii
import contextlib
import posixpath
import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from gateway import codec
from gateway.body import chunks
from gateway.commands import WORKSPACE, user_of
from gateway.errors import BadRange, BadRequest, Unsupported
from gateway.execs import held
from gateway.requests import (
    ChmodAsk,
    DeleteQuery,
    ListQuery,
    MkdirAsk,
    MoveAsk,
    PathQuery,
    PutQuery,
    StatQuery,
)
from gateway.schema import convert, mode_bits
from gateway.services import Services
from gateway.stream import Stream
from runtimes.backend import Entry, Files

TAR = "application/x-tar"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_Query = TypeVar("_Query")


def shown(entry: Entry) -> dict[str, Any]:
    """An entry as API.md names it; `mode` is octal text, as requests give it."""
    built: dict[str, Any] = msgspec.structs.asdict(entry)
    names = {name: _text(built[name]) for name in ("name", "path", "target")}
    return {**built, **names, "mode": f"{entry.mode & 0o7777:04o}"}


def _text(name: str | None) -> str | None:
    """A name that is not UTF-8 is shown with replacement characters."""
    return name if name is None else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def etag_of(entry: Entry) -> str:
    """Changes whenever the content may have."""
    return f'"{entry.mtime_ns:x}-{entry.size:x}"'


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """(offset, length) of a single byte range, None for the whole. Several ranges, or another unit: the whole (RFC 9110).

    Raises BadRange if it lies outside."""
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        length = min(int(found[2]), size)
        first, last = size - length, size - 1
    else:
        first, last = int(found[1]), min(int(found[2]) if found[2] else size - 1, size - 1)
        if found[2] and int(found[2]) < first:
            return None
    if first >= size or first > last:
        raise BadRange(f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return first, last - first + 1


class FileRoutes:
    """Endpoints below `/v1/leases/{id}`."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.leases = services.leases

    def _query(self, request: Request, kind: type[_Query]) -> _Query:
        query = convert(dict(request.query_params), kind)
        return self._placed(request, query, "path")

    def _placed(self, request: Request, ask: _Query, *names: str) -> _Query:
        """`ask` with its paths made absolute: relative ones are below the lease's working directory, as in its commands."""
        lease = self.leases.get(request.scope["caller"].tenant, request.path_params["id"])

        def at(path: str) -> str:
            return posixpath.join(lease.cwd or WORKSPACE, path.removeprefix("./") if path != "." else "")

        return cast(_Query, structs.replace(cast(Any, ask), **{name: at(getattr(ask, name)) for name in names}))

    @contextlib.asynccontextmanager
    async def _files(self, request: Request, user: str | None) -> AsyncIterator[tuple[Files, str]]:
        tenant, id = request.scope["caller"].tenant, request.path_params["id"]
        lease = self.leases.get(tenant, id)
        async with held(self.leases, tenant, id) as sandbox:
            if not isinstance(sandbox, Files):
                raise Unsupported("this backend has no access to files")
            yield sandbox, user_of(user, lease)

    async def get(self, request: Request) -> Response:
        """`GET|HEAD …/files`."""
        query = self._query(request, PathQuery)
        async with contextlib.AsyncExitStack() as stack:
            files, user = await stack.enter_async_context(self._files(request, query.user))
            entry = await files.stat(query.path, user=user, follow=True)
            if entry.type == "directory":
                raise BadRequest("this is a directory: list it, or get its archive", field="/path")
            etag = etag_of(entry)
            headers = {"ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": formatdate(entry.mtime_ns / 1e9, usegmt=True)}
            if {etag, "*"} & {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}:
                return Response(None, 304, headers)
            usable = request.headers.get("if-range", etag) == etag
            part = range_of(request.headers.get("range") if usable else None, entry.size)
            offset, length = part or (0, entry.size)
            headers["Content-Length"] = str(length)
            if part:
                headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{entry.size}"
            status = 206 if part else 200
            if request.method == "HEAD":
                return Response(None, status, headers, media_type=codec.OCTETS)
            _, content = await files.read(query.path, user=user, offset=offset, length=length)
            return Stream(_exactly(content, length), status=status, headers=headers, media_type=codec.OCTETS, closing=stack.pop_all())

    async def put(self, request: Request) -> Response:
        """`PUT …/files`: the body is the content; 201 with the entry."""
        query = self._query(request, PutQuery)
        mode = None if query.mode is None else mode_bits(query.mode, "/mode", 0o644)
        async with self._files(request, query.user) as (files, user):
            entry = await files.write(query.path, chunks(request), user=user, mode=mode, mkdirs=query.mkdirs, append=query.append)
        return codec.reply(request, shown(entry), 201, {"ETag": etag_of(entry)})

    async def delete(self, request: Request) -> Response:
        """`DELETE …/files`."""
        query = self._query(request, DeleteQuery)
        async with self._files(request, query.user) as (files, user):
            await files.delete(query.path, user=user, recursive=query.recursive)
        return Response(None, 204)

    async def stat(self, request: Request) -> Response:
        """`GET …/stat`: the entry itself; of a link's target with `follow`."""
        query = self._query(request, StatQuery)
        async with self._files(request, query.user) as (files, user):
            return codec.reply(request, shown(await files.stat(query.path, user=user, follow=query.follow)))

    async def list(self, request: Request) -> Response:
        """`GET …/list`: entries in the order of the directory, a page at a time. The cursor is the path of the last one."""
        query = self._query(request, ListQuery)
        after = _from_cursor(query.cursor)
        entries: list[dict[str, Any]] = []
        more = False
        async with self._files(request, query.user) as (files, user):
            seen = after is None
            listing = files.list(query.path, user=user, depth=query.depth)
            async with contextlib.aclosing(listing):  # type: ignore[type-var]
                async for entry in listing:
                    if seen and len(entries) == query.limit:
                        more = True
                        break
                    if seen:
                        entries.append(shown(entry))
                    seen = seen or entry.path == after
        if not seen:
            raise BadRequest("what this cursor points at is gone: start again without it", field="/cursor")
        return codec.reply(request, {"entries": entries, "next": _to_cursor(entries[-1]["path"]) if more else None})

    async def move(self, request: Request) -> Response:
        """`POST …/move`."""
        ask, _ = await codec.read(request, MoveAsk, 1 << 20)
        ask = self._placed(request, ask, "from_", "to")
        async with self._files(request, ask.user) as (files, user):
            await files.move(ask.from_, ask.to, user=user)
            return codec.reply(request, shown(await files.stat(ask.to, user=user)))

    async def mkdir(self, request: Request) -> Response:
        """`POST …/mkdir`."""
        ask, _ = await codec.read(request, MkdirAsk, 1 << 20)
        ask = self._placed(request, ask, "path")
        async with self._files(request, ask.user) as (files, user):
            await files.mkdir(ask.path, user=user, mode=mode_bits(ask.mode, "/mode", 0o755))
            return codec.reply(request, shown(await files.stat(ask.path, user=user)), 201)

    async def chmod(self, request: Request) -> Response:
        """`POST …/chmod`."""
        ask, _ = await codec.read(request, ChmodAsk, 1 << 20)
        ask = self._placed(request, ask, "path")
        async with self._files(request, ask.user) as (files, user):
            await files.chmod(ask.path, mode_bits(ask.mode, "/mode", 0), user=user)
            return codec.reply(request, shown(await files.stat(ask.path, user=user)))

    async def archive(self, request: Request) -> Response:
        """`GET …/archive`: a tar of the tree."""
        query = self._query(request, PathQuery)
        async with contextlib.AsyncExitStack() as stack:
            files, user = await stack.enter_async_context(self._files(request, query.user))
            content = await files.archive(query.path, user=user)
            return Stream(content, media_type=TAR, closing=stack.pop_all())

    async def extract(self, request: Request) -> Response:
        """`PUT …/archive`: the body is a tar, extracted at `path`."""
        query = self._query(request, PathQuery)
        async with self._files(request, query.user) as (files, user):
            await files.extract(query.path, chunks(request), user=user)
        return Response(None, 204)


async def _exactly(content: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    """No more than `length` bytes, as was promised, though the file grew; if it shrank, the answer is broken off."""
    left = length
    async for piece in content:
        if len(piece) >= left:
            if left:
                yield piece[:left]
            left = 0
            break
        left -= len(piece)
        yield piece
    if left:
        raise BadRequest("the file shrank while it was read")


def _to_cursor(path: str) -> str:
    return base64.urlsafe_b64encode(path.encode("utf-8", "surrogateescape")).decode().rstrip("=")


def _from_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        raise BadRequest("this is no cursor of ours", field="/cursor") from None
