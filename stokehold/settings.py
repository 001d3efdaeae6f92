"""How a client finds its service: the environment, else the file that `stokehold serve` wrote. Reads; never writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from stokehold.errors import SettingsError

DEFAULT_URL = "https://127.0.0.1:8443"


class Settings(msgspec.Struct, frozen=True):
    """`ca` is a PEM file of the authority to trust; None: the system's authorities."""

    url: str = DEFAULT_URL
    token: str = ""
    ca: str | None = None


def client_file(state: str | os.PathLike[str] | None = None) -> Path:
    """The file that `serve` wrote for this user: below `state` (or STOKEHOLD_STATE) if one is named, else in the
    home."""
    named = state or os.environ.get("STOKEHOLD_STATE")
    if named:
        return Path(named) / "client.json"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "stokehold" / "client.json"


def load(
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    *,
    state: str | os.PathLike[str] | None = None,
) -> Settings:
    """Settings from the arguments, else STOKEHOLD_URL, STOKEHOLD_TOKEN and STOKEHOLD_CA, else the file, else the
    default URL.

    Raises SettingsError if the file is there and cannot be used."""
    environment = os.environ
    found = read(client_file(state))
    chosen = url or environment.get("STOKEHOLD_URL") or found.url
    return Settings(
        url=chosen.rstrip("/"),
        token=token if token is not None else environment.get("STOKEHOLD_TOKEN") or found.token,
        ca=ca or environment.get("STOKEHOLD_CA") or found.ca,
    )


def read(path: Path) -> Settings:
    """The settings in `path`, defaults if it does not exist. Raises SettingsError; refuses a file that others may
    write."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except FileNotFoundError:
        return Settings()
    except OSError as problem:
        raise SettingsError(f"{path}: {problem.strerror}") from problem
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"{path} may be written by others: chmod 600 {path}")
    try:
        return msgspec.json.decode(data, type=Settings)
    except msgspec.DecodeError as problem:
        raise SettingsError(f"{path}: {problem}") from problem
