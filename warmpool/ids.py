"""Names of sandboxes and leases: random, or derived so that a repeat of a request finds what the first one made."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
ID = re.compile(r"[a-z0-9]{8,40}")


def random_id() -> str:
    """20 characters of [a-z2-7]: 100 random bits."""
    return "".join(_ALPHABET[byte & 31] for byte in secrets.token_bytes(20))


def derived_id(*parts: str) -> str:
    """32 characters of [a-z2-7], the same for the same parts and for no others (160 bits of SHA-256)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return base64.b32encode(digest.digest()[:20]).decode().lower()
