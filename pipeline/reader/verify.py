"""Checking a published release from its bytes alone, and naming what is wrong.

Four stages, each run only where the one before found nothing: the manifest, its signature and its
place; its numbers; the files of the store (:mod:`pipeline.reader.stored`); and the values
(:mod:`pipeline.reader.values`). Nothing here needs the gallery, the ledger or a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.check import Check, Listener, faults_of
from pipeline.errors import IntegrityFailure
from pipeline.publish.signing import check_signature
from pipeline.reader.manifest_file import (
    check_attributes,
    check_name,
    check_nothing_else,
    read_manifest,
)
from pipeline.reader.stored import stored_checks
from pipeline.reader.values import value_checks
from pipeline.storage.layout import RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, place_of
from scoreshield.manifest.numbers import number_faults
from scoreshield.manifest.schema import Manifest


@dataclass(frozen=True)
class VerificationReport:
    """All checks of one release, in the order in which they were made."""

    checks: tuple[Check, ...]
    not_private_reason: str | None = None
    """Why the release is NOT PRIVATE, as its manifest says; None where it claims a guarantee."""

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return not self.faults

    @property
    def faults(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return faults_of(self.checks)


def verify_release(
    path: str | os.PathLike[str] | ObjectPath,
    expected_public_key: str | None = None,
    progress: Listener | None = None,
    expected_queries: str | None = None,
) -> VerificationReport:
    """Check a release directory; faults are in the report, not raised.

    Parameters
    ----------
    path : release directory, a path or a URL
    expected_public_key : hexadecimal Ed25519 key that must have signed; None accepts any
    progress : called as blocks are checked
    expected_queries : SHA-256 of the fixed-point queries that scores must be of; None accepts any

    Raises
    ------
    ConfigurationError
        ``expected_public_key`` is not a key.
    """
    folder = place_of(path)
    tell = progress or _silent
    try:
        manifest = read_manifest(folder)
    except IntegrityFailure as error:
        return VerificationReport((Check("manifest", False, str(error)),))
    checks = [
        Check("manifest", True, f"release {manifest.release_id}, schema 1"),
        _holds("signature", lambda: _signer(manifest, expected_public_key)),
        _holds(
            "name",
            lambda: check_name(folder, manifest),
            "the folder is called what the release is called",
        ),
        _holds(
            "folder",
            lambda: check_nothing_else(folder),
            "holds the manifest and the store, nothing else",
        ),
        _holds(
            "attributes",
            lambda: check_attributes(folder, manifest),
            "the store's copy of the manifest is the same",
        ),
        *_queries(manifest, expected_queries),
    ]
    for stage in (_numbers, stored_checks, value_checks):
        if not faults_of(checks):
            checks += stage(folder / RELEASE_STORE, manifest, tell)
    return VerificationReport(tuple(checks), manifest.not_private_reason)


def _holds(name: str, check: Callable[[], str | None], fine: str = "") -> Check:
    """One part that raises what is wrong with it, or returns what is to be said instead."""
    try:
        return Check(name, True, check() or fine)
    except IntegrityFailure as error:
        return Check(name, False, str(error))


def _signer(manifest: Manifest, expected: str | None) -> str:
    trust = "as expected" if expected else "compare it with one you trust"
    return f"Ed25519 by key {check_signature(manifest, expected)}, {trust}"


def _queries(manifest: Manifest, expected: str | None) -> Iterator[Check]:
    found = manifest.queries_sha256
    if expected is None:
        return
    if found is None:
        yield Check("queries", False, f"a release of regime {manifest.regime} names no queries")
    elif found != expected:
        yield Check("queries", False, f"SHA-256 is {found}, that of the given queries {expected}")
    else:
        yield Check("queries", True, f"the scores are of the given queries, SHA-256 {found}")


def _numbers(store: Place, manifest: Manifest, tell: Listener) -> Iterator[Check]:
    fine = "the manifest's numbers follow from its sizes, noise and adjacency"
    yield Check.of_faults("numbers agree", number_faults(manifest), fine)


def _silent(stage: str, done: int, total: int) -> None:
    pass
