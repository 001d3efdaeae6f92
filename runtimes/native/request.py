"""One request to the spawner from its frame to its reply: what it owns, how it fails, whether it may be asked twice."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Literal, NamedTuple

from runtimes.backend import BackendError
from runtimes.native.wire import Frame, T, fields, number

Again = Literal["never", "same", "any"]
"""Whether an unanswered request is sent again: never, to the same spawner only, or to whichever comes next."""


class Unreachable(BackendError):
    """No spawner answers, or the one that did is gone and took the request's meaning with it."""


class Refused(BackendError):
    """The spawner's answer to a request: an errno."""

    def __init__(self, op: int, code: int, detail: str) -> None:
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"operation {op}: {name}" + (f" ({detail})" if detail else ""))
        self.code = code
        self.detail = detail
        self.reason = f"{detail}: {name}" if detail and name not in detail else detail or name


class Reply(NamedTuple):
    """A reply without error. Its descriptors belong to whoever awaited it."""

    payload: bytes
    fds: tuple[int, ...]


class Request:
    """One request until its reply. It owns its descriptors."""

    __slots__ = ("again", "fds", "flags", "future", "op", "payload", "seq", "tell")

    def __init__(self, op: int, seq: int, payload: bytes, fds: list[int], flags: int, again: Again,
                 future: asyncio.Future[Reply], tell: Callable[[Frame], None] | None) -> None:
        self.op, self.seq, self.payload, self.fds, self.flags = op, seq, payload, fds, flags
        self.again, self.future, self.tell = again, future, tell

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def retrieved(future: asyncio.Future[Reply]) -> None:
    """A request that nobody waits for may fail; a reply that came after its caller left has descriptors to close."""
    if not future.cancelled():
        future.exception()


def code_of(payload: bytes) -> int:
    """T_CODE of a reply; a reply without one is no success."""
    for tag, value in fields(payload):
        if tag == T.CODE:
            return number(value)
    return errno.EPROTO


def detail_of(payload: bytes) -> str:
    return next((value.decode(errors="replace") for tag, value in fields(payload) if tag == T.DETAIL), "")
