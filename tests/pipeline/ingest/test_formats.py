"""What ingest refuses before it reads a value: paths, keys, shapes, types and damaged files."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.ingest import open_source
from scoreshield.errors import InputRejected
from tests.harness.sources import save_hdf5, save_npy, save_npz, save_zarr, save_zarr_v2

STRUCTURED = np.zeros(3, dtype=[("x", "f4"), ("y", "f4")])
BY_NUMPY = (save_npy, save_npz)
EVERYWHERE = (*BY_NUMPY, save_zarr, save_zarr_v2, save_hdf5)
NO_MATRIX = [
    (np.ones(5), "1-D array of shape (5,)", EVERYWHERE),
    (np.ones((5, 4, 3)), "3-D array of shape (5, 4, 3)", EVERYWHERE),
    (np.float64(1), "0-D array of shape ()", (*BY_NUMPY, save_hdf5)),
    (np.ones((0, 3)), "0 rows", BY_NUMPY),
    (np.ones((1, 3)), "1 rows", BY_NUMPY),
    (np.ones((3, 0)), "0 features", BY_NUMPY),
    (np.ones((2, 32769), dtype=np.int8), "32769 features", BY_NUMPY),
    (np.ones((3, 2), dtype=bool), "booleans", EVERYWHERE),
    (np.ones((3, 2), dtype=complex), "complex128 (complex numbers)", EVERYWHERE),
    (np.ones((3, 2), dtype=np.longdouble), "wider than 64 bits", (*BY_NUMPY, save_hdf5)),
    (np.array([[1, "a"]] * 3, dtype=object), "Python objects", BY_NUMPY),
    (np.array([["a", "b"]] * 3), "text", BY_NUMPY),
    (np.array([[b"a", b"b"]] * 3), "text", (*BY_NUMPY, save_hdf5)),
    (STRUCTURED, "structured", BY_NUMPY),
    (np.ones((3, 2), dtype="M8[s]"), "dates", BY_NUMPY),
    (np.ones((3, 2), dtype="m8[s]"), "time differences", BY_NUMPY),
]


@pytest.mark.parametrize(
    ("array", "found", "save"),
    [(array, found, save) for array, found, forms in NO_MATRIX for save in forms],
)
def test_not_a_matrix_of_real_numbers(tmp_path, refused, array, found, save):
    assert found in refused(save(tmp_path, array))


def test_the_widest_matrix_is_accepted(tmp_path):
    source = open_source(save_npy(tmp_path, np.ones((2, 32768), dtype=np.int8)))
    assert source.shape == (2, 32768)
    assert source.dtype == np.int8


@pytest.mark.parametrize("key", [None, "nope"])
def test_several_arrays_are_listed_with_shape_and_dtype(tmp_path, key):
    np.savez(tmp_path / "a.npz", labels=np.arange(4), train=np.ones((4, 3), np.float32))
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("labels", data=np.arange(4))
    group.create_group("sets").create_array("train", data=np.ones((4, 3), np.float32))
    for source, name in (("a.npz", "train"), ("a.zarr", "sets/train")):
        with pytest.raises(InputRejected) as caught:
            open_source(tmp_path / source, key)
        assert f"{name} (shape (4, 3), float32)" in str(caught.value)
        assert "labels (shape (4,), int64)" in str(caught.value)


def test_the_list_of_arrays_is_cut_and_matrices_come_first(tmp_path, refused):
    arrays = {f"a{i:02}": np.arange(4) for i in range(30)}
    np.savez(tmp_path / "a.npz", **arrays, matrix=np.ones((4, 3)))
    message = refused(tmp_path / "a.npz")
    assert "It holds: matrix (shape (4, 3), float64)" in message
    assert "and 11 more" in message


def test_object_array_beside_the_chosen_one_is_listed_not_unpickled(tmp_path, refused):
    np.savez(tmp_path / "a.npz", names=np.array([{"a": 1}] * 4, dtype=object), x=np.ones((4, 3)))
    assert "names (shape (4,), object)" in refused(tmp_path / "a.npz")
    assert open_source(tmp_path / "a.npz", "x").shape == (4, 3)


@pytest.mark.parametrize("save", [save_npy, save_zarr])
def test_key_of_a_source_without_keys(tmp_path, refused, save):
    assert "no array 'x'" in refused(save(tmp_path, np.ones((4, 3))), key="x")


@pytest.mark.parametrize(("make", "name"), [(np.savez, "a.npz"), (zarr.create_group, "a.zarr")])
def test_nothing_inside(tmp_path, refused, make, name):
    make(tmp_path / name)
    assert "holds no array" in refused(tmp_path / name)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("missing", [1, 8, 95])
def test_truncated_npy_says_expected_and_found_bytes(tmp_path, refused, fortran, missing):
    source = save_npy(tmp_path, np.asarray(np.ones((4, 3)), order="F" if fortran else "C"))
    os.truncate(source, 224 - missing)
    message = refused(source)
    assert f"found {224 - missing} bytes, expected 224" in message


def header(text: bytes, *, length: int | None = None, version: bytes = b"\x02\x00") -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(4, "little") + text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x93NUMPY", "format version"),
        (header(b"{}", length=500), "ends inside its header"),
        (header(b"{}"), "could not be read"),
        (header(b"import os"), "could not be read"),
        (header(b"(" * 9000), "could not be read"),
        (header(b"[" * 200 + b"]" * 200), "could not be read"),
        (header(b"{'descr': 'zz', 'fortran_order': False, 'shape': (2, 2)}"), "could not be read"),
        (header(b"{'descr': '<f8', 'fortran_order': 1, 'shape': (2, 2)}"), "could not be read"),
        (
            header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 4)}" % 10**30),
            f"expected {32 * 10**30 + 12 + 87}",
        ),
    ],
    ids=str,
)
def test_forged_and_damaged_npy(tmp_path, refused, content, found):
    source = tmp_path / "a.npy"
    source.write_bytes(content)
    assert found in refused(source)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("deflated", [False, True])
def test_npz_with_a_flipped_byte(tmp_path, refused, fortran, deflated):
    source = tmp_path / "a.npz"
    values = np.random.default_rng(0).standard_normal((200, 30))
    save = np.savez_compressed if deflated else np.savez
    save(source, np.asarray(values, order="F" if fortran else "C"))
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 0x10
    source.write_bytes(content)
    assert "could not be read" in refused(source)


def test_npz_member_shorter_than_its_header_says(tmp_path, refused):
    saved = io.BytesIO()
    np.save(saved, np.ones((4, 3)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", saved.getvalue()[:-8])
    message = refused(tmp_path / "a.npz")
    assert "[x]" in message
    assert "found 216 bytes, expected 224" in message


def test_npz_member_without_an_array(tmp_path, refused):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
        archive.writestr("y.npy", b"")
    assert "x (unreadable)" in refused(tmp_path / "a.npz")


def test_zarr_chunk_that_is_damaged(tmp_path, refused):
    zarr.create_array(
        tmp_path / "a.zarr",
        data=np.ones((4, 3)),
        compressors=[zarr.codecs.Crc32cCodec()],
        filters=None,
    )
    chunk = tmp_path / "a.zarr" / "c" / "0" / "0"
    chunk.write_bytes(b"\x01" + chunk.read_bytes()[1:])
    assert "could not be read" in refused(tmp_path / "a.zarr")


def test_zarr_v2_that_asks_to_be_unpickled_is_refused_unread(tmp_path, refused):
    """Unpickling a chunk runs whatever its author wrote."""
    source, trap = tmp_path / "source.zarr", tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return Path.touch, (trap,)

    source.mkdir()
    metadata = {
        "zarr_format": 2,
        "shape": [4, 3],
        "chunks": [4, 3],
        "dtype": "<f4",
        "order": "C",
        "fill_value": 0.0,
        "compressor": None,
        "filters": [{"id": "pickle"}],
    }
    for dtype in ("<f4", "|O"):
        (source / ".zarray").write_text(json.dumps({**metadata, "dtype": dtype}))
        (source / "0.0").write_bytes(pickle.dumps(Trap()))
        refused(source)
        assert not trap.exists()
