"""What the SDK sends, for what it is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stokehold import replies, wire


def body(ask: wire.Ask[Any]) -> Any:
    assert ask.body is not None
    return json.loads(ask.body)


def test_run_sends_only_what_was_given() -> None:
    ask = wire.run(language="python", source="print(1)")
    assert (ask.method, ask.path, ask.reply) == ("POST", "/v1/run", replies.RunReply)
    assert body(ask) == {"language": "python", "source": "print(1)"}


def test_run_keeps_zero_empty_and_false() -> None:
    ask = wire.run(argv=["true"], stdin="", tests=[], limits={"stack_mb": 0}, stop_on_first_failure=False)
    assert body(ask) == {
        "argv": ["true"],
        "stdin": "",
        "tests": [],
        "limits": {"stack_mb": 0},
        "stop_on_first_failure": False,
    }


def test_bytes_that_are_no_text_travel_as_base64() -> None:
    ask = wire.run(
        language="c", files={"a.c": b"int main(){}", "x": b"\xff\x00"}, tests=[{"stdin": b"\xfe", "expected": b"ok"}]
    )
    assert body(ask)["files"] == {"a.c": "int main(){}", "x": {"base64": "/wA="}}
    assert body(ask)["tests"] == [{"stdin": {"base64": "/g=="}, "expected": "ok"}]


def test_patience_is_a_header_in_milliseconds() -> None:
    ask = wire.run(argv=["true"], timeout_s=1.5, priority="u=1")
    assert (ask.headers["Stokehold-Timeout-Ms"], ask.headers["Priority"], ask.patience_s) == ("1500", "u=1", 1.5)


def test_a_lease_always_has_an_idempotency_key() -> None:
    first, second = wire.create_lease({}), wire.create_lease({})
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
    assert wire.create_lease({}, key="k").headers["Idempotency-Key"] == "k"
    assert first.repeatable


def test_a_command_is_repeatable_only_under_a_key() -> None:
    assert not wire.exec("lease0001", argv=["true"]).repeatable
    assert wire.exec("lease0001", argv=["true"], key="k").repeatable


@pytest.mark.parametrize("fields", [{}, {"argv": ["a"], "shell": "a"}])
def test_a_command_is_argv_or_shell(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one of them"):
        wire.exec("lease0001", **fields)


def test_a_string_is_for_the_shell_and_a_sequence_is_a_program() -> None:
    assert wire.command("a | b", {}) == {"shell": "a | b"}
    assert wire.command(["a", "b"], {"user": "me"}) == {"argv": ["a", "b"], "user": "me"}


def test_paths_and_metadata_are_quoted() -> None:
    assert wire.stat("lease0001", "/a b&c=d").path == "/v1/leases/lease0001/stat?path=%2Fa+b%26c%3Dd"
    assert wire.delete_leases({"job": "j 1"}).path == "/v1/leases?metadata.job=j+1"
    assert wire.list_leases("running", None, None, None).path == "/v1/leases?state=running"


def test_ranges() -> None:
    assert wire.read_file("lease0001", "f", 2, 4).headers == {"Range": "bytes=2-4"}
    assert wire.read_file("lease0001", "f", None, 4).headers == {"Range": "bytes=-4"}
    assert wire.read_file("lease0001", "f").headers == {}


def test_an_append_is_not_repeatable() -> None:
    assert wire.write_file("lease0001", "f", b"x").repeatable
    assert not wire.write_file("lease0001", "f", b"x", append=True).repeatable
    assert not wire.write_file("lease0001", "f", None).repeatable


def test_values_come_back_as_bytes() -> None:
    assert replies.value_bytes("é") == "é".encode()
    assert replies.value_bytes(replies.Encoded(base64="/wA=")) == b"\xff\x00"
    with pytest.raises(ValueError, match="blob"):
        replies.value_bytes(replies.Encoded(blob="sha256:00"))
