"""Where in a request something is wrong, as a JSON pointer."""

from __future__ import annotations

import math

import msgspec
import pytest

from gateway.codec import decode
from gateway.errors import BadRequest, Unsupported
from gateway.requests import LeaseAsk, RunAsk
from gateway.schema import Content, mode_bits, value_bytes, within

JSON = "application/json"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"limts": {}}', "/limts"),
        ('{"limits": {"wall": 1}}', "/limits/wall"),
        ('{"limits": {"wall_ms": -1}}', "/limits/wall_ms"),
        ('{"limits": {"wall_ms": 0}}', "/limits/wall_ms"),
        ('{"limits": {"wall_ms": "1"}}', "/limits/wall_ms"),
        ('{"limits": {"wall_ms": true}}', "/limits/wall_ms"),
        ('{"limits": {"wall_ms": 1e999}}', "/limits/wall_ms"),
        ('{"limits": {"processes": 1.5}}', "/limits/processes"),
        ('{"tests": [{"name": "a"}, {"stdn": ""}]}', "/tests/1/stdn"),
        ('{"tests": [{"stdin": {"text": 3}}]}', "/tests/0/stdin/text"),
        ('{"files": {"a/b": 3}}', "/files"),
        ('{"a/b": 3}', "/a~1b"),
        ('{"env": {"A=B": "x"}}', "/env"),
        ('{"argv": []}', "/argv"),
        ('{"kind": "zeppelin"}', "/kind"),
        ("[]", None),
    ],
)
def test_names_the_field(body: str, field: str | None) -> None:
    with pytest.raises(BadRequest) as raised:
        decode(body.encode(), JSON, RunAsk)
    assert raised.value.field == field


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"source": "\xff"}', b"nul", b"[" * 100_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode(body, JSON, RunAsk)


def test_null_and_absent_are_the_default() -> None:
    nulls = dict.fromkeys((field.encode_name for field in msgspec.structs.fields(RunAsk)), None)
    assert decode(msgspec.json.encode(nulls), JSON, RunAsk) == RunAsk() == decode(b"", JSON, RunAsk)
    assert decode(b'{"from": null}', JSON, LeaseAsk) == LeaseAsk()


def test_msgpack_is_the_same() -> None:
    ask = {"language": "c", "source": "x", "limits": {"cpu_ms": 1.5}}
    packed = decode(msgspec.msgpack.encode(ask), "application/msgpack", RunAsk)
    assert packed == decode(msgspec.json.encode(ask), JSON, RunAsk)
    with pytest.raises(BadRequest) as raised:
        decode(msgspec.msgpack.encode({"limits": {"cpu_ms": -1}}), "application/msgpack", RunAsk)
    assert raised.value.field == "/limits/cpu_ms"


def test_nan_is_absurd() -> None:
    with pytest.raises(BadRequest):
        within(math.nan, 5, "/limits/cpu_ms")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b""),
        ("ä", "ä".encode()),
        (Content(text="x"), b"x"),
        (Content(base64="/wA="), b"\xff\x00"),
        (Content(text=""), b""),
    ],
)
def test_values(value: object, data: bytes) -> None:
    assert value_bytes(value, "/stdin") == data  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Content(), "/stdin"),
        (Content(text="a", base64=""), "/stdin"),
        (Content(base64="?"), "/stdin/base64"),
        ("\ud800", "/stdin"),
    ],
)
def test_values_that_are_none(value: object, field: str) -> None:
    with pytest.raises(BadRequest) as raised:
        value_bytes(value, "/stdin")  # type: ignore[arg-type]
    assert raised.value.field == field


def test_blobs_are_not_built() -> None:
    with pytest.raises(Unsupported):
        value_bytes(Content(blob="sha256:00"), "/stdin")


@pytest.mark.parametrize(("text", "bits"), [("0755", 0o755), ("644", 0o644), ("0o600", 0o600), ("4755", 0o4755)])
def test_modes(text: str, bits: int) -> None:
    assert mode_bits(text, "/mode", 0) == bits


@pytest.mark.parametrize("text", ["", "8", "rwx", "07777777", "-1"])
def test_modes_that_are_none(text: str) -> None:
    with pytest.raises(BadRequest):
        mode_bits(text, "/mode", 0)
