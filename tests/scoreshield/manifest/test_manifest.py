"""The manifest is strict data: nothing unknown, nothing private, one text for one set of facts."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected
from scoreshield.manifest.build import (
    build_manifest,
    describe_composition,
    describe_projection,
    manifest_in_memory,
)
from scoreshield.manifest.schema import (
    ArrayRecord,
    Manifest,
    NoisyRecord,
    PostProcessing,
    Signature,
    canonical_bytes,
    from_json,
    json_schema,
    schema_text,
    to_json,
)
from scoreshield.mechanisms.gaussian import Mechanism, calibrate_gram, calibrate_scores, noisy_block
from scoreshield.noise import sampler as noise
from scoreshield.noise.encoding import FLOAT32
from scoreshield.privacy.accounting import spend_of, total_epsilon
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange
from scoreshield.projection import project
from tests.harness.edits import edited

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "manifest.schema.json"
NOISY = NoisyRecord(
    sha256="a" * 64,
    blocks=3,
    block_side=20,
    dtype="float32",
    step=None,
    rounding=FLOAT32.described(1.0),
)
ARRAYS = {"gram": ArrayRecord(shape=(30, 30), chunks=(20, 20), dtype="float32", sha256="b" * 64)}


def noisy_gram(n: int = 30) -> np.ndarray[Any, np.dtype[np.float64]]:
    random = np.random.default_rng(3)
    upper = np.triu(random.normal(size=(n, n)), 1)
    return upper + upper.T + np.eye(n)


def full_manifest(mechanism: Mechanism | None = None, method: str = "nearest") -> Manifest:
    mechanism = mechanism or calibrate_gram(30, 5, 2.0, 1e-6)
    spend = spend_of(mechanism.guarantee.sensitivity.value, mechanism.sigma)
    return build_manifest(
        mechanism,
        describe_projection(project(noisy_gram(), method=method)),
        release_id="gram-0123456789ab",
        published_at="2026-03-04T05:06:07Z",
        software={"scoreshield": "0.1.0", "numpy": "2.0.0"},
        arrays=ARRAYS,
        noisy=NOISY,
        composition=describe_composition("f" * 32, 20.0, 1e-5, Fraction(0), spend),
    )


@pytest.mark.parametrize("method", ["aap", "nearest", "none"])
def test_a_manifest_survives_json(method: str) -> None:
    manifest = full_manifest(method=method)
    text = to_json(manifest)
    assert from_json(text) == manifest
    assert to_json(from_json(text)) == text
    assert canonical_bytes(from_json(text)) == canonical_bytes(manifest)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20).filter(str.isprintable),
    st.integers(-(2**60), 2**60),
)
def test_any_number_and_text_survives_json(number: float, text: str, integer: int) -> None:
    parameters = {"number": number, "text": text, "integer": integer, "flag": True, "none": None}
    manifest = full_manifest(CALIBRATED, "none").model_copy(
        update={"post_processing": POST.model_copy(update={"parameters": parameters})}
    )
    again = from_json(to_json(manifest))
    assert canonical_bytes(again) == canonical_bytes(manifest)
    kept = again.post_processing.parameters
    assert {name: type(value) for name, value in kept.items()} == {
        name: type(value) for name, value in parameters.items()
    }


CALIBRATED = calibrate_gram(30, 5, 2.0, 1e-6)
POST = full_manifest(CALIBRATED, "none").post_processing


def test_canonical_bytes_leave_the_signature_out() -> None:
    manifest = full_manifest()
    signed = manifest.model_copy(
        update={"signature": Signature(public_key="0" * 64, value="1" * 128)}
    )
    assert canonical_bytes(signed) == canonical_bytes(manifest)
    assert b" " not in canonical_bytes(manifest).split(b'"')[0]
    content = json.loads(canonical_bytes(manifest))
    assert list(content) == sorted(content)
    assert "signature" not in content


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("release_id", "gram-0123456789abx"),
        ("privacy.epsilon", math.nextafter(2.0, 9)),
        ("noisy.sha256", "c" * 64),
        ("post_processing.history", []),
    ],
)
def test_canonical_bytes_change_with_any_fact(place: str, value: Any) -> None:
    manifest = full_manifest()
    assert canonical_bytes(from_json(edited(manifest, place, value))) != canonical_bytes(manifest)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("mechanism.seed", 7),
        ("mechanism.sigma", "3.0"),
        ("privacy.epsilon", -1.0),
        ("arrays.gram.sha256", "b" * 63),
        ("published_at", "2026-03-04 05:06"),
        ("composition.spent_after.mu_squared", "0.25"),
        ("composition.lineage", "f" * 32 + "\n"),
        ("release_id", "x, schema 1\nok    signature"),
        ("release_id", "x\n"),
        ("release_id", "Gram"),
        ("release_id", "../x"),
        ("release_id", "x" * 65),
        ("software.\x1b[8m", "1"),
        ("privacy.trust_assumptions", "nobody\nok    signature: trusted"),
        ("mechanism.sensitivity.derivation", "\u202e0.1"),
    ],
)
def test_a_wrong_field_is_named(place: str, value: Any) -> None:
    named = re.escape(place.partition("\x1b")[0].rstrip("."))
    with pytest.raises(InputRejected, match=named) as refused:
        from_json(edited(full_manifest(), place, value))
    assert str(refused.value).isprintable()


def test_a_missing_field_is_named() -> None:
    content = json.loads(to_json(full_manifest()))
    del content["privacy"]["delta"]
    with pytest.raises(InputRejected, match=r"privacy\.delta"):
        from_json(json.dumps(content))


@pytest.mark.parametrize("name", ["in-memory", "x" * 64 + "-not-private", "0", "a.b_c-d"])
def test_every_name_that_a_release_can_get_is_accepted(name: str) -> None:
    build_manifest(CALIBRATED, POST, release_id=name, published_at=None, software={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "a list in JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema_version": 2}', "schema_version 2, this version of ScoreShield reads 1"),
        ('{"schema_version": true}', "schema_version true"),
        ("{}", "schema_version nothing"),
    ],
)
def test_what_is_no_manifest_says_why(text: str, message: str) -> None:
    with pytest.raises(InputRejected, match=message):
        from_json(text)


def test_not_a_number_has_no_place() -> None:
    text = to_json(full_manifest()).replace('"sigma": ', '"sigma": NaN, "other": ', 1)
    with pytest.raises(InputRejected):
        from_json(text)


def test_the_published_schema_is_current() -> None:
    assert SCHEMA.read_text() == schema_text(), (
        "write it again: python -c 'from scoreshield.manifest.schema import schema_text; "
        'print(schema_text(), end="")\' > docs/manifest.schema.json'
    )


def test_manifests_follow_the_published_schema() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for method in ("aap", "nearest", "none"):
        validator.validate(json.loads(to_json(full_manifest(method=method))))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(json.loads(edited(full_manifest(), "mechanism.seed", 7)))


def test_every_field_of_the_schema_refuses_unknown_ones() -> None:
    schema = json_schema()
    for name, model in (*schema["$defs"].items(), ("Manifest", schema)):
        assert model["additionalProperties"] is False, name


def test_the_registry_names_are_used() -> None:
    privacy = full_manifest().privacy.model_dump()
    for name in (
        "variant_name",
        "privacy_unit",
        "epsilon",
        "delta",
        "model_name",
        "trust_assumptions",
        "unprotected_quantities",
    ):
        assert privacy[name]


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        (Adjacency("record"), "replaced by any other record"),
        (Adjacency("shift", 0.1), "moved by at most 0.1"),
        (Adjacency("output", 2.0), "changed by at most 2 in Frobenius norm"),
    ],
)
def test_the_statement_says_which_guarantee(adjacency: Adjacency, words: str) -> None:
    mechanism = calibrate_gram(30, 5, 2.0, 1e-6, adjacency)
    privacy = full_manifest(mechanism).privacy
    assert words in privacy.statement
    assert privacy.adjacency == adjacency.kind
    assert privacy.radius == adjacency.radius
    assert privacy.implied_record_replacement.epsilon == mechanism.implied.epsilon
    implied = f"this implies only epsilon = {mechanism.implied.epsilon!r}"
    assert (implied in privacy.statement) == (adjacency.kind != "record")


def test_the_statement_rounds_no_bound_down() -> None:
    mechanism = calibrate_gram(30, 5, 1.00000000049, 1.00000000049e-6, Adjacency("shift", 0.1))
    statement = full_manifest(mechanism).privacy.statement
    assert "at most exp(1.00000000049), apart" in statement
    assert "at most 1.00000000049e-06." in statement
    assert f"epsilon = {mechanism.implied.epsilon!r} at" in statement
    assert "at most exp(2), apart" in full_manifest().privacy.statement


def test_the_mechanism_is_stated_as_calibrated() -> None:
    mechanism = calibrate_gram(30, 5, 2.0, 1e-6, score_range=ScoreRange(0.0, 1.0))
    stated = full_manifest(mechanism).mechanism
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


def test_a_test_mode_is_marked() -> None:
    manifest = build_manifest(
        CALIBRATED,
        POST,
        release_id="demo",
        published_at=None,
        software={},
        not_private_reason="fixed seed",
    )
    assert not manifest.private
    assert manifest.privacy.statement.startswith("NOT PRIVATE: fixed seed")


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
        build_manifest(CALIBRATED, POST, release_id="", published_at=None, software={})


def test_galleries_reach_the_manifest_through_noisy_values_only() -> None:
    """Two galleries, the same noisy values: the same bytes. Other noisy values: other bytes."""
    random = np.random.default_rng(5)
    first = to_fixed(random.normal(size=(30, 5)))
    second = first.copy()
    second[4] = to_fixed(random.normal(size=(1, 5)))[0]

    def manifest_of(
        gallery: np.ndarray[Any, np.dtype[np.float32]], injected: np.ndarray[Any, Any] | None
    ) -> bytes:
        mechanism = calibrate_gram(*gallery.shape, 2.0, 1e-6)
        noisy = noisy_block(mechanism, gallery, gallery, 0, 0, bytes(noise.KEY_BYTES), "r")
        values = noisy if injected is None else injected
        post: PostProcessing = describe_projection(project(values, method="nearest"))
        return canonical_bytes(
            build_manifest(
                mechanism, post, release_id="r", published_at=None, software={}, arrays=ARRAYS
            )
        )

    held = noisy_gram()
    assert manifest_of(first, held) == manifest_of(second, held)
    assert manifest_of(first, None) != manifest_of(second, None)
