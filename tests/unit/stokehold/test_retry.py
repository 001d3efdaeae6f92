"""When a request is sent again."""

from __future__ import annotations

import pytest

from stokehold import errors, retry


def refusal(code: str, *, retryable: bool = True, after_ms: int | None = None) -> errors.ApiError:
    status = {"queue_full": 429, "backend_failed": 503, "no_capacity": 503}.get(code, 400)
    return errors.of_problem(errors.Problem(status=status, code=code, retryable=retryable, retry_after_ms=after_ms))


def delay(
    error: errors.StokeholdError, attempt: int = 1, *, repeatable: bool = True, known: bool = True, random: float = 0.0
) -> float | None:
    return retry.delay_s(error, attempt, repeatable=repeatable, known=known, random=random)


def test_waits_grow_and_are_spread() -> None:
    waits = [delay(refusal("backend_failed"), n) for n in range(1, retry.ATTEMPTS)]
    assert waits == [0.05, 0.1, 0.2, 0.4]
    assert delay(refusal("backend_failed"), 1, random=0.5) == pytest.approx(0.075)


def test_it_ends() -> None:
    assert delay(refusal("backend_failed"), retry.ATTEMPTS) is None


def test_what_the_service_asks_for_is_waited() -> None:
    assert delay(refusal("queue_full", after_ms=2000)) == 2.0
    assert delay(refusal("queue_full", after_ms=10**9)) == 30.0


def test_what_is_not_retryable_is_not_retried() -> None:
    assert delay(refusal("bad_request", retryable=False)) is None
    assert delay(errors.ProtocolError("x")) is None


def test_what_may_have_begun_is_not_repeated() -> None:
    assert delay(errors.ConnectionFailed("x"), repeatable=False) is None
    assert delay(refusal("backend_failed"), repeatable=False) is None


def test_what_was_refused_before_it_began_is_repeated() -> None:
    assert delay(refusal("queue_full"), repeatable=False) is not None
    assert delay(refusal("no_capacity"), repeatable=False) is not None


def test_a_service_that_was_there_is_waited_for() -> None:
    gone = errors.ConnectionFailed("refused")
    waits = [delay(gone, n) for n in range(1, retry.ATTEMPTS_KNOWN)]
    assert sum(wait or 0 for wait in waits) > 7
    assert delay(gone, retry.ATTEMPTS_KNOWN) is None
    assert delay(gone, retry.ATTEMPTS, known=False) is None


def test_silence_is_not_waited_for_again_and_again() -> None:
    assert delay(errors.AnswerTimedOut("x"), 1) is not None
    assert delay(errors.AnswerTimedOut("x"), retry.ATTEMPTS_SILENT) is None
