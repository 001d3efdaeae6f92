"""The parts of the service that can be tested without starting one."""

from __future__ import annotations

import hashlib
import os
import signal
import tomllib
from pathlib import Path

import jwt
import pytest

from stokehold.service import child, privilege, probe, slot, status, tokens, toml
from stokehold.service.places import DEFAULT_STATE, Service, places, read_service, write_whole
from stokehold.version import __version__


def test_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())
    assert project["project"]["version"] == __version__


def test_another_state_has_everything_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKEHOLD_STATE", raising=False)
    default, other = places(), places(tmp_path)
    assert (default.state, default.cgroup, default.private) == (DEFAULT_STATE, "stokehold", False)
    digest = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]
    assert (other.run, other.cgroup, other.private) == (tmp_path / "run", f"stokehold-{digest}", True)
    assert places(DEFAULT_STATE) == default


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8443", "https://127.0.0.1:8443"),
        ("0.0.0.0:1", "https://127.0.0.1:1"),
        (":443", "https://127.0.0.1:443"),
        ("[::1]:8443", "https://[::1]:8443"),
        ("[::]:8443", "https://[::1]:8443"),
        ("host.example:8443", "https://host.example:8443"),
    ],
)
def test_url_by_which_this_machine_reaches_it(listen: str, url: str) -> None:
    assert probe.local_url(listen) == url


@pytest.mark.parametrize("listen", ["8443", "host", "host:", "host:99999", "host:0", "host:x", ""])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT"):
        probe.local_url(listen)


def test_tokens_carry_tenant_scope_and_expiry(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    claims = jwt.decode(tokens.mint(secret, tenant="t1", scopes=["invoke"], ttl_s=60), b"s" * 32, ["HS256"])
    assert (claims["tenant"], claims["scope"], claims["exp"] - claims["iat"]) == ("t1", "invoke", 60)
    for wrong in ({"scopes": ["everything"]}, {"scopes": []}, {"tenant": ""}, {"ttl_s": 0}):
        with pytest.raises(ValueError):
            tokens.mint(secret, **wrong)  # type: ignore[arg-type]


def test_toml_is_read_back() -> None:
    table = {
        "a": 'x"\\\n\x7fé',
        "n": 3,
        "f": 0.5,
        "yes": True,
        "list": ["a", 1],
        "none": None,
        "sub": {"k.e y": 1, "deep": {"z": False}},
    }
    assert tomllib.loads(toml.dumps(table)) == {**{k: v for k, v in table.items() if v is not None}}
    with pytest.raises(TypeError):
        toml.dumps({"x": object()})


def test_sandboxes_are_summed_by_state() -> None:
    text = (
        '# TYPE stokehold_sandboxes gauge\nstokehold_sandboxes{pool="a",state="idle"} 3.0\n'
        'stokehold_sandboxes{pool="b",state="idle"} 1.0\n'
        'stokehold_sandboxes{pool="b",state="leased"} 2.0\nother{state="x"} 9\n'
    )
    assert status.by_state(text) == {"idle": 4, "leased": 2}


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not slot.held(path)
    fd = slot.try_lock(path)
    assert fd is not None
    assert slot.held(path)
    assert slot.try_lock(path) is None
    os.close(fd)
    assert not slot.held(path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_whole(path, b"one", 0o600)
    write_whole(path, b"two", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (b"two", 0o600, [path])


def test_service_file_is_read_back_or_nothing(tmp_path: Path) -> None:
    where = places(tmp_path)
    assert read_service(where) is None
    where.run.mkdir()
    where.service.write_text("{")
    assert read_service(where) is None
    where.service.write_text('{"pid": 1, "url": "https://x:1", "version": "0"}')
    assert read_service(where) == Service(pid=1, url="https://x:1", version="0")


def test_restarts_begin_at_once_and_slow_down() -> None:
    assert [child.delay_s(n) for n in (1, 2, 3, 4)] == [0.0, 0.05, 0.1, 0.2]
    assert child.delay_s(40) == 5.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_child_that_dies_quickly_again_and_again_is_given_up() -> None:
    clock = Clock()
    one = child.Child("x", ["false"], os.environ, None, clock=clock)
    for n in range(1, child.QUICK_DEATHS + 1):
        one.start()
        assert one.died() == "exited with 1"
        assert one.quick_deaths == n
    assert (one.given_up, one.due) == (True, None)


def test_a_child_that_lived_long_starts_anew_at_once() -> None:
    clock = Clock()
    one = child.Child("x", ["sleep", "100"], os.environ, None, clock=clock)
    one.quick_deaths = 5
    one.start()
    clock.now = child.QUICK_S + 1
    one.send(signal.SIGKILL)
    assert one.died() == "was ended by SIGKILL"
    assert (one.quick_deaths, one.due) == (1, clock.now)


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    one = child.Child(
        "x", ["sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done"], os.environ, None, announces=True
    )
    one.start()
    assert one.process is not None
    assert one.process.stdout is not None
    assert one.process.stdout.read(2) == b"on"
    group = one.process.pid
    assert not one.end(0.2)
    os.killpg(group, signal.SIGKILL)


def test_not_root_without_sudo_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(privilege.NotRoot, match="stokehold serve --detach"):
        privilege.require_root(["serve", "--detach"])
