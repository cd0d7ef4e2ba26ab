"""A manifest is built from public facts, and from the gallery through noisy values only."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected
from scoreshield.manifest.build import (
    describe_composition,
    describe_projection,
    manifest_in_memory,
)
from scoreshield.manifest.schema import canonical_bytes, from_json, to_json
from scoreshield.mechanisms.gaussian import noisy_block
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.mechanisms.scores import calibrate_scores
from scoreshield.noise.sampler import KEY_BYTES
from scoreshield.privacy.accounting import total_epsilon
from scoreshield.privacy.sensitivity import ScoreRange
from scoreshield.projection import project
from tests.harness.manifests import ARRAYS, CALIBRATED, manifest_of, noisy_gram


@pytest.mark.parametrize("name", ["in-memory", "x" * 64 + "-not-private", "0", "a.b_c-d"])
def test_every_name_that_a_release_can_get_is_accepted(name: str) -> None:
    assert manifest_of(release_id=name).release_id == name


def test_the_mechanism_is_stated_as_calibrated() -> None:
    mechanism = calibrate_gram(30, 5, 2.0, 1e-6, score_range=ScoreRange(0.0, 1.0))
    stated = manifest_of(mechanism).mechanism
    assert stated.sigma == mechanism.sigma
    assert stated.grid == 2.0**stated.grid_exponent == mechanism.grid
    assert stated.score_range == (0.0, 1.0)
    assert stated.sensitivity.derivation == mechanism.guarantee.sensitivity.derivation
    assert stated.noise_multiplier == pytest.approx(mechanism.sigma / stated.sensitivity.value)


def test_composition_is_exact() -> None:
    before, spend = Fraction(1, 3), Fraction(1, 7)
    stated = describe_composition("a" * 32, 20.0, 1e-5, before, spend)
    assert stated.spent_before.mu_squared == "1/3"
    assert stated.spent_after.mu_squared == "10/21"
    assert stated.spent_after.epsilon == total_epsilon(Fraction(10, 21), 1e-5)
    first = describe_composition("a" * 32, 20.0, 1e-5, Fraction(0), spend)
    assert (first.spent_before.mu_squared, first.spent_before.epsilon) == ("0/1", 0.0)


def test_manifests_in_memory() -> None:
    gram = manifest_in_memory(CALIBRATED, project(noisy_gram(), method="aap"))
    assert gram.published_at is None
    assert gram.composition is None
    assert gram.software["numpy"] == np.__version__
    scores = manifest_in_memory(
        calibrate_scores(10, to_fixed(np.eye(3)), 1.0, 1e-6, score_range=ScoreRange(0, 1)), None
    )
    assert scores.shape.m == 3
    assert scores.forecast is None
    assert scores.post_processing.parameters == {"step": "entries clipped to [0, 1]"}
    assert from_json(to_json(scores)) == scores


def test_numpy_scalars_become_plain_numbers() -> None:
    projection = replace(
        project(noisy_gram(), method="aap"),
        rank=np.int64(3),
        parameters={"weight": np.float32(0.5), "steps": np.int32(4), "full": np.bool_(True)},
    )
    described = describe_projection(projection)
    assert described.rank == 3
    assert json.dumps(described.parameters) == '{"weight": 0.5, "steps": 4, "full": true}'


def test_a_parameter_that_is_not_finite_is_named() -> None:
    projection = replace(project(noisy_gram(), method="none"), parameters={"shift": np.inf})
    with pytest.raises(InputRejected, match=r"parameters\.shift"):
        describe_projection(projection)


def test_bounds_that_are_not_finite_become_null() -> None:
    projection = project(noisy_gram(), method="nearest")
    assert projection.certificate is not None
    unbounded = replace(projection.certificate, distance_bound=np.inf, relative_gap=np.nan)
    certificate = describe_projection(replace(projection, certificate=unbounded)).certificate
    assert certificate is not None
    assert certificate.distance_bound is None
    assert certificate.relative_gap is None
    assert certificate.smallest_eigenvalue_bound is not None


def test_a_value_without_a_place_is_refused() -> None:
    with pytest.raises(InputRejected, match="release_id"):
        manifest_of(release_id="")


def test_galleries_reach_the_manifest_through_noisy_values_only() -> None:
    """Two galleries, the same noisy values: the same bytes. Other noisy values: other bytes."""
    random = np.random.default_rng(5)
    first = to_fixed(random.normal(size=(30, 5)))
    second = first.copy()
    second[4] = to_fixed(random.normal(size=(1, 5)))[0]

    def stated(gallery: NDArray[np.float32], injected: NDArray[np.float64] | None) -> bytes:
        mechanism = calibrate_gram(*gallery.shape, 2.0, 1e-6)
        noisy = noisy_block(mechanism, gallery, gallery, 0, 0, bytes(KEY_BYTES), "r")
        values = noisy if injected is None else injected
        post = describe_projection(project(values, method="nearest"))
        return canonical_bytes(manifest_of(mechanism, post, arrays=ARRAYS))

    held = noisy_gram()
    assert stated(first, held) == stated(second, held)
    assert stated(first, None) != stated(second, None)
