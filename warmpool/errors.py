"""Everything that this package can refuse, as one tree. It knows no HTTP: the gateway's table gives each its status.

WarmpoolError
├── PoolEmpty         nothing became ready within the caller's wait
├── NoCapacity        every sandbox that may exist is held
├── QueueFull         too many claims wait already
├── QuotaExceeded     the tenant holds as much as it may
├── Closing           the controller is shutting down
├── NotFound          no such lease of this tenant
├── LeaseEnded        the lease is over; `code` says which answer its routes give
├── WrongState        the lease is not in a state that allows this
├── KeyMismatch       the idempotency key was used with another body
├── BadLease          a field of the request is out of bounds
└── IllegalTransition a defect of ours: a state machine was asked for a transition that its table does not have
"""

from __future__ import annotations

from collections.abc import Iterable

_ENDED_CODE = {
    "deleted": "lease_deleted",
    "ttl": "lease_expired",
    "idle": "lease_expired",
    "lost": "lease_lost",
    "failed": "lease_lost",
}


class WarmpoolError(Exception):
    """The root of what this package raises."""


class PoolEmpty(WarmpoolError):
    """Nothing became ready in time. The caller may try again at once."""


class NoCapacity(WarmpoolError):
    """Every sandbox that may exist is held. `retry_after_ms` is a guess at when it is worth to try again."""

    def __init__(self, detail: str, retry_after_ms: int = 1000) -> None:
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms


class QueueFull(WarmpoolError):
    """Too many claims wait already."""

    def __init__(self, detail: str, retry_after_ms: int = 1000) -> None:
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms


class QuotaExceeded(WarmpoolError):
    """The tenant holds as much as it may of `what`."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"this tenant may hold {limit} {what}")
        self.what = what
        self.limit = limit


class Closing(WarmpoolError):
    """The controller is shutting down and makes nothing any more."""


class NotFound(WarmpoolError):
    """No lease of this id belongs to this tenant."""

    def __init__(self, id: str) -> None:
        super().__init__(f"no lease {id}")
        self.id = id


class LeaseEnded(WarmpoolError):
    """The lease is over. `reason` is one of deleted, ttl, idle, lost, failed; `code` is what API.md answers for it."""

    def __init__(self, id: str, reason: str, detail: str = "") -> None:
        super().__init__(f"lease {id} has ended: {reason}" + (f" ({detail})" if detail else ""))
        self.id = id
        self.reason = reason
        self.code = _ENDED_CODE[reason]


class WrongState(WarmpoolError):
    """The lease's state does not allow what was asked."""

    def __init__(self, id: str, state: str, wanted: str) -> None:
        super().__init__(f"lease {id} is {state}, not {wanted}")
        self.id = id
        self.state = state


class KeyMismatch(WarmpoolError):
    """The idempotency key was used before with another body."""


class BadLease(WarmpoolError):
    """A field of the request is out of bounds. `field` is its JSON pointer."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class IllegalTransition(WarmpoolError):
    """A defect of ours, told with the story that led to it."""

    def __init__(self, name: str, source: str | None, target: str, story: Iterable[tuple[int, str]]) -> None:
        told = "; ".join(f"{at} {what}" for at, what in story) or "nothing before"
        super().__init__(f"{name}: {source} → {target} is not a transition; story: {told}")
        self.name = name
