"""The settings file: what it composes, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, read_settings, split_address


def read(folder: Path, text: str) -> Settings:
    path = folder / "settings.toml"
    path.write_text(text)
    return read_settings(path)


def test_everything_has_a_default(tmp_path: Path) -> None:
    settings = read(tmp_path, "")
    assert settings == Settings() and settings.endpoint == "https://127.0.0.1:8443"
    assert settings.base == Path("/var/lib/stokehold/layers/host")


def test_one_file_for_all_packages(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        state = "/s/gateway"
        listen = "[::]:9443"
        [tls]
        certificate = "/c.pem"
        [auth]
        keys = ["/k.pem"]
        [warmpool]
        max_sandboxes = 7
        [[warmpool.pools]]
        name = "small"
        target = 3
        [warmpool.pools.spec]
        role = "call"
        """,
    )
    assert settings.tls.certificate == Path("/c.pem") and settings.auth.keys == (Path("/k.pem"),)
    assert settings.warmpool.max_sandboxes == 7 and settings.warmpool.pools[0].spec.role == "call"
    assert settings.endpoint == "https://[::1]:9443"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("lisen = 'x'", "lisen"),
        ("[tls]\nkyy = 1", "tls.kyy"),
        ("[admission]\nqueue = -1", "admission.queue"),
        ("drain_s = 'x'", "drain_s"),
        ("[warmpool]\nmax_starting = 'x'", "warmpool.max_starting"),
        ("backend = 'lxc'", "backend"),
        ("= 1", ""),
    ],
)
def test_refused_with_the_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, text)
    assert key in str(raised.value) and "settings.toml" in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read_settings(tmp_path / "absent")


@pytest.mark.parametrize(("text", "parts"), [("1.2.3.4:5", ("1.2.3.4", 5)), ("[::1]:6", ("::1", 6)), (":7", ("0.0.0.0", 7))])
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:99999"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError):
        split_address(text)
