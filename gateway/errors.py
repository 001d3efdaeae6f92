"""What a client is told when it gets no answer: problem exceptions, the one table from exception class to (status, code), rendering.

Problem                 (status, code) come from TABLE
├── BadRequest          400 bad_request, with `field`
├── Unauthorized        401 unauthorized
├── Forbidden           403 forbidden
├── Missing             404 not_found
├── WrongMethod         405 bad_request
├── WrongState          409 wrong_state
├── BadRange            416 bad_request
├── TooLarge            413 too_large
├── Mismatch            422 idempotency_mismatch
├── QueueFull           429 queue_full
├── QuotaExceeded       429 quota_exceeded
├── Unsupported         501 unsupported
├── Draining            503 draining
├── Failed              503 backend_failed
├── DeadlineExceeded    504 deadline_exceeded
└── ClientGone          499, never sent: nobody is there to read it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from runtimes.backend import BackendError, FileFailure, NoSuchProcess
from runtimes.call import CallRefused, DeadlinePassed
from warmpool import errors as pool


class Problem(Exception):
    """An answer that is not the one asked for. `field` is a JSON pointer into the request; `extra` goes into the body."""

    def __init__(
        self,
        detail: str = "",
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.headers = dict(headers or {})
        self.extra = extra


class BadRequest(Problem):
    """The request cannot be understood, or names what cannot be."""


class Unauthorized(Problem):
    """No token, or one that does not hold."""


class Forbidden(Problem):
    """A token that does not allow this."""


class Missing(Problem):
    """No such thing, or another tenant's."""


class WrongMethod(Problem):
    """The path exists, the method does not."""


class WrongState(Problem):
    """The thing is not in a state that allows this."""


class BadRange(Problem):
    """The range lies outside of the file."""


class TooLarge(Problem):
    """More bytes than are taken."""


class Mismatch(Problem):
    """An idempotency key was used before with another body."""


class QueueFull(Problem):
    """Too much of this tenant's work waits already."""


class QuotaExceeded(Problem):
    """Too much of this tenant's work runs already."""


class Unsupported(Problem):
    """Part of the API that this service does not have."""


class Draining(Problem):
    """The service is going away and takes no new work."""


class Failed(Problem):
    """A fault of ours; the same request may succeed."""


class DeadlineExceeded(Problem):
    """The caller's patience (`Stokehold-Timeout-Ms`) is over."""


class ClientGone(Problem):
    """The client went away: what it waited for is cancelled."""


OWN_CODE = ""
"""The exception itself says which code."""


class Kind(msgspec.Struct, frozen=True):
    """How one class of exceptions is told. `retry_ms`: retryable, and after how long unless the exception says."""

    status: int
    code: str
    title: str
    retry_ms: int | None = None


TABLE: dict[type[BaseException], Kind] = {
    BadRequest: Kind(400, "bad_request", "The request cannot be used"),
    CallRefused: Kind(400, "bad_request", "The request cannot be used"),
    pool.BadLease: Kind(400, "bad_request", "The request cannot be used"),
    Unauthorized: Kind(401, "unauthorized", "A valid token is needed"),
    Forbidden: Kind(403, "forbidden", "The token does not allow this"),
    Missing: Kind(404, "not_found", "There is no such thing"),
    NoSuchProcess: Kind(404, "not_found", "There is no such thing"),
    pool.NotFound: Kind(404, "not_found", "There is no such thing"),
    WrongMethod: Kind(405, "bad_request", "The method is not for this path"),
    WrongState: Kind(409, "wrong_state", "Not in this state"),
    pool.WrongState: Kind(409, "wrong_state", "Not in this state"),
    pool.LeaseEnded: Kind(410, OWN_CODE, "The lease is over"),
    TooLarge: Kind(413, "too_large", "The body is too large"),
    BadRange: Kind(416, "bad_request", "The range lies outside of the file"),
    Mismatch: Kind(422, "idempotency_mismatch", "The key was used with another body"),
    pool.KeyMismatch: Kind(422, "idempotency_mismatch", "The key was used with another body"),
    QueueFull: Kind(429, "queue_full", "Too much work waits", 1000),
    pool.QueueFull: Kind(429, "queue_full", "Too much work waits", 1000),
    QuotaExceeded: Kind(429, "quota_exceeded", "The tenant's quota is used up", 1000),
    pool.QuotaExceeded: Kind(429, "quota_exceeded", "The tenant's quota is used up", 1000),
    ClientGone: Kind(499, "deadline_exceeded", "The client went away"),
    Unsupported: Kind(501, "unsupported", "Not part of this service"),
    Draining: Kind(503, "draining", "The service is going away", 1000),
    pool.Closing: Kind(503, "draining", "The service is going away", 1000),
    pool.PoolEmpty: Kind(503, "pool_empty", "No sandbox became ready in time", 200),
    pool.NoCapacity: Kind(503, "no_capacity", "The node is full", 1000),
    Failed: Kind(503, "backend_failed", "The work failed through a fault of ours", 200),
    BackendError: Kind(503, "backend_failed", "The work failed through a fault of ours", 200),
    DeadlineExceeded: Kind(504, "deadline_exceeded", "The time that the request allowed is over"),
    DeadlinePassed: Kind(504, "deadline_exceeded", "The time that the request allowed is over"),
}
"""Subclasses are found through their bases."""

_FILES = {
    "ENOENT": Missing,
    "EACCES": Forbidden,
    "EPERM": Forbidden,
    "EROFS": Forbidden,
    "ENOSPC": TooLarge,
    "EDQUOT": TooLarge,
    "EFBIG": TooLarge,
    "ENOTEMPTY": WrongState,
    "EBUSY": WrongState,
    "ETXTBSY": WrongState,
}


def of_file(error: FileFailure) -> Problem:
    """A file operation that the sandbox's own file system refused."""
    return _FILES.get(error.code, BadRequest)(str(error)[:1000], field="/path", errno=error.code)


def kind_of(error: BaseException) -> Kind | None:
    """The row for an exception, through its bases; None for what nobody expected."""
    return next((TABLE[base] for base in type(error).__mro__ if base in TABLE), None)


class Told(msgspec.Struct, frozen=True):
    """A problem as it goes out: in a response of its own, or as a line or event of a stream."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def tell(error: BaseException, request_id: str) -> Told:
    """How `error` is told to a client. What nobody expected is a fault of ours, without its text."""
    if isinstance(error, FileFailure):
        error = of_file(error)
    elif isinstance(error, HTTPException):
        error = {404: Missing, 405: WrongMethod}.get(error.status_code, BadRequest)(error.detail, headers=error.headers)
    kind = kind_of(error)
    if kind is None:
        kind, detail = TABLE[Failed], "an unexpected error; the request id names it in the log"
    else:
        detail = str(error)[:2000]
    retry_ms = getattr(error, "retry_after_ms", None) or kind.retry_ms
    code = getattr(error, "code", None) if kind.code == OWN_CODE else kind.code
    body: dict[str, Any] = {
        "type": f"urn:stokehold:problem:{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail or kind.title,
        "code": code,
        "field": getattr(error, "field", None),
        "request_id": request_id,
        "retryable": kind.retry_ms is not None,
        "retry_after_ms": retry_ms,
        **(getattr(error, "extra", None) or {}),
    }
    headers = dict(getattr(error, "headers", None) or {})
    if retry_ms is not None and kind.status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(retry_ms / 1000)))
    if kind.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="stokehold"'
    return Told(kind.status, body, headers)


def respond(error: BaseException, request_id: str) -> Response:
    """The whole response of a problem."""
    told = tell(error, request_id)
    return Response(orjson.dumps(told.body), told.status, told.headers, media_type="application/problem+json")
