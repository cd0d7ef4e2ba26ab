"""Ingest holds a few panels, never the array: peak memory of a fresh process on 123 MB sources."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

ROWS, FEATURES = 60_000, 256
SOURCE_MB = ROWS * FEATURES * 8 / 1e6
ALLOWED_GROWTH_MB = 100

MEASURE = """
import importlib
import sys
import numpy as np
from pipeline.ingest import ingest

# Libraries are loaded before measuring.
for module in sys.argv[3:]:
    importlib.import_module(module)

def peak_megabytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6

source, folder = sys.argv[1:3]
np.save(folder + "/small.npy", np.ones((4, 3)))
ingest(folder + "/small.npy", folder + "/small.zarr")
before = peak_megabytes()
ingest(source, folder + "/gallery.zarr")
print(peak_megabytes() - before)
"""


def write_npy(path: Path, *, fortran: bool) -> Path:
    """Write the file in slices, so that this process stays small as well."""
    file = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float64, shape=(ROWS, FEATURES), fortran_order=fortran
    )
    rows = np.arange(1.0, FEATURES + 1)
    for start in range(0, ROWS, 10_000):
        file[start : start + 10_000] = rows + np.arange(start, start + 10_000)[:, None] % 97
    file.flush()
    return path


def c_order(folder: Path) -> Path:
    return write_npy(folder / "c.npy", fortran=False)


def fortran_order(folder: Path) -> Path:
    return write_npy(folder / "f.npy", fortran=True)


def fortran_order_in_npz(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "f.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(write_npy(folder / "f.npy", fortran=True), "f.npy")
    return folder / "f.npz"


def write_columns(array: Any) -> None:
    for first in range(0, FEATURES, 4):
        array[:, first : first + 4] = np.arange(first + 1.0, first + 5) + np.zeros((ROWS, 1))


def zarr_chunked_along_features(folder: Path) -> Path:
    path = folder / "columns.zarr"
    write_columns(zarr.create_array(path, shape=(ROWS, FEATURES), chunks=(ROWS, 4), dtype="f8"))
    return path


def parquet_of_one_row_group(folder: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = np.load(write_npy(folder / "a.npy", fortran=False), mmap_mode="r")
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), FEATURES)
    table = pa.table({"e": column})
    pq.write_table(
        table, folder / "a.parquet", row_group_size=ROWS, compression="none", use_dictionary=False
    )
    return folder / "a.parquet"


def hdf5_in_tall_chunks(folder: Path) -> Path:
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        write_columns(file.create_dataset("e", (ROWS, FEATURES), "f8", chunks=(ROWS, 4)))
    return folder / "a.h5"


def safetensors(folder: Path) -> Path:
    library = pytest.importorskip("safetensors.numpy")
    values = np.load(write_npy(folder / "a.npy", fortran=False), mmap_mode="r")
    library.save_file({"e": values}, folder / "a.safetensors")
    return folder / "a.safetensors"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
@pytest.mark.parametrize(
    ("make", "libraries"),
    [
        (c_order, []),
        (fortran_order, []),
        (fortran_order_in_npz, []),
        (zarr_chunked_along_features, []),
        # pyarrow loads pandas, where it is there, for its first NumPy array
        (parquet_of_one_row_group, ["pyarrow.parquet", "pandas"]),
        pytest.param(hdf5_in_tall_chunks, ["h5py"], marks=pytest.mark.scale),
        pytest.param(safetensors, ["safetensors"], marks=pytest.mark.scale),
    ],
)
def test_peak_memory_is_a_few_panels(tmp_path, make, libraries):
    source = make(tmp_path)
    there = [name for name in libraries if importlib.util.find_spec(name.partition(".")[0])]
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(source), str(tmp_path), *there],
        capture_output=True,
        text=True,
        check=True,
    )
    growth = float(measured.stdout)
    assert SOURCE_MB > 120
    assert growth < ALLOWED_GROWTH_MB, f"peak memory grew by {growth:.0f} MB"
