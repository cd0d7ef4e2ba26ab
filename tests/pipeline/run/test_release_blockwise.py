"""A whole release whose projection runs blockwise, from configuration to verified arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigurationError
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from tests.harness.curator import Curator
from tests.harness.reporters import Told

SETTINGS: dict[str, Any] = {
    "privacy": {"epsilon": 500.0, "delta": 1e-6, "adjacency": "record"},
    "projection": {"method": "shrink", "tolerance": 1e-2, "form": "blockwise"},
    "block_side": None,
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 500.0, "delta": 1e-6, "create": True},
}


def write_source(curator: Curator) -> None:
    rows = np.random.default_rng(4).normal(size=(300, 6))
    np.save(curator.root / "source.npy", rows.astype(np.float32))


def test_a_release_by_products_is_complete_and_verified(curator: Curator) -> None:
    write_source(curator)
    told = Told()
    outcome = curator.release(told, **SETTINGS)
    assert outcome.newly
    post_processing = outcome.manifest.post_processing
    assert post_processing.method == "shrink"
    assert post_processing.parameters["form"] == "blockwise"
    assert post_processing.feasible
    assert post_processing.products > 0
    steps = [line for line in told.lines if "products" in line]
    products = [figures["products"] for figures in steps]
    # Once after each product, so that the first iteration is not silent, and after each iteration.
    assert products == sorted(products)
    assert set(range(1, post_processing.history[-1].products + 1)) <= set(products)
    finished = {(figures["products"], figures["residual"]) for figures in steps}
    assert {(step.products, step.residual) for step in post_processing.history} <= finished
    assert {"method", "residual", "bytes_read", "seconds_left"} <= steps[0].keys()
    assert steps[3]["seconds_left"] > 0
    assert verify_release(outcome.path).ok
    assert open_release(outcome.path).n == 300
    (run,) = (curator.root / "private" / "runs").iterdir()
    assert not (run / "solver").exists()


def test_a_rank_that_would_be_ignored_is_refused_before_anything_is_spent(curator: Curator) -> None:
    ranked = {**SETTINGS, "projection": {**SETTINGS["projection"], "rank": 5}}
    with pytest.raises(ConfigurationError, match="finds its own rank"):
        curator.load(**ranked)
