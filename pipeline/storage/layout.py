"""Every name of a file, folder or array that is written to disk, in one place.

Old runs, galleries and releases are read by these names, so none of them ever changes. Names that
people choose (an output folder, a release) are settings; the arrays that a release is asked for
(``gram``, ``factor``, ``scores``) are words of its manifest.
"""

from __future__ import annotations

# Every Zarr group and array.
METADATA = "zarr.json"
"""Metadata of a Zarr group or array."""

# A release.
MANIFEST = "manifest.json"
RELEASE_STORE = "release.zarr"
MANIFEST_ATTRIBUTE = "scoreshield_manifest"
"""Attribute of the release's store that holds the copy of the manifest."""
OUTPUT_CLAIMS = ".publishing"
"""Folder of the claims by which runs hold releases of an object store, beside the releases."""

# A gallery.
GALLERY_STORE = "gallery.zarr"
GALLERY_MARKER = "scoreshield_gallery"
"""Attribute of a gallery's group that says its format version."""
EMBEDDINGS = "embeddings"
IDS = "ids"
"""Array of the public ids of the records, in a gallery and in a release."""
SOURCE_NOTE = "source.json"
"""What a gallery that a release has made was made from, beside it."""
INGEST_CLAIM = ".ingesting"

# The private folder.
GALLERIES = "galleries"
RUNS, TEST_RUNS = "runs", "test-runs"
SIGNING_KEY = "signing-key.pem"
MEASURED_RATES = "rates.json"

# A run, in its private folder.
LOCK = "lock"
RUN_RECORD = "run.json"
"""The settings a run was started with."""
FINISHED_RECORD = "run-record.json"
RELEASE_KEY = "release.key"
CLAIM_TOKEN = "claim"  # noqa: S105 (a file's name)
QUERIES = "queries.npy"
LOG = "log.jsonl"
PERFORMANCE = "performance"
SCRATCH = "scratch"

# Noisy blocks, in the run's folder or elsewhere.
NOISY_STORE = "noisy.zarr"
NOISY_BLOCKS = "blocks"
"""Array of the noisy store."""
RECEIPTS = "receipts"
BLOCKS_CLAIM = "claim"

# A projection, in the run's folder.
PROJECTION = "projection"
PROJECTION_STORE = "projection.zarr"
PROJECTION_SUMMARY = "summary.json"
SOLVER = "solver"
"""Panels and checkpoints of a blockwise projection."""
SOLVER_CHOICE = "choice.json"
CHECKPOINT = "checkpoint.npz"


def ledger_head(identity: str) -> str:
    """File in the private folder of the head of one ledger's journal."""
    return f"ledger-head-{identity[:12]}.json"
