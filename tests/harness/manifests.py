"""Manifests that agree with themselves, and with one field changed as a forger would."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.manifest.build import (
    build_manifest,
    describe_clipped_scores,
    describe_composition,
    describe_projection,
)
from scoreshield.manifest.schema import (
    ArrayRecord,
    Manifest,
    NoisyRecord,
    PostProcessing,
    to_json,
)
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import FLOAT32
from scoreshield.privacy.accounting import spend_of
from scoreshield.projection import project

CALIBRATED = calibrate_gram(30, 5, 2.0, 1e-6)
NOISY = NoisyRecord(
    sha256="a" * 64,
    blocks=3,
    block_side=20,
    dtype="float32",
    step=None,
    rounding=FLOAT32.described(1.0),
)
ARRAYS = {"gram": ArrayRecord(shape=(30, 30), chunks=(20, 20), dtype="float32", sha256="b" * 64)}


def noisy_gram(n: int = 30) -> NDArray[np.float64]:
    """A symmetric matrix of noise with unit diagonal."""
    upper = np.triu(np.random.default_rng(3).normal(size=(n, n)), 1)
    return upper + upper.T + np.eye(n)


def projected(method: str) -> PostProcessing:
    """What is said of that noise, projected."""
    return describe_projection(project(noisy_gram(), method=method))


UNPROJECTED = projected("none")


def manifest_of(
    mechanism: Mechanism = CALIBRATED, post: PostProcessing = UNPROJECTED, **facts: Any
) -> Manifest:
    """Manifest of a release from a ledger; ``facts`` replace what it says beside the mechanism."""
    spend = spend_of(mechanism.guarantee.sensitivity.value, mechanism.sigma)
    said: dict[str, Any] = {
        "release_id": "gram-0123456789ab",
        "published_at": "2026-03-04T05:06:07Z",
        "software": {"scoreshield": "0.1.0", "numpy": "2.0.0"},
        "composition": describe_composition("f" * 32, 20.0, 1e-5, Fraction(1, 3), spend),
    }
    if mechanism.regime == "scores":
        post, said["queries_sha256"] = describe_clipped_scores(mechanism), "a" * 64
    return build_manifest(mechanism, post, **said | facts)


def edited(manifest: Manifest, place: str, value: Any) -> str:
    """The text of a manifest with ``value`` at a dotted place."""
    content = json.loads(to_json(manifest))
    *path, last = place.split(".")
    inner = content
    for name in path:
        inner = inner[name]
    inner[last] = value
    return json.dumps(content)
