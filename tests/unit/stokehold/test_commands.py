"""The command line without a service: parsing, exit codes, what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stokehold.cli import app
from stokehold.commands import leases, run, shown

runner = CliRunner()


@pytest.fixture(autouse=True)
def _nobody_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKEHOLD_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("STOKEHOLD_STATE", str(tmp_path / "state"))


def test_no_service_is_3(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text("print(1)")
    done = runner.invoke(app, ["run", str(program)])
    assert done.exit_code == shown.NO_SERVICE
    assert "stokehold serve" in done.stderr
    assert runner.invoke(app, ["lease"]).exit_code == shown.NO_SERVICE
    assert runner.invoke(app, ["exec", "abcd1234", "--", "true"]).exit_code == shown.EXEC_FAULT


def test_usage_is_2(tmp_path: Path) -> None:
    program = tmp_path / "a.unknown"
    program.write_text("")
    assert runner.invoke(app, ["run", str(program)]).exit_code == shown.USAGE
    assert runner.invoke(app, ["run", str(tmp_path / "absent.py")]).exit_code == shown.USAGE
    assert runner.invoke(app, ["lease", "--rm"]).exit_code == shown.USAGE
    assert runner.invoke(app, ["rm"]).exit_code == shown.USAGE
    assert runner.invoke(app, ["cp", "a", "b"]).exit_code == shown.USAGE
    assert runner.invoke(app, ["bench", "run", "--http", "4"]).exit_code == shown.USAGE


def test_messages_name_the_file_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "a.py"
    program.write_bytes(b"# \xff")
    done = runner.invoke(app, ["run", str(program)])
    assert done.exit_code == shown.USAGE
    assert "not UTF-8" in done.stderr
    done = runner.invoke(app, ["cp", "abcd1234:a", str(tmp_path / "absent" / "a")])
    assert done.exit_code == shown.USAGE
    assert "no such directory" in done.stderr
    done = runner.invoke(app, ["cp", str(tmp_path), "abcd1234:a"])
    assert done.exit_code == shown.USAGE
    assert "a directory" in done.stderr
    assert "no token" in runner.invoke(app, ["env"]).stderr
    monkeypatch.setenv("STOKEHOLD_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("STOKEHOLD_CA", str(tmp_path / "absent.pem"))
    assert "STOKEHOLD_CA" in runner.invoke(app, ["ps"]).stderr


def test_status_works_when_nothing_runs() -> None:
    done = runner.invoke(app, ["status", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "gateway": {"pid": None, "url": None, "version": None},
        "spawner": {"pid": None},
        "sandboxes": {},
        "resources": {"processes": 0, "mounts": 0, "cgroups": 0, "netns": 0, "uppers": 0, "loops": 0, "containers": 0},
    }


def test_tests_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("10", "2", "1", "edge"):
        (tmp_path / f"{name}.in").write_text(name)
    (tmp_path / "2.ans").write_text("two")
    (tmp_path / "10.out").write_text("ten")
    tests = run.tests_in(tmp_path)
    assert [test["name"] for test in tests] == ["1", "2", "10", "edge"]
    assert [test.get("expected") for test in tests] == [None, b"two", b"ten", None]


@pytest.mark.parametrize(
    ("status", "exit_code", "signal", "code"),
    [
        ("Accepted", 0, None, 0),
        ("Nonzero Exit Status", 7, None, 7),
        ("Signalled", None, "SIGSEGV", 139),
        ("Time Limit Exceeded", None, "SIGKILL", 124),
        ("File Error", None, None, 127),
        ("Accepted", None, None, 125),
    ],
)
def test_exit_code_of_a_command(status: str, exit_code: int | None, signal: str | None, code: int) -> None:
    assert leases.code_of(status, exit_code, signal) == code


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("abcd1234:/a/b", ("abcd1234", "/a/b")),
        ("abcd1234:", ("abcd1234", "")),
        ("./abcd1234:x", None),
        ("C:x", None),
        ("plain", None),
        ("ABCD1234:x", None),
    ],
)
def test_remote_paths(text: str, parts: tuple[str, str] | None) -> None:
    assert leases.split(text) == parts


def test_where_a_copied_file_goes() -> None:
    assert (leases.place("/d/", "f"), leases.place("/d/g", "f"), leases.place("", "f")) == ("/d/f", "/d/g", "f")


@pytest.mark.parametrize(
    ("name", "language"), [("a.cpp", "cpp"), ("A.CC", "cpp"), ("x.py", "python"), ("m.rs", "rust"), ("x", None)]
)
def test_language_by_extension(name: str, language: str | None) -> None:
    assert run.language_of(Path(name)) == language
