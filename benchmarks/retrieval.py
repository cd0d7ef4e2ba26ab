"""Retrieval from private scores: Recall@1, Recall@5 and MRR@10 over ε, naive against clipped.

Each question is one query with its own budget: its scores against all passages are released by the
mechanism as they are (naive) and clipped to [-1, 1]. Metrics break ties at random, so that passages
clipped to the same end of the range count for what a reader can tell of them. The last line is a
random ranking: what a release scores there carries no information.

    python benchmarks/retrieval.py FOLDER

FOLDER holds questions_emb_f32.npy (m, d), passages_emb_f32.npy (n, d) and gold_passage.npy (m,),
the index of each question's passage.
"""

from __future__ import annotations

import argparse
import json
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from command_line import JSON, parser
from numpy.typing import NDArray

from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.scores import scores_mechanism
from scoreshield.noise.sampler import KEY_BYTES
from scoreshield.prepared import PreparedGallery
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency
from scoreshield.utility.metrics import (
    chance_mean_reciprocal_rank,
    chance_recall_at,
    mean_reciprocal_rank,
    recall_at,
)

COLUMNS = ("recall_at_1", "recall_at_5", "mrr_at_10")


def main() -> None:
    made = parser(
        __doc__,
        epsilon=([1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0], "of a query"),
        delta=(1e-6, "of a query"),
        releases=(5, "averaged over"),
        json=JSON,
    )
    made.add_argument("folder", type=Path, help="where the embeddings are")
    arguments = made.parse_args()
    folder: Path = arguments.folder
    questions = np.load(folder / "questions_emb_f32.npy")
    passages = np.load(folder / "passages_emb_f32.npy")
    gold = np.load(folder / "gold_passage.npy")
    table: list[dict[str, Any]] = [
        {"scores": "clean", "epsilon": None, "sigma": None, **metrics(questions @ passages.T, gold)}
    ]
    gallery, queries = PreparedGallery(passages), to_fixed(questions)
    for epsilon in arguments.epsilon:
        table += private_rows(gallery, queries, gold, epsilon, arguments)
    table.append({"scores": "random ranking", "epsilon": None, "sigma": None, **chance(gallery.n)})
    report(arguments, table)


def private_rows(
    gallery: PreparedGallery,
    queries: NDArray[np.float32],
    gold: NDArray[np.int32],
    epsilon: float,
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """One line a form of release, averaged over releases; both forms see the same noise.

    The mechanism is that of one query and its noise differs from position to position, so the rows
    of one block are as many separate releases.
    """
    mechanism = scores_mechanism(
        gallery.n, queries[:1], epsilon, arguments.delta, Adjacency("record"), FULL_RANGE
    )
    found: dict[str, list[dict[str, float]]] = {"naive": [], "clipped": []}
    for release in range(arguments.releases):
        key = secrets.token_bytes(KEY_BYTES)
        noisy = gallery.noisy_scores(mechanism, queries, key, f"benchmark {release}")
        found["naive"].append(metrics(noisy, gold))
        found["clipped"].append(metrics(np.clip(noisy, -1.0, 1.0), gold))
    return [
        {
            "scores": form,
            "epsilon": epsilon,
            "sigma": mechanism.sigma,
            **{name: float(np.mean([line[name] for line in lines])) for name in COLUMNS},
        }
        for form, lines in found.items()
    ]


def metrics(scores: NDArray[Any], gold: NDArray[Any]) -> dict[str, float]:
    values = (
        recall_at(scores, gold, 1),
        recall_at(scores, gold, 5),
        mean_reciprocal_rank(scores, gold),
    )
    return dict(zip(COLUMNS, values, strict=True))


def chance(n: int) -> dict[str, float]:
    values = chance_recall_at(n, 1), chance_recall_at(n, 5), chance_mean_reciprocal_rank(n)
    return dict(zip(COLUMNS, values, strict=True))


def report(arguments: argparse.Namespace, table: list[dict[str, Any]]) -> None:
    if arguments.json:
        print(json.dumps({"delta": arguments.delta, "releases": arguments.releases, "rows": table}))
        return
    print("| scores | ε a query | σ | Recall@1 | Recall@5 | MRR@10 |")
    print("|---|---|---|---|---|---|")
    for line in table:
        epsilon = "" if line["epsilon"] is None else f"{line['epsilon']:g}"
        sigma = "" if line["sigma"] is None else f"{line['sigma']:.4f}"
        shown = " | ".join(f"{line[name]:.4f}" for name in COLUMNS)
        print(f"| {line['scores']} | {epsilon} | {sigma} | {shown} |")


if __name__ == "__main__":
    main()
