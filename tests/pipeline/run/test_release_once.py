"""What a release does once: the ledger is opened, and the public queries are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.ledger import Ledger
from pipeline.run import scores
from tests.harness.curator import Curator, embeddings


def counted(calls: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def count(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return real(*arguments, **named)

    return count


def test_the_ledger_is_opened_and_queries_are_read_once(
    curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = embeddings(3, seed=2)
    np.save(curator.root / "queries.npy", asked / np.linalg.norm(asked, axis=1, keepdims=True))
    del curator.settings["projection"]
    calls: list[str] = []
    monkeypatch.setattr(Ledger, "open", counted(calls, "ledger", Ledger.open))
    monkeypatch.setattr(scores, "load_queries", counted(calls, "queries", scores.load_queries))
    for _ in range(2):
        assert curator.release(regime="scores", queries="queries.npy").path
        assert sorted(calls) == ["ledger", "queries"]
        calls.clear()
