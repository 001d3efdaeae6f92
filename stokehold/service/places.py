"""Where a service keeps its things. Owns the names of directories and files, and nothing that is done with them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

DEFAULT_STATE = Path("/var/lib/stokehold")
DEFAULT_RUN = Path("/run/stokehold")
SLOTS = Path("/run/stokehold-slots")
SLOT_COUNT = 8
GATEWAY_UID = 61500
"""User and group of the gateway: no account need exist, nothing else of the host may be owned by it."""


class Places(msgspec.Struct, frozen=True):
    """The directories of one service. `private`: another state directory than the default was named."""

    state: Path
    run: Path
    cgroup: str
    private: bool

    @property
    def gateway(self) -> Path:
        """What the gateway alone reads and writes: secret, certificates, database, caches."""
        return self.state / "gateway"

    @property
    def layers(self) -> Path:
        return self.state / "layers"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def socket(self) -> Path:
        return self.run / "spawner.sock"

    @property
    def lock(self) -> Path:
        return self.run / "serve.lock"

    @property
    def service(self) -> Path:
        """What the supervisor says of itself and its children (`Service`)."""
        return self.run / "service.json"

    @property
    def config(self) -> Path:
        """The gateway's settings, written at every start."""
        return self.run / "gateway.toml"

    @property
    def secret(self) -> Path:
        return self.gateway / "jwt.secret"

    @property
    def ca(self) -> Path:
        return self.gateway / "ca.pem"

    @property
    def client(self) -> Path:
        """Settings of clients that were pointed at this state directory."""
        return self.state / "client.json"


class Service(msgspec.Struct, frozen=True):
    """What runs: written by the supervisor whenever it changes, read by every other command."""

    pid: int
    url: str
    version: str
    gateway: int | None = None
    spawner: int | None = None
    health: str | None = None
    """Where /readyz answers for this machine, if not below `url`."""


def places(state: str | os.PathLike[str] | None = None) -> Places:
    """The places of the service whose state lies in `state` (else STOKEHOLD_STATE, else the default)."""
    named = state or os.environ.get("STOKEHOLD_STATE") or None
    root = Path(named).resolve() if named else DEFAULT_STATE
    if root == DEFAULT_STATE:
        return Places(state=DEFAULT_STATE, run=DEFAULT_RUN, cgroup="stokehold", private=False)
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return Places(state=root, run=root / "run", cgroup=f"stokehold-{digest}", private=True)


def read_service(where: Places) -> Service | None:
    """What the supervisor wrote last, or None. Whether it still runs is told by the lock, not by this file."""
    try:
        return msgspec.json.decode(where.service.read_bytes(), type=Service)
    except (OSError, msgspec.DecodeError):
        return None


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` in one step: a reader sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
