"""Asking a gateway on this machine whether it is ready. Needs no token; must not raise for a service that is not
there."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit


def get(url: str, path: str, ca: Path | None, timeout_s: float) -> str:
    """The body at `url` + `path`, which needs no token. The certificate must come from `ca`.
    Raises OSError, HTTPException, or ValueError unless the answer is 200."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port or 443, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"{path}: HTTP {reply.status}")
        return reply.read().decode(errors="replace")
    finally:
        connection.close()


def ready(url: str, ca: Path | None, timeout_s: float = 1.0) -> bool:
    """Whether `url`/readyz answers 200 within `timeout_s`."""
    try:
        get(url, "/readyz", ca, timeout_s)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def local_url(listen: str, scheme: str = "https") -> str:
    """The URL by which this machine reaches HOST:PORT: an address that means every interface becomes the loopback one.
    Raises ValueError if it is no HOST:PORT."""
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{listen}: want HOST:PORT")
    bare = host.strip("[]")
    if bare in ("", "0.0.0.0", "*"):
        bare = "127.0.0.1"
    elif bare == "::":
        bare = "::1"
    return f"{scheme}://{f'[{bare}]' if ':' in bare else bare}:{port}"
