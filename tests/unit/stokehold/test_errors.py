"""Replies that are errors become exceptions by status, whatever their body is."""

from __future__ import annotations

import json

import pytest

from stokehold import errors

PROBLEM = {
    "type": "about:blank",
    "title": "t",
    "status": 400,
    "detail": "no such field",
    "code": "bad_request",
    "field": "/ttl",
    "request_id": "r1",
    "retryable": False,
    "retry_after_ms": None,
}


def test_a_problem_keeps_what_the_service_said() -> None:
    error = errors.of_reply(400, json.dumps(PROBLEM).encode())
    assert isinstance(error, errors.BadRequest)
    assert (error.code, error.field, error.request_id, error.retryable) == ("bad_request", "/ttl", "r1", False)
    assert str(error) == "bad_request at /ttl: no such field"


@pytest.mark.parametrize(("status", "kind"), list(errors.BY_STATUS.items()))
def test_every_status_has_its_class(status: int, kind: type[errors.ApiError]) -> None:
    error = errors.of_reply(status, json.dumps({**PROBLEM, "status": status, "retryable": True}).encode())
    assert type(error) is kind
    assert error.retryable


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[1]", b'{"status": "x"}'])
def test_what_is_no_problem_body_is_a_protocol_error(body: bytes) -> None:
    assert type(errors.of_reply(502, body)) is errors.ProtocolError


def test_an_unknown_status_is_an_api_error() -> None:
    assert type(errors.of_reply(418, json.dumps({**PROBLEM, "status": 418}).encode())) is errors.ApiError
