"""What the tests of every source format need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import exit_code
from pipeline.gallery.dense import read_rows
from pipeline.ingest import ingest
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Call with a source: the message of its refusal, which left nothing at the target."""

    def refusal(source: Path, key: str | None = None, **options: Any) -> str:
        folder = tmp_path / "refused"
        folder.mkdir(exist_ok=True)
        with pytest.raises(InputRejected) as caught:
            ingest(source, folder / "gallery.zarr", key=key, **options)
        assert list(folder.iterdir()) == []
        assert exit_code(caught.value) == 3
        assert str(source) in str(caught.value)
        return str(caught.value)

    return refusal


@pytest.fixture
def holds(tmp_path: Path) -> Callable[..., None]:
    """Call with a source and a matrix: asserts that the gallery holds exactly its unit rows."""

    def check(source: Path, values: np.ndarray, key: str | None = None) -> None:
        gallery = ingest(source, tmp_path / "gallery.zarr", key=key, overwrite=True)
        np.testing.assert_array_equal(read_rows(gallery.path, 0, gallery.n), to_fixed(values))

    return check
