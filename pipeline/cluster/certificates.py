"""Certificates for a cluster: a private authority that signs one certificate and is forgotten.

Dask checks one thing of whoever connects: that its certificate is of the cluster's authority. Names
and roles are not looked at, so one certificate serves scheduler, workers and the command, and an
authority that others use too would let them in. The authority's own key is never stored: nobody can
add a certificate later, and new ones are a new authority.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pipeline.errors import ConfigurationError
from pipeline.storage.durable import make_private, write_atomically

_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Certificates:
    """The files that every machine of a cluster holds, and the command too."""

    ca: Path
    certificate: Path
    key: Path
    valid_until: datetime


def make_certificates(folder: Path, days: int) -> Certificates:
    """Write ``ca.pem``, ``cluster.pem`` and ``cluster.key`` (mode 0600) into a private folder.

    Raises
    ------
    ConfigurationError
        The folder holds certificates already: machines that run with them would be locked out.
    """
    paths = folder / "ca.pem", folder / "cluster.pem", folder / "cluster.key"
    for path in paths:
        if path.exists():
            raise ConfigurationError(
                f"{path} is there already, and a new authority locks out whoever holds the old "
                "certificates; name another folder, or remove this one first"
            )
    make_private(folder)
    start = datetime.now(UTC)
    until = start + timedelta(days=days)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name("ScoreShield cluster authority")
    # The key that signs both goes out of scope with this call.
    ca = (
        _certificate(authority, authority, authority_key.public_key(), start, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    own = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    leaf = (
        _certificate(_name("ScoreShield cluster"), authority, key.public_key(), start, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(own, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    for path, content in zip(
        paths, (ca.public_bytes(pem), leaf.public_bytes(pem), private), strict=True
    ):
        write_atomically(path, content, mode=0o600)
    return Certificates(*paths, until)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: Any, start: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """What a key may be used for: to sign certificates, or to prove who speaks."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
