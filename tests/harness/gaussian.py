"""The Gaussian mechanism from outside: its exact δ, fixed release keys, draws of the sampler."""

from __future__ import annotations

import hashlib

import mpmath
import numpy as np
from numpy.typing import NDArray

from scoreshield.noise.sampler import TILE, tile_key, tile_noise


def exact_delta(mu: float | mpmath.mpf, epsilon: float) -> mpmath.mpf:
    """δ(ε) of Balle & Wang's theorem 8, with every digit that cancellation could take."""
    with mpmath.workdps(300):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def counted_key(index: int) -> bytes:
    """The release key of the i-th release, the same in every run."""
    return hashlib.sha256(index.to_bytes(8, "big")).digest()


def standard_normal(tiles: int, release: str) -> NDArray[np.float64]:
    """Draws of the real sampler over σ, (tiles, 1024, 1024)."""
    ratio, whole = 2.0**20, slice(0, TILE)
    keys = [tile_key(bytes(32), release, "scores", 0, tile) for tile in range(tiles)]
    return np.array([tile_noise(key, ratio, whole, whole) / ratio for key in keys])
