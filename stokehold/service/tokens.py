"""Tokens of the development secret, minted on this machine by whoever may read it. Verifying them is the gateway's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import jwt

SCOPES = ("invoke", "functions", "lease", "lease:read", "layers", "pools", "admin")
YEAR_S = 365 * 24 * 3600


def mint(secret: Path, *, tenant: str = "default", scopes: Sequence[str] = SCOPES, ttl_s: int = YEAR_S) -> str:
    """A token for `tenant` that lasts `ttl_s` seconds. Raises OSError if the secret cannot be read, ValueError for
    bad asks."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise ValueError(f"unknown scope {', '.join(unknown) or '(none)'}; known: {' '.join(SCOPES)}")
    if not tenant or len(tenant) > 64:
        raise ValueError("a tenant's name has 1 to 64 characters")
    if ttl_s <= 0:
        raise ValueError("ttl_s must be positive")
    now = int(time.time())
    claims = {"tenant": tenant, "sub": tenant, "scope": " ".join(scopes), "iat": now, "exp": now + ttl_s}
    return jwt.encode(claims, secret.read_bytes().strip(), algorithm="HS256")
