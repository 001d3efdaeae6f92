"""The HTTP sessions of the SDK: which versions they may speak, whom they trust, and niquests' errors in our own
words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
import niquests
from niquests.exceptions import ReadTimeout, RequestException

from stokehold import errors, replies
from stokehold.settings import Settings
from stokehold.version import __version__
from stokehold.wire import Ask

Http = Literal["auto", 1, 2, 3]
T = TypeVar("T")
TIMEOUT_S = 660.0
"""Longest wait for a reply's beginning, unless the request says otherwise."""
CONNECT_S = 10.0
POOL = 64
FAILURES = (RequestException, OSError)


def configure(session: niquests.Session | niquests.AsyncSession, settings: Settings) -> None:
    """Trust and identity of a session. Proxies of the environment are not for the loopback."""
    if settings.ca:
        session.verify = settings.ca
    session.headers["User-Agent"] = f"stokehold/{__version__}"
    if settings.token:
        session.headers["Authorization"] = f"Bearer {settings.token}"
    host = urlsplit(settings.url).hostname or ""
    session.trust_env = not (host == "localhost" or host == "::1" or host.startswith("127."))


def options(http: Http, url: str, pool: int = POOL) -> dict[str, Any]:
    """Arguments of a session that speaks only the versions that `http` allows.

    `auto` is HTTP/2 or 1.1, as ALPN agrees. HTTP/3 is for those who ask for it: there is no reset over UDP, so a
    client whose gateway was killed waits for its timeouts, where TCP is told at once."""
    if http not in ("auto", 1, 2, 3):
        raise errors.SettingsError(f"http={http!r}: want auto, 1, 2 or 3")
    chosen: dict[str, Any] = {
        "disable_http1": http in (2, 3),
        "disable_http2": http in (1, 3),
        "disable_http3": http != 3,
        "pool_connections": 4,
        "pool_maxsize": pool,
        "revocation_configuration": None,
    }
    parts = urlsplit(url)
    if http == 3:
        if parts.scheme != "https":
            raise errors.SettingsError("HTTP/3 needs an https URL")
        chosen["quic_cache_layer"] = {(parts.hostname or "", parts.port or 443): (parts.hostname or "", parts.port or 443)}
    return chosen


def timeout(ask: Ask[Any], longest_s: float) -> tuple[float, float]:
    """(connect, read) timeouts in seconds."""
    return CONNECT_S, longest_s if ask.patience_s is None else ask.patience_s + 10


def decode(ask: Ask[T], status: int, body: bytes) -> T:
    """The typed reply. Raises ApiError for a problem, ProtocolError for what is no reply of this API."""
    if status >= 400:
        raise errors.of_reply(status, body)
    if ask.reply is None:
        return cast("T", None)
    if ask.reply is bytes:
        return cast("T", body)
    try:
        return cast("T", msgspec.json.decode(body or b"{}", type=ask.reply))
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        raise errors.ProtocolError(f"{ask.method} {ask.path}: {problem}") from problem


def broken(ask: Ask[Any], problem: Exception) -> errors.ConnectionFailed:
    """What to raise when no whole answer came."""
    kind = errors.AnswerTimedOut if isinstance(problem, ReadTimeout) else errors.ConnectionFailed
    return kind(f"{ask.method} {ask.path.partition('?')[0]}: {reason(problem)}")


def reason(problem: BaseException) -> str:
    """Why nothing came: the operating system's own words where they lie at the bottom."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return f"{type(problem).__name__}: {problem}"


def lease_line(line: bytes) -> replies.LeaseInfo | errors.ApiError:
    """One line of a stream of leases. Raises ProtocolError."""
    try:
        read = msgspec.json.decode(line, type=replies.LeaseLine)
        if read.lease is not None:
            return read.lease
        return errors.of_problem(msgspec.convert(read.problem, errors.Problem))
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        raise errors.ProtocolError(f"a line of the stream of leases: {problem}") from problem


def checked(event: replies.Event) -> replies.Event:
    """The event, unless it is a `problem`: then its ApiError is raised."""
    if event.name == "problem":
        raise errors.of_problem(msgspec.convert(event.data, errors.Problem, strict=False))
    return event


@contextlib.contextmanager
def whole(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `target` once the block has ended well, and not before."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
