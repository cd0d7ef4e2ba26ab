"""A whole release whose projection runs blockwise, from configuration to verified arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError
from pipeline.progress import Tee
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.release import release

CONFIG = """
gallery: gallery.npy
privacy: {epsilon: 500.0, delta: 1.0e-6, adjacency: record}
projection: {method: shrink, tolerance: 1.0e-2, form: blockwise, rank: %s}
ledger: {url: "sqlite:///ledger.db", epsilon: 500.0, delta: 1.0e-6, create: true}
cluster: {workers: 2, memory_limit: 1GiB}
"""


class Told(Tee):
    """A reporter that keeps what it is told of the iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []

    def advance(self, done: int, **figures: Any) -> None:
        if "products" in figures:
            self.steps.append(figures)


def configured(folder: Path, rank: str = "auto") -> Path:
    rows = np.random.default_rng(4).normal(size=(300, 6))
    np.save(folder / "gallery.npy", rows.astype(np.float32))
    file = folder / "release.yaml"
    file.write_text(CONFIG % rank)
    return file


def test_a_release_by_products_is_complete_and_verified(tmp_path: Path) -> None:
    config, told = load_config(configured(tmp_path)), Told()
    outcome = release(config, told)
    assert outcome.newly
    post_processing = outcome.manifest.post_processing
    assert post_processing.method == "shrink"
    assert post_processing.parameters["form"] == "blockwise"
    assert post_processing.feasible
    assert post_processing.products > 0
    products = [figures["products"] for figures in told.steps]
    # Once after each product, so that the first iteration is not silent, and after each iteration.
    assert products == sorted(products)
    assert set(range(1, post_processing.history[-1].products + 1)) <= set(products)
    finished = {(figures["products"], figures["residual"]) for figures in told.steps}
    assert {(step.products, step.residual) for step in post_processing.history} <= finished
    assert {"method", "residual", "bytes_read", "seconds_left"} <= told.steps[0].keys()
    assert told.steps[3]["seconds_left"] > 0
    assert verify_release(outcome.path).ok
    assert open_release(outcome.path).n == 300
    (run,) = (config.private / "runs").iterdir()
    assert not (run / "solver").exists()


def test_a_rank_that_would_be_ignored_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="finds its own rank"):
        load_config(configured(tmp_path, rank="5"))
