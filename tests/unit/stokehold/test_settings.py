"""How a client finds its service."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stokehold import errors, settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STOKEHOLD_URL", "STOKEHOLD_TOKEN", "STOKEHOLD_CA", "STOKEHOLD_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def written(folder: Path, url: str = "https://one:1", mode: int = 0o600) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "client.json"
    path.write_bytes(msgspec.json.encode(settings.Settings(url=url, token="t", ca="/ca.pem")))
    path.chmod(mode)
    return path


def test_the_default_url() -> None:
    assert settings.load() == settings.Settings(url="https://127.0.0.1:8443")


def test_the_file_of_the_user(tmp_path: Path) -> None:
    written(tmp_path / "config" / "stokehold")
    assert settings.load() == settings.Settings(url="https://one:1", token="t", ca="/ca.pem")


def test_the_environment_goes_before_the_file_and_arguments_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "config" / "stokehold")
    monkeypatch.setenv("STOKEHOLD_URL", "https://two:2/")
    assert settings.load().url == "https://two:2"
    assert settings.load(url="https://three:3", token="", ca="x") == settings.Settings(
        url="https://three:3", token="", ca="x"
    )


def test_a_state_directory_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "state", "https://four:4")
    assert settings.load(state=tmp_path / "state").url == "https://four:4"
    monkeypatch.setenv("STOKEHOLD_STATE", str(tmp_path / "state"))
    assert settings.load().url == "https://four:4"


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "state", mode=0o666)
    with pytest.raises(errors.SettingsError, match="chmod 600"):
        settings.load(state=tmp_path / "state")


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "state").write_text("{")
    with pytest.raises(errors.SettingsError, match=r"client\.json"):
        settings.load(state=tmp_path / "state")
