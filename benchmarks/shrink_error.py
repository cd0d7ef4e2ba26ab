"""Error against the clean Gram matrix over the noise: ``shrink`` beside every other choice.

Two galleries: clustered unit rows, and the passages and questions of XQuAD where their folder is
given. Each gets mirrored Gaussian noise of every σ, from where single small eigenvalues still stand
out to where nothing does. Errors are ‖X − S‖_F / ‖S‖_F against the clean matrix S; the last columns
say what a curator who chooses a method asks: the error of ``shrink`` over the least of the
others and over that of the identity matrix, which uses no data at all.

    python benchmarks/shrink_error.py                      # clustered rows alone
    python benchmarks/shrink_error.py --xquad FOLDER

FOLDER holds passages_emb_f32.npy and questions_emb_f32.npy.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from blockwise import clustered
from command_line import parser
from projection import Matrix, relative_distance

from scoreshield.projection import project

METHODS = ("shrink", "nearest", "aap")
SIGMAS = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
TOLERANCES = {"nearest": 1e-5, "aap": 1e-3}


def main() -> None:
    """One JSON line for each gallery and σ."""
    made = parser(
        __doc__,
        n=(1000, "clustered rows"),
        d=(128, "their features"),
        sigma=(SIGMAS, "of the noise"),
    )
    made.add_argument("--xquad", type=Path, help="folder of the embeddings")
    arguments = made.parse_args()
    galleries = {"clustered": clustered(arguments.n, arguments.d)}
    if arguments.xquad is not None:
        galleries["XQuAD"] = embeddings(arguments.xquad)
    for name, rows in galleries.items():
        clean = rows.astype(np.float64) @ rows.T.astype(np.float64)
        for sigma in arguments.sigma:
            found = errors(clean, sigma)
            print(json.dumps({"gallery": name, "n": len(rows), "sigma": sigma, **found}))


def errors(clean: Matrix, sigma: float) -> dict[str, float | str]:
    """The error of every method on one noisy matrix, and how ``shrink`` compares."""
    noise = np.triu(np.random.default_rng(1).normal(scale=sigma, size=clean.shape), 1)
    noisy = clean + noise + noise.T
    results = {
        method: project(noisy, sigma=sigma, method=method, tolerance=TOLERANCES.get(method, 1e-4))
        for method in METHODS
    }
    found = {method: relative_distance(result.gram(), clean) for method, result in results.items()}
    found["identity"] = relative_distance(np.eye(len(clean)), clean)
    least = min(found[method] for method in METHODS[1:])
    return {
        **{name: round(error, 5) for name, error in found.items()},
        "rule": str(results["shrink"].parameters["rule"]),
        "shrink_over_least_other": round(found["shrink"] / least, 4),
        "shrink_over_identity": round(found["shrink"] / found["identity"], 4),
    }


def embeddings(folder: Path) -> Matrix:
    """Passages and questions as unit rows, (n, d)."""
    names = ("passages_emb_f32.npy", "questions_emb_f32.npy")
    rows = np.vstack([np.load(folder / name) for name in names]).astype(np.float64)
    unit: Matrix = rows / np.linalg.norm(rows, axis=1)[:, None]
    return unit


if __name__ == "__main__":
    main()
