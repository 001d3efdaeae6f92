"""Certificates of the node: the operator's, or a development CA made at first start and a leaf that it signs.

The leaf is not self-signed, because clients rightly refuse those. It is made anew when it is near its end or when a name
is missing; the CA stays, so that clients keep trusting it."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.settings import SettingsError, Tls

CA_DAYS = 3650
LEAF_DAYS = 365
RENEW_DAYS = 60
ALWAYS = ("localhost", "127.0.0.1", "::1")


class Pair(NamedTuple):
    """PEM files: the chain, and its key."""

    certificate: Path
    key: Path


def certificates(settings: Tls, state: Path, now: datetime.datetime | None = None) -> Pair:
    """The operator's files, or the development leaf under `state`, made or renewed if need be. Raises SettingsError."""
    if settings.certificate is not None and settings.key is not None:
        for path in (settings.certificate, settings.key):
            if not os.access(path, os.R_OK):
                raise SettingsError(f"tls: {path} cannot be read")
        return Pair(settings.certificate, settings.key)
    if settings.certificate is not None or settings.key is not None:
        raise SettingsError("tls: certificate and key go together")
    now = now or datetime.datetime.now(datetime.UTC)
    names = tuple(dict.fromkeys((*ALWAYS, socket.gethostname(), *settings.names)))
    authority = Pair(state / "ca.pem", state / "ca.key")
    leaf = Pair(state / "server.pem", state / "server.key")
    if not _holds(authority, now, CA_DAYS // 10):
        _make_authority(authority, now)
    if not _holds(leaf, now, RENEW_DAYS, names, authority):
        _make_leaf(leaf, authority, names, now)
    return leaf


def _holds(pair: Pair, now: datetime.datetime, days: int, names: Sequence[str] = (), issuer: Pair | None = None) -> bool:
    """Whether the pair exists, belongs together, outlives `days` more days, has `names` and was signed by `issuer`."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = load_pem_private_key(pair.key.read_bytes(), None)
        if issuer is not None:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(issuer.certificate.read_bytes()))
            held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            if not set(_alternatives(names)) <= set(held):
                return False
    except Exception:  # whatever is wrong with them, they are made anew
        return False
    return certificate.public_key() == key.public_key() and now + datetime.timedelta(days=days) < certificate.not_valid_after_utc


def _alternatives(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name.encode("idna").decode()))
    return found


def _builder(
    subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePublicKey, days: int, now: datetime.datetime
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Stokehold"), x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _make_authority(pair: Pair, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = f"Stokehold development CA {x509.random_serial_number() & 0xFFFFFFFF:08x}"
    certificate = (
        _builder(subject, None, key.public_key(), CA_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(pair, certificate.public_bytes(Encoding.PEM), key)


def _make_leaf(pair: Pair, authority: Pair, names: Sequence[str], now: datetime.datetime) -> None:
    signer = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    signer_key = load_pem_private_key(authority.key.read_bytes(), None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(names[-1], signer.subject, key.public_key(), LEAF_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    _write(pair, certificate.public_bytes(Encoding.PEM) + signer.public_bytes(Encoding.PEM), key)


def _write(pair: Pair, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Key first: whoever finds the certificate finds its key."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for path, data, mode in ((pair.key, private, 0o600), (pair.certificate, certificate, 0o644)):
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        scratch.replace(path)
