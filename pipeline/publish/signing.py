"""The curator's Ed25519 signature on a manifest.

The signature says that the holder of the private key published exactly this manifest, and through
the digests in it exactly these arrays. The public key travels with the manifest; whoever wants to
know *who* published compares it with a key that came to them in another way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import reprlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.storage.durable import make_file
from pipeline.storage.layout import MANIFEST, SIGNING_KEY
from pipeline.storage.place import Place, one_below
from pipeline.storage.private_file import read_private
from scoreshield.manifest.schema import Manifest, Signature, canonical_bytes

_LONGEST_KEY = 2**16
_DIGITS = re.compile("[0-9a-fA-F]{64}")


def load_or_create_signing_key(private_dir: Path) -> Ed25519PrivateKey:
    """The signing key in ``private_dir``; made there, for its owner only, on first use.

    Processes that race for the first use all get the same key.

    Raises
    ------
    ConfigurationError
        The key file can be read by others, or is a link.
    IntegrityFailure
        The file holds no Ed25519 private key.
    """
    path = private_dir / SIGNING_KEY
    if not os.path.lexists(path):
        _create(path)
    return _load(path)


def signing_key(private_dir: Path, output: Place) -> Ed25519PrivateKey:
    """The curator's signing key; made on first use, and never in the place of one that was lost.

    Raises
    ------
    ConfigurationError, IntegrityFailure
        As :func:`check_signing_key`.
    """
    check_signing_key(private_dir, output)
    return load_or_create_signing_key(private_dir)


def check_signing_key(private_dir: Path, output: Place) -> None:
    """Refuse a key that can't be used, or that is gone although it has signed releases.

    Readers who know the curator by the old key would take a release by a new one for a forgery, or
    learn to take any.

    Raises
    ------
    ConfigurationError
        The key file can be read by others, or is a link.
    IntegrityFailure
        The file holds no key; or there is none, and releases are published in ``output``.
    """
    path = private_dir / SIGNING_KEY
    if os.path.lexists(path):
        _load(path)
        return
    published = one_below(output, MANIFEST)
    if published:
        raise IntegrityFailure(
            f"{path}: the signing key is gone, while {published[-1].parent} is signed already. "
            "Restore the key from a copy. If it is lost for good, or that release is another "
            f"curator's, make a new one ('openssl genpkey -algorithm ed25519 -out {path}', then "
            "chmod 600) and tell readers its public key; or name another output"
        )


def public_key(key: Ed25519PrivateKey) -> str:
    """The public key, 64 hexadecimal digits, that readers pass to ``--key``."""
    return key.public_key().public_bytes_raw().hex()


def sign(manifest: Manifest, key: Ed25519PrivateKey) -> Manifest:
    """The manifest with a signature over its canonical bytes; an earlier signature is replaced."""
    signature = Signature(
        public_key=public_key(key), value=key.sign(canonical_bytes(manifest)).hex()
    )
    return manifest.model_copy(update={"signature": signature})


def check_signature(manifest: Manifest, expected_public_key: str | None = None) -> str:
    """The public key that signed the manifest.

    Parameters
    ----------
    expected_public_key : hexadecimal; None accepts any key, which proves that the manifest is
        whole but not who wrote it

    Raises
    ------
    IntegrityFailure
        There is no signature, it does not fit the manifest, or it is by another key.
    ConfigurationError
        ``expected_public_key`` is not 64 hexadecimal digits.
    """
    signature = manifest.signature
    if signature is None:
        raise IntegrityFailure("the manifest carries no signature; the release was not finished")
    if expected_public_key is not None and signature.public_key != _normal(expected_public_key):
        raise IntegrityFailure(
            f"the manifest is signed by key {signature.public_key}, expected "
            f"{_normal(expected_public_key)}; it was not published by the holder of that key"
        )
    try:
        verifier = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        verifier.verify(bytes.fromhex(signature.value), canonical_bytes(manifest))
    except (InvalidSignature, ValueError) as error:
        raise IntegrityFailure(
            "the signature does not fit the manifest: one of them was changed after publication"
        ) from error
    return signature.public_key


def read_public_key(named: str) -> str:
    """A public key as a person names it: 64 hexadecimal digits, or a file of such or in PEM form.

    Raises
    ------
    ConfigurationError
        It is neither, or the file holds no Ed25519 public key.
    """
    path = Path(named)
    try:
        content = _start_of(path) if path.is_file() else None
    except OSError as error:
        raise ConfigurationError(
            f"{named}: the public key can't be read ({error.strerror})"
        ) from error
    if content is None:
        return _normal(named)
    if not content.lstrip().startswith(b"-----BEGIN"):
        digits = content.decode("ascii", errors="replace").strip()
        if not _DIGITS.fullmatch(digits):
            raise _no_public_key(named)
        return digits.lower()
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_public_key(named)
    return key.public_bytes_raw().hex()


def _start_of(path: Path) -> bytes:
    """More of a file than any key takes, and not all of one that is no key."""
    with path.open("rb") as file:
        return file.read(_LONGEST_KEY)


def _no_public_key(named: str) -> ConfigurationError:
    # What the file holds is not shown: it may be the private key.
    return ConfigurationError(
        f"{named}: expected 64 hexadecimal digits or an Ed25519 PUBLIC KEY in PEM form"
    )


def _normal(key: str) -> str:
    try:
        raw = bytes.fromhex(key.strip())
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ConfigurationError(
            f"the expected public key must be 64 hexadecimal digits, found {reprlib.repr(key)}"
        )
    return raw.hex()


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with contextlib.suppress(FileExistsError):
        make_file(path, pem)


def _load(path: Path) -> Ed25519PrivateKey:
    try:
        file = read_private(path)
        if not file.plain:
            raise OSError(errno.EINVAL, "another kind of file")
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the signing key can't be opened ({error.strerror}); expected a plain file "
            "that its owner can read"
        ) from error
    if file.open_to_others:
        raise ConfigurationError(
            f"{path}: the signing key has mode {file.mode:04o}, expected 0600: others may have "
            "read it. If nobody did, run chmod 600 on it; if in doubt, move it away to get a new "
            "key"
        )
    try:
        key = serialization.load_pem_private_key(file.content, password=None)
    except (ValueError, TypeError) as error:
        raise IntegrityFailure(f"{path}: no private key could be read from it") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IntegrityFailure(f"{path}: found another kind of key, expected Ed25519")
    return key
