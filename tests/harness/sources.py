"""Sources of embeddings, each written in a folder as a library or a person would."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

Save = Callable[[Path, NDArray[Any]], Path]


def save_npy(folder: Path, values: NDArray[Any]) -> Path:
    np.save(folder / "a.npy", values)
    return folder / "a.npy"


def save_npz(folder: Path, values: NDArray[Any]) -> Path:
    np.savez(folder / "a.npz", embeddings=values)
    return folder / "a.npz"


def save_npz_deflated(folder: Path, values: NDArray[Any]) -> Path:
    np.savez_compressed(folder / "a.npz", embeddings=values)
    return folder / "a.npz"


def save_zarr(folder: Path, values: NDArray[Any], **layout: Any) -> Path:
    zarr.create_array(folder / "a.zarr", data=values, **layout)
    return folder / "a.zarr"


def save_zarr_v2(folder: Path, values: NDArray[Any]) -> Path:
    return save_zarr(folder, values, zarr_format=2)


def save_hdf5(folder: Path, values: NDArray[Any]) -> Path:
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        file["e"] = values
    return folder / "a.h5"


def zipped(path: Path, folder: Path, prefix: str = "") -> Path:
    """The files below ``folder`` in an archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, prefix + str(file.relative_to(folder)))
    return path
