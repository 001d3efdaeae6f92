"""Bodies as objects and back: JSON or msgpack, by `Content-Type` and `Accept`. Decides nothing about what they mean."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.body import read_body
from gateway.errors import BadRequest
from gateway.schema import bad
from gateway.stream import Whole

JSON = "application/json"
MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
OCTETS = "application/octet-stream"
_MSGPACK = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")

_Struct = TypeVar("_Struct")


@lru_cache(maxsize=256)
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@lru_cache(maxsize=256)
def _msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


_to_json = msgspec.json.Encoder()
_to_msgpack = msgspec.msgpack.Encoder()


def content_type(request: Request) -> str:
    """The media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decode(data: bytes, media: str, kind: type[_Struct]) -> _Struct:
    """A struct from a body; an empty body stands for an empty object. Raises BadRequest with the field."""
    packed = media in _MSGPACK
    decoder = _msgpack_decoder(cast(Hashable, kind)) if packed else _json_decoder(cast(Hashable, kind))
    try:
        return cast(_Struct, decoder.decode(data or (b"\x80" if packed else b"{}")))
    except msgspec.ValidationError as error:
        raise bad(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not {'msgpack' if packed else 'JSON'}: {error}"[:500]) from None


async def read(request: Request, kind: type[_Struct], limit: int) -> tuple[_Struct, bytes]:
    """The request's struct, and its body as it came. Raises BadRequest, TooLarge, ClientGone."""
    data = await read_body(request, limit)
    return decode(data, content_type(request), kind), data


def accepts(request: Request, media: str) -> bool:
    """Whether the client names this media type in `Accept` (a wildcard is not naming it)."""
    return any(part.partition(";")[0].strip().lower() == media for part in request.headers.get("accept", "").split(","))


def wants_msgpack(request: Request) -> bool:
    return any(accepts(request, name) for name in _MSGPACK)


def encode(request: Request, value: object) -> tuple[bytes, str]:
    """A reply's bytes and media type, as the client prefers."""
    return (_to_msgpack.encode(value), MSGPACK) if wants_msgpack(request) else (_to_json.encode(value), JSON)


def line(value: object) -> bytes:
    """One line of NDJSON."""
    return _to_json.encode(value) + b"\n"


def reply(request: Request, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole response."""
    data, media = encode(request, value)
    return Whole(data, status, dict(headers or {}), media_type=media)
