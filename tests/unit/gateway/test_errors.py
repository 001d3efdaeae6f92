"""How each exception is told: one status and code, headers, and nothing that it should not say."""

from __future__ import annotations

import pytest

from gateway import errors
from runtimes.backend import FileFailure, NoSuchProcess, SandboxLost, StartFailed
from runtimes.call import BackendFault, CallRefused, DeadlinePassed
from warmpool import errors as pool


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable"),
    [
        (errors.BadRequest("x"), 400, "bad_request", False),
        (CallRefused("/argv", "x"), 400, "bad_request", False),
        (pool.BadLease("/ttl_s", "x"), 400, "bad_request", False),
        (errors.Unauthorized("x"), 401, "unauthorized", False),
        (pool.NotFound("x"), 404, "not_found", False),
        (NoSuchProcess("x"), 404, "not_found", False),
        (pool.WrongState("x", "starting", "running"), 409, "wrong_state", False),
        (pool.LeaseEnded("x", "ttl"), 410, "lease_expired", False),
        (pool.LeaseEnded("x", "idle"), 410, "lease_expired", False),
        (pool.LeaseEnded("x", "deleted"), 410, "lease_deleted", False),
        (pool.LeaseEnded("x", "lost"), 410, "lease_lost", False),
        (pool.LeaseEnded("x", "failed"), 410, "lease_lost", False),
        (errors.TooLarge("x"), 413, "too_large", False),
        (pool.KeyMismatch("x"), 422, "idempotency_mismatch", False),
        (pool.QueueFull("x"), 429, "queue_full", True),
        (pool.QuotaExceeded("leases", 1), 429, "quota_exceeded", True),
        (errors.Unsupported("x"), 501, "unsupported", False),
        (pool.PoolEmpty("x"), 503, "pool_empty", True),
        (pool.NoCapacity("x"), 503, "no_capacity", True),
        (pool.Closing("x"), 503, "draining", True),
        (StartFailed("x"), 503, "backend_failed", True),
        (SandboxLost("x", "failed"), 503, "backend_failed", True),
        (BackendFault("x"), 503, "backend_failed", True),
        (DeadlinePassed(), 504, "deadline_exceeded", False),
        (FileFailure("ENOENT", "/x"), 404, "not_found", False),
        (FileFailure("EACCES", "/x"), 403, "forbidden", False),
        (FileFailure("EISDIR", "/x"), 400, "bad_request", False),
        (FileFailure("ENOSPC", "/x"), 413, "too_large", False),
        (FileFailure("ENOTEMPTY", "/x"), 409, "wrong_state", False),
        (RuntimeError("private"), 503, "backend_failed", True),
    ],
)
def test_status_and_code(error: Exception, status: int, code: str, retryable: bool) -> None:
    told = errors.tell(error, "r1")
    assert (told.status, told.body["code"], told.body["retryable"], told.body["request_id"]) == (status, code, retryable, "r1")
    assert "private" not in told.body["detail"] and told.body["type"] == f"urn:stokehold:problem:{code}"
    assert ("Retry-After" in told.headers) == (status in (429, 503))


def test_fields_and_times() -> None:
    assert errors.tell(errors.BadRequest("x", field="/a"), "").body["field"] == "/a"
    assert errors.tell(pool.BadLease("/ttl_s", "x"), "").body["field"] == "/ttl_s"
    told = errors.tell(pool.NoCapacity("x", retry_after_ms=2400), "")
    assert told.body["retry_after_ms"] == 2400 and told.headers["Retry-After"] == "3"


def test_every_exception_of_the_pool_has_a_row() -> None:
    for kind in vars(pool).values():
        if isinstance(kind, type) and issubclass(kind, pool.WarmpoolError) and kind not in (pool.WarmpoolError, pool.IllegalTransition):
            assert any(base in errors.TABLE for base in kind.__mro__), kind
