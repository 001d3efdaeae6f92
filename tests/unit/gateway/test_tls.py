"""The development CA and the leaf that it signs."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from gateway.settings import SettingsError, Tls
from gateway.tls import certificates


def leaf(state: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((state / "server.pem").read_bytes())


def test_made_once_and_signed_by_the_authority(tmp_path: Path) -> None:
    pair = certificates(Tls(), tmp_path)
    first = leaf(tmp_path)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    first.verify_directly_issued_by(authority)
    assert first.issuer != first.subject
    names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", socket.gethostname()} <= set(names.get_values_for_type(x509.DNSName))
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1"}
    assert certificates(Tls(), tmp_path) == pair and leaf(tmp_path) == first
    for key in ("ca.key", "server.key"):
        assert (tmp_path / key).stat().st_mode & 0o777 == 0o600


def test_a_client_that_trusts_the_authority_accepts_it(tmp_path: Path) -> None:
    pair = certificates(Tls(), tmp_path)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(pair.certificate, pair.key)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].getpeercert()


def test_renewed_when_near_its_end_or_a_name_is_missing(tmp_path: Path) -> None:
    certificates(Tls(), tmp_path)
    first, authority = leaf(tmp_path), (tmp_path / "ca.pem").read_bytes()
    certificates(Tls(), tmp_path, first.not_valid_after_utc - datetime.timedelta(days=10))
    second = leaf(tmp_path)
    assert second != first and (tmp_path / "ca.pem").read_bytes() == authority
    certificates(Tls(names=("judge.example", "10.0.0.5")), tmp_path, second.not_valid_before_utc + datetime.timedelta(days=1))
    names = leaf(tmp_path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "judge.example" in names.get_values_for_type(x509.DNSName)


def test_a_lost_key_is_made_anew(tmp_path: Path) -> None:
    certificates(Tls(), tmp_path)
    first = leaf(tmp_path)
    (tmp_path / "server.key").unlink()
    certificates(Tls(), tmp_path)
    assert leaf(tmp_path) != first


def test_the_operators_own(tmp_path: Path) -> None:
    pair = certificates(Tls(), tmp_path)
    assert certificates(Tls(certificate=pair.certificate, key=pair.key), tmp_path / "elsewhere") == pair
    for tls in (Tls(certificate=pair.certificate), Tls(certificate=tmp_path / "absent", key=pair.key)):
        with pytest.raises(SettingsError):
            certificates(tls, tmp_path)
