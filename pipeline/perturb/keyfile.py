"""The release key's file: written once, bound to its gallery and settings, destroyed at commit.

The file lives in the private run directory, mode 0600, and workers read it from there; the key is
never an argument of a task. The same noise on two galleries would reveal their difference, and two
noises on one gallery would average out, so the file also holds the key's binding: an HMAC over the
gallery's content digest and over every setting that shapes the noise or the values.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict
from pathlib import Path

from pipeline.errors import IntegrityFailure
from pipeline.storage.durable import sync, write_atomically
from pipeline.storage.private_file import PrivateFile, read_private
from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.noise.sampler import KEY_BYTES

_REMEDY = (
    "restore the file, or give the release up with 'scoreshield ledger abandon CONFIG' and release "
    "under another name: fresh noise on the same gallery would average out with noise already made"
)


def create_key(path: Path, gallery_digest: bytes, release_id: str, mechanism: Mechanism) -> None:
    """Draw a fresh key from the operating system and write it, bound, to a 0600 file."""
    store_key(path, secrets.token_bytes(KEY_BYTES), gallery_digest, release_id, mechanism)


def store_key(
    path: Path, key: bytes, gallery_digest: bytes, release_id: str, mechanism: Mechanism
) -> None:
    """Write a key that was made elsewhere, bound, to a 0600 file."""
    binding = _binding(key, gallery_digest, release_id, mechanism)
    content = json.dumps({"key": key.hex(), "binding": binding})
    write_atomically(path, content.encode(), mode=0o600)


def read_key(path: Path) -> bytes:
    """The release key.

    Raises
    ------
    IntegrityFailure
        The file is missing, damaged, or readable by others.
    """
    return _load(path)[0]


def read_committed_key(path: Path, key_commitment: str) -> bytes:
    """The release key, if it is the one that the ledger recorded before the first noise.

    Raises
    ------
    IntegrityFailure
        As :func:`read_key`, or the file holds another key than at the start of the run.
    """
    key = read_key(path)
    if not hmac.compare_digest(commitment_of(key), key_commitment):
        raise IntegrityFailure(
            f"the release key {path} is not the one that this run was started with; {_REMEDY}"
        )
    return key


def check_binding(path: Path, gallery_digest: bytes, release_id: str, mechanism: Mechanism) -> None:
    """Refuse to use a key on another gallery, or under other settings, than it was made for.

    Raises
    ------
    IntegrityFailure
        The gallery or a setting differs from what the run was started with.
    """
    key, binding = _load(path)
    if not hmac.compare_digest(binding, _binding(key, gallery_digest, release_id, mechanism)):
        raise IntegrityFailure(
            f"release {release_id} was started on another gallery or with other settings than it "
            "is resumed with; the same noise on both would reveal their difference. Restore what "
            "it was started with, or abandon it (scoreshield ledger abandon) and release under a "
            "new name"
        )


def commitment(path: Path) -> str:
    """A digest that identifies the key without revealing it, for the ledger."""
    return commitment_of(read_key(path))


def commitment_of(key: bytes) -> str:
    """The commitment of a key that is not stored yet."""
    return hashlib.sha256(b"scoreshield key commitment" + key).hexdigest()


def bound_message(gallery_digest: bytes, release_id: str, mechanism: Mechanism) -> bytes:
    """What a key is bound to: the gallery, the release's name, and what shapes noise or values."""
    settings = {
        "release_id": release_id,
        "mechanism": asdict(mechanism),
        "fraction_bits": FRACTION_BITS,
    }
    return gallery_digest + json.dumps(settings, sort_keys=True).encode()


def destroy_key(path: Path) -> None:
    """Overwrite the key, then remove it. Harmless where it is gone already."""
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    sync(path.parent)


def _binding(key: bytes, gallery_digest: bytes, release_id: str, mechanism: Mechanism) -> str:
    message = bound_message(gallery_digest, release_id, mechanism)
    return hmac.new(key, b"scoreshield binding" + message, hashlib.sha256).hexdigest()


def _load(path: Path) -> tuple[bytes, str]:
    content = _parsed(path)
    if content is None:
        raise IntegrityFailure(f"the release key {path} is missing or damaged; {_REMEDY}")
    key, binding, file = content
    if file.owner != os.geteuid():
        raise IntegrityFailure(
            f"the release key {path} belongs to user {file.owner}, this process runs as "
            f"{os.geteuid()}; who owns it can know or replace it: abandon this release "
            "(scoreshield ledger abandon CONFIG)"
        )
    if file.open_to_others:
        raise IntegrityFailure(
            f"the release key {path} can be read by others (mode {file.mode & 0o777:o}, expected "
            "600); treat it as disclosed: abandon this release (scoreshield ledger abandon CONFIG)"
        )
    if len(key) != KEY_BYTES:
        raise IntegrityFailure(
            f"the release key {path} is damaged: expected {KEY_BYTES} bytes; {_REMEDY}"
        )
    return key, binding


def _parsed(path: Path) -> tuple[bytes, str, PrivateFile] | None:
    """Key, binding and the file that held them, or None; a link is not followed.

    No error leaves: a parser's error quotes the file, and would hang on whatever is raised next.
    """
    try:
        file = read_private(path)
        content = json.loads(file.content)
        return bytes.fromhex(content["key"]), str(content["binding"]), file
    except (OSError, ValueError, KeyError, TypeError):
        return None
