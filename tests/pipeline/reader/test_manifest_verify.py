"""``manifest verify``: who signed, and whether a character changed; keys in every form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pipeline.cli.main import cli
from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.publish.signing import read_public_key
from pipeline.reader.manifest_file import verify_manifest


def pem(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def signer(release: Path) -> str:
    key: str = json.loads((release / "manifest.json").read_text())["signature"]["public_key"]
    return key


def command(release: Path, key: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["manifest", "verify", str(release), "--key", key, *options])


@pytest.mark.parametrize("form", ["digits", "file of digits", "pem"])
def test_the_signers_key_in_every_form(
    releases: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    release = releases().folder
    key = signer(release)
    named = key
    if form != "digits":
        named = str(tmp_path / "curator.pub")
        raw = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        Path(named).write_bytes(pem(raw) if form == "pem" else f"{key.upper()}\n".encode())
    done = command(release, named, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["ok"] is True
    assert result["private"] is True
    assert result["public_key"] == key
    assert f"signed by the holder of {key}" in command(release, named).output


def test_another_key_is_refused(releases: Callable[..., Any]) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with pytest.raises(IntegrityFailure, match="not published by the holder of that key"):
        verify_manifest(releases().folder, other)


def test_the_key_must_be_named(releases: Callable[..., Any]) -> None:
    done = CliRunner().invoke(cli, ["manifest", "verify", str(releases().folder)])
    assert done.exit_code == 2


def test_one_character_in_either_copy_is_found(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    key = signer(release)
    store = release / "release.zarr" / "zarr.json"
    for file in (release / "manifest.json", store):
        text = file.read_text()
        file.write_text(text.replace("Approximate DP", "Approximate Dp"))
        with pytest.raises(IntegrityFailure):
            verify_manifest(release, key)
        file.write_text(text)
    assert verify_manifest(release, key).private


def test_no_array_is_read(release_copy: Callable[..., Path]) -> None:
    release = release_copy()
    for chunk in release.glob("release.zarr/*/c/**/*"):
        if chunk.is_file():
            chunk.unlink()
    assert verify_manifest(release, signer(release))


@pytest.mark.parametrize("content", ["private key", "another kind", "garbage", "short"])
def test_what_is_no_public_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "key"
    path.write_bytes(
        {
            "private key": private,
            "another kind": pem(X25519PrivateKey.generate().public_key()),
            "garbage": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "short": b"abc",
        }[content]
    )
    with pytest.raises(ConfigurationError, match="hexadecimal digits") as refused:
        read_public_key(str(path))
    assert private.decode().splitlines()[1] not in str(refused.value)
    with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
        read_public_key(str(tmp_path / "missing"))
