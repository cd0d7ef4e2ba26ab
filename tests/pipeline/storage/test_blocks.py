"""The store of noisy blocks: whatever happens to a chunk or a receipt is noticed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.storage.blocks import (
    Receipt,
    combined_digest,
    create_store,
    load_receipt,
    load_receipts,
    matches,
    read_block,
    save_receipt,
    write_block,
)

TRIANGLE = Triangle(50, 16)
EDGE = TRIANGLE.index(1, 3)
"""A block of 16 rows and 2 columns."""


def block(index: int) -> NDArray[np.float32]:
    i, j = TRIANGLE.position(index)
    rows, columns = TRIANGLE.span(i), TRIANGLE.span(j)
    shape = rows.stop - rows.start, columns.stop - columns.start
    return np.random.default_rng(index).normal(size=shape).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE)
    return path


def chunk(store: Path, index: int) -> Path:
    return store / "blocks" / "c" / str(index) / "0" / "0"


def test_every_block_reads_back_as_written(store: Path) -> None:
    receipts = [write_block(store, TRIANGLE, k, block(k)) for k in range(TRIANGLE.count)]
    for index, receipt in enumerate(receipts):
        np.testing.assert_array_equal(read_block(store, TRIANGLE, index), block(index))
        assert receipt.block == index
        assert matches(store, receipt)


def test_a_receipt_is_the_digest_of_the_padded_bytes(store: Path) -> None:
    receipt = write_block(store, TRIANGLE, EDGE, block(EDGE))
    padded = np.zeros((16, 16), dtype="<f4")
    padded[:, :2] = block(EDGE)
    assert receipt.sha256 == hashlib.sha256(padded.tobytes()).hexdigest()
    raw = chunk(store, EDGE).read_bytes()
    assert len(raw) == padded.nbytes + 4
    assert raw[:-4] == padded.tobytes()


def test_blocks_of_zeros_and_of_the_fill_value_are_stored_too(store: Path) -> None:
    write_block(store, TRIANGLE, 0, np.zeros((16, 16), dtype=np.float32))
    assert chunk(store, 0).exists()
    write_block(store, TRIANGLE, 1, np.full((16, 16), np.nan, dtype=np.float32))
    assert chunk(store, 1).exists()
    with pytest.raises(IntegrityFailure, match=r"block 1 of .* not finite"):
        read_block(store, TRIANGLE, 1)


@pytest.mark.parametrize(
    "damage", ["missing", "flipped payload", "flipped checksum", "cut", "empty"]
)
def test_a_damaged_chunk_is_noticed(store: Path, damage: str) -> None:
    receipt = write_block(store, TRIANGLE, EDGE, block(EDGE))
    file = chunk(store, EDGE)
    raw = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "flipped payload":
        raw[5] ^= 1
    elif damage == "flipped checksum":
        raw[-1] ^= 1
    elif damage == "cut":
        raw = raw[:-100]
    else:
        raw = bytearray()
    if damage != "missing":
        file.write_bytes(raw)
    assert not matches(store, receipt)
    with pytest.raises(IntegrityFailure, match=f"noisy block {EDGE} of"):
        read_block(store, TRIANGLE, EDGE)


@given(flipped=st.integers(0, 8 * (16 * 16 * 4 + 4) - 1))
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, flipped: int) -> None:
    path = tmp_path_factory.getbasetemp() / "bits.zarr"
    create_store(path, TRIANGLE)
    receipt = write_block(path, TRIANGLE, 0, block(0))
    raw = bytearray(chunk(path, 0).read_bytes())
    raw[flipped // 8] ^= 1 << flipped % 8
    chunk(path, 0).write_bytes(raw)
    assert not matches(path, receipt)


def test_a_block_in_anothers_place_is_no_match(store: Path) -> None:
    receipt = write_block(store, TRIANGLE, 0, block(0))
    write_block(store, TRIANGLE, 1, block(1))
    chunk(store, 0).write_bytes(chunk(store, 1).read_bytes())
    assert np.isfinite(read_block(store, TRIANGLE, 0)).all()
    assert not matches(store, receipt)


def test_a_store_is_kept_and_another_geometry_refused(store: Path) -> None:
    receipt = write_block(store, TRIANGLE, 0, block(0))
    create_store(store, TRIANGLE)
    assert matches(store, receipt)
    with pytest.raises(
        IntegrityFailure, match=r"shape \(10, 16, 16\), this run writes \(3, 32, 32"
    ):
        create_store(store, Triangle(50, 32))
    with pytest.raises(IntegrityFailure, match=r"shape \(16, 16\), expected \(32, 32\)"):
        read_block(store, Triangle(50, 32), 0)


def test_a_store_that_a_crash_left_without_its_array_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE)
    (path / "blocks" / "zarr.json").unlink()
    create_store(path, TRIANGLE)
    assert matches(path, write_block(path, TRIANGLE, 0, block(0)))


def test_a_store_made_again_is_written_in_its_own_geometry(tmp_path: Path) -> None:
    path = tmp_path / "noisy.zarr"
    create_store(path, Triangle(50, 32))
    write_block(path, Triangle(50, 32), 0, np.ones((32, 32), dtype=np.float32))
    shutil.rmtree(path)
    create_store(path, TRIANGLE)
    assert matches(path, write_block(path, TRIANGLE, EDGE, block(EDGE)))


def test_a_store_that_cant_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(IntegrityFailure, match="can't be opened"):
        read_block(tmp_path / "none.zarr", TRIANGLE, 0)
    assert not matches(tmp_path / "none.zarr", Receipt(0, "0" * 64))
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE)
    (path / "blocks" / "zarr.json").write_text("{")
    with pytest.raises(IntegrityFailure, match="can't be opened"):
        create_store(path, TRIANGLE)


def test_receipts_survive_the_disk(tmp_path: Path) -> None:
    receipt = Receipt(7, "ab" * 32)
    save_receipt(tmp_path, receipt)
    assert load_receipt(tmp_path, 7) == receipt
    found = list(load_receipts(tmp_path, TRIANGLE))
    assert found == [receipt if index == 7 else None for index in range(TRIANGLE.count)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"block": 3}',
        '{"block": 4, "sha256": "' + "0" * 64 + '"}',
        '{"block": 3, "sha256": "zz"}',
        '{"block": 3, "sha256": 5}',
        '{"block": Infinity, "sha256": "' + "0" * 64 + '"}',
        '{"block": 3, "sha256": "' + "0" * 64 + '", "clean": 0.5}',
        "\udcff",
    ],
)
def test_a_damaged_receipt_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "3.json").write_bytes(content.encode(errors="surrogateescape"))
    assert load_receipt(tmp_path, 3) is None


def test_a_receipt_says_nothing_but_index_and_digest(store: Path, tmp_path: Path) -> None:
    receipt = write_block(store, TRIANGLE, 2, block(2))
    save_receipt(tmp_path, receipt)
    content = json.loads((tmp_path / "2.json").read_text())
    assert content == {"block": 2, "sha256": receipt.sha256}
    assert (tmp_path / "2.json").stat().st_mode & 0o777 == 0o600


def test_the_combined_digest_depends_on_order_and_on_every_block() -> None:
    receipts = [Receipt(index, hashlib.sha256(bytes([index])).hexdigest()) for index in range(3)]
    expected = hashlib.sha256(b"".join(hashlib.sha256(bytes([k])).digest() for k in range(3)))
    assert combined_digest(receipts) == expected.hexdigest()
    assert combined_digest(receipts[::-1]) != combined_digest(receipts)
    assert combined_digest(receipts[:2]) != combined_digest(receipts)
