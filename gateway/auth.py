"""Who asks, and what they may do: JSON Web Tokens with an allow-list of algorithms. Owns keys; never logs a token.

HS256 is verified with the secret made at first start and with nothing else; RS256 with RSA keys, EdDSA with Ed25519 keys,
from PEM files or a JWKS file. A token with a `lease` claim reaches that lease's data routes and nothing else."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from starlette.datastructures import Headers

from gateway.errors import Forbidden, Unauthorized
from gateway.settings import Auth, SettingsError

SCOPES = frozenset({"invoke", "functions", "lease", "lease:read", "layers", "pools", "admin"})
_IMPLIED = {"lease": {"lease:read"}, "admin": set(SCOPES)}
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEPT_S = 60.0
_KEPT = 4096
_LOOK_S = 1.0


class Caller(msgspec.Struct, frozen=True):
    """Who asks: tenant and scopes; `lease` if the token is for one lease's data routes alone."""

    tenant: str
    scopes: frozenset[str]
    expires_at: float
    lease: str | None = None

    def need(self, scope: str, *, lease: str | None = None, data: bool = False) -> None:
        """Raises Forbidden unless this caller may use a route that needs `scope`; `data`: one of the data routes of `lease`."""
        if self.lease is not None and (not data or lease != self.lease):
            raise Forbidden("this token is for one lease's data routes alone")
        if scope not in self.scopes:
            raise Forbidden(f"the token lacks the scope {scope}")


class Authenticator:
    """Turns a request's headers into a Caller. Results are kept for a minute, so that a client's second request is cheap."""

    def __init__(self, settings: Auth, secret: bytes) -> None:
        self._settings = settings
        self._secret = secret
        self._fixed = [_load(path) for path in settings.keys]
        self._jwks: list[tuple[str | None, Any]] = []
        self._jwks_stamp: tuple[int, int, int] | None = None
        self._looked = -_LOOK_S
        self._kept: dict[str, tuple[float, Caller]] = {}
        self._refresh()

    def caller(self, headers: Headers) -> Caller:
        """Who asks. Raises Unauthorized."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme and scheme.lower() != "bearer":
            raise Unauthorized("the Authorization header must be: Bearer <token>")
        token = token.strip() or headers.get("x-api-key", "").strip()
        if not token:
            raise Unauthorized("no token: give it as Authorization: Bearer <token>, or X-API-Key")
        now = time.time()
        self._refresh()
        kept = self._kept.get(token)
        if kept is not None and now < kept[0] and now < kept[1].expires_at + self._settings.leeway_s:
            return kept[1]
        caller = self._verify(token)
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        self._kept[token] = (now + _KEPT_S, caller)
        return caller

    def mint(self, tenant: str, scopes: frozenset[str] | set[str], lifetime_s: float, lease: str | None = None) -> str:
        """A token signed with the secret."""
        now = int(time.time())
        claims: dict[str, Any] = {"tenant": tenant, "scope": " ".join(sorted(scopes)), "iat": now, "exp": now + int(lifetime_s)}
        if lease is not None:
            claims["lease"] = lease
        for name in ("issuer", "audience"):
            if value := getattr(self._settings, name):
                claims[name[:3]] = value
        return jwt.encode(claims, self._secret, "HS256")

    def _verify(self, token: str) -> Caller:
        if len(token) > 16_384:
            raise Unauthorized("the token is too long")
        error: Exception | None = None
        for key, algorithm in self._candidates(token):
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    issuer=self._settings.issuer,
                    audience=self._settings.audience,
                    leeway=self._settings.leeway_s,
                    options={"require": ["exp"], "verify_aud": self._settings.audience is not None},
                )
                return self._caller(claims, algorithm)
            except (jwt.ExpiredSignatureError, jwt.MissingRequiredClaimError, jwt.ImmatureSignatureError) as problem:
                raise Unauthorized(f"the token does not hold: {problem}") from None
            except jwt.PyJWTError as problem:
                error = problem
        raise Unauthorized(f"the token does not hold: {error or 'no key for it'}") from None

    def _candidates(self, token: str) -> list[tuple[Any, str]]:
        """Keys that may have signed it. The token's own header only chooses among what is allowed."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise Unauthorized(f"the token cannot be read: {error}") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm == "HS256":
            return [(self._secret, "HS256")]
        wanted = {"RS256": RSAPublicKey, "EdDSA": Ed25519PublicKey}.get(str(algorithm))
        if wanted is None:
            raise Unauthorized("the token's algorithm is not allowed")
        keys = [key for name, key in self._jwks if kid is None or name is None or name == kid] + self._fixed
        return [(key, str(algorithm)) for key in keys if isinstance(key, wanted)]

    def _caller(self, claims: dict[str, Any], algorithm: str) -> Caller:
        tenant, scope, lease = claims.get("tenant"), claims.get("scope", ""), claims.get("lease")
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise Unauthorized("the token names no tenant")
        if lease is not None and not isinstance(lease, str):
            raise Unauthorized("the token's lease claim is not a string")
        if algorithm == "HS256" and not self._settings.secret and lease is None:
            raise Unauthorized("the token's algorithm is not allowed")
        named = set(
            scope.split() if isinstance(scope, str) else [s for s in scope if isinstance(s, str)] if isinstance(scope, list) else ()
        )
        try:
            expires_at = float(claims["exp"])
        except OverflowError:
            raise Unauthorized("the token's exp is beyond all time") from None
        scopes = named & SCOPES
        for name in tuple(scopes):
            scopes |= _IMPLIED.get(name, set())
        return Caller(tenant, frozenset(scopes), expires_at, lease)

    def _refresh(self) -> None:
        """Read the JWKS file again if it changed; a broken one leaves the keys that were read before."""
        path, now = self._settings.jwks, time.monotonic()
        if path is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._jwks_stamp:
                return
            keys = [(key.key_id, key.key) for key in jwt.PyJWKSet.from_json(path.read_text()).keys]
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if self._jwks_stamp is None:
                raise SettingsError(f"auth.jwks: {path}: {error}") from None
            return
        self._jwks, self._jwks_stamp = keys, stamp
        self._kept.clear()


def _load(path: Path) -> Any:
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"auth.keys: {path}: {error}") from None
    if not isinstance(key, RSAPublicKey | Ed25519PublicKey):
        raise SettingsError(f"auth.keys: {path}: neither an RSA nor an Ed25519 key")
    return key


def secret_at(path: Path) -> bytes:
    """The secret in this file, made at first use; whoever else starts at the same moment gets the same one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        data = path.read_bytes().strip()
        if len(data) < 32:
            raise SettingsError(f"{path}: a secret has at least 32 bytes") from None
        return data
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_urlsafe(48).encode())
    return path.read_bytes().strip()
