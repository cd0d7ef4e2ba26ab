"""The manifest: what a release says about itself, as strict data with a published schema.

A manifest holds public facts only: sizes, the calibrated mechanism, what the projection did to the
noisy values, and digests of what is released. Nothing in it depends on the gallery's content except
through the noisy values; no input digest, no clean statistic and no running time has a field here,
and unknown fields are refused. Where the OpenDP deployments registry has a name for a field
(``variant_name``, ``unprotected_quantities``, ``privacy_unit``, ``epsilon``, ``delta``,
``model_name``, ``trust_assumptions``, ``release_type``, ``access_type``, ``composition``,
``post_processing``), that name is used, and its values where it lists them
(https://github.com/opendp/deployments-registry-data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from scoreshield.errors import InputRejected
from scoreshield.faults import fault_in_words, shown
from scoreshield.manifest.interactions import RecordKind
from scoreshield.manifest.words import CALIBRATION, KEY_STREAM, TRUST
from scoreshield.noise.encoding import StoredType
from scoreshield.printable import printable
from scoreshield.privacy.sensitivity import AdjacencyKind
from scoreshield.regimes.gram import GRAM
from scoreshield.regimes.registry import RegimeName

SCHEMA_VERSION = 1

Plain = bool | int | float | str | None
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hexadecimal")]
QueriesDigest = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the public queries as fixed-point rows: little-endian "
        "float32 (m, d) in C order; null for a Gram matrix and for a release in memory",
    ),
]
Time = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$",
        description="UTC, ISO 8601; null for a release in memory",
    ),
]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Size = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
_SHOWN_FAULTS = 5


def _one_value(value: Any) -> Any:
    """One complaint about what none of the types of ``Plain`` takes, instead of one from each."""
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("expected text, a finite number, true, false or null")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Shape(_Strict):
    """Sizes, all public: n records of d features, scored against m queries where there are any."""

    n: Count
    d: Count
    m: Count | None


class Loss(_Strict):
    """A privacy guarantee: mu = Delta/sigma, and epsilon at delta."""

    mu: Positive
    epsilon: NotNegative
    delta: Delta


class Privacy(_Strict):
    """Who is protected, how well, and on which assumptions."""

    variant_name: str = "Approximate DP"
    privacy_unit: str
    record_kind: Annotated[
        RecordKind | None,
        Field(description="What a record of interactions is; null for embeddings"),
    ] = None
    adjacency: AdjacencyKind
    radius: Positive | None
    epsilon: Positive
    delta: Delta
    mu: Positive
    implied_record_replacement: Loss
    model_name: str = "Central"
    release_type: str = "One release"
    access_type: str = "Non-interactive"
    trust_assumptions: str = TRUST
    unprotected_quantities: str = GRAM.unprotected
    statement: str


class SensitivityRecord(_Strict):
    """The L2 sensitivity of the vector that receives the noise, and how it came about."""

    value: Positive
    derivation: str


class MechanismRecord(_Strict):
    """The calibrated noise. ``grid`` is 2^grid_exponent, the spacing of noisy values."""

    name: str = "Gaussian"
    calibration: str = CALIBRATION
    sensitivity: SensitivityRecord
    sigma: Positive
    noise_multiplier: Positive
    grid: Positive
    grid_exponent: int
    fraction_bits: Count
    score_range: tuple[float, float]
    noise: str = GRAM.noise
    key_stream: str = KEY_STREAM


class Forecast(_Strict):
    """What the release can carry, from public sizes alone (see scoreshield.forecast)."""

    sigma: Positive
    noise_edge: Positive
    recoverable_share: Positive
    epsilon_for_signal: NotNegative
    shift_radius_for_signal: Positive
    carries_signal: bool


class Spent(_Strict):
    """A spend: mu^2 as an exact fraction p/q, and its epsilon at the budget's delta."""

    mu_squared: Annotated[str, Field(pattern=r"^[0-9]+/[1-9][0-9]*$")]
    epsilon: NotNegative


class Composition(_Strict):
    """What all releases of this gallery's lineage have spent, before and with this one."""

    lineage: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    budget_epsilon: Positive
    budget_delta: Delta
    spent_before: Spent
    spent_after: Spent


class Step(_Strict):
    """One step of the projection."""

    number: Count
    residual: float
    rank: Size
    eigendecompositions: Size
    products: Size


class CertificateRecord(_Strict):
    """How far the projected matrix is from feasible and from the exact projection.

    ``smallest_eigenvalue_bound`` is that of the float64 product of the released factor.
    """

    smallest_eigenvalue_bound: float | None
    diagonal_residual: float | None
    relative_gap: float | None
    distance_bound: float | None
    dual_smallest_eigenvalue: float | None


class PostProcessing(_Strict):
    """What was done to the noisy values; none of it reads the gallery."""

    method: str
    feasible: bool
    converged: bool
    parameters: dict[str, Annotated[Plain, BeforeValidator(_one_value)]]
    rank: Size | None
    iterations: Size
    products: Size
    history: tuple[Step, ...]
    certificate: CertificateRecord | None


class SideChannels(_Strict):
    """What was done about the ways around a mechanism that is right on paper."""

    floating_point: str = (
        "clean inner products are exact integers in any order of summation and the noise is "
        "correctly rounded on a public grid, so a released value is post-processing of the exact "
        "Gaussian mechanism"
    )
    timing: str = (
        "the sampler's running time is not constant; no running time is published, and whoever can "
        "time the curator's machines is outside the guarantee"
    )
    randomness: str = (
        "noise is a function of position alone: retries, resumed runs and other block shapes "
        "repeat the same values, so no two noises of one gallery can be averaged"
    )
    metadata: str = "no digest of the input, no clean statistic and no log is part of the release"


class NoisyRecord(_Strict):
    """The noisy blocks that post-processing starts from: combined digest, number, side in records,
    type of a stored value, and the step whose multiples integer codes stand for."""

    sha256: Digest
    blocks: Count
    block_side: Count
    dtype: StoredType
    step: Positive | None
    rounding: str


class ArrayRecord(_Strict):
    """A released array. The digest is over its values in C order, little-endian."""

    shape: tuple[Size, ...]
    chunks: Annotated[tuple[Size, ...], Field(description="Shape of a chunk of the Zarr array")]
    dtype: str
    sha256: Digest


class Signature(_Strict):
    """Ed25519 signature of the canonical bytes of the manifest without this field."""

    algorithm: Literal["Ed25519"] = "Ed25519"
    public_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Manifest(_Strict):
    """What one release is: how it was made private, what it holds, and who signs for it."""

    schema_version: Literal[1] = 1
    release_id: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9][a-z0-9._-]{0,63}(-not-private)?$",
            description="Name of the release and of its folder",
        ),
    ]
    private: bool = True
    not_private_reason: str | None = None
    regime: RegimeName
    published_at: Time | None
    shape: Shape
    queries_sha256: QueriesDigest | None
    privacy: Privacy
    mechanism: MechanismRecord
    forecast: Forecast | None
    composition: Composition | None
    post_processing: PostProcessing
    side_channels: SideChannels = SideChannels()
    noisy: NoisyRecord | None
    arrays: dict[str, ArrayRecord]
    software: dict[str, str]
    signature: Signature | None = None

    @model_validator(mode="after")
    def _texts_can_be_shown(self) -> Self:
        # A line break or a terminal code in a text could forge what a reader is shown.
        for place, text in _texts(self.model_dump(mode="json", exclude={"signature"})):
            if not text.isprintable():
                raise ValueError(f"{place}: {printable(text)!r} holds characters without a glyph")
        return self


def canonical_bytes(manifest: Manifest) -> bytes:
    """The bytes that are signed: JSON without the signature, sorted keys, no white space, ASCII."""
    content = manifest.model_dump(mode="json", exclude={"signature"})
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    ).encode("ascii")


def to_json(manifest: Manifest) -> str:
    """The manifest as the text of ``manifest.json``."""
    content = manifest.model_dump(mode="json")
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=True) + "\n"


def from_json(text: str | bytes) -> Manifest:
    """Read a manifest.

    Raises
    ------
    InputRejected
        The text is no manifest of this schema version; the message names the fields at fault.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Its own words speak of codecs and limits of Python.
        where = f" from line {error.lineno} on" if isinstance(error, json.JSONDecodeError) else ""
        raise InputRejected(
            f"the manifest is not JSON{where}; it was cut short or edited, restore it from a copy"
        ) from error
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "a single value"
        raise InputRejected(f"the manifest is {kind} in JSON, expected an object with fields")
    found = content.get("schema_version")
    # `True == 1`, hence the check of the type.
    if type(found) is not int or found != SCHEMA_VERSION:
        raise InputRejected(
            f"the manifest has schema_version {shown(found)}, this version of ScoreShield reads "
            f"{SCHEMA_VERSION}; use the version that the manifest's 'software' field names"
        )
    with refusing_faulty_fields():
        return Manifest.model_validate_json(text)


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(),
    }


def schema_text() -> str:
    """The schema as the text of ``docs/manifest.schema.json``."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n"


@contextmanager
def refusing_faulty_fields() -> Iterator[None]:
    """Turn a ``ValidationError`` into InputRejected, which names the fields in a reader's words."""
    try:
        yield
    except ValidationError as error:
        faults = [
            printable(f"{'.'.join(map(str, fault['loc'])) or 'manifest'}: {_fault(fault)}")
            for fault in error.errors(include_url=False)
        ]
        more = "; ..." if len(faults) > _SHOWN_FAULTS else ""
        raise InputRejected(
            f"{len(faults)} field(s) of the manifest are not as expected: "
            f"{'; '.join(faults[:_SHOWN_FAULTS])}{more}. The schema is docs/manifest.schema.json."
        ) from error


def _texts(content: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON document, names of fields included, with the field that it is in."""
    if isinstance(content, str):
        yield place, content
    elif isinstance(content, dict):
        for name, value in content.items():
            yield place or "a name", name
            yield from _texts(value, f"{place}.{printable(name)}" if place else printable(name))
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value, place)


def _fault(fault: Any) -> str:
    return "unknown field" if fault["type"] == "extra_forbidden" else fault_in_words(fault)
