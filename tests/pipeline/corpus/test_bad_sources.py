"""Sources that are refused, of every format: by ``ingest``, and by a release that names them.

Each builder makes one small file or folder in the folder it is given and returns its path.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

ROWS = np.random.default_rng(2).normal(size=(6, 4))
Build = Callable[[Path], Path]
CASES: dict[str, tuple[Build, str]] = {}
"""By name: what builds the source, and what the refusal must say besides the source's name."""


def case(name: str, says: str = "", library: str = "numpy") -> Callable[[Build], Build]:
    """Register a builder, which needs a library, under a name."""

    def register(build: Build) -> Build:
        def checked(folder: Path) -> Path:
            pytest.importorskip(library)
            return build(folder)

        assert name not in CASES
        CASES[name] = checked, says
        return build

    return register


def raw(name: str, file: str, content: bytes, says: str = "", library: str = "numpy") -> None:
    """Register a file of given bytes."""

    def build(folder: Path) -> Path:
        (folder / file).write_bytes(content)
        return folder / file

    case(name, says, library)(build)


def npy(name: str, array: Any, says: str) -> None:
    """Register an array saved by NumPy."""
    raw(name, "bad.npy", npy_bytes(array), says)


def npy_bytes(array: Any) -> bytes:
    """What NumPy saves."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def npy_header(text: str) -> bytes:
    """A file that is nothing but a header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


def with_cell(value: float) -> Any:
    """The rows with one value replaced."""
    changed = ROWS.copy()
    changed[2, 1] = value
    return changed


# .npy: what the values are
npy("npy-nan", with_cell(np.nan), "NaN or infinite values in 1 row (counted from 0: 2) of 6")
npy("npy-inf", with_cell(-np.inf), "Remove or repair the rows with NaN or infinite values")
npy("npy-zero-row", np.vstack([ROWS, np.zeros((1, 4))]), "only zeros in 1 row (counted from 0: 6)")
npy("npy-complex", ROWS.astype(complex), "(complex numbers), expected integers, or floats")
npy("npy-object", ROWS.astype(object), "(Python objects), expected integers, or floats")
npy("npy-text", np.array([["a", "b"], ["c", "d"]]), "(text), expected integers, or floats")
npy("npy-bool", ROWS > 0, "(booleans), expected integers, or floats")
npy("npy-dates", np.zeros((3, 2), "M8[s]"), "(dates), expected integers, or floats")
npy("npy-3d", np.ones((2, 3, 4)), "found a 3-D array of shape (2, 3, 4), expected a 2-D array")
npy("npy-1d", np.ones(4), "found a 1-D array of shape (4,), expected a 2-D array")
npy("npy-0d", np.float64(1), "found a 0-D array")
npy("npy-no-rows", np.ones((0, 4)), "found 0 rows, expected at least 2 records")
npy("npy-one-record", ROWS[:1], "found 1 rows, expected at least 2 records")
npy("npy-no-features", np.ones((4, 0)), "found 0 features a row, expected 1 to")
npy("npy-wide", np.ones((2, 200_000), np.int8), "found 200000 features a row, expected 1 to")
# .npy: what the bytes are
raw("npy-empty", "bad.npy", b"", "is not in NumPy's .npy format")
raw("npy-wrong-magic", "bad.npy", b"PK\x03\x04" + bytes(99), "Save the array with numpy.save")
raw("npy-version", "bad.npy", b"\x93NUMPY\x09\x00" + bytes(99), "found .npy format version 9.0")
raw("npy-cut-header", "bad.npy", npy_bytes(ROWS)[:60], "ends inside its header")
raw("npy-cut", "bad.npy", npy_bytes(ROWS)[:-9], "The file was cut short; copy it again")
raw(
    "npy-longer",
    "bad.npy",
    npy_bytes(ROWS) * 2,
    "found 640 bytes, expected 320 for shape (6, 4) of float64. Something follows the array, for "
    "instance a second array; save one array a file",
)
raw(
    "npy-huge-claim",
    "bad.npy",
    npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15, 4), }"),
    "could not be read",
)
raw(
    "npy-huge-shape",
    "bad.npy",
    npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 4), }"),
    "expected 320000000000000",
)
raw(
    "npy-huge-header",
    "bad.npy",
    b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
    "found a header of 4294967295 bytes, expected at most 10000",
)
raw("npy-code", "bad.npy", npy_header("__import__('os').system('touch harmed')"), "could not be")
raw(
    "npy-negative",
    "bad.npy",
    npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 4), }"),
    "its header is damaged",
)


# .npz
def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "bad.npz", **arrays)
    return folder / "bad.npz"


case("npz-several", "holds 2 arrays, expected one or a key that chooses one. Name the key")(
    lambda folder: npz(folder, left=ROWS, right=ROWS)
)
case("npz-none", "holds no array, expected a 2-D array")(lambda folder: npz(folder))
case("npz-nan", "NaN or infinite values")(lambda folder: npz(folder, a=with_cell(np.nan)))
raw("npz-no-zip", "bad.npz", npy_bytes(ROWS), "could not be read")
raw("npz-empty", "bad.npz", b"", "could not be read")


@case("npz-cut", "could not be read")
def _(folder: Path) -> Path:
    path = npz(folder, a=ROWS)
    path.write_bytes(path.read_bytes()[:-30])
    return path


@case("npz-flipped", "could not be read")
def _(folder: Path) -> Path:
    path = npz(folder, a=ROWS)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return path


# Zarr, in a folder and zipped
def zarr_folder(folder: Path, array: Any) -> Path:
    zarr.save_array(str(folder / "bad.zarr"), array)
    return folder / "bad.zarr"


case("zarr-nan", "NaN or infinite values")(lambda folder: zarr_folder(folder, with_cell(np.nan)))
case("zarr-3d", "found a 3-D array")(lambda folder: zarr_folder(folder, np.ones((2, 2, 2))))
case("zarr-one-record", "found 1 rows")(lambda folder: zarr_folder(folder, ROWS[:1]))


@case("zarr-metadata", "could not be read")
def _(folder: Path) -> Path:
    path = zarr_folder(folder, ROWS)
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type"')
    return path


@case("zarr-missing-chunk")
def _(folder: Path) -> Path:
    path = zarr_folder(folder, ROWS)
    next(file for file in path.rglob("c/*/*") if file.is_file()).unlink()
    return path


@case("zarr-several", "holds 2 arrays, expected one or a key that chooses one")
def _(folder: Path) -> Path:
    group = zarr.open_group(folder / "bad.zarr", mode="w")
    group.create_array("left", data=ROWS)
    group.create_array("right", data=ROWS)
    return folder / "bad.zarr"


def zipped(folder: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "bad.zarr.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / "bad.zarr.zip"


case("zip-escaping")(lambda folder: zipped(folder, {"../../harmed": b"x"}))
case("zip-absolute")(lambda folder: zipped(folder, {"/tmp/harmed": b"x"}))
case("zip-empty")(lambda folder: zipped(folder, {}))
case("zip-no-zarr", "without Zarr metadata")(lambda folder: zipped(folder, {"readme.txt": b"x"}))
raw("zip-no-zip", "bad.zarr.zip", b"not a zip at all", "could not be read")
# fvecs
VECS = b"".join(struct.pack("<i4f", 4, *row) for row in ROWS)
raw("vecs-empty", "bad.fvecs", b"", "found an empty file, expected at least 2 records")
raw("vecs-cut", "bad.fvecs", VECS[:-3], "a length that the file has no room for in 1 row")
raw("vecs-ragged", "bad.fvecs", VECS + struct.pack("<i3f", 3, 1, 2, 3), "another length in 1 row")
raw("vecs-same-size", "bad.fvecs", VECS[:20] + struct.pack("<i4f", 3, 1, 2, 3, 4), "another length")
raw(
    "vecs-negative", "bad.fvecs", struct.pack("<i4f", -4, 1, 2, 3, 4) * 2, "found -4 features a row"
)
raw(
    "vecs-huge", "bad.fvecs", struct.pack("<i4f", 2**31 - 1, 1, 2, 3, 4), "features a row, expected"
)
raw("vecs-no-length", "bad.fvecs", b"\x04\x00", "features a row, expected 1 to")
raw("vecs-nan", "bad.fvecs", VECS + struct.pack("<i4f", 4, np.nan, 1, 1, 1), "NaN or infinite")
raw("vecs-text", "bad.fvecs", b"3 4\nhello world\n", "features a row, expected 1 to")
# Word vectors
WORDS = b"3 2\na 1 2\nb 3 4\nc 5 6\n"
raw("words-empty", "bad.vec", b"", "expected a text of word vectors")
raw("words-cut", "bad.vec", WORDS[:-6], "found 2 words, the first line says 3")
raw("words-more", "bad.vec", WORDS + b"d 7 8\n", "found 4 words, the first line says 3")
raw("words-ragged", "bad.vec", b"3 2\na 1 2\nb 3\nc 5 6\n", "another number of cells in 1 row")
raw("words-foreign", "bad.vec", b"3 2\na 1 x\nb 3 4\nc 5 6\n", "cells that are no numbers in 1 row")
raw("words-nan", "bad.vec", b"3 2\na 1 nan\nb 3 4\nc 5 6\n", "NaN or infinite values in 1 row")
raw("words-prose", "bad.txt", b"This is no embedding\nat all\n")
raw("words-binary", "bad.vec", bytes(range(256)) * 8)
raw("words-huge-claim", "bad.vec", b"9" * 18 + b" 2\na 1 2\n")
raw("words-huge-number", "bad.vec", b"9" * 5000 + b" 2\na 1 2\n", "could not be read")
raw("words-long-line", "bad.vec", b"x" * (2**20 + 2), "found a line of more than 1048576 bytes")
# What no format knows
UNKNOWN = (
    "found a file ending in '{}', expected one of: a NumPy .npy file, a NumPy .npz file, a Zarr"
)
raw("unknown-suffix", "bad.docx", b"x", UNKNOWN.format(".docx"))
raw("no-suffix", "bad", b"x", UNKNOWN.format(""))
case("missing", "does not exist, expected a NumPy .npy file")(lambda folder: folder / "bad.npy")


@case("folder", "found a directory without Zarr metadata")
def _(folder: Path) -> Path:
    (folder / "bad").mkdir()
    return folder / "bad"


@case("folder-named-npy", "found a directory without Zarr metadata")
def _(folder: Path) -> Path:
    (folder / "bad.npy").mkdir()
    return folder / "bad.npy"


@case("dangling-link", "does not exist")
def _(folder: Path) -> Path:
    (folder / "bad.npy").symlink_to(folder / "nowhere.npy")
    return folder / "bad.npy"


@case("link-to-a-cut-file", "The file was cut short")
def _(folder: Path) -> Path:
    (folder / "cut.npy").write_bytes(npy_bytes(ROWS)[:-1])
    (folder / "bad.npy").symlink_to(folder / "cut.npy")
    return folder / "bad.npy"


# Formats with a library of their own
for suffix, library in (
    ("parquet", "pyarrow"),
    ("h5", "h5py"),
    ("h5ad", "h5py"),
    ("safetensors", "safetensors"),
):
    raw(f"{suffix}-empty", f"bad.{suffix}", b"", "could not be read", library)
    content = b"not what its name says" * 9
    raw(f"{suffix}-text", f"bad.{suffix}", content, "could not be read", library)


def table(folder: Path, column: Any) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"embedding": column}), folder / "bad.parquet")
    return folder / "bad.parquet"


case("parquet-ragged", "", "pyarrow")(lambda folder: table(folder, [[1.0, 2.0], [3.0]]))
case("parquet-null", "", "pyarrow")(lambda folder: table(folder, [[1.0, 2.0], None]))
case("parquet-null-cell", "", "pyarrow")(lambda folder: table(folder, [[1.0, None], [1.0, 2.0]]))
case("parquet-words", "", "pyarrow")(lambda folder: table(folder, ["a", "b"]))
case("parquet-no-rows", "", "pyarrow")(lambda folder: table(folder, [[1.0, 2.0]][:0]))


@case("parquet-cut", "could not be read", "pyarrow")
def _(folder: Path) -> Path:
    path = table(folder, [[1.0, 2.0], [3.0, 4.0]])
    path.write_bytes(path.read_bytes()[:-20])
    return path


def hdf5(folder: Path, **arrays: Any) -> Path:
    import h5py

    with h5py.File(folder / "bad.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return folder / "bad.h5"


case("h5-nothing", "holds no array", "h5py")(lambda folder: hdf5(folder))
case("h5-several", "expected one or a key", "h5py")(lambda f: hdf5(f, a=ROWS, b=ROWS))
case("h5-3d", "3-D", "h5py")(lambda folder: hdf5(folder, a=np.ones((2, 2, 2))))
case("h5-nan", "NaN or infinite", "h5py")(lambda folder: hdf5(folder, a=with_cell(np.nan)))
case("h5-complex", "complex", "h5py")(lambda folder: hdf5(folder, a=ROWS.astype(complex)))


@case("h5-cut", "could not be read", "h5py")
def _(folder: Path) -> Path:
    path = hdf5(folder, a=np.ones((50, 50)))
    path.write_bytes(path.read_bytes()[:3000])
    return path


@case("h5ad-of-another-layout", "", "h5py")
def _(folder: Path) -> Path:
    return hdf5(folder, a=ROWS).rename(folder / "bad.h5ad")


def tensors(folder: Path, header: bytes, data: bytes = bytes(32)) -> Path:
    (folder / "bad.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder / "bad.safetensors"


def described(**tensor: Any) -> bytes:
    return json.dumps({"a": tensor}).encode()


FLOATS = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}
case("safetensors-cut", "", "safetensors")(lambda f: tensors(f, described(**FLOATS), bytes(9)))
case("safetensors-zeros", "only zeros", "safetensors")(lambda f: tensors(f, described(**FLOATS)))
case("safetensors-overlap", "", "safetensors")(
    lambda f: tensors(f, described(dtype="F32", shape=[10**12, 4], data_offsets=[0, 32]))
)
raw(
    "safetensors-huge-header",
    "bad.safetensors",
    struct.pack("<Q", 2**60) + b"{}",
    "could not be read",
    library="safetensors",
)
case("safetensors-no-json", "", "safetensors")(lambda f: tensors(f, b"{" * 64))


def test_the_corpus_covers_every_format() -> None:
    from pipeline.ingest.formats import FORMATS

    assert len(CASES) >= 60
    covered = {name.split("-")[0] for name in CASES}
    named = {"zarr-zip": "zip", "hdf5": "h5", "anndata": "h5ad"}
    assert {named.get(entry.kind, entry.kind) for entry in FORMATS} <= covered


@pytest.mark.parametrize("name", CASES)
def test_a_bad_source_is_refused(bench: Any, name: str) -> None:
    build, says = CASES[name]
    source = build(bench.root)
    bench.configure(gallery=source.name)
    said = bench.refuses("ingest", source.name, "faces.zarr", code=3, names=source.name, says=says)
    assert said.startswith(source.name), said
    # A configuration names what a link leads to.
    named = source.resolve().name
    bench.refuses("release", "release.yaml", code=3, names=named, says=says)
    bench.refuses("ledger", "init", "release.yaml", code=3, names=named, says=says)


def test_a_link_to_itself_is_refused(bench: Any) -> None:
    (bench.root / "bad.npy").symlink_to(bench.root / "bad.npy")
    bench.configure(gallery="bad.npy")
    bench.refuses("ingest", "bad.npy", "faces.zarr", code=3, names="bad.npy")
    bench.refuses("release", "release.yaml", code=2, names="bad.npy", says="links in a circle")


def test_what_may_not_be_read_is_refused(bench: Any) -> None:
    (bench.root / "bad.npy").write_bytes(npy_bytes(ROWS))
    (bench.root / "bad.npy").chmod(0)
    assert bench.run("ingest", "faces.npy", "other.zarr").code == 0
    with as_somebody():
        refusal = bench.run("ingest", "bad.npy", "faces.zarr")
    assert refusal.code == 3
    assert "bad.npy: could not be read (Permission denied)" in refusal.said
    assert not (bench.root / "faces.zarr").exists()


@contextmanager
def as_somebody() -> Iterator[None]:
    """Without the rights of root, who may read everything."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


def test_ids_given_twice_are_refused(bench: Any) -> None:
    (bench.root / "bad.vec").write_bytes(b"3 2\na 1 2\nb 3 4\na 5 6\n")
    arguments = ("ingest", "bad.vec", "faces.zarr", "--public-ids", "words")
    bench.refuses(*arguments, code=3, names="bad.vec", says="(counted from 0: 2)")


def test_a_gallery_is_no_target_twice(bench: Any) -> None:
    assert bench.run("ingest", "faces.npy", "faces.zarr").code == 0
    says = "a gallery exists there already. Choose another target"
    bench.refuses("ingest", "faces.npy", "faces.zarr", code=3, names="faces.zarr", says=says)
    (bench.root / "folder").mkdir()
    says = "exists and is not a gallery, so it is never overwritten"
    bench.refuses("ingest", "faces.npy", "folder", "--overwrite", code=3, names="folder", says=says)


@pytest.mark.parametrize(
    ("damage", "code", "says"),
    [
        (lambda g: next(g.glob("embeddings/c.*")).unlink(), 5, "embeddings/c.0.0 is missing"),
        (lambda g: (g / "embeddings" / "zarr.json").unlink(), 5, "is missing or unreadable"),
        (lambda g: (g / "zarr.json").write_text("{"), 3, ""),
        (lambda g: _edit(g / "zarr.json", n=99), 5, "metadata was changed after ingest"),
        (lambda g: _edit(g / "zarr.json", scoreshield_gallery=9), 3, "format version 9, expected"),
        (lambda g: _edit(g / "zarr.json", lineage=None), 5, ""),
    ],
    ids=["no-chunk", "no-array", "cut-metadata", "wrong-size", "another-version", "no-lineage"],
)
def test_a_damaged_gallery_is_refused(
    bench: Any, damage: Callable[[Path], Any], code: int, says: str
) -> None:
    assert bench.run("ingest", "faces.npy", "faces.zarr").code == 0
    damage(bench.root / "faces.zarr")
    bench.configure(gallery="faces.zarr")
    bench.refuses("release", "release.yaml", code=code, names="faces.zarr", says=says)
    bench.refuses("plan", "release.yaml", code=code, names="faces.zarr", says=says)


def _edit(path: Path, **attributes: Any) -> None:
    content = json.loads(path.read_text())
    content["attributes"].update(attributes)
    path.write_text(json.dumps(content))


BAD_QUERIES = {
    "not-unit": (2 * ROWS, "unit"),
    "twice": (np.eye(4)[[0, 1, 0]], ""),
    "another-width": (np.eye(5), "5"),
    "nan": (with_cell(np.nan), ""),
    "none": (np.ones((0, 4)), ""),
    "text": (np.array([["a"]]), "(text)"),
}


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_bad_queries_are_refused(bench: Any, name: str) -> None:
    queries, says = BAD_QUERIES[name]
    np.save(bench.root / "bad.npy", queries)
    bench.configure(regime="scores", queries="bad.npy")
    bench.refuses("release", "release.yaml", code=3, names="bad.npy", says=says)


def test_a_gallery_is_no_file_of_queries(bench: Any) -> None:
    assert bench.run("ingest", "faces.npy", "faces.zarr").code == 0
    bench.configure(regime="scores", queries="faces.zarr")
    says = "found a gallery, and galleries are private; expected public embeddings"
    bench.refuses("release", "release.yaml", code=3, names="faces.zarr", says=says)


BAD_RATINGS = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "prose": b"This is no table\nof ratings\n",
    "one-column": b"1\n2\n3\n",
    "no-numbers": b"user,item,rating\n1,2,good\n3,4,bad\n",
    "not-a-number": b"1,2,3.5\n1,3,nan\n2,2,1\n",
    "infinite": b"1,2,3.5\n1,3,inf\n2,2,1\n",
    "ragged": b"1,2,3.5\n1,3\n2,2,1\n",
    "twice": b"1,2,3.5\n1,2,4.5\n2,3,1\n",
    "one-record": b"1,2,3.5\n2,2,4.5\n",
    "no-text": b"1,2,3.5\n\xff\xfe,3,1\n2,2,1\n",
    "long-line": b"1" * 2**21,
    "npy": npy_bytes(ROWS),
}


@pytest.mark.parametrize("name", BAD_RATINGS)
def test_bad_ratings_are_refused(bench: Any, name: str) -> None:
    (bench.root / "bad.csv").write_bytes(BAD_RATINGS[name])
    options = ("--ratings", "--by", "item")
    bench.refuses("ingest", "bad.csv", "faces.zarr", *options, code=3, names="bad.csv")
    bench.configure(gallery="bad.csv", ratings={"by": "item"})
    bench.refuses("release", "release.yaml", code=3, names="bad.csv")
