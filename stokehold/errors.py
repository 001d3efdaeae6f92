"""What can go wrong for a client, as exceptions by the API's codes.

StokeholdError
├── SettingsError        the client's own settings cannot be used
├── ConnectionFailed     no service answered; retryable
│   └── AnswerTimedOut       a service was reached, and its answer did not come in time
├── ProtocolError        what answered is not this API
└── ApiError             a problem reply: `code`, `status`, `detail`, `field`, `retryable`, `retry_after_ms`
    ├── BadRequest           400, 405, 416
    ├── Unauthorized         401
    ├── Forbidden            403
    ├── NotFound             404
    ├── WrongState           409
    ├── LeaseEnded           410: `code` is lease_deleted, lease_expired or lease_lost
    ├── TooLarge             413
    ├── Unprocessable        422: blob_missing, layer_missing, idempotency_mismatch
    ├── Busy                 429: quota_exceeded, queue_full
    ├── Unsupported          501
    ├── Unavailable          503: pool_empty, no_capacity, draining, backend_failed
    └── DeadlineExceeded     504
"""

from __future__ import annotations

import msgspec


class StokeholdError(Exception):
    """Anything this package raises. `retryable`: the same request may succeed later."""

    retryable = False
    request_id: str | None = None


class SettingsError(StokeholdError):
    """The client's own settings cannot be used."""


class ConnectionFailed(StokeholdError):
    """No service answered at the URL, or the connection broke before its answer was whole."""

    retryable = True


class AnswerTimedOut(ConnectionFailed):
    """A service was reached, and its answer did not come in time."""


class ProtocolError(StokeholdError):
    """What answered does not speak this API."""


class Problem(msgspec.Struct, frozen=True):
    """The body of a problem reply (RFC 9457 with the API's own members)."""

    status: int = 0
    title: str = ""
    detail: str = ""
    code: str = ""
    field: str | None = None
    request_id: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


class ApiError(StokeholdError):
    """The service refused or failed, and said so."""

    def __init__(self, problem: Problem) -> None:
        where = f" at {problem.field}" if problem.field else ""
        super().__init__(f"{problem.code or problem.status}{where}: {problem.detail or problem.title}")
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail
        self.field = problem.field
        self.request_id = problem.request_id
        self.retryable = problem.retryable
        self.retry_after_ms = problem.retry_after_ms


class BadRequest(ApiError):
    """The request cannot be understood; `field` says where."""


class Unauthorized(ApiError):
    """No token, or one that does not hold."""


class Forbidden(ApiError):
    """The token does not allow this."""


class NotFound(ApiError):
    """No such thing, or another tenant's."""


class WrongState(ApiError):
    """The thing is not in a state that allows this."""


class LeaseEnded(ApiError):
    """The lease is over: `code` says how."""


class TooLarge(ApiError):
    """More bytes than the service takes."""


class Unprocessable(ApiError):
    """It names something absent, or repeats an idempotency key with another body."""


class Busy(ApiError):
    """A quota or a queue is full."""


class Unsupported(ApiError):
    """Not built into this service."""


class Unavailable(ApiError):
    """A fault or a lack of the service's own: never a verdict."""


class DeadlineExceeded(ApiError):
    """The caller's patience passed."""


BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    405: BadRequest,
    416: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: WrongState,
    410: LeaseEnded,
    413: TooLarge,
    422: Unprocessable,
    429: Busy,
    501: Unsupported,
    503: Unavailable,
    504: DeadlineExceeded,
}


def of_problem(problem: Problem) -> ApiError:
    """The exception for a problem."""
    return BY_STATUS.get(problem.status, ApiError)(problem)


def of_reply(status: int, body: bytes) -> StokeholdError:
    """The exception for a reply whose status is an error, whatever its body is."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        text = body[:200].decode(errors="replace")
        return ProtocolError(f"HTTP {status} without a problem body: {text!r}")
    return of_problem(msgspec.structs.replace(problem, status=problem.status or status))
