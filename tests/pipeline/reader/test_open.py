"""Reading a release: the same values by every way, lazily, and never from a damaged store."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.reader import open as reading
from pipeline.reader.description import render_markdown
from pipeline.reader.open import open_release
from scoreshield.errors import ParameterError
from scoreshield.manifest.schema import from_json, to_json

BOTH, GRAM, FACTOR = ("factor", "gram"), ("gram",), ("factor",)
WAYS = [("nearest", BOTH), ("nearest", FACTOR), ("nearest", GRAM), ("none", GRAM)]


def truth(folder: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The matrix by plain NumPy on plain arrays."""
    group = zarr.open_group(str(folder / "release.zarr"), mode="r")
    if "gram" in group:
        return np.asarray(group["gram"][:])
    factor = group["factor"][:].astype(np.float64)
    gram = factor @ factor.T
    np.fill_diagonal(gram, 1.0)
    return np.asarray(gram.astype(np.float32))


@pytest.mark.parametrize(("method", "arrays"), WAYS)
def test_rows_blocks_and_dask_agree(
    releases: Callable[..., Any], method: str, arrays: tuple[str, ...]
) -> None:
    made = releases(method, arrays)
    release, gram = open_release(made.folder), truth(made.folder)
    close = {"rtol": 0, "atol": 2.0**-24}
    np.testing.assert_allclose(release.rows(0, 50), gram, **close)
    np.testing.assert_allclose(release.rows(15, 34), gram[15:34], **close)
    np.testing.assert_allclose(
        release.block(slice(7, 40), slice(30, None)), gram[7:40, 30:], **close
    )
    np.testing.assert_allclose(
        release.block(slice(-3, None), slice(-5, -1)), gram[-3:, -5:-1], **close
    )
    assert release.block(slice(9, 4), slice(0, 2)).shape == (0, 2)
    lazy = release.to_dask()
    assert lazy.chunks == ((16, 16, 16, 2), (16, 16, 16, 2))
    np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), gram, **close)
    assert (np.diagonal(release.rows(0, 50)) == 1.0).all()
    assert release.rows(0, 2).dtype == lazy.dtype == np.float32


@pytest.mark.parametrize(("method", "arrays"), WAYS)
@pytest.mark.parametrize("block", [7, 16, 1024])
def test_topk_is_a_stable_sort(
    releases: Callable[..., Any], method: str, arrays: tuple[str, ...], block: int
) -> None:
    release = open_release(releases(method, arrays).folder)
    gram = release.rows(0, 50)
    np.fill_diagonal(gram, -2.0)
    order = np.argsort(-gram, axis=1, kind="stable")[:, :6]
    indices, values = release.topk(6, block=block)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(gram, order, axis=1))
    assert indices.dtype == np.int64
    assert values.dtype == np.float32


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(10, 30), list(range(10, 30))),
        ([3, 4, 5, 49, 0], [3, 4, 5, 49, 0]),
        (np.array([7, 7, -1]), [7, 7, 49]),
        ([], []),
    ],
)
def test_topk_of_some_rows(releases: Callable[..., Any], rows: Any, expected: list[int]) -> None:
    release = open_release(releases().folder)
    indices, values = release.topk(49, rows=rows, block=8)
    whole, all_values = release.topk(49)
    np.testing.assert_array_equal(indices, whole[expected])
    np.testing.assert_array_equal(values, all_values[expected])


@given(
    st.lists(
        st.lists(
            st.sampled_from([-1.0, -0.5, -0.0, 0.0, 2.0**-149, 0.5, 1.0]), min_size=9, max_size=9
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 8),
)
def test_ranking_keys_order_ties_by_column(rows: list[list[float]], k: int) -> None:
    values = np.array(rows, dtype=np.float32)
    keys = reading._ranking_keys(values, slice(100, 109))
    best = np.sort(keys, axis=1)[:, ::-1][:, :k]
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(reading._column_of(best), order + 100)
    np.testing.assert_array_equal(
        reading._value_of(best), np.take_along_axis(values, order, axis=1)
    )


@pytest.mark.parametrize("k", [0, 50, -1])
def test_topk_has_other_records_only(releases: Callable[..., Any], k: int) -> None:
    with pytest.raises(ParameterError, match="k must be 1 to 49"):
        open_release(releases().folder).topk(k)


def test_wrong_requests_are_refused(releases: Callable[..., Any]) -> None:
    release = open_release(releases().folder)
    with pytest.raises(ParameterError, match="without a step"):
        release.block(slice(0, 10, 2), slice(None))
    with pytest.raises(ParameterError, match="row 50 asked for"):
        release.topk(1, rows=[50])
    with pytest.raises(ParameterError, match="block must be at least 1"):
        release.topk(1, block=0)


def test_arrays_are_lazy_and_named(releases: Callable[..., Any]) -> None:
    made = releases()
    release = open_release(str(made.folder))
    assert isinstance(release.factor, zarr.Array)
    assert release.diagonal.shape == (release.n,) == (50,)
    assert release.manifest == made.manifest
    assert repr(release) == (
        "<Release gram-test: n=50, arrays=diagonal, factor, gram, epsilon=1, delta=1e-06, "
        "adjacency=record>"
    )
    with pytest.raises(ConfigurationError, match=r"arrays \['gram'\], not 'factor'"):
        _ = open_release(releases("none", GRAM).folder).factor


def test_the_graph_holds_no_content(releases: Callable[..., Any]) -> None:
    """A name made from the content would be the same for a guessed content."""
    release = open_release(releases().folder)
    lazy = release.to_dask()
    assert lazy.name == "scoreshield-gram-gram-test"
    values = release.rows(0, 16)[:, :16].tobytes()
    assert values[:64] not in pickle.dumps(dict(lazy.dask))


def test_xarray_carries_the_manifest(releases: Callable[..., Any]) -> None:
    made = releases()
    gram = open_release(made.folder).to_xarray()
    assert gram.dims == ("record", "other_record")
    assert gram.chunks is not None
    assert from_json(gram.attrs["manifest"]) == made.manifest
    assert float(gram[3, 3]) == 1.0


def test_a_missing_xarray_says_what_to_install(
    releases: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ConfigurationError, match=r"scoreshield\[xarray\]"):
        open_release(releases().folder).to_xarray()


def test_the_key_can_be_demanded(releases: Callable[..., Any]) -> None:
    made = releases()
    open_release(made.folder, verify_key=made.manifest.signature.public_key)
    with pytest.raises(IntegrityFailure, match="not published by the holder"):
        open_release(made.folder, verify_key="0" * 64)


@pytest.mark.parametrize(
    "damage", ["no manifest", "unsigned", "edited", "attributes", "metadata", "no array", "empty"]
)
def test_what_is_no_release_is_refused(
    release_copy: Callable[..., Path], tmp_path: Path, damage: str
) -> None:
    release = release_copy()
    file = release / "manifest.json"
    store = release / "release.zarr"
    if damage == "no manifest":
        file.unlink()
    elif damage == "unsigned":
        unsigned = from_json(file.read_text()).model_copy(update={"signature": None})
        file.write_text(to_json(unsigned))
    elif damage == "edited":
        file.write_text(file.read_text().replace('"epsilon": 1.0', '"epsilon": 0.1'))
    elif damage == "attributes":
        content = json.loads((store / "zarr.json").read_text())
        content["attributes"]["scoreshield_manifest"]["release_id"] = "other"
        (store / "zarr.json").write_text(json.dumps(content))
    elif damage == "metadata":
        text = (store / "gram/zarr.json").read_text()
        (store / "gram/zarr.json").write_text(text.replace('"NaN"', "0.0"))
    elif damage == "no array":
        (store / "factor/zarr.json").unlink()
    else:
        release = tmp_path
    with pytest.raises(IntegrityFailure):
        open_release(release)


@pytest.mark.parametrize("arrays", [GRAM, FACTOR])
def test_a_missing_chunk_never_reads_as_values(
    release_copy: Callable[..., Path], arrays: tuple[str, ...]
) -> None:
    path = release_copy("nearest", arrays)
    name = "gram/c/1/0" if arrays == GRAM else "factor/c/1/0"
    (path / "release.zarr" / name).unlink()
    release = open_release(path)
    assert np.isfinite(release.block(slice(0, 16), slice(0, 16))).all()
    for read in (
        lambda: release.rows(16, 20),
        lambda: release.topk(2),
        lambda: release.to_dask().compute(scheduler="synchronous"),
    ):
        with pytest.raises(IntegrityFailure, match="missing"):
            read()


@pytest.mark.parametrize(("method", "arrays"), WAYS)
def test_show_says_what_a_consumer_needs(
    releases: Callable[..., Any], method: str, arrays: tuple[str, ...]
) -> None:
    manifest = releases(method, arrays).manifest
    text = render_markdown(manifest)
    for needed in (
        "# Release gram-test",
        manifest.privacy.statement,
        "sigma = 59.1464",
        "no recoverable signal. It would from epsilon = 10.86",
        manifest.arrays["gram" if "gram" in arrays else "factor"].sha256,
        "open_release",
        manifest.signature.public_key,
    ):
        assert needed in text
    assert ("not positive semidefinite" in text) == (method == "none")


def test_show_puts_not_private_first(releases: Callable[..., Any]) -> None:
    marked = releases().manifest.model_copy(
        update={"private": False, "not_private_reason": "fixed seed"}
    )
    assert render_markdown(marked).splitlines()[2] == "**NOT PRIVATE: fixed seed**"
