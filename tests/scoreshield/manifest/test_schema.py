"""The manifest is strict data: nothing unknown, nothing private, one text for one set of facts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.errors import InputRejected
from scoreshield.manifest.schema import (
    Signature,
    canonical_bytes,
    from_json,
    json_schema,
    schema_text,
    to_json,
)
from tests.harness.manifests import (
    ARRAYS,
    NOISY,
    UNPROJECTED,
    edited,
    manifest_of,
    projected,
)

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "manifest.schema.json"
FULL = manifest_of(post=projected("nearest"), arrays=ARRAYS, noisy=NOISY)


@pytest.mark.parametrize("method", ["aap", "nearest", "none"])
def test_a_manifest_survives_json(method: str) -> None:
    manifest = manifest_of(post=projected(method))
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
    manifest = manifest_of(post=UNPROJECTED.model_copy(update={"parameters": parameters}))
    again = from_json(to_json(manifest))
    assert canonical_bytes(again) == canonical_bytes(manifest)
    kept = again.post_processing.parameters
    assert {name: type(value) for name, value in kept.items()} == {
        name: type(value) for name, value in parameters.items()
    }


def test_canonical_bytes_leave_the_signature_out() -> None:
    signed = FULL.model_copy(update={"signature": Signature(public_key="0" * 64, value="1" * 128)})
    assert canonical_bytes(signed) == canonical_bytes(FULL)
    assert b" " not in canonical_bytes(FULL).split(b'"')[0]
    content = json.loads(canonical_bytes(FULL))
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
    assert canonical_bytes(from_json(edited(FULL, place, value))) != canonical_bytes(FULL)


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
        from_json(edited(FULL, place, value))
    assert str(refused.value).isprintable()


def test_a_missing_field_is_named() -> None:
    content = json.loads(to_json(FULL))
    del content["privacy"]["delta"]
    with pytest.raises(InputRejected, match=r"privacy\.delta"):
        from_json(json.dumps(content))


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
    text = to_json(FULL).replace('"sigma": ', '"sigma": NaN, "other": ', 1)
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
        validator.validate(json.loads(to_json(manifest_of(post=projected(method)))))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(json.loads(edited(FULL, "mechanism.seed", 7)))


def test_every_field_of_the_schema_refuses_unknown_ones() -> None:
    schema = json_schema()
    for name, model in (*schema["$defs"].items(), ("Manifest", schema)):
        assert model["additionalProperties"] is False, name


def test_the_registry_names_are_used() -> None:
    privacy = FULL.privacy.model_dump()
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
