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

from pipeline.errors import exit_code
from pipeline.ingest import ingest, open_source
from scoreshield.errors import InputRejected


def refusal(source: Path, tmp_path: Path, key: str | None = None) -> str:
    """The message of the refusal, after checking that nothing was left at the target."""
    folder = tmp_path / "target"
    folder.mkdir()
    with pytest.raises(InputRejected) as caught:
        ingest(source, folder / "gallery.zarr", key=key)
    assert list(folder.iterdir()) == []
    assert exit_code(caught.value) == 3
    assert str(source) in str(caught.value)
    return str(caught.value)


def npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


STRUCTURED = np.zeros(3, dtype=[("x", "f4"), ("y", "f4")])


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.ones(5), "1-D array of shape (5,)"),
        (np.ones((5, 4, 3)), "3-D array of shape (5, 4, 3)"),
        (np.float64(1), "0-D array of shape ()"),
        (np.ones((0, 3)), "0 rows"),
        (np.ones((1, 3)), "1 rows"),
        (np.ones((3, 0)), "0 features"),
        (np.ones((2, 32769), dtype=np.int8), "32769 features"),
        (np.ones((3, 2), dtype=bool), "booleans"),
        (np.ones((3, 2), dtype=complex), "complex128 (complex numbers)"),
        (np.ones((3, 2), dtype=np.longdouble), "wider than 64 bits"),
        (np.array([[1, "a"]] * 3, dtype=object), "Python objects"),
        (np.array([["a", "b"]] * 3), "text"),
        (np.array([[b"a", b"b"]] * 3), "text"),
        (STRUCTURED, "structured"),
        (np.ones((3, 2), dtype="M8[s]"), "dates"),
        (np.ones((3, 2), dtype="m8[s]"), "time differences"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_not_a_matrix_of_real_numbers(tmp_path, array, found, suffix):
    source = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(source, array)
    else:
        np.savez(source, array)
    assert found in refusal(source, tmp_path)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.ones(5), "1-D"),
        (np.ones((5, 4, 3)), "3-D"),
        (np.ones((3, 2), dtype=bool), "booleans"),
        (np.ones((3, 2), dtype="c16"), "complex"),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_that_is_not_a_matrix_of_real_numbers(tmp_path, array, found, zarr_format):
    zarr.create_array(tmp_path / "a.zarr", data=array, zarr_format=zarr_format)
    assert found in refusal(tmp_path / "a.zarr", tmp_path)


def test_the_widest_matrix_is_accepted(tmp_path):
    source = open_source(npy(tmp_path / "a.npy", np.ones((2, 32768), dtype=np.int8)))
    assert source.shape == (2, 32768)
    assert source.dtype == np.int8


def test_missing_path(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere.npy", tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "embeddings"])
def test_unknown_suffix_lists_what_is_accepted(tmp_path, name):
    (tmp_path / name).write_bytes(b"1,2,3")
    message = refusal(tmp_path / name, tmp_path)
    assert ".npy" in message
    assert ".npz" in message
    assert "Zarr" in message


def test_directory_that_is_not_zarr(tmp_path):
    (tmp_path / "folder").mkdir()
    assert "directory without Zarr metadata" in refusal(tmp_path / "folder", tmp_path)


def test_damaged_zarr_metadata(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{broken")
    assert "could not be read" in refusal(tmp_path / "a.zarr", tmp_path)


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


def test_the_list_of_arrays_is_cut_and_matrices_come_first(tmp_path):
    arrays = {f"a{i:02}": np.arange(4) for i in range(30)}
    np.savez(tmp_path / "a.npz", **arrays, matrix=np.ones((4, 3)))
    message = refusal(tmp_path / "a.npz", tmp_path)
    assert "It holds: matrix (shape (4, 3), float64)" in message
    assert "and 11 more" in message


def test_object_array_beside_the_chosen_one_is_listed_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", names=np.array([{"a": 1}] * 4, dtype=object), x=np.ones((4, 3)))
    assert "names (shape (4,), object)" in refusal(tmp_path / "a.npz", tmp_path)
    assert open_source(tmp_path / "a.npz", "x").shape == (4, 3)


@pytest.mark.parametrize("make", ["npy", "zarr"])
def test_key_of_a_source_without_keys(tmp_path, make):
    if make == "npy":
        source = npy(tmp_path / "a.npy", np.ones((4, 3)))
    else:
        zarr.create_array(tmp_path / "a.zarr", data=np.ones((4, 3)))
        source = tmp_path / "a.zarr"
    assert "no array 'x'" in refusal(source, tmp_path, key="x")


@pytest.mark.parametrize("make", ["npz", "zarr"])
def test_nothing_inside(tmp_path, make):
    source = tmp_path / f"a.{make}"
    if make == "npz":
        np.savez(source)
    else:
        zarr.create_group(source)
    assert "holds no array" in refusal(source, tmp_path)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("missing", [1, 8, 95])
def test_truncated_npy_says_expected_and_found_bytes(tmp_path, fortran, missing):
    source = npy(tmp_path / "a.npy", np.asarray(np.ones((4, 3)), order="F" if fortran else "C"))
    os.truncate(source, 224 - missing)
    message = refusal(source, tmp_path)
    assert f"found {224 - missing} bytes, expected 224" in message


def test_longer_than_its_header_says(tmp_path):
    source = tmp_path / "a.npy"
    with source.open("wb") as file:
        np.save(file, np.ones((4, 3)))
        np.save(file, np.ones((4, 3)))
    assert "found 448 bytes, expected 224" in refusal(source, tmp_path)


def header(text: bytes, *, length: int | None = None, version: bytes = b"\x02\x00") -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(4, "little") + text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not in NumPy's .npy format"),
        (b"hello, world", "not in NumPy's .npy format"),
        (b"\x93NUMPY", "format version"),
        (b"\x93NUMPY\x09\x00", "format version 9.0"),
        (header(b"{}", length=4_000_000_000), "header of 4000000000 bytes"),
        (header(b"{}", length=500), "ends inside its header"),
        (header(b"{}"), "could not be read"),
        (header(b"import os"), "could not be read"),
        (header(b"(" * 9000), "could not be read"),
        (header(b"[" * 200 + b"]" * 200), "could not be read"),
        (header(b"{'descr': 'zz', 'fortran_order': False, 'shape': (2, 2)}"), "could not be read"),
        (header(b"{'descr': '<f8', 'fortran_order': 1, 'shape': (2, 2)}"), "could not be read"),
        (header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 2)}"), "-2 rows"),
        (
            header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 4)}" % 10**30),
            f"expected {32 * 10**30 + 12 + 87}",
        ),
    ],
    ids=str,
)
def test_forged_and_damaged_npy(tmp_path, content, found):
    source = tmp_path / "a.npy"
    source.write_bytes(content)
    assert found in refusal(source, tmp_path)


def test_npz_that_is_not_a_zip(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"hello")
    assert "could not be read" in refusal(tmp_path / "a.npz", tmp_path)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("deflated", [False, True])
def test_npz_with_a_flipped_byte(tmp_path, fortran, deflated):
    source = tmp_path / "a.npz"
    values = np.random.default_rng(0).standard_normal((200, 30))
    save = np.savez_compressed if deflated else np.savez
    save(source, np.asarray(values, order="F" if fortran else "C"))
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 0x10
    source.write_bytes(content)
    assert "could not be read" in refusal(source, tmp_path)


def test_npz_member_shorter_than_its_header_says(tmp_path):
    saved = io.BytesIO()
    np.save(saved, np.ones((4, 3)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", saved.getvalue()[:-8])
    message = refusal(tmp_path / "a.npz", tmp_path)
    assert "[x]" in message
    assert "found 216 bytes, expected 224" in message


def test_npz_member_without_an_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
        archive.writestr("y.npy", b"")
    assert "x (unreadable)" in refusal(tmp_path / "a.npz", tmp_path)


def test_zarr_chunk_that_is_damaged(tmp_path):
    zarr.create_array(
        tmp_path / "a.zarr",
        data=np.ones((4, 3)),
        compressors=[zarr.codecs.Crc32cCodec()],
        filters=None,
    )
    chunk = tmp_path / "a.zarr" / "c" / "0" / "0"
    chunk.write_bytes(b"\x01" + chunk.read_bytes()[1:])
    assert "could not be read" in refusal(tmp_path / "a.zarr", tmp_path)


def test_zarr_v2_that_asks_to_be_unpickled_is_refused_unread(tmp_path):
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
        (tmp_path / dtype).mkdir()
        refusal(source, tmp_path / dtype)
        assert not trap.exists()
