"""Keys are made once, kept private, and sign exactly one manifest."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.publish.signing import (
    check_signature,
    check_signing_key,
    load_or_create_signing_key,
    public_key,
    read_public_key,
    sign,
    signing_key,
)
from pipeline.storage.layout import MANIFEST, SIGNING_KEY
from scoreshield.manifest.schema import Manifest
from tests.harness.manifests import manifest_of


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return manifest_of()


def test_a_key_is_made_private_and_found_again(tmp_path: Path) -> None:
    key = load_or_create_signing_key(tmp_path)
    assert stat.S_IMODE((tmp_path / SIGNING_KEY).stat().st_mode) == 0o600
    assert public_key(load_or_create_signing_key(tmp_path)) == public_key(key)
    assert [file.name for file in tmp_path.iterdir()] == [SIGNING_KEY]


def test_processes_that_race_get_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.publish.signing import *;"
        "print(public_key(load_or_create_signing_key(Path(sys.argv[1]))))"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert len({racer.communicate()[0] for racer in racers}) == 1
    assert all(racer.returncode == 0 for racer in racers)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    load_or_create_signing_key(tmp_path)
    (tmp_path / SIGNING_KEY).chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode {mode:04o}, expected 0600"):
        load_or_create_signing_key(tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / SIGNING_KEY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="plain file"):
        load_or_create_signing_key(tmp_path)


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / SIGNING_KEY
    file.write_bytes(b"-----BEGIN nothing")
    file.chmod(0o600)
    with pytest.raises(IntegrityFailure, match="no private key"):
        load_or_create_signing_key(tmp_path)
    other = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(other)
    with pytest.raises(IntegrityFailure, match="another kind of key"):
        load_or_create_signing_key(tmp_path)


def test_a_signature_fits_its_manifest_alone(tmp_path: Path, manifest: Manifest) -> None:
    key = load_or_create_signing_key(tmp_path)
    signed = sign(manifest, key)
    assert check_signature(signed) == public_key(key)
    assert check_signature(signed, public_key(key).upper()) == public_key(key)
    changed = signed.model_copy(update={"release_id": "signee"})
    with pytest.raises(IntegrityFailure, match="does not fit"):
        check_signature(changed)


def test_signing_again_replaces_the_signature(tmp_path: Path, manifest: Manifest) -> None:
    key = load_or_create_signing_key(tmp_path)
    assert sign(sign(manifest, key), key) == sign(manifest, key)


@pytest.mark.parametrize(
    ("expected", "error", "message"),
    [
        ("0" * 64, IntegrityFailure, "not published by the holder"),
        ("0" * 63, ConfigurationError, "64 hexadecimal"),
        ("zz", ConfigurationError, "64 hexadecimal"),
    ],
)
def test_the_expected_key_decides(
    tmp_path: Path, manifest: Manifest, expected: str, error: type[Exception], message: str
) -> None:
    signed = sign(manifest, load_or_create_signing_key(tmp_path))
    with pytest.raises(error, match=message):
        check_signature(signed, expected)


def test_an_unsigned_manifest_is_refused(manifest: Manifest) -> None:
    with pytest.raises(IntegrityFailure, match="no signature"):
        check_signature(manifest)


def test_no_key_reaches_the_signed_manifest(tmp_path: Path, manifest: Manifest) -> None:
    key: Any = load_or_create_signing_key(tmp_path)
    assert key.private_bytes_raw().hex() not in sign(manifest, key).model_dump_json()


def test_a_lost_key_is_not_replaced_where_releases_are_signed(tmp_path: Path) -> None:
    """Readers who know the curator by the old key would take the new one's for forgeries."""
    private, output = tmp_path / "private", tmp_path / "releases"
    private.mkdir()
    first = public_key(signing_key(private, output))
    (output / "gram-a").mkdir(parents=True)
    (private / SIGNING_KEY).unlink()
    # A folder without a manifest was never published, and so never signed.
    check_signing_key(private, output)
    (output / "gram-a" / MANIFEST).write_text("{}")
    with pytest.raises(IntegrityFailure, match=r"the signing key is gone, while .*gram-a") as lost:
        signing_key(private, output)
    assert list(private.iterdir()) == []
    # The remedies that it names: another output, or a new key that its owner makes.
    assert public_key(signing_key(private, tmp_path / "elsewhere")) != first
    (private / SIGNING_KEY).unlink()
    command = re.search(r"'(openssl genpkey [^']*)'", str(lost.value))
    assert command is not None
    subprocess.run(command[1].split(), check=True, capture_output=True)
    (private / SIGNING_KEY).chmod(0o600)
    assert public_key(signing_key(private, output)) != first


def test_a_key_that_others_can_read_is_found_before_it_is_needed(tmp_path: Path) -> None:
    load_or_create_signing_key(tmp_path)
    (tmp_path / SIGNING_KEY).chmod(0o644)
    with pytest.raises(ConfigurationError, match="mode 0644, expected 0600"):
        check_signing_key(tmp_path, tmp_path / "releases")


@pytest.mark.parametrize(
    "content", [b"\x93NUMPY" + bytes(99), b"-----BEGIN x", b"g" * 64, b"A" * 99]
)
def test_what_a_file_that_is_no_public_key_holds_is_not_shown(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "key.pub").write_bytes(content)
    with pytest.raises(ConfigurationError, match="expected 64 hexadecimal digits") as refused:
        read_public_key(str(tmp_path / "key.pub"))
    assert str(refused.value).startswith(f"{tmp_path / 'key.pub'}: ")
    assert len(str(refused.value)) < len(str(tmp_path)) + 100
