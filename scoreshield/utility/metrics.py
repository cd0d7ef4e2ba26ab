"""Verification and retrieval metrics of a set of scores, released or clean.

Verification compares the scores of genuine pairs (same person, same meaning) with those of impostor
pairs; a pair is accepted when its score is at least the threshold. Retrieval looks for one relevant
record a query. Released scores are clipped, so ties at the ends of their range are common: every
metric counts them as if broken at random, in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from scoreshield.errors import InputRejected, ParameterError, ScoreShieldError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Receiver operating characteristic, from the strictest threshold to the loosest.

    Between neighbouring points it is a straight line, which random decisions at a tie reach.
    """

    thresholds: FloatArray
    """Descending; a pair is accepted when its score is at least the threshold."""
    false_positive_rate: FloatArray
    """Share of impostor pairs accepted (FPR; FAR or FMR in biometrics)."""
    true_positive_rate: FloatArray
    """Share of genuine pairs accepted (TPR; TAR in biometrics)."""

    @property
    def area(self) -> float:
        """Area under the curve (AUC), by the trapezoidal rule, which is exact for it."""
        return float(np.trapezoid(self.true_positive_rate, self.false_positive_rate))


def roc_curve(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> RocCurve:
    """ROC of genuine against impostor scores (any shapes): one point a distinct score.

    The first point, at an infinite threshold, accepts nothing.

    Raises
    ------
    InputRejected
        A set of scores is empty or holds values that are not finite.
    ScoreShieldError
        scikit-learn is not installed.
    """
    positive, negative = checked_scores(genuine, "genuine"), checked_scores(impostor, "impostor")
    try:
        from sklearn.metrics import roc_curve as curve_of
    except ImportError as error:
        raise ScoreShieldError(
            "a ROC curve needs scikit-learn; pip install 'scoreshield[evaluation]'"
        ) from error
    is_genuine = np.repeat([True, False], [positive.size, negative.size])
    scores = np.concatenate([positive, negative])
    accepted_wrongly, accepted_rightly, at = curve_of(is_genuine, scores, drop_intermediate=False)
    return RocCurve(at, accepted_wrongly, accepted_rightly)


def auc(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> float:
    """Area under the ROC: the probability that a genuine score exceeds an impostor one.

    A tie counts one half (Mann & Whitney 1947; Hanley & McNeil 1982).
    """
    return roc_curve(genuine, impostor).area


def equal_error_rate(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> float:
    """EER: the error rate where false positives are as frequent as false negatives.

    Where no threshold balances them, the value on the line between two neighbours of the ROC.
    """
    curve = roc_curve(genuine, impostor)
    excess = curve.false_positive_rate + curve.true_positive_rate - 1
    after = int(np.searchsorted(excess, 0.0))
    if excess[after] == 0:
        return float(curve.false_positive_rate[after])
    weight = -excess[after - 1] / (excess[after] - excess[after - 1])
    low, high = curve.false_positive_rate[after - 1 : after + 1]
    return float(low + weight * (high - low))


def tar_at_far(genuine: npt.ArrayLike, impostor: npt.ArrayLike, far: float) -> float:
    """Largest true accept rate of a threshold whose false accept rate is at most ``far``.

    Raises
    ------
    ParameterError
        ``far`` is outside [0, 1].
    """
    if not 0 <= far <= 1:
        raise ParameterError(f"the false accept rate must lie in [0, 1], found {far!r}")
    curve = roc_curve(genuine, impostor)
    last = int(np.searchsorted(curve.false_positive_rate, far, side="right")) - 1
    return float(curve.true_positive_rate[last])


def accuracy(genuine: npt.ArrayLike, impostor: npt.ArrayLike, threshold: float) -> float:
    """Share of all pairs that a threshold decides right."""
    positive, negative = checked_scores(genuine, "genuine"), checked_scores(impostor, "impostor")
    right = np.count_nonzero(positive >= threshold) + np.count_nonzero(negative < threshold)
    return right / (positive.size + negative.size)


def best_accuracy(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> tuple[float, float]:
    """The largest accuracy of any threshold, and the strictest threshold that has it."""
    positive, negative = checked_scores(genuine, "genuine"), checked_scores(impostor, "impostor")
    curve = roc_curve(positive, negative)
    right = (
        curve.true_positive_rate * positive.size + (1 - curve.false_positive_rate) * negative.size
    )
    best = int(np.argmax(right))
    return float(right[best] / (positive.size + negative.size)), float(curve.thresholds[best])


def recall_at(scores: npt.ArrayLike, relevant: npt.ArrayLike, k: int) -> float:
    """Recall@k: share of queries whose relevant record is among the k best.

    Parameters
    ----------
    scores : (m, n), one row a query.
    relevant : (m,) index of each query's relevant record.
    k : at least 1.

    Raises
    ------
    InputRejected
        Shapes that do not fit, or values that are not finite.
    ParameterError
        k < 1.
    """
    _check_cutoff(k)
    better, tied = _competition(scores, relevant)
    return float(np.mean(np.clip((k - better) / (tied + 1), 0.0, 1.0)))


def mean_reciprocal_rank(scores: npt.ArrayLike, relevant: npt.ArrayLike, cutoff: int = 10) -> float:
    """MRR@cutoff: mean of 1/rank of the relevant record, 0 beyond the cutoff.

    Shapes and errors as in :func:`recall_at`.
    """
    _check_cutoff(cutoff)
    better, tied = _competition(scores, relevant)
    # harmonic[r] = 1 + 1/2 + ... + 1/r; the rank is uniform on better + 1 .. better + tied + 1.
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, cutoff + 1))])
    first, last = np.minimum(better, cutoff), np.minimum(better + tied + 1, cutoff)
    return float(np.mean((harmonic[last] - harmonic[first]) / (tied + 1)))


def chance_recall_at(n: int, k: int) -> float:
    """Recall@k of a random ranking of n records."""
    _check_cutoff(k)
    return min(k / n, 1.0)


def chance_mean_reciprocal_rank(n: int, cutoff: int = 10) -> float:
    """MRR@cutoff of a random ranking of n records."""
    _check_cutoff(cutoff)
    return sum(1 / rank for rank in range(1, min(cutoff, n) + 1)) / n


def checked_scores(values: npt.ArrayLike, name: str) -> FloatArray:
    """Scores as a flat float64 array; InputRejected when there are none or some are not finite."""
    scores = np.asarray(values, dtype=np.float64).ravel()
    faults = int(np.count_nonzero(~np.isfinite(scores)))
    if scores.size == 0 or faults:
        found = f"{faults} of {scores.size} not finite" if faults else "none"
        raise InputRejected(f"{name} scores: {found}; expected one or more finite numbers")
    return scores


def _competition(
    scores: npt.ArrayLike, relevant: npt.ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many records beat each query's relevant one, and how many others tie with it."""
    table = np.atleast_2d(np.asarray(scores))
    wanted: NDArray[Any] = np.atleast_1d(np.asarray(relevant))
    if table.ndim != 2 or wanted.shape != (table.shape[0],) or table.size == 0:
        raise InputRejected(
            f"scores have shape {table.shape} and relevant records {wanted.shape}; "
            "expected (m, n) and (m,), m and n at least 1"
        )
    if wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= table.shape[1]:
        raise InputRejected(f"relevant records must be indices from 0 to {table.shape[1] - 1}")
    if not np.isfinite(table).all():
        raise InputRejected("scores hold values that are not finite")
    own = np.take_along_axis(table, wanted[:, None].astype(np.intp), axis=1)
    better = np.count_nonzero(table > own, axis=1)
    tied = np.count_nonzero(table == own, axis=1) - 1
    return better.astype(np.int64), tied.astype(np.int64)


def _check_cutoff(k: int) -> None:
    if k < 1:
        raise ParameterError(f"a ranking is cut at 1 or more records, found {k}")
