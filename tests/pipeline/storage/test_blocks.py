"""The store of noisy blocks: whatever happens to a chunk or a receipt is noticed.

Blocks of integer codes make the same promises as blocks of float32, in fewer bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.storage.blocks import (
    Receipt,
    combined_digest,
    create_store,
    encoding_of,
    load_receipt,
    load_receipts,
    matches,
    read_block,
    read_stored,
    save_receipt,
    write_block,
)
from scoreshield.noise.encoding import FLOAT32, Encoding, choose_encoding

SIGMA = 2.0
TRIANGLE = Triangle(50, 16)
EDGE = TRIANGLE.index(1, 3)
"""A block of 16 rows and 2 columns."""
ENCODINGS = [FLOAT32, choose_encoding(SIGMA, "int8"), choose_encoding(SIGMA, "int16")]


def block(index: int) -> NDArray[np.float32]:
    rows, columns = TRIANGLE.region(index)
    shape = rows.stop - rows.start, columns.stop - columns.start
    return (SIGMA * np.random.default_rng(index).normal(size=shape)).astype(np.float32)


@pytest.fixture(params=ENCODINGS, ids=lambda encoding: encoding.dtype)
def encoding(request: pytest.FixtureRequest) -> Encoding:
    return request.param


@pytest.fixture
def encoded(tmp_path: Path, encoding: Encoding) -> Path:
    create_store(tmp_path / "noisy.zarr", TRIANGLE, encoding)
    return tmp_path / "noisy.zarr"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    create_store(tmp_path / "noisy.zarr", TRIANGLE)
    return tmp_path / "noisy.zarr"


def chunk(store: Path, index: int) -> Path:
    return store / "blocks" / "c" / str(index) / "0" / "0"


def test_every_block_reads_back_as_its_rounded_values(encoded: Path, encoding: Encoding) -> None:
    assert encoding_of(encoded) == encoding
    receipts = [write_block(encoded, TRIANGLE, k, block(k)) for k in range(TRIANGLE.count)]
    for index, receipt in enumerate(receipts):
        assert receipt.block == index
        assert matches(encoded, receipt)
        stored = encoding.encode(block(index))
        np.testing.assert_array_equal(read_stored(encoded, TRIANGLE, index), stored)
        found = read_block(encoded, TRIANGLE, index)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, encoding.decode(stored))


def test_a_receipt_is_the_digest_of_the_padded_bytes(encoded: Path, encoding: Encoding) -> None:
    receipt = write_block(encoded, TRIANGLE, EDGE, block(EDGE))
    padded = np.zeros((16, 16), dtype=np.dtype(encoding.dtype).newbyteorder("<"))
    padded[:, :2] = encoding.encode(block(EDGE))
    assert receipt.sha256 == hashlib.sha256(padded.tobytes()).hexdigest()
    raw = chunk(encoded, EDGE).read_bytes()
    assert len(raw) == 16 * 16 * encoding.bytes + 4
    assert raw[:-4] == padded.tobytes()


def test_blocks_of_zeros_and_of_the_fill_value_are_stored_too(store: Path) -> None:
    write_block(store, TRIANGLE, 0, np.zeros((16, 16), dtype=np.float32))
    assert chunk(store, 0).exists()
    write_block(store, TRIANGLE, 1, np.full((16, 16), np.nan, dtype=np.float32))
    assert chunk(store, 1).exists()
    with pytest.raises(IntegrityFailure, match=r"block 1 of .* not finite"):
        read_block(store, TRIANGLE, 1)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped payload": lambda raw: raw[:5] + bytes([raw[5] ^ 1]) + raw[6:],
    "flipped checksum": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "cut": lambda raw: raw[:-100],
    "empty": lambda raw: b"",
}


@pytest.mark.parametrize("damage", ["missing", "no noisy value", *DAMAGE])
def test_a_damaged_block_is_noticed(encoded: Path, encoding: Encoding, damage: str) -> None:
    receipt = write_block(encoded, TRIANGLE, EDGE, block(EDGE))
    file = chunk(encoded, EDGE)
    if damage == "missing":
        file.unlink()
    elif damage == "no noisy value":
        # Written with a checksum that fits.
        stored = encoding.encode(block(EDGE))
        stored[3, 1] = encoding.missing
        zarr.open_group(encoded, mode="r+")["blocks"][EDGE, :, :2] = stored
    else:
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    assert not matches(encoded, receipt)
    with pytest.raises(IntegrityFailure, match=f"noisy block {EDGE} of"):
        read_block(encoded, TRIANGLE, EDGE)


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


def test_a_store_of_another_precision_is_refused(encoded: Path, encoding: Encoding) -> None:
    create_store(encoded, TRIANGLE, encoding)
    coarser = Encoding("int8" if encoding == FLOAT32 else encoding.dtype, 2 * encoding.scale)
    others = [coarser, *ENCODINGS]
    for other in others:
        if other != encoding:
            with pytest.raises(IntegrityFailure, match="can't change its precision half way"):
                create_store(encoded, TRIANGLE, other)


@pytest.mark.parametrize("step", [None, 0.0, -1.0, "1"])
def test_codes_without_a_step_are_refused(tmp_path: Path, step: object) -> None:
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE, ENCODINGS[1])
    zarr.open_group(path, mode="r+")["blocks"].attrs["step"] = step
    create_store(tmp_path / "other.zarr", TRIANGLE)
    with pytest.raises(IntegrityFailure, match="expected float32 without a step"):
        read_block(path, TRIANGLE, 0)


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
