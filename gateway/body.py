"""Request bodies as they arrive: whole with a bound, or chunk by chunk. Must not know what they hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request

from gateway.errors import BadRequest, ClientGone, TooLarge


def declared(request: Request) -> int | None:
    """Content-Length, None if the body comes without one. Raises BadRequest."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise BadRequest("Content-Length is not a number")
    return int(text)


async def chunks(request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
    """The body, piece by piece, each taken from the connection when it is asked for.

    Raises TooLarge as soon as more than `limit` bytes are declared or have come, ClientGone if it ends before its end."""
    size, seen, more = declared(request), 0, True
    if limit is not None and size is not None and size > limit:
        raise TooLarge(f"{size} bytes; at most {limit} are taken")
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client went away in the middle of its request")
        data: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        seen += len(data)
        if limit is not None and seen > limit:
            raise TooLarge(f"more than {limit} bytes")
        if data:
            yield data
    if size is not None and seen != size:
        raise ClientGone(f"{seen} of {size} bytes came")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises as `chunks`."""
    parts = [part async for part in chunks(request, limit)]
    return parts[0] if len(parts) == 1 else b"".join(parts)
