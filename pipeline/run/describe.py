"""The manifest of a run: what its release says of itself."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

from pipeline.publish.gram import describe_arrays
from pipeline.run.run import Run
from scoreshield.manifest.build import build_manifest, installed_versions
from scoreshield.manifest.schema import Manifest, NoisyRecord, PostProcessing

_SOFTWARE = (
    "scoreshield",
    "numpy",
    "scipy",
    "zarr",
    "dask",
    "distributed",
    "cryptography",
    "mpmath",
)


def describe(run: Run, noisy: NoisyRecord, post_processing: PostProcessing) -> Manifest:
    """The manifest of a run whose arrays are written; not yet signed."""
    return build_manifest(
        run.mechanism,
        post_processing,
        release_id=run.release_id,
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
        software={"python": platform.python_version(), **installed_versions(*_SOFTWARE)},
        arrays=describe_arrays(run.release),
        noisy=noisy,
        composition=run.spending.composition(run),
        queries_sha256=run.queries_sha256,
        not_private_reason=run.spending.not_private_reason,
        record_kind=run.gallery.record_kind,
    )
