"""A manifest from a calibrated mechanism, what the projection did, and what the ledger holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import numpy as np

from scoreshield.arithmetic.fixedpoint import FRACTION_BITS
from scoreshield.manifest.interactions import RecordKind
from scoreshield.manifest.schema import (
    ArrayRecord,
    CertificateRecord,
    Composition,
    Forecast,
    Loss,
    Manifest,
    MechanismRecord,
    NoisyRecord,
    Plain,
    PostProcessing,
    Privacy,
    SensitivityRecord,
    Shape,
    Spent,
    Step,
    refusing_faulty_fields,
)
from scoreshield.manifest.words import (
    KEY_STREAM,
    KNOWN_KEY_STREAM,
    privacy_statement,
    privacy_unit,
    unprotected_quantities,
)
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.privacy.accounting import total_epsilon
from scoreshield.projection import Projection
from scoreshield.regimes.registry import REGIMES


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
    with refusing_faulty_fields():
        return Manifest(
            release_id=release_id,
            private=not_private_reason is None,
            not_private_reason=not_private_reason,
            regime=mechanism.regime,
            published_at=published_at,
            shape=Shape(n=mechanism.n, d=mechanism.d, m=mechanism.m),
            queries_sha256=queries_sha256,
            privacy=_describe_privacy(
                mechanism, not_private_reason, "ids" in (arrays or {}), record_kind
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
    bounds = projection.certificate
    with refusing_faulty_fields():
        return PostProcessing(
            method=projection.method,
            feasible=bool(projection.feasible),
            converged=bool(projection.converged),
            parameters={name: _plain(value) for name, value in projection.parameters.items()},
            rank=int(projection.rank),
            iterations=int(projection.iterations),
            products=int(projection.products),
            history=tuple(
                Step.model_validate({name: _plain(value) for name, value in vars(step).items()})
                for step in projection.history
            ),
            certificate=None
            if bounds is None
            else CertificateRecord(
                **{name: _finite(bound) for name, bound in vars(bounds).items()}
            ),
        )


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


def _describe_privacy(
    mechanism: Mechanism,
    not_private_reason: str | None,
    with_ids: bool,
    record_kind: RecordKind | None,
) -> Privacy:
    guarantee, record = mechanism.guarantee, mechanism.implied
    return Privacy(
        privacy_unit=privacy_unit(guarantee, record_kind),
        record_kind=record_kind,
        adjacency=guarantee.adjacency.kind,
        radius=guarantee.adjacency.radius,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        mu=guarantee.mu,
        implied_record_replacement=Loss(mu=record.mu, epsilon=record.epsilon, delta=record.delta),
        unprotected_quantities=unprotected_quantities(
            mechanism.regime, with_ids=with_ids, record_kind=record_kind
        ),
        statement=privacy_statement(mechanism, not_private_reason, record_kind),
    )


def _describe_mechanism(mechanism: Mechanism, key_stream: str) -> MechanismRecord:
    sensitivity = mechanism.guarantee.sensitivity
    return MechanismRecord(
        sensitivity=SensitivityRecord(value=sensitivity.value, derivation=sensitivity.derivation),
        sigma=mechanism.sigma,
        noise_multiplier=mechanism.sigma / sensitivity.value,
        grid=mechanism.grid,
        grid_exponent=mechanism.grid_exponent,
        fraction_bits=FRACTION_BITS,
        score_range=(mechanism.score_range.low, mechanism.score_range.high),
        noise=REGIMES[mechanism.regime].noise,
        key_stream=key_stream,
    )


def _describe_forecast(mechanism: Mechanism) -> Forecast | None:
    regime = REGIMES[mechanism.regime]
    if not regime.states_forecast:
        return None
    forecast = regime.forecast(mechanism)
    return Forecast(**vars(forecast), carries_signal=forecast.carries_signal)


def _spent(mu_squared: Fraction, delta: float) -> Spent:
    shown = f"{mu_squared.numerator}/{mu_squared.denominator}"
    return Spent(mu_squared=shown, epsilon=total_epsilon(mu_squared, delta))


def _plain(value: Any) -> Plain:
    """A NumPy scalar as the Python number that JSON holds; anything else as it is."""
    plain: Plain = value.item() if isinstance(value, np.generic) else value
    return plain


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
