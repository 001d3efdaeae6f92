"""Tokens: which hold, for what, and which algorithms are never believed."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.datastructures import Headers

from gateway.auth import Authenticator, secret_at
from gateway.errors import Forbidden, Unauthorized
from gateway.settings import Auth, SettingsError

SECRET = b"s" * 64
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ED = ed25519.Ed25519PrivateKey.generate()


def claims(**changes: Any) -> dict[str, Any]:
    full = {"tenant": "t", "scope": "invoke lease", "exp": int(time.time()) + 60, **changes}
    return {name: value for name, value in full.items() if value is not None}


def headers(token: str) -> Headers:
    return Headers({"authorization": f"Bearer {token}"})


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, ...]:
    for name, key in (("rsa.pem", RSA), ("ed.pem", ED)):
        (tmp_path / name).write_bytes(public_pem(key))
    return tmp_path / "rsa.pem", tmp_path / "ed.pem"


def test_the_secret() -> None:
    caller = Authenticator(Auth(), SECRET).caller(headers(jwt.encode(claims(), SECRET, "HS256")))
    assert caller.tenant == "t" and caller.scopes == {"invoke", "lease", "lease:read"} and caller.lease is None


def test_admin_may_everything() -> None:
    caller = Authenticator(Auth(), SECRET).caller(headers(jwt.encode(claims(scope=["admin"]), SECRET, "HS256")))
    caller.need("invoke")
    caller.need("pools")


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"exp": 10**400},
        {"exp": None},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": "a/b"},
        {"tenant": 5},
        {"nbf": 2**33},
        {"lease": 5},
    ],
)
def test_claims_that_do_not_hold(changes: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(Auth(), SECRET).caller(headers(jwt.encode(claims(**changes), SECRET, "HS256")))


def test_unknown_scopes_give_nothing() -> None:
    caller = Authenticator(Auth(), SECRET).caller(headers(jwt.encode(claims(scope="root lease:all"), SECRET, "HS256")))
    with pytest.raises(Forbidden):
        caller.need("invoke")


def test_public_keys(keys: tuple[Path, ...]) -> None:
    auth = Authenticator(Auth(keys=keys), SECRET)
    for key, algorithm in ((RSA, "RS256"), (ED, "EdDSA")):
        assert auth.caller(headers(jwt.encode(claims(), key, algorithm))).tenant == "t"


def test_a_public_key_is_no_secret(keys: tuple[Path, ...]) -> None:
    """The oldest trick: an HS256 signature made with the public key as the secret."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    import hashlib
    import hmac

    text = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims())}"
    signature = hmac.new(public_pem(RSA), text.encode(), hashlib.sha256).digest()
    forged = f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    unsigned = f"{part({'alg': 'none'})}.{part(claims())}."
    for token in (forged, unsigned, jwt.encode(claims(), SECRET, "HS512"), jwt.encode(claims(), RSA, "PS256")):
        with pytest.raises(Unauthorized):
            Authenticator(Auth(keys=keys), SECRET).caller(headers(token))


def test_without_the_secret_only_lease_tokens(keys: tuple[Path, ...]) -> None:
    auth = Authenticator(Auth(secret=False, keys=keys), SECRET)
    with pytest.raises(Unauthorized):
        auth.caller(headers(jwt.encode(claims(), SECRET, "HS256")))
    assert auth.caller(headers(auth.mint("t", {"lease"}, 60, lease="abcdefgh"))).lease == "abcdefgh"


def test_issuer_and_audience() -> None:
    auth = Authenticator(Auth(issuer="i", audience="a"), SECRET)
    for changes in ({}, {"iss": "i"}, {"iss": "i", "aud": "b"}, {"iss": "j", "aud": "a"}):
        with pytest.raises(Unauthorized):
            auth.caller(headers(jwt.encode(claims(**changes), SECRET, "HS256")))
    assert auth.caller(headers(jwt.encode(claims(iss="i", aud="a"), SECRET, "HS256"))).tenant == "t"
    assert auth.caller(headers(auth.mint("t", {"lease"}, 60))).tenant == "t"


def test_a_jwks_file_is_read_again(tmp_path: Path) -> None:
    def write(name: str, key: Any) -> None:
        text = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key()))
        (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**text, "kid": name, "alg": "EdDSA"}]}))

    write("one", ED)
    auth = Authenticator(Auth(jwks=tmp_path / "jwks.json"), SECRET)
    token = jwt.encode(claims(), ED, "EdDSA", headers={"kid": "one"})
    assert auth.caller(headers(token)).tenant == "t"
    write("two", ed25519.Ed25519PrivateKey.generate())
    os.utime(tmp_path / "jwks.json", (1, 1))
    auth._looked = float("-inf")
    with pytest.raises(Unauthorized):
        auth.caller(headers(token))
    (tmp_path / "jwks.json").write_text("broken")
    auth._looked = float("-inf")
    with pytest.raises(Unauthorized):
        auth.caller(headers(token))


def test_an_answer_from_memory_expires_too() -> None:
    auth = Authenticator(Auth(leeway_s=0), SECRET)
    token = jwt.encode(claims(), SECRET, "HS256")
    caller = auth.caller(headers(token))
    auth._kept[token] = (time.time() + 60, type(caller)(caller.tenant, caller.scopes, time.time() - 1))
    assert auth.caller(headers(token)).expires_at > time.time()


@pytest.mark.parametrize("text", ["Basic abc", "Bearer", "Bearer  ", "abc", "Bearer " + "x" * 20_000])
def test_headers_that_are_none(text: str) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(Auth(), SECRET).caller(Headers({"authorization": text}))


def test_the_secret_is_made_once(tmp_path: Path) -> None:
    first = secret_at(tmp_path / "s")
    assert first == secret_at(tmp_path / "s") and len(first) >= 32 and (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    (tmp_path / "short").write_text("abc")
    with pytest.raises(SettingsError):
        secret_at(tmp_path / "short")


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("nothing")
    for settings in (Auth(keys=(tmp_path / "k",)), Auth(keys=(tmp_path / "absent",)), Auth(jwks=tmp_path / "absent")):
        with pytest.raises(SettingsError):
            Authenticator(settings, SECRET)
