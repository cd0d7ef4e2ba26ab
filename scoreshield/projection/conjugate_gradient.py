"""The inner solver of both Newton methods: conjugate gradients with a diagonal preconditioner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def preconditioned_direction(
    product: Callable[[FloatArray], FloatArray],
    gradient: FloatArray,
    preconditioner: FloatArray,
    target: float,
    limit: int,
) -> FloatArray:
    """Approximate solution h (n,) of V h = −g for a positive semidefinite V.

    Hestenes & Stiefel 1952, preconditioned. Ends when the remainder's norm is at most ``target``,
    after ``limit`` products, or where V has no curvature left along the search direction.

    Parameters
    ----------
    product : h → V h
    gradient : g (n,)
    preconditioner : (n,), multiplies a remainder entry by entry
    """
    direction = np.zeros_like(gradient)
    remainder = -gradient
    search = scaled = preconditioner * remainder
    energy = float(remainder @ scaled)
    for _ in range(limit):
        if float(np.linalg.norm(remainder)) <= target:
            break
        image = product(search)
        curvature = float(search @ image)
        if curvature <= 0.0:
            break
        direction = direction + (energy / curvature) * search
        remainder = remainder - (energy / curvature) * image
        scaled = preconditioner * remainder
        previous, energy = energy, float(remainder @ scaled)
        search = scaled + (energy / previous) * search
    return direction


def newton_direction(
    product: Callable[[FloatArray], FloatArray],
    diagonal: FloatArray,
    gradient: FloatArray,
    inexactness: float,
    limit: int,
) -> FloatArray:
    """Solve (J + εI) d = −∇φ by conjugate gradients with a diagonal preconditioner, (n,).

    The accuracy follows the residual, η = min(inexactness, rms), which keeps the convergence
    quadratic; ε follows it too and keeps the system definite where J is singular.

    Parameters
    ----------
    product : h → J h
    diagonal : of J, or of the part of it that meets h entry by entry, (n,)
    gradient : ∇φ (n,)
    inexactness : largest residual, relative to the right side, at which to stop
    limit : most products
    """
    rms = root_mean_square(gradient)
    regularisation = 1e-3 * min(1.0, rms) * max(float(diagonal.mean()), 1e-12)
    return preconditioned_direction(
        lambda search: product(search) + regularisation * search,
        gradient,
        1.0 / (np.maximum(diagonal, 0.0) + regularisation),
        min(inexactness, rms) * float(np.linalg.norm(gradient)),
        limit,
    )


def root_mean_square(values: FloatArray) -> float:
    """√(Σ vᵢ²/n)."""
    return float(np.sqrt(np.mean(values**2)))
