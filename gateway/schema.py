"""What all request structs share: the base class, the value type, and where in a request something is wrong.

Knows msgspec's messages and nothing of any route."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gateway.errors import BadRequest, Unsupported

_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*?)`(?: - at `(?P<at>[^`]*)`)?$", re.S)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*?)`(?: - at `(?P<at>[^`]*)`)?$", re.S)
_AT = re.compile(r" - at (?:`key` in )?`(?P<at>[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that a client sends: omitted and null mean the default, unknown fields are refused."""


class Reply(msgspec.Struct, kw_only=True):
    """Base of everything that goes out."""


Number = Annotated[float, Meta(gt=0, le=1e12)]
"""A limit: greater than 0, fractions allowed."""
NumberOrZero = Annotated[float, Meta(ge=0, le=1e12)]
Count = Annotated[int, Meta(gt=0, le=1_000_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ShortText = Annotated[str, Meta(max_length=4096)]
Environment = dict[Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^=\x00]+$")], str | None]
"""Variables laid over the default ones; null removes one."""
Metadata = dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=256)]]


class Content(Request):
    """The object form of a value: exactly one of `text`, `base64`, `blob`; `mode` (octal) where it is a file's."""

    text: str | None = None
    base64: str | None = None
    blob: str | None = None
    mode: str | None = None


Value = str | Content


def value_bytes(value: Value | None, field: str) -> bytes:
    """The bytes of a value; null is empty. Raises BadRequest at `field`, Unsupported for blobs."""
    if value is None:
        return b""
    if isinstance(value, str):
        return encode_text(value, field)
    given = [name for name in ("text", "base64", "blob") if getattr(value, name) is not None]
    if len(given) != 1:
        raise BadRequest("a value is a string or an object with exactly one of text, base64, blob", field=field)
    if value.text is not None:
        return encode_text(value.text, f"{field}/text")
    if value.base64 is not None:
        try:
            return base64.b64decode(value.base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f"not base64: {error}", field=f"{field}/base64") from None
    raise Unsupported("blobs are not part of this service: give the bytes as text or base64", field=f"{field}/blob")


def encode_text(text: str, field: str) -> bytes:
    """UTF-8. Raises BadRequest for what is not text (a lone surrogate)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest("not valid Unicode text", field=field) from None


def mode_bits(text: str | None, field: str, default: int) -> int:
    """An octal mode such as "0755". Raises BadRequest."""
    if text is None:
        return default
    if not re.fullmatch(r"(0o?)?[0-7]{1,4}", text):
        raise BadRequest('a mode is an octal string such as "0755"', field=field)
    return int(text.replace("o", ""), 8)


def within(value: float | None, maximum: float, field: str) -> None:
    """Raises BadRequest at `field` if `value` is above the node's maximum, or no number."""
    if value is not None and (value > maximum or math.isnan(value)):
        raise BadRequest(f"{value:g} is above this node's maximum of {maximum:g}", field=field)


def escape(key: str) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def pointer(message: str) -> str:
    """The JSON pointer to what a msgspec message complains of. Keys of a map are not named there: the map itself is then."""
    for pattern in (_UNKNOWN, _MISSING):
        if found := pattern.match(message):
            return _steps(found["at"] or "$") + "/" + escape(found["name"])
    found = _AT.search(message)
    return _steps(found["at"]) if found else ""


def _steps(path: str) -> str:
    steps = []
    for name, index in _STEP.findall(path):
        if index == "...":
            break
        steps.append(escape(name or index))
    return "".join(f"/{step}" for step in steps)


def bad(error: msgspec.ValidationError, prefix: str = "") -> BadRequest:
    """The problem for a request that does not fit its struct."""
    message = str(error)
    return BadRequest(message, field=(prefix + pointer(message)) or None)


_Struct = TypeVar("_Struct")


def convert(raw: object, kind: type[_Struct], prefix: str = "") -> _Struct:
    """A struct from query parameters or another decoded object: numbers may be strings there. Raises BadRequest."""
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise bad(error, prefix) from None
