"""Ids from every format that holds them; faults are counted and leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from pipeline.errors import IntegrityFailure
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.store import stored_ids
from pipeline.ingest import ingest
from pipeline.ingest import public_ids as ids_module
from pipeline.storage.ids import Distinct, decode, encode, faults
from tests.harness.command import run_command
from tests.harness.sources import zipped

N = 30
VALUES = np.random.default_rng(3).standard_normal((N, 4))
NAMES = [f"sku-{row}-\N{GREEK SMALL LETTER ALPHA}" for row in range(N)]
NUMBERS = [str(row) for row in range(N)]


def from_npz(folder, names):
    np.savez(folder / "a.npz", e=VALUES, names=np.array(names), numbers=np.arange(N))
    return folder / "a.npz", "e"


def from_zarr(folder, names):
    group = zarr.create_group(folder / "a.zarr")
    group.create_array("e", data=VALUES)
    group.create_array("numbers", data=np.arange(N))
    group.create_array("names", data=np.array(names, dtype=np.dtypes.StringDType()), chunks=(7,))
    return folder / "a.zarr", "e"


def from_zipped_zarr(folder, names):
    tree, key = from_zarr(folder, names)
    return zipped(folder / "a.zip", tree), key


def from_parquet(folder, names):
    pa = pytest.importorskip("pyarrow")
    lists = pa.array(VALUES.tolist())
    table = pa.table({"e": lists, "names": names, "numbers": np.arange(N)})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "a.parquet")
    return folder / "a.parquet", "e"


def from_hdf5(folder, names):
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        file["e"] = VALUES
        file["names"] = names
        file["numbers"] = np.arange(N, dtype=">i4")
    return folder / "a.h5", "e"


ALL = [from_npz, from_zarr, from_zipped_zarr, from_parquet, from_hdf5]


def ids_of(path) -> list[str]:
    gallery = open_gallery(path)
    return decode(stored_ids(gallery, 0, gallery.n))


@pytest.mark.parametrize("form", ALL)
def test_text_and_integers(tmp_path, monkeypatch, form):
    monkeypatch.setattr(ids_module, "PART_ROWS", 11)
    source, key = form(tmp_path, NAMES)
    plain = ingest(source, tmp_path / "plain.zarr", key=key)
    named = ingest(source, tmp_path / "named.zarr", key=key, public_ids="names")
    counted = ingest(source, tmp_path / "counted.zarr", key=key, public_ids="numbers")
    assert (plain.id_width, named.id_width, counted.id_width) == (None, 9, 2)
    assert ids_of(named.path) == NAMES
    assert ids_of(counted.path) == NUMBERS
    assert content_digest(plain) == content_digest(named)


@pytest.mark.parametrize("form", ALL)
def test_names_that_hold_no_ids(tmp_path, refused, form):
    source, key = form(tmp_path, NAMES)
    assert "names" in refused(source, key, public_ids="nothing")
    assert "expected a 1-D array of text or integers" in refused(source, key, public_ids="e")


def test_long_ids_of_a_zipped_store_are_no_bomb(tmp_path):
    names = [f"{row:0250}" for row in range(1000)]
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = zarr.create_group(store)
        group.create_array("e", data=np.ones((1000, 2)))
        text = np.array(names, dtype=np.dtypes.StringDType())
        group.create_array("names", data=text, compressors=None)
    ingest(tmp_path / "a.zip", tmp_path / "g.zarr", key="e", public_ids="names")
    assert ids_of(tmp_path / "g.zarr") == names


def test_the_words_of_a_text(tmp_path, refused):
    lines = [f"w{row} {row + 1} 1" for row in range(N)]
    (tmp_path / "a.vec").write_text("\n".join([f"{N} 2", *lines]))
    ingest(tmp_path / "a.vec", tmp_path / "g.zarr", public_ids="words")
    assert ids_of(tmp_path / "g.zarr") == [f"w{row}" for row in range(N)]
    assert "its 'words'" in refused(tmp_path / "a.vec", public_ids="names")


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore:Writing zarr v2")
def test_the_observations_of_anndata(tmp_path, refused, suffix):
    data = pytest.importorskip("anndata").AnnData(VALUES, obsm={"e": VALUES})
    data.obs_names = NAMES
    data.obs["number"] = np.arange(N)
    data.obs["kind"] = [str(row % 3) for row in range(N)]
    source = tmp_path / f"a.{suffix}"
    data.write_h5ad(source) if suffix == "h5ad" else data.write_zarr(source)
    ingest(source, tmp_path / "g.zarr", public_ids="obs_names")
    assert ids_of(tmp_path / "g.zarr") == NAMES
    ingest(source, tmp_path / "h.zarr", public_ids="number")
    assert ids_of(tmp_path / "h.zarr") == NUMBERS
    assert "categorical column" in refused(source, public_ids="kind")


def test_a_gallery_hands_its_ids_on_only_when_asked(tmp_path):
    source, key = from_npz(tmp_path, NAMES)
    ingest(source, tmp_path / "a.zarr", key=key, public_ids="names")
    assert ingest(tmp_path / "a.zarr", tmp_path / "b.zarr").id_width is None
    again = ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", public_ids="ids")
    assert ids_of(again.path) == NAMES


def test_formats_without_ids(tmp_path, refused):
    np.save(tmp_path / "a.npy", VALUES)
    message = refused(tmp_path / "a.npy", public_ids="names")
    assert "a NumPy .npy file holds no ids" in message
    assert "Parquet" in message


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({4: "sku-1-\N{GREEK SMALL LETTER ALPHA}", 9: "sku-2-α"}, "2 rows (counted from 0: 4, 9)"),
        ({5: "", 6: ""}, "no text in 2 rows (counted from 0: 5, 6)"),
        ({7: "x" * 257}, "more than 256 bytes in 1 row (counted from 0: 7)"),
        ({8: "a\nb"}, "glyph in 1 row (counted from 0: 8)"),
        ({8: "a\x1b[31m"}, "glyph in 1 row (counted from 0: 8)"),
        ({8: "a\u202eb"}, "glyph in 1 row (counted from 0: 8)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [from_parquet, from_npz])
def test_faulty_ids_are_counted_and_the_first_named(tmp_path, refused, form, changes, found):
    names = [changes.get(row, name) for row, name in enumerate(NAMES)]
    source, key = form(tmp_path, names)
    message = refused(source, key, public_ids="names")
    assert found in message
    assert f"of {N}; expected distinct ids" in message


def test_nulls_and_too_few_ids(tmp_path, refused):
    source, key = from_parquet(tmp_path, [None, *NAMES[1:]])
    assert "no text in 1 row (counted from 0: 0)" in refused(source, key, public_ids="names")
    np.savez(tmp_path / "b.npz", e=VALUES, few=np.arange(N - 1), many=np.arange(N + 1))
    assert f"found {N - 1} ids for {N} records" in refused(
        tmp_path / "b.npz", "e", public_ids="few"
    )
    assert f"more ids for {N} records" in refused(tmp_path / "b.npz", "e", public_ids="many")


def test_objects_are_never_unpickled(tmp_path, refused):
    np.savez(tmp_path / "a.npz", e=VALUES, names=np.array(NAMES, dtype=object))
    assert "never unpickled" in refused(tmp_path / "a.npz", "e", public_ids="names")


def test_a_damaged_gallery_does_not_give_ids(tmp_path):
    source, key = from_npz(tmp_path, NAMES)
    gallery = ingest(source, tmp_path / "a.zarr", key=key, public_ids="names")
    chunk = tmp_path / "a.zarr" / "ids" / "c.0.0"
    content = chunk.read_bytes()
    chunk.write_bytes(b"\x01" + content[1:])
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        stored_ids(gallery, 0, N)
    chunk.unlink()
    with pytest.raises(IntegrityFailure, match="not what ingest wrote"):
        stored_ids(gallery, 0, N)


def test_the_stored_form_gives_back_any_id():
    names = ["a", "é" * 128, " b ", "日本", "\N{GRINNING FACE}"]
    stored = encode(names, 256)
    assert stored.shape == (5, 256)
    assert decode(stored) == names
    stored[0, 1:3] = [0xFF, 0x41]
    assert faults(decode(stored))["control characters, or others without a glyph"].tolist() == [
        True,
        *[False] * 4,
    ]


def test_repeated_ids_are_the_later_ones():
    distinct = Distinct()
    distinct.add(["b", "a"])
    distinct.add(["a", "c", "b", "a"])
    assert distinct.repeated().tolist() == [False, False, True, False, True, True]


def test_the_command(tmp_path):
    source, _ = from_npz(tmp_path, NAMES)
    words = ("ingest", str(source), "g.zarr", "--member", "e", "--json", "--public-ids", "names")
    made = run_command(tmp_path, *words)
    assert (made.returncode, made.json["n"]) == (0, N)
    assert ids_of(tmp_path / "g.zarr") == NAMES
