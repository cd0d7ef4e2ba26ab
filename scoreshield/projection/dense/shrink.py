"""Optimal eigenvalue shrinkage for noise of known σ.

Off its diagonal G = S + W with W symmetric and its entries N(0, σ²): a spiked Wigner matrix. An
eigenvalue s > σ√n of S appears in G at λ = s + σ²n/s, above the noise edge 2σ√n, with an
eigenvector that leans away from the true one. Replacing λ by √(λ² − 4σ²n) = s − σ²n/s, and by 0
below the edge, minimises the asymptotic Frobenius error over all functions of the eigenvalues
(M. Gavish and D. L. Donoho, "Optimal shrinkage of singular values", IEEE Trans. Inf. Theory 63
(2017) 2137–2152; the symmetric case has the spike map of square matrices). The rows are then scaled
to norm at most 1 and the diagonal is completed: with no eigenvalue above the edge the result is the
identity.

Three things keep the asymptotics honest at finite n.

* The diagonal of G is 1, not noise: the eigenvalues that S has beside its spikes do not vanish,
  they average m = (n − Σ s) / (n − k), what k spikes leave of the trace. To first order S is m·I
  and spikes s − m, so that the model is applied to λ − m; the part m·I lies on the diagonal, which
  is completed anyway. m and the spikes follow from one another by a few fixed-point steps.
* The largest eigenvalue of pure noise fluctuates by σ n^(-1/6), i.e. n^(-2/3)/2 of the edge, times
  a Tracy–Widom variable. An eigenvalue counts as a spike above the edge times 1 + 1.5 n^(-2/3), a
  Tracy–Widom value of 3, which pure noise exceeds about once in six hundred times. That threshold
  also takes the edge's place in the square root: a spike then enters from 0, so that one which
  noise has lifted over the threshold does no harm. With the bare edge it enters at a tenth of the
  edge and more, and put the error 5 % above that of the identity; where spikes are clear, the
  threshold costs 0.3 % (measured).
* Spikes are few. With more than n/32 of them the weak ones below the edge hold signal too; then
  Stein's unbiased risk estimates of this estimate and of the exact projection (``risk``) are
  compared, and the result is the exact projection where its risk is the smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scoreshield.errors import ParameterError
from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.certificate import feasibility_certificate
from scoreshield.projection.conjugate_gradient import root_mean_square
from scoreshield.projection.dense.eigen import (
    full_spectrum,
    refuse_oversized,
    top_eigenpairs,
)
from scoreshield.projection.dense.nearest import nearest_correlation
from scoreshield.projection.operator import (
    DenseOperator,
    FloatArray,
    SymmetricOperator,
    materialise,
)
from scoreshield.projection.result import (
    Plain,
    Projection,
    from_factor,
    rows_within_unit_ball,
    squared_row_norms,
)
from scoreshield.projection.risk import identity_risk, nearest_risk, shrinkage_risk

MANY_SPIKES = 1.0 / 32.0
"""Share of n from which on the spikes are not few, and the risks are compared."""

CENTRE_STEPS = 50

TRACY_WIDOM = 3.0
"""Value of the Tracy–Widom variable (β = 1) up to which an eigenvalue counts as noise."""

SPIKED_RULE = "spiked model"
EXACT_RULE = "exact projection, by its smaller risk estimate"
FALLBACK_TOLERANCE = 1e-5


def eigenvalue_shrinkage(
    operator: SymmetricOperator, *, sigma: float, rank: int | None = None
) -> Projection:
    """Feasible estimate of the clean Gram matrix by optimal eigenvalue shrinkage.

    Parameters
    ----------
    operator : G; its diagonal is taken as 1
    sigma : standard deviation σ ≥ 0 of the off-diagonal noise
    rank : look at this many of the largest eigenpairs only; None looks at all of them

    Returns
    -------
    Projection
        Its rank is the number of eigenvalues above the threshold, unless the exact projection took
        over; the parameters name the rule and the risks that were compared.

    Raises
    ------
    ParameterError
        For a σ or rank outside its domain, or n beyond the dense eigensolver.
    """
    require_sigma(sigma)
    if rank is not None and rank < 1:
        raise ParameterError(f"rank is {rank!r}, expected at least 1, or None for all eigenpairs")
    refuse_oversized(operator.n)
    noisy, products = materialise(operator)
    spectrum = full_spectrum(noisy) if rank is None else top_eigenpairs(noisy, rank)
    descending = spectrum.values[::-1]
    model = spike_model(descending, operator.n, sigma)
    leading = spectrum.vectors[:, ::-1][:, : model.count]
    factor = np.ascontiguousarray(leading * np.sqrt(model.images(descending)))
    parameters: dict[str, Plain] = {
        **model.parameters(),
        "spectrum": "full" if rank is None else "truncated",
        "rank_limit": rank,
        "rule": SPIKED_RULE,
    }
    if rank is None and model.many:
        nothing = SpectralDensity(np.empty(0), np.empty(0))
        risks = compared_risks(model, descending, nothing, squared_row_norms(factor))
        parameters |= risks.parameters()
        if risks.prefer_exact:
            del spectrum, leading, factor
            parameters["rule"] = EXACT_RULE
            whole = operator if isinstance(operator, DenseOperator) else DenseOperator(noisy)
            return exact_instead(whole, products, parameters)
    residual = root_mean_square(squared_row_norms(factor) - 1.0)
    factor = rows_within_unit_ball(factor)
    return from_factor(
        factor,
        method="shrink",
        parameters=parameters,
        certificate=feasibility_certificate(factor, residual),
        products=products,
    )


def require_sigma(sigma: float) -> None:
    """Raise ParameterError unless 0 ≤ σ < ∞."""
    if not (math.isfinite(sigma) and sigma >= 0.0):
        raise ParameterError(f"sigma is {sigma!r}, expected a finite number, at least 0")


def noise_edge(n: int, sigma: float) -> float:
    """2σ√n, above which pure noise has no eigenvalue as n → ∞."""
    return 2.0 * sigma * math.sqrt(n)


def signal_threshold(n: int, sigma: float, centre: float = 0.0) -> float:
    """m + 2σ√n · (1 + t n^(-2/3) / 2), above which an eigenvalue counts as a spike."""
    margin = 0.5 * TRACY_WIDOM * math.pow(n, -2.0 / 3.0)
    return centre + noise_edge(n, sigma) * (1.0 + margin)


@dataclass(frozen=True)
class SpikeModel:
    """Which eigenvalues are spikes, and where the others lie.

    Attributes
    ----------
    n, sigma : size of G and noise level σ
    count : number k of spikes
    centre : m, mean of the eigenvalues of S beside its spikes
    """

    n: int
    sigma: float
    count: int
    centre: float

    @property
    def edge(self) -> float:
        """2σ√n, relative to the centre."""
        return noise_edge(self.n, self.sigma)

    @property
    def threshold(self) -> float:
        """Above which an eigenvalue counts as a spike."""
        return signal_threshold(self.n, self.sigma, self.centre)

    @property
    def many(self) -> bool:
        """Whether the spikes are too many for the model to be trusted unseen."""
        return self.count > MANY_SPIKES * self.n

    def images(self, descending: FloatArray) -> FloatArray:
        """√((λ − m)² − (t − m)²) of the spikes above the threshold t, (k,)."""
        return shrunk(descending[: self.count] - self.centre, self.threshold - self.centre)

    def parameters(self) -> dict[str, Plain]:
        """What a manifest says of the model."""
        return {
            "sigma": self.sigma,
            "noise_edge": self.edge,
            "noise_centre": self.centre,
            "signal_threshold": self.threshold,
        }


def spike_model(descending: FloatArray, n: int, sigma: float, rounding: float = 0.0) -> SpikeModel:
    """The spikes among eigenvalues of G, and the mean m of what S has beside them.

    Parameters
    ----------
    descending : the largest eigenvalues, at least one of them no spike, or all n
    n, sigma : size of G and noise level σ
    rounding : level below which an eigenvalue counts as zero; that of float64 at least
    """
    unit = math.sqrt(n) * float(np.finfo(np.float64).eps)
    rounding = max(rounding, unit * float(np.abs(descending).max()))
    centre, count = 1.0, 0
    for _ in range(CENTRE_STEPS):
        threshold = max(signal_threshold(n, sigma, centre), rounding)
        count = int(np.count_nonzero(descending > threshold))
        above = descending[:count] - centre
        clean = 0.5 * (above + shrunk(above, noise_edge(n, sigma))) + centre
        previous, centre = centre, (n - float(clean.sum())) / max(n - count, 1)
        centre = min(max(centre, 0.0), 1.0)
        if abs(centre - previous) <= 1e-12:
            break
    threshold = max(signal_threshold(n, sigma, centre), rounding)
    return SpikeModel(n, sigma, int(np.count_nonzero(descending > threshold)), centre)


@dataclass(frozen=True)
class Risks:
    """Risk estimates relative to ‖S‖²; 0 is the risk of the zero matrix.

    Attributes
    ----------
    spiked, exact, identity : of the shrinkage, of the exact projection, of the identity matrix
    """

    spiked: float
    exact: float
    identity: float

    @property
    def prefer_exact(self) -> bool:
        """Whether the exact projection has the smaller risk, by more than rounding."""
        return self.exact < self.spiked - 1e-9 * abs(self.spiked)

    def parameters(self) -> dict[str, Plain]:
        """What a manifest says of the comparison."""
        return {
            "risk_spiked_model": self.spiked,
            "risk_exact_projection": self.exact,
            "risk_identity": self.identity,
        }


def compared_risks(
    model: SpikeModel, descending: FloatArray, rest: SpectralDensity, factor_diagonal: FloatArray
) -> Risks:
    """Stein's unbiased risk estimates of what could be released.

    Parameters
    ----------
    model : the spikes
    descending : the largest eigenvalues of G, at least those that the exact projection keeps
    rest : spectral density of the others, empty where all are given
    factor_diagonal : ‖Fᵢ‖² of the shrunk factor, (n,)
    """
    n, spikes = model.n, model.count
    below = rest.preceded_by(descending[spikes:])
    return Risks(
        spiked=shrinkage_risk(
            descending[:spikes],
            model.images(descending),
            model.centre,
            below,
            model.sigma,
            factor_diagonal,
        ),
        exact=nearest_risk(descending, rest, model.sigma, n),
        identity=identity_risk(n),
    )


def exact_instead(
    operator: DenseOperator, products: int, parameters: dict[str, Plain]
) -> Projection:
    """The exact projection under the name of this method."""
    exact = nearest_correlation(operator, tolerance=FALLBACK_TOLERANCE)
    return replace(
        exact,
        method="shrink",
        products=products,
        parameters={**exact.parameters, **parameters},
    )


def shrunk(values: FloatArray, edge: float) -> FloatArray:
    """√(λ² − edge²) for eigenvalues λ > edge, (k,) → (k,)."""
    # As a product of two factors, which keeps digits where λ is close to the edge.
    result: FloatArray = np.sqrt((values - edge) * (values + edge))
    return result
