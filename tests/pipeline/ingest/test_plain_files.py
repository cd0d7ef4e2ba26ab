"""Safetensors, .fvecs and its kin, and texts of word vectors."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

VALUES = np.random.default_rng(9).standard_normal((50, 6))


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    """Panels of 12 rows, so that files of 50 rows take several."""
    monkeypatch.setattr("pipeline.gallery.store.CHUNK_BYTES", 4 * 6 * 3)
    monkeypatch.setattr("pipeline.ingest.write.PANEL_BYTES", 8 * 6 * 12)
    monkeypatch.setattr("pipeline.ingest.safetensors._MAPPED_BYTES", 4 * 6 * 30)


class TestSafetensors:
    numpy_format = pytest.importorskip("safetensors.numpy")

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1"])
    def test_a_tensor(self, tmp_path, holds, dtype):
        values = (np.abs(VALUES) * 50 + 1).astype(dtype)
        self.numpy_format.save_file({"e": values}, tmp_path / "a.safetensors")
        holds(tmp_path / "a.safetensors", values)

    def test_one_of_several(self, tmp_path, holds, refused):
        tensors = {"a": np.arange(4.0), "e": VALUES, "f": np.ones((4, 3, 2)), "g": VALUES > 0}
        self.numpy_format.save_file(tensors, tmp_path / "a.safetensors")
        assert "e (shape (50, 6), F64)" in refused(tmp_path / "a.safetensors")
        assert "3-D" in refused(tmp_path / "a.safetensors", key="f")
        assert "booleans" in refused(tmp_path / "a.safetensors", key="g")
        holds(tmp_path / "a.safetensors", VALUES, key="e")

    @pytest.mark.parametrize(
        ("tensor", "found"),
        [
            ({"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "BF16"),
            ({"dtype": "F32", "shape": [10**12, 100], "data_offsets": [0, 8]}, "could not be read"),
            ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "could not be read"),
        ],
        ids=str,
    )
    def test_headers_that_are_not_what_is_there(self, tmp_path, refused, tensor, found):
        header = json.dumps({"e": tensor}).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(8)
        (tmp_path / "a.safetensors").write_bytes(content)
        assert found in refused(tmp_path / "a.safetensors")


def vecs(path, rows, dtype):
    content = (struct.pack("<i", len(row)) + np.asarray(row, dtype).tobytes() for row in rows)
    path.write_bytes(b"".join(content))
    return path


class TestVecs:
    @pytest.mark.parametrize(
        ("suffix", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")]
    )
    def test_rows(self, tmp_path, holds, suffix, dtype):
        values = (np.abs(VALUES) * 50 + 1).astype(dtype)
        holds(vecs(tmp_path / f"a{suffix}", values, dtype), values)

    @pytest.mark.parametrize("other", [5, 12])
    def test_rows_of_another_length(self, tmp_path, refused, other):
        rows = [list(range(1, 7))] * 50
        rows[20] = rows[33] = list(range(other))
        message = refused(vecs(tmp_path / "a.fvecs", rows, "<f4"))
        assert "another length in 2 rows (counted from 0: 20, 33) of 50" in message

    def test_lengths_that_happen_to_fit_the_file(self, tmp_path, refused):
        rows = [[1.0] * 6] * 50
        rows[20], rows[21] = [1.0] * 5, [1.0] * 7
        message = refused(vecs(tmp_path / "a.fvecs", rows, "<f4"))
        assert "another length in 2 rows (counted from 0: 20, 21) of 50" in message

    @pytest.mark.parametrize("first", [0, -1, 2**31 - 1])
    def test_a_first_length_that_no_row_has(self, tmp_path, refused, first):
        (tmp_path / "a.fvecs").write_bytes(struct.pack("<iff", first, 1, 1))
        assert f"found {first} features" in refused(tmp_path / "a.fvecs")

    def test_cut_short(self, tmp_path, refused):
        source = vecs(tmp_path / "a.fvecs", VALUES, "<f4")
        source.write_bytes(source.read_bytes()[:-3])
        message = refused(source)
        assert "no room for in 1 row (counted from 0: 49)" in message
        source.write_bytes(b"")
        assert "empty" in refused(source)
        assert "no array 'x'" in refused(source, key="x")


def words(path, rows, header=None, end="\n"):
    lines = [" ".join([f"w{row}", *map(str, cells)]) for row, cells in enumerate(rows)]
    path.write_text("\n".join([*([] if header is None else [header]), *lines]) + end)
    return path


class TestWordVectors:
    @pytest.mark.parametrize("header", [None, "50 6"])
    @pytest.mark.parametrize("end", ["", "\n", " \n"])
    def test_a_text(self, tmp_path, holds, header, end):
        holds(words(tmp_path / "a.vec", VALUES, header, end), VALUES)

    def test_words_with_spaces_and_any_bytes(self, tmp_path, holds):
        source = words(tmp_path / "a.txt", VALUES, "50 6")
        source.write_bytes(source.read_bytes().replace(b"w3 ", b". . \xff\xc2\xa0 ", 1))
        holds(source, VALUES)

    def test_faulty_lines_are_counted_and_the_first_named(self, tmp_path, refused):
        rows = VALUES.tolist()
        rows[3] = rows[3][:5]
        rows[30] = [*rows[30], 1.0]
        rows[40][2] = "abc"
        message = refused(words(tmp_path / "a.vec", rows, "50 6"))
        assert "another number of cells in 2 rows (counted from 0: 3, 30)" in message
        assert "no numbers in 1 row (counted from 0: 40) of 50" in message

    @pytest.mark.parametrize("claimed", [49, 51, 10**12])
    def test_the_first_line_counts_other_words(self, tmp_path, refused, claimed):
        message = refused(words(tmp_path / "a.vec", VALUES, f"{claimed} 6"))
        assert f"found 50 words, the first line says {claimed}" in message or (
            "bytes are free" in message and claimed == 10**12
        )

    @pytest.mark.parametrize("content", ["", "\n", "hello\n", "{}\n"])
    def test_no_text_of_word_vectors(self, tmp_path, refused, content):
        (tmp_path / "a.txt").write_text(content)
        assert "neither 'COUNT LENGTH' nor a word" in refused(tmp_path / "a.txt")
