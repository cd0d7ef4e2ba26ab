"""Public queries: read from any source, refused with their place, kept as they were checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from pipeline.config.model import Config
from pipeline.errors import IntegrityFailure
from pipeline.ingest import ingest
from pipeline.ingest.queries import keep_queries, kept_queries, load_queries, queries_digest
from pipeline.run.scores import read_queries
from pipeline.storage.layout import QUERIES
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected

D = 6


def unit(m: int, seed: int = 1) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).normal(size=(m, D))
    return rows / np.linalg.norm(rows, axis=1)[:, None]


def npy(folder: Path, rows: NDArray[Any]) -> tuple[Path, str | None]:
    np.save(folder / "q.npy", rows)
    return folder / "q.npy", None


def npz(folder: Path, rows: NDArray[Any]) -> tuple[Path, str | None]:
    np.savez(folder / "q.npz", other=rows[:1] * 0.5, asked=rows)
    return folder / "q.npz", "asked"


def zarr_v3(folder: Path, rows: NDArray[Any]) -> tuple[Path, str | None]:
    zarr.create_array(folder / "q.zarr", data=rows, chunks=(2, 4))
    return folder / "q.zarr", None


@pytest.mark.parametrize("write", [npy, npz, zarr_v3])
@pytest.mark.parametrize("m", [1, 7])
def test_any_source_gives_the_same_queries(write: Any, m: int, tmp_path: Path) -> None:
    rows = unit(m)
    queries = load_queries(*write(tmp_path, rows), D)
    np.testing.assert_array_equal(queries.rows, to_fixed(rows))
    assert queries.sha256 == hashlib.sha256(to_fixed(rows).astype("<f4").tobytes()).hexdigest()


def test_long_sources_are_read_whole(tmp_path: Path) -> None:
    rows = unit(5000)
    assert load_queries(*npy(tmp_path, rows), D).sha256 == queries_digest(to_fixed(rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.empty((0, D)), "Q holds no query; expected at least one row"),
        (unit(3)[:, :5] / np.linalg.norm(unit(3)[:, :5], axis=1)[:, None], "queries have 5 feat"),
        (unit(3) * [[1], [1.5], [1]], "1 of 3 queries are not of unit length; the first: 1 (norm"),
        (unit(3) * [[1], [1], [0]], "1 of 3 rows are zero"),
        (np.where([[1], [1], [0]], unit(3), np.nan), "1 of 3 rows hold NaN"),
        (unit(3)[[0, 1, 0, 1]], "2 of 4 queries repeat an earlier one: 2 (same as 0), 3 (same as"),
        (unit(3)[0], "found a 1-D array"),
        (unit(3).astype(complex), "complex numbers"),
    ],
)
def test_bad_queries_are_refused_in_one_line_that_names_the_file(
    rows: NDArray[Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputRejected) as refused:
        load_queries(*npy(tmp_path, rows), D)
    message = str(refused.value)
    assert said in message
    assert str(tmp_path / "q.npy") in message
    assert "\n" not in message


def test_a_repeated_query_is_told_that_it_costs_twice(tmp_path: Path) -> None:
    with pytest.raises(InputRejected, match="A query asked twice costs twice"):
        load_queries(*npy(tmp_path, unit(2)[[0, 0]]), D)


@pytest.mark.parametrize("inside", ["", "embeddings"])
def test_a_gallery_is_no_source_of_queries(inside: str, tmp_path: Path) -> None:
    path, _ = npy(tmp_path, unit(5))
    ingest(path, tmp_path / "gallery.zarr")
    config = Config.model_validate(
        {
            "gallery": path,
            "regime": "scores",
            "queries": tmp_path / "gallery.zarr" / inside,
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"},
            "ledger": {"url": "sqlite:///ledger.db", "epsilon": 2.0, "delta": 1e-5},
        }
    )
    with pytest.raises(InputRejected, match="galleries are private"):
        read_queries(config, lambda: D)


def test_the_runs_copy_is_what_was_checked(tmp_path: Path) -> None:
    queries = load_queries(*npy(tmp_path, unit(4)), D)
    path = keep_queries(tmp_path, queries)
    np.testing.assert_array_equal(kept_queries(path, queries.sha256), queries.rows)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "pickled"])
def test_a_damaged_copy_is_noticed(damage: str, tmp_path: Path) -> None:
    queries = load_queries(*npy(tmp_path, unit(4)), D)
    path = keep_queries(tmp_path, queries)
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "other":
        np.save(path, to_fixed(unit(4, seed=2)))
    else:
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(IntegrityFailure, match=QUERIES):
        kept_queries(path, queries.sha256)


def test_queries_that_no_memory_holds_are_refused_unread(tmp_path):
    zarr.create_array(tmp_path / "q.zarr", shape=(10**9, 100), chunks=(10, 100), dtype="f4")
    with pytest.raises(InputRejected, match="held in memory"):
        load_queries(tmp_path / "q.zarr", None)
