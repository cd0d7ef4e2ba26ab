"""Blocks of integer codes: the same promises as blocks of float32, in a quarter of the bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline.errors import IntegrityFailure
from pipeline.plan.geometry import Triangle
from pipeline.storage.blocks import (
    create_store,
    encoding_of,
    matches,
    read_block,
    read_stored,
    write_block,
)
from scoreshield.noise.encoding import FLOAT32, Encoding, choose_encoding

SIGMA = 2.0
TRIANGLE = Triangle(50, 16)
EDGE = TRIANGLE.index(1, 3)
"""A block of 16 rows and 2 columns."""
ENCODINGS = [choose_encoding(SIGMA, "int8"), choose_encoding(SIGMA, "int16")]


@pytest.fixture(params=ENCODINGS, ids=["int8", "int16"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    return request.param


@pytest.fixture
def store(tmp_path: Path, encoding: Encoding) -> Path:
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE, encoding)
    return path


def block(index: int) -> np.ndarray:
    rows, columns = TRIANGLE.region(index)
    shape = rows.stop - rows.start, columns.stop - columns.start
    return (SIGMA * np.random.default_rng(index).normal(size=shape)).astype(np.float32)


def chunk(store: Path, index: int) -> Path:
    return store / "blocks" / "c" / str(index) / "0" / "0"


def test_every_block_reads_back_as_its_rounded_values(store: Path, encoding: Encoding) -> None:
    assert encoding_of(store) == encoding
    for index in range(TRIANGLE.count):
        receipt = write_block(store, TRIANGLE, index, block(index))
        assert matches(store, receipt)
        codes = encoding.encode(block(index))
        np.testing.assert_array_equal(read_stored(store, TRIANGLE, index), codes)
        found = read_block(store, TRIANGLE, index)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, encoding.decode(codes))


def test_bytes_and_receipt_are_those_of_the_padded_codes(store: Path, encoding: Encoding) -> None:
    receipt = write_block(store, TRIANGLE, EDGE, block(EDGE))
    padded = np.zeros((16, 16), dtype=np.dtype(encoding.dtype).newbyteorder("<"))
    padded[:, :2] = encoding.encode(block(EDGE))
    raw = chunk(store, EDGE).read_bytes()
    assert raw[:-4] == padded.tobytes()
    assert len(raw) == 16 * 16 * encoding.bytes + 4
    assert receipt.sha256 == hashlib.sha256(padded.tobytes()).hexdigest()


@pytest.mark.parametrize("damage", ["missing", "flipped payload", "cut", "no noisy value"])
def test_a_damaged_block_is_refused(store: Path, encoding: Encoding, damage: str) -> None:
    receipt = write_block(store, TRIANGLE, 1, block(1))
    raw = bytearray(chunk(store, 1).read_bytes())
    if damage == "missing":
        chunk(store, 1).unlink()
    elif damage == "no noisy value":
        # Written with a checksum that fits.
        codes = encoding.encode(block(1))
        codes[3, 4] = encoding.missing
        zarr.open_group(store, mode="r+")["blocks"][1] = codes
    else:
        raw[5] ^= 1
        chunk(store, 1).write_bytes(raw if damage == "flipped payload" else raw[:-100])
    assert not matches(store, receipt)
    with pytest.raises(IntegrityFailure, match="noisy block 1 of"):
        read_block(store, TRIANGLE, 1)


def test_a_store_of_another_precision_is_refused(store: Path, encoding: Encoding) -> None:
    create_store(store, TRIANGLE, encoding)
    others = [FLOAT32, Encoding(encoding.dtype, 2 * encoding.scale), *ENCODINGS]
    for other in others:
        if other != encoding:
            with pytest.raises(IntegrityFailure, match="can't change its precision half way"):
                create_store(store, TRIANGLE, other)


@pytest.mark.parametrize("step", [None, 0.0, -1.0, "1"])
def test_codes_without_a_step_are_refused(tmp_path: Path, step: object) -> None:
    path = tmp_path / "noisy.zarr"
    create_store(path, TRIANGLE, ENCODINGS[0])
    zarr.open_group(path, mode="r+")["blocks"].attrs["step"] = step
    create_store(tmp_path / "other.zarr", TRIANGLE)
    with pytest.raises(IntegrityFailure, match="expected float32 without a step"):
        read_block(path, TRIANGLE, 0)
