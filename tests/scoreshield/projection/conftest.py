"""Noisy Gram matrices for the tests of projections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

FloatArray = npt.NDArray[np.float64]
NoisyGram = Callable[..., FloatArray]

HIGHAM = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
NAG = 2.0 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)


def make_clean_gram(n: int, *, d: int = 16, seed: int = 0) -> FloatArray:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    gram: FloatArray = rows @ rows.T
    return gram


def make_noisy_gram(n: int, sigma: float, *, d: int = 16, seed: int = 0) -> FloatArray:
    noise = np.triu(np.random.default_rng(seed + 1).normal(size=(n, n)), 1) * sigma
    return make_clean_gram(n, d=d, seed=seed) + noise + noise.T


@pytest.fixture(scope="session")
def clean_gram() -> NoisyGram:
    """The Gram matrix of n random unit vectors in d dimensions."""
    return make_clean_gram


@pytest.fixture(scope="session")
def noisy_gram() -> NoisyGram:
    """The same plus mirrored Gaussian noise of standard deviation sigma off the diagonal."""
    return make_noisy_gram


@pytest.fixture(scope="session")
def known_inputs() -> dict[str, FloatArray]:
    """Inputs with published answers, and one of each family with a closed-form answer."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(9, 3))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    basis = np.linalg.qr(rows)[0]
    planted = rows @ rows.T - 2.0 * (np.eye(9) - basis @ basis.T)
    return {
        "higham": HIGHAM,
        "nag": NAG,
        "equicorrelation above": np.full((6, 6), 1.7),
        "equicorrelation below": np.full((6, 6), -0.9),
        "planted": planted - np.diag(rng.normal(size=9)),
        "one by one": np.array([[0.3]]),
    }


def make_clustered_rows(n: int, d: int, clusters: int, spread: float, seed: int = 3) -> FloatArray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, d)) / np.sqrt(d)
    rows = centres[rng.integers(0, clusters, n)] + spread * rng.normal(size=(n, d)) / np.sqrt(d)
    unit: FloatArray = rows / np.linalg.norm(rows, axis=1)[:, None]
    return unit


@pytest.fixture(scope="session")
def galleries() -> dict[str, FloatArray]:
    """Unit rows of galleries of several kinds; XQuAD's where its folder lies beside the project."""
    found = {
        "few tight clusters": make_clustered_rows(400, 64, 12, 0.6),
        "many loose clusters": make_clustered_rows(400, 300, 40, 1.0),
        "no structure": make_clustered_rows(400, 200, 400, 1.0),
    }
    folder = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "xquad-en"
    if folder.is_dir():
        passages = np.load(folder / "passages_emb_f32.npy").astype(np.float64)
        questions = np.load(folder / "questions_emb_f32.npy").astype(np.float64)
        rows = np.vstack([passages[:160], questions[:240]])
        found["xquad"] = rows / np.linalg.norm(rows, axis=1)[:, None]
    return found
