"""The commands for those who read a release: check it, and say what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Result, path_or_url, prints_result

_release_argument = click.argument("release", type=path_or_url)


@click.command()
@_release_argument
@click.option("--public-key", help="Accept only this signer: an Ed25519 key in hex, or its file.")
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="Check that the scores are those of the queries in this file.",
)
@click.option("--queries-key", help="Which array of that file, where it holds several.")
@prints_result
def verify(
    release: Any,
    public_key: str | None,
    queries: Path | None,
    queries_key: str | None,
) -> Result:
    """Check RELEASE: signature, digests, completeness and feasibility. Exits 5 on any fault.

    Example: scoreshield verify releases/gram-0123456789ab
    """
    from pipeline.ingest.queries import load_queries
    from pipeline.progress import Checking, standard_reporter
    from pipeline.publish.signing import read_public_key
    from pipeline.reader.verify import verify_release

    _check_is_release(release)
    signer = None if public_key is None else read_public_key(public_key)
    asked = None if queries is None else load_queries(queries, queries_key).sha256
    with standard_reporter() as reporter:
        report = verify_release(release, signer, Checking(reporter), asked)
    faults = len(report.faults)
    return Result(
        {
            "release": str(release),
            "ok": not faults,
            "not_private_reason": report.not_private_reason,
            "checks": [check.to_json() for check in report.checks],
        },
        _not_private_line(report.not_private_reason)
        + "\n".join(check.to_text() for check in report.checks),
        f"{release}: {faults} checks failed; restore it from a copy. Its curator can also move it "
        "away and run 'scoreshield release CONFIG' again, which publishes it anew from intact "
        "noisy blocks and spends nothing"
        if faults
        else None,
    )


@click.command()
@_release_argument
@prints_result
def show(release: Any) -> Result:
    """Describe RELEASE from its manifest: guarantee, noise, projection, arrays.

    Example: scoreshield show releases/gram-0123456789ab
    """
    from pipeline.reader.description import render_markdown
    from pipeline.reader.open import open_release
    from scoreshield.manifest.schema import to_json

    _check_is_release(release)
    manifest = open_release(release).manifest
    return Result(json.loads(to_json(manifest)), render_markdown(manifest))


@click.group()
def manifest() -> None:
    """Check what a release says of itself."""


@manifest.command("verify")
@_release_argument
@click.option(
    "--key", "signer", required=True, help="The curator's Ed25519 public key in hex, or its file."
)
@prints_result
def manifest_verify(release: Any, signer: str) -> Result:
    """Check who signed RELEASE and that no character of its manifest changed; reads no array.

    Example: scoreshield manifest verify releases/gram-0123456789ab --key curator.pub
    """
    from pipeline.publish.signing import read_public_key
    from pipeline.reader.manifest_file import verify_manifest

    _check_is_release(release)
    key = read_public_key(signer)
    found = verify_manifest(release, key)
    return Result(
        {
            "release": str(release),
            "release_id": found.release_id,
            "ok": True,
            "public_key": key,
            "private": found.private,
            "not_private_reason": found.not_private_reason,
        },
        _not_private_line(found.not_private_reason)
        + f"{release}: manifest of {found.release_id}, signed by the holder of {key}",
    )


def _check_is_release(folder: Any) -> None:
    """A mistyped path is no damaged release."""
    from pipeline.errors import ConfigurationError
    from pipeline.storage.layout import MANIFEST, RELEASE_STORE

    if not any((folder / name).exists() for name in (MANIFEST, RELEASE_STORE)):
        raise ConfigurationError(
            f"{folder}: expected the folder of a release, with manifest.json and release.zarr; "
            "found neither"
        )


def _not_private_line(reason: str | None) -> str:
    return "" if reason is None else f"NOT PRIVATE: {reason}\n"
