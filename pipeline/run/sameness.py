"""A release is made of one gallery under one set of settings, however many attempts it takes."""

from __future__ import annotations

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.run.folder import first_difference
from pipeline.run.run import Run
from scoreshield.manifest.schema import Manifest


def check_started_on(run: Run, digest: bytes) -> None:
    """A release is made from one content, also where it is made or settled in several attempts."""
    if not run.folder.started_on(digest):
        raise IntegrityFailure(
            f"release {run.release_id} was started on other content than {run.gallery.path} holds "
            "now, and a release never changes. Restore the gallery, or give the release up "
            "('scoreshield ledger abandon') and release it as it is now under another name "
            "('release:')"
        )


def check_unchanged(run: Run, digest: bytes) -> None:
    """Nothing is made of noisy blocks whose gallery was changed while they were made."""
    if content_digest(run.gallery) == digest:
        return
    # Their receipts would vouch for them even once the gallery is restored.
    run.folder.discard_noise()
    raise IntegrityFailure(
        f"{run.gallery.path} was changed while release {run.release_id} was being made; its noisy "
        "blocks were removed. Restore the gallery and run the same command again, or abandon the "
        "release (scoreshield ledger abandon) and release under a new name"
    )


def check_same_release(run: Run, manifest: Manifest) -> None:
    """A release of that name may have been made elsewhere, from another configuration."""
    privacy, mechanism = run.config.privacy, run.mechanism
    composition = manifest.composition
    found = {
        "release_id": manifest.release_id,
        "not_private_reason": manifest.not_private_reason,
        "lineage": composition.lineage if composition is not None else None,
        "n": manifest.shape.n,
        "d": manifest.shape.d,
        "queries_sha256": manifest.queries_sha256,
        "privacy": {
            "epsilon": manifest.privacy.epsilon,
            "delta": manifest.privacy.delta,
            "adjacency": manifest.privacy.adjacency,
            "radius": manifest.privacy.radius,
            "score_range": manifest.mechanism.score_range,
        },
        "projection": {"method": manifest.post_processing.method},
        "precision": None if manifest.noisy is None else manifest.noisy.dtype,
        "arrays": sorted(manifest.arrays.keys() - {"diagonal", "ids"}),
    }
    expected = {
        "release_id": run.release_id,
        "not_private_reason": run.spending.not_private_reason,
        "lineage": run.spending.lineage(run.gallery),
        "n": run.gallery.n,
        "d": run.gallery.d,
        "queries_sha256": run.queries_sha256,
        "privacy": {
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "radius": privacy.radius,
            "score_range": (mechanism.score_range.low, mechanism.score_range.high),
        },
        "projection": {"method": run.plan.method},
        "precision": run.plan.encoding.dtype,
        "arrays": sorted(run.config.arrays),
    }
    difference = first_difference(found, expected)
    if difference is not None:
        place, before, now = difference
        raise ConfigurationError(
            f"{run.release} is another release: it has {place} = {before!r}, this configuration "
            f"says {now!r}. Give the release another name ('release:') or another output folder"
        )
