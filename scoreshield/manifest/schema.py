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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from fractions import Fraction
from importlib.metadata import version
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.errors import InputRejected
from scoreshield.faults import fault_in_words, shown
from scoreshield.manifest.interactions import RecordKind, protected_records, public_sizes
from scoreshield.mechanisms.gaussian import Guarantee, Mechanism
from scoreshield.printable import printable
from scoreshield.privacy.accounting import total_epsilon
from scoreshield.projection import Projection
from scoreshield.projection.certificate import Certificate
from scoreshield.utility.forecast import forecast_gram

SCHEMA_VERSION = 1

Plain = bool | int | float | str | None
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hexadecimal")]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=0)]
_SHOWN_FAULTS = 5

CALIBRATION = (
    "analytic Gaussian mechanism (Balle & Wang, ICML 2018), solved in log space and rounded up; "
    "delta recomputed from the final sigma in multiple precision"
)
NOISE = (
    "correctly rounded Gaussian: k = round(X/g) for X ~ N(0, sigma^2), added to exact inner "
    "products of fixed-point rows; one independent draw per released pair, mirrored"
)
SCORES_NOISE = (
    "correctly rounded Gaussian: k = round(X/g) for X ~ N(0, sigma^2), added to exact inner "
    "products of fixed-point rows; one independent draw per released score"
)
KEY_STREAM = (
    "AES-256-CTR, one key a tile of 1024 x 1024 derived by HMAC-SHA-256 from a 256-bit release key "
    "that is drawn from the operating system's generator, or derived for this one matrix from a "
    "secret of the curator; it is private, and its file destroyed once the release is committed"
)
KNOWN_KEY_STREAM = (
    "NOT PRIVATE: AES-256-CTR, one key a tile of 1024 x 1024 derived by HMAC-SHA-256 from a key "
    "that is not secret"
)
TRUST = (
    "central model: the curator sees the gallery and is trusted to run the mechanism; whoever "
    "receives the release is not trusted"
)
UNPROTECTED = "the number of records n and the number of features d are public"
SCORES_UNPROTECTED = f"{UNPROTECTED}, and so are the queries"


def _one_value(value: Any) -> Any:
    """One complaint about what none of the types of ``Plain`` takes, instead of one from each."""
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("expected text, a finite number, true, false or null")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Shape(_Strict):
    """Sizes, all public: n records of d features, scored against m queries where there are any."""

    n: Annotated[int, Field(ge=1)]
    d: Annotated[int, Field(ge=1)]
    m: Annotated[int, Field(ge=1)] | None


class Loss(_Strict):
    """A privacy guarantee: mu = Delta/sigma, and epsilon at delta."""

    mu: Positive
    epsilon: NotNegative
    delta: Annotated[float, Field(gt=0, lt=1)]


class Privacy(_Strict):
    """Who is protected, how well, and on which assumptions."""

    variant_name: str = "Approximate DP"
    privacy_unit: str
    record_kind: Annotated[
        RecordKind | None,
        Field(description="What a record of interactions is; null for embeddings"),
    ] = None
    adjacency: Literal["record", "shift", "output"]
    radius: Positive | None
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    mu: Positive
    implied_record_replacement: Loss
    model_name: str = "Central"
    release_type: str = "One release"
    access_type: str = "Non-interactive"
    trust_assumptions: str = TRUST
    unprotected_quantities: str = UNPROTECTED
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
    fraction_bits: Annotated[int, Field(ge=1)]
    score_range: tuple[float, float]
    noise: str = NOISE
    key_stream: str = KEY_STREAM


class Forecast(_Strict):
    """What the release can carry, from public sizes alone (see scoreshield.utility.forecast)."""

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
    budget_delta: Annotated[float, Field(gt=0, lt=1)]
    spent_before: Spent
    spent_after: Spent


class Step(_Strict):
    """One step of the projection."""

    number: Annotated[int, Field(ge=1)]
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
    blocks: Annotated[int, Field(ge=1)]
    block_side: Annotated[int, Field(ge=1)]
    dtype: Literal["float32", "int16", "int8"]
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
    regime: Literal["gram", "scores"]
    published_at: (
        Annotated[
            str,
            Field(
                pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$",
                description="UTC, ISO 8601; null for a release in memory",
            ),
        ]
        | None
    )
    shape: Shape
    queries_sha256: (
        Annotated[
            str,
            Field(
                pattern=r"^[0-9a-f]{64}$",
                description="SHA-256 of the public queries as fixed-point rows: little-endian "
                "float32 (m, d) in C order; null for a Gram matrix and for a release in memory",
            ),
        ]
        | None
    )
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


def build_manifest(
    mechanism: Mechanism,
    post_processing: PostProcessing,
    *,
    release_id: str,
    published_at: str | None,
    software: Mapping[str, str],
    arrays: Mapping[str, ArrayRecord] | None = None,
    noisy: NoisyRecord | None = None,
    composition: Composition | None = None,
    queries_sha256: str | None = None,
    not_private_reason: str | None = None,
    record_kind: RecordKind | None = None,
) -> Manifest:
    """Manifest of a release, not yet signed.

    Parameters
    ----------
    mechanism : the calibrated mechanism that made the noisy values
    post_processing : from :func:`describe_projection`
    release_id : name of the release, as used in the derivation of the noise keys
    published_at : UTC in ISO 8601, given by the caller: nothing here reads a clock. None in memory
    software : versions by name
    arrays : the released arrays by name
    noisy : digest of the noisy blocks; None for a release in memory
    composition : ledger effect; None for a release in memory, which no ledger has seen
    queries_sha256 : digest of the public queries; None for a Gram matrix, and in memory
    not_private_reason : marks the release NOT PRIVATE (test modes) and says why
    record_kind : what a record of interactions is; None for embeddings

    Raises
    ------
    InputRejected
        A value has no place in a manifest; the message names its field.
    """
    guarantee = mechanism.guarantee
    try:
        return Manifest(
            release_id=release_id,
            private=not_private_reason is None,
            not_private_reason=not_private_reason,
            regime=mechanism.regime,
            published_at=published_at,
            shape=Shape(n=mechanism.n, d=mechanism.d, m=mechanism.m),
            queries_sha256=queries_sha256,
            privacy=Privacy(
                privacy_unit=privacy_unit(guarantee, record_kind),
                record_kind=record_kind,
                adjacency=guarantee.adjacency.kind,
                radius=guarantee.adjacency.radius,
                epsilon=guarantee.epsilon,
                delta=guarantee.delta,
                mu=guarantee.mu,
                implied_record_replacement=_loss(mechanism.implied),
                unprotected_quantities=unprotected_quantities(
                    mechanism.regime, with_ids="ids" in (arrays or {}), record_kind=record_kind
                ),
                statement=privacy_statement(mechanism, not_private_reason, record_kind),
            ),
            mechanism=_describe_mechanism(
                mechanism, KEY_STREAM if not_private_reason is None else KNOWN_KEY_STREAM
            ),
            forecast=_describe_forecast(mechanism),
            composition=composition,
            post_processing=post_processing,
            noisy=noisy,
            arrays=dict(arrays or {}),
            software=dict(software),
        )
    except ValidationError as error:
        _reject(error)


def manifest_in_memory(mechanism: Mechanism, projection: Projection | None) -> Manifest:
    """Manifest of a release on arrays; None for scores, which are clipped to their range."""
    return build_manifest(
        mechanism,
        describe_clipped_scores(mechanism)
        if projection is None
        else describe_projection(projection),
        release_id="in-memory",
        published_at=None,
        software=installed_versions("scoreshield", "numpy", "scipy", "cryptography"),
    )


def installed_versions(*distributions: str) -> dict[str, str]:
    """Versions of installed distributions, for the ``software`` field."""
    return {name: version(name) for name in distributions}


def describe_projection(projection: Projection) -> PostProcessing:
    """What a manifest says of a projection; certificate values that are not finite become null.

    Raises
    ------
    InputRejected
        A parameter or a residual is not finite; the message names it.
    """
    try:
        return PostProcessing(
            method=projection.method,
            feasible=bool(projection.feasible),
            converged=bool(projection.converged),
            parameters={name: _plain(value) for name, value in projection.parameters.items()},
            rank=int(projection.rank),
            iterations=int(projection.iterations),
            products=int(projection.products),
            history=tuple(
                Step(
                    number=int(step.number),
                    residual=float(step.residual),
                    rank=int(step.rank),
                    eigendecompositions=int(step.eigendecompositions),
                    products=int(step.products),
                )
                for step in projection.history
            ),
            certificate=_describe_certificate(projection.certificate),
        )
    except ValidationError as error:
        _reject(error)


def describe_clipped_scores(mechanism: Mechanism) -> PostProcessing:
    """What a manifest says of scores: clipped to their range, the feasible set of scores."""
    low, high = mechanism.score_range.low, mechanism.score_range.high
    return PostProcessing(
        method="clip",
        feasible=True,
        converged=True,
        parameters={"step": f"entries clipped to [{low:g}, {high:g}]"},
        rank=None,
        iterations=0,
        products=0,
        history=(),
        certificate=None,
    )


def describe_composition(
    lineage: str, budget_epsilon: float, budget_delta: float, before: Fraction, spend: Fraction
) -> Composition:
    """Ledger effect of a release that spends mu^2 = ``spend`` after ``before``."""
    return Composition(
        lineage=lineage,
        budget_epsilon=budget_epsilon,
        budget_delta=budget_delta,
        spent_before=_spent(before, budget_delta),
        spent_after=_spent(before + spend, budget_delta),
    )


def privacy_unit(guarantee: Guarantee, record_kind: RecordKind | None = None) -> str:
    """What one privacy unit is, in words; of interactions, also what a record is."""
    words = _changed_unit(guarantee)
    return words if record_kind is None else f"{words}. {protected_records(record_kind)}"


def _changed_unit(guarantee: Guarantee) -> str:
    adjacency = guarantee.adjacency
    if adjacency.kind == "record":
        return "one record of the gallery, replaced by any other record"
    if adjacency.kind == "shift":
        return (
            "one record of the gallery, its embedding moved by at most "
            f"{_exact(adjacency.reach)} in Euclidean distance"
        )
    return (
        "the matrix of similarities of the fixed-point gallery, changed by at most "
        f"{_exact(adjacency.reach)} in Frobenius norm"
    )


def unprotected_quantities(
    regime: str, *, with_ids: bool, record_kind: RecordKind | None = None
) -> str:
    """What a release makes public whatever its noise, in words."""
    words = UNPROTECTED if regime == "gram" else SCORES_UNPROTECTED
    words = f"{words}, and so are the ids of the records" if with_ids else words
    return words if record_kind is None else f"{words}; {public_sizes(record_kind)}"


def privacy_statement(
    mechanism: Mechanism,
    not_private_reason: str | None = None,
    record_kind: RecordKind | None = None,
) -> str:
    """The guarantee in plain words, and what it implies for replacing one record."""
    if not_private_reason is not None:
        return f"NOT PRIVATE: {not_private_reason}. No guarantee is given for this release."
    guarantee, implied = mechanism.guarantee, mechanism.implied
    words = (
        f"Privacy unit: {_changed_unit(guarantee)}. Such a change alters the probability of any "
        f"event about this release by a factor of at most exp({_exact(guarantee.epsilon)}), apart "
        f"from an additional probability of at most {_exact(guarantee.delta)}."
    )
    if record_kind is not None:
        words = f"{words} {protected_records(record_kind)}."
    if guarantee.adjacency.kind == "record":
        return words
    return (
        f"{words} For the replacement of one record by any other, this implies only "
        f"epsilon = {_exact(implied.epsilon)} at the same delta."
    )


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
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        _reject(error)


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(),
    }


def schema_text() -> str:
    """The schema as the text of ``docs/manifest.schema.json``."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n"


def _describe_mechanism(mechanism: Mechanism, key_stream: str) -> MechanismRecord:
    sensitivity = mechanism.guarantee.sensitivity
    return MechanismRecord(
        sensitivity=SensitivityRecord(
            value=sensitivity.value,
            derivation=sensitivity.derivation,
        ),
        sigma=mechanism.sigma,
        noise_multiplier=mechanism.sigma / sensitivity.value,
        grid=mechanism.grid,
        grid_exponent=mechanism.grid_exponent,
        fraction_bits=FRACTION_BITS,
        score_range=(mechanism.score_range.low, mechanism.score_range.high),
        noise=NOISE if mechanism.regime == "gram" else SCORES_NOISE,
        key_stream=key_stream,
    )


def _describe_forecast(mechanism: Mechanism) -> Forecast | None:
    if mechanism.regime != "gram":
        return None
    forecast = forecast_gram(mechanism)
    return Forecast(**asdict(forecast), carries_signal=forecast.carries_signal)


def _describe_certificate(certificate: Certificate | None) -> CertificateRecord | None:
    if certificate is None:
        return None
    return CertificateRecord(
        smallest_eigenvalue_bound=_finite(certificate.smallest_eigenvalue_bound),
        diagonal_residual=_finite(certificate.diagonal_residual),
        relative_gap=_finite(certificate.relative_gap),
        distance_bound=_finite(certificate.distance_bound),
        dual_smallest_eigenvalue=_finite(certificate.dual_smallest_eigenvalue),
    )


def _loss(guarantee: Guarantee) -> Loss:
    return Loss(mu=guarantee.mu, epsilon=guarantee.epsilon, delta=guarantee.delta)


def _spent(mu_squared: Fraction, delta: float) -> Spent:
    epsilon = total_epsilon(mu_squared, delta) if mu_squared else 0.0
    return Spent(mu_squared=f"{mu_squared.numerator}/{mu_squared.denominator}", epsilon=epsilon)


def _plain(value: Any) -> Plain:
    """A NumPy scalar as the Python number that JSON holds; anything else as it is."""
    plain: Plain = value.item() if isinstance(value, np.generic) else value
    return plain


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _exact(value: float) -> str:
    """All digits: a bound must not lose any that make it larger."""
    return repr(value).removesuffix(".0")


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


def _reject(error: ValidationError) -> NoReturn:
    faults = [
        printable(f"{'.'.join(map(str, fault['loc'])) or 'manifest'}: {_fault(fault)}")
        for fault in error.errors(include_url=False)
    ]
    shown = "; ".join(faults[:_SHOWN_FAULTS]) + ("; ..." if len(faults) > _SHOWN_FAULTS else "")
    raise InputRejected(
        f"{len(faults)} field(s) of the manifest are not as expected: {shown}. "
        "The schema is docs/manifest.schema.json."
    ) from error
