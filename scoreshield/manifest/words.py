"""What a manifest says in words: the mechanism, who is protected, and what the guarantee means."""

from __future__ import annotations

from scoreshield.manifest.interactions import PROTECTED_RECORDS, PUBLIC_SIZES, RecordKind
from scoreshield.mechanisms.gaussian import Guarantee, Mechanism
from scoreshield.regimes.registry import REGIMES

CALIBRATION = (
    "analytic Gaussian mechanism (Balle & Wang, ICML 2018), solved in log space and rounded up; "
    "delta recomputed from the final sigma in multiple precision"
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


def privacy_unit(guarantee: Guarantee, record_kind: RecordKind | None = None) -> str:
    """What one privacy unit is, in words; of interactions, also what a record is."""
    words = _changed_unit(guarantee)
    return words if record_kind is None else f"{words}. {PROTECTED_RECORDS[record_kind]}"


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
    words = REGIMES[regime].unprotected
    words = f"{words}, and so are the ids of the records" if with_ids else words
    return words if record_kind is None else f"{words}; {PUBLIC_SIZES[record_kind]}"


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
        words = f"{words} {PROTECTED_RECORDS[record_kind]}."
    if guarantee.adjacency.kind == "record":
        return words
    return (
        f"{words} For the replacement of one record by any other, this implies only "
        f"epsilon = {_exact(implied.epsilon)} at the same delta."
    )


def _exact(value: float) -> str:
    """All digits: a bound must not lose any that make it larger."""
    return repr(value).removesuffix(".0")
