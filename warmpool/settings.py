"""What an operator may set about pools and leases. One frozen struct; the gateway composes it into its own."""

from __future__ import annotations

import msgspec

from runtimes.backend import Spec

CALL_SPEC = Spec(kind="container", role="call", base="host", disk_bytes=256 << 20)
"""What a call gets whose limits are the default ones (API.md: `disk_mb` 256; other limits come with the command)."""

LEASE_SPEC = Spec(
    kind="container",
    role="lease",
    base="host",
    memory_bytes=512 << 20,
    disk_bytes=256 << 20,
    processes=256,
    cpu_milli=1000,
)
"""What a lease gets that names no resources (API.md: 512 MiB, 256 MiB, 256 processes, 1 CPU)."""


class PoolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One spec that is kept warm."""

    name: str
    """The pool's name in metrics and `GET /v1/pools`."""
    spec: Spec
    target: int
    """How many are kept ready."""

    def __post_init__(self) -> None:
        if self.target < 0:
            raise ValueError(f"pool {self.name}: target must not be negative")


class LeaseLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that one lease, or one tenant's leases together, may ask for."""

    max_ttl_s: float = 30 * 86400.0
    max_per_tenant: int = 4096
    """Leases of one tenant that have not ended."""
    max_count: int = 32768
    """Leases in one request."""
    max_memory_mb: int = 16384
    max_disk_mb: int = 16384
    max_cpu: float = 64.0
    max_processes: int = 16384
    max_metadata: int = 32
    """Entries; keys have at most 64 characters, values at most 256."""
    create_concurrency: int = 64
    """Leases of one request that are being made at the same time."""
    start_limit_s: float = 600.0
    """How long a lease may stay in `starting` before it ends as `failed`."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pools and leases of one node."""

    pools: tuple[PoolSettings, ...] = (PoolSettings("calls", CALL_SPEC, 16), PoolSettings("leases", LEASE_SPEC, 16))
    max_sandboxes: int = 4096
    """All that exist at once, those being made or unmade included."""
    max_starting: int = 64
    """All that are being made at once."""
    start_batch: int = 32
    """The most that one request to a backend makes."""
    stop_batch: int = 64
    """The most that one request to a backend ends."""
    stop_concurrency: int = 4
    """Requests to end sandboxes that run at the same time."""
    refill_per_s: float = 2000.0
    """Sandboxes a second that refill may ask for. Claims that wait are not held back by it."""
    refill_burst: int = 128
    backoff_base_ms: float = 20.0
    """The pause after a first failure to make one; it doubles with each further one."""
    backoff_cap_ms: float = 500.0
    fail_after_s: float = 1.0
    """A claim that waits is refused after a failure once it waited this long and three attempts failed in a row."""
    queue_bound: int = 2048
    """Claims that may wait at once."""
    claim_wait_s: float = 30.0
    """How long a claim waits that does not say."""
    ended_retention_s: float = 24 * 3600.0
    """How long an ended lease can be read."""
    ended_in_memory: int = 16384
    """Ended leases kept in memory; older ones are read from the journal."""
    journal_rows: int = 1_000_000
    """Leases kept in the journal at most; the ones that ended first go first."""
    leases: LeaseLimits = LeaseLimits()

    def __post_init__(self) -> None:
        for name in ("max_sandboxes", "max_starting", "start_batch", "stop_batch", "stop_concurrency", "queue_bound"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("refill_per_s", "refill_burst", "backoff_base_ms", "backoff_cap_ms", "claim_wait_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")
        names = [pool.name for pool in self.pools]
        specs = [pool.spec for pool in self.pools]
        if len(set(names)) != len(names) or len(set(specs)) != len(specs):
            raise ValueError("pools: two have the same name or the same spec")
