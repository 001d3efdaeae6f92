"""What `/v1/run` refuses, with the field, and what it resolves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.calls import call_of
from gateway.codec import decode
from gateway.errors import BadRequest, Unsupported
from gateway.requests import RunAsk
from gateway.settings import Maximum
from runtimes.call import Call

BASE = {"language": "python", "source": "pass"}


def call(**fields: Any) -> Call:
    return call_of(decode(json.dumps(fields).encode(), "application/json", RunAsk), Maximum())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "/language"),
        ({"language": "c"}, "/source"),
        ({**BASE, "argv": ["a"]}, "/language"),
        ({**BASE, "files": {"a": ""}}, "/files"),
        ({"argv": ["a"], "source": "x"}, "/source"),
        ({**BASE, "tests": [], "stdin": "x"}, "/stdin"),
        ({"language": "c", "files": {"../a.c": ""}}, "/files/..~1a.c"),
        ({"language": "c", "files": {"/a.c": ""}}, "/files/~1a.c"),
        ({"language": "c", "files": {"a": "", "./a": ""}}, "/files/.~1a"),
        ({"language": "c", "files": {"a": "", "a/b": ""}}, "/files/a~1b"),
        ({"language": "c", "files": {"a": {"text": "", "mode": "9"}}}, "/files/a/mode"),
        ({**BASE, "cwd": "../x"}, "/cwd"),
        ({**BASE, "limits": {"memory_mb": 1e9}}, "/limits/memory_mb"),
        ({**BASE, "compile": {"limits": {"cpu_ms": 1e9}}}, "/compile/limits/cpu_ms"),
        ({**BASE, "tests": [{"limits": {"disk_mb": 1e9}}]}, "/tests/0/limits/disk_mb"),
        ({**BASE, "checker": "fuzzy"}, "/checker"),
        ({**BASE, "checker": "floats:x"}, "/checker"),
        ({**BASE, "parallel": 1000}, "/parallel"),
        ({**BASE, "files_out": ["../x"]}, "/files_out/0"),
        ({**BASE, "backend": "lxc"}, "/backend"),
        ({"argv": ["a\x00b"]}, "/argv/0"),
    ],
)
def test_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as raised:
        call(**fields)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"artifact": "sha256:00"},
        {"interactor": {"language": "c", "source": ""}},
        {"callback": "https://example.org"},
        {"store": ["x"]},
        {"checker": {"language": "c", "source": ""}},
        {"kind": "microvm"},
        {"kind": "vm"},
        {"layers": {"base": "debian"}},
        {"layers": {"workspace": "w"}},
        {"layers": {"toolkits": ["t"]}},
    ],
)
def test_not_built(fields: dict[str, Any]) -> None:
    with pytest.raises(Unsupported) as raised:
        call(**BASE, **fields)
    assert raised.value.field is not None


def test_defaults() -> None:
    plain = call(**BASE)
    assert len(plain.tests) == 1 and plain.tests[0].expected is None and plain.tests[0].stdin == b""
    assert plain.limits.cpu_ns == 2_000_000_000 and plain.limits.wall_ns == 6_000_000_000
    assert plain.limits.stack_bytes is None and plain.limits.output_bytes == 1 << 20
    assert plain.checker == "lines" and plain.kind == "container" and plain.compile.limits.cpu_ns == 10_000_000_000


def test_wall_follows_cpu_and_tests_inherit_the_calls_limits() -> None:
    full = call(**BASE, limits={"cpu_ms": 4000, "memory_mb": 64.5}, tests=[{"limits": {"cpu_ms": 1000}}, {}])
    assert full.limits.wall_ns == 12_000_000_000
    first = full.tests[0].limits
    assert first is not None and first.cpu_ns == 1_000_000_000 and first.wall_ns == 6_000_000_000
    assert first.memory_bytes == int(64.5 * (1 << 20))
    assert full.tests[1].limits is None and [test.name for test in full.tests] == ["1", "2"]


def test_the_default_of_wall_stays_below_the_maximum() -> None:
    assert call(**BASE, limits={"cpu_ms": 600_000}).limits.wall_ns == 1_800_000_000_000


def test_paths_are_made_plain() -> None:
    assert [file.path for file in call(language="c", files={"./a//b.c": ""}).files] == ["a/b.c"]
    assert call(**BASE, tests=[]).tests == ()
