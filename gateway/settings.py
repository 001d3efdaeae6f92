"""Settings of the gateway's process, read from one TOML file. Owns the names of settings and their defaults; opens nothing else.

Every package has a frozen struct of its own; `Settings` composes them. An unknown key, a wrong type or an absurd value is
refused with the path to it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.schema import pointer
from warmpool.settings import Settings as PoolSettings

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]


class SettingsError(Exception):
    """The file cannot be used. The message names the file and the key."""


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both `certificate` and `key` (PEM files), or neither: then a development CA under `state` signs one."""

    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    """Further DNS names and addresses for the development certificate."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may sign tokens. HS256 with the secret made at first start is always accepted unless `secret` is false."""

    secret: bool = True
    keys: tuple[Path, ...] = ()
    """PEM public keys: RSA keys verify RS256, Ed25519 keys EdDSA."""
    jwks: Path | None = None
    """A JWKS file, read again when it changes. Its keys verify RS256 or EdDSA only."""
    issuer: str | None = None
    audience: str | None = None
    leeway_s: Seconds = 30.0


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much may run and wait. Beyond `queue` waiting calls, or `commands` running ones, a tenant gets 429."""

    running: Positive | None = None
    """Calls at once; None: twice the number of CPUs, at least 4."""
    queue: Positive = 4096
    commands: Positive = 65536
    """Execs and background processes that run at once in a tenant's leases."""


class Bodies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of what is held in memory; files and archives stream and are not bounded by it."""

    request_mb: Positive = 64


class Maximum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node's maximum of every limit that a request may name; above it: 400."""

    cpu_ms: Positive = 600_000
    wall_ms: Positive = 1_800_000
    memory_mb: Positive = 8192
    stack_mb: Positive = 8192
    output_kb: Positive = 65_536
    file_mb: Positive = 8192
    disk_mb: Positive = 8192
    processes: Positive = 8192
    cpus: Positive = 64
    tests: Positive = 4096
    parallel: Positive = 64
    timeout_ms: Positive = 30 * 86_400_000
    ttl_s: Positive = 30 * 86_400
    count: Annotated[int, Meta(gt=0, le=32_768)] = 32_768
    wait_s: Positive = 3600


class Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The call engine."""

    slots: Positive | None = None
    """Programs of calls that run at once; None: as many as there are CPUs."""
    cache_mb: Positive = 2048
    """Compiled programs kept on disk."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything of the gateway's process."""

    state: Path = Path("/var/lib/stokehold/gateway")
    """The gateway's own directory: secret, certificates, database, compile cache."""
    spawner: Path = Path("/run/stokehold/spawner.sock")
    layers: Path | None = None
    """Where the base layers lie; None: `layers` beside `state`."""
    listen: str = "127.0.0.1:8443"
    """HOST:PORT for HTTP/1.1 and 2 (TCP) and 3 (UDP), with TLS."""
    http: str | None = None
    """HOST:PORT for plain HTTP/1.1 and h2c behind an ingress."""
    url: str | None = None
    """Where clients reach this node; None: from `listen`."""
    node: str = "local"
    backend: Literal["native", "fake"] = "native"
    """`fake` runs nothing: it is for tests of clients."""
    drain_s: Seconds = 25.0
    """How long running work may go on after SIGTERM."""
    keep_alive_s: Seconds = 75.0
    answers_s: Seconds = 86_400.0
    """How long the answer under an idempotency key is kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: Tls = Tls()
    auth: Auth = Auth()
    admission: Admission = Admission()
    bodies: Bodies = Bodies()
    maximum: Maximum = Maximum()
    calls: Calls = Calls()
    warmpool: PoolSettings = PoolSettings()

    @property
    def base(self) -> Path:
        """The directory of base layer `host`."""
        return (self.layers or self.state.parent / "layers") / "host"

    @property
    def endpoint(self) -> str:
        """The node's own URL."""
        host, port = split_address(self.listen)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return self.url or f"https://{f'[{host}]' if ':' in host else host}:{port}"


def read_settings(path: Path) -> Settings:
    """The settings in the TOML file at `path`. Raises SettingsError naming the key."""
    try:
        with path.open("rb") as file:
            raw = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    try:
        return msgspec.convert(raw, Settings, strict=True, dec_hook=_paths)
    except msgspec.ValidationError as error:
        key = pointer(str(error)).strip("/").replace("/", ".")
        raise SettingsError(f"{path}: {key}: {str(error).partition(' - at ')[0]}") from None


def _paths(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT or [V6]:PORT. Raises SettingsError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)
