"""The noisy matrix on disk: the blocks of its geometry, with receipts.

Block t is one chunk of the Zarr array ``blocks[T, rows, columns]``; blocks at the lower or right
edge are padded with zeros. Values are in the store's encoding (:mod:`scoreshield.noise.encoding`),
which the array's type and its attribute ``step`` tell to every reader. A missing chunk reads as the
one value that no noisy value is stored as, and is refused. A receipt on disk names the SHA-256 of a
block's bytes: it, and not the chunk's existence, says that a block is done, and every reader holds
the block against it. Receipts lie beside the store, in the folder ``receipts``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec

from pipeline.errors import IntegrityFailure, in_words
from pipeline.plan.geometry import Geometry
from pipeline.storage import place as places
from pipeline.storage.arrays import sweep_partial_files
from pipeline.storage.layout import METADATA, NOISY_BLOCKS, RECEIPTS
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, zarr_store
from pipeline.storage.plain_files import plain_file_faults
from scoreshield.noise.encoding import FLOAT32, Encoding

_STEP = "step"
_RECEIPTS_AT_ONCE = 16
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Receipt:
    """Proof that a block was written: its index and the SHA-256 of its padded bytes as stored."""

    block: int
    sha256: str


def create_store(path: Place, geometry: Geometry, encoding: Encoding = FLOAT32) -> None:
    """Make an empty block store; an existing one of the same geometry and encoding is kept.

    One that a crash left without its array is finished; what a killed worker left of a write is
    removed.

    Raises
    ------
    IntegrityFailure
        A store of another geometry or encoding is in the way, or one that holds foreign files.
    """
    shape = (geometry.count, *geometry.shape)
    if (path / NOISY_BLOCKS / METADATA).exists():
        found = _array(path).shape
        if found != shape:
            raise IntegrityFailure(
                f"{path} holds noisy blocks of shape {found}, this run writes {shape}; "
                "a run can't change its block side half way"
            )
        if encoding_of(path) != encoding:
            raise IntegrityFailure(
                f"{path} holds noisy blocks as {_words(encoding_of(path))}, this run writes "
                f"{_words(encoding)}; a run can't change its precision half way"
            )
        sweep_partial_files(path)
        _refuse_foreign_files(path, geometry)
        return
    store = zarr_store(path, read_only=False)
    group = zarr.open_group(store, mode="a", zarr_format=3)
    group.create_array(
        NOISY_BLOCKS,
        shape=shape,
        chunks=(1, *geometry.shape),
        dtype=encoding.dtype,
        fill_value=encoding.missing,
        attributes={_STEP: encoding.step},
        # Noise does not compress; the checksum turns a flipped byte into an error.
        serializer=BytesCodec(endian="little"),
        compressors=[Crc32cCodec()],
    )
    # A handle of an earlier store at this path would write in its geometry.
    _array.cache_clear()


def write_block(path: Place, geometry: Geometry, index: int, block: NDArray[np.float32]) -> Receipt:
    """Write one block (as cut by :meth:`Geometry.region`, unpadded) and return its receipt."""
    padded = stored = encoding_of(path).encode(block)
    if stored.shape != geometry.shape:
        padded = np.zeros(geometry.shape, dtype=stored.dtype)
        padded[: stored.shape[0], : stored.shape[1]] = stored
    _array(path)[index] = padded
    return Receipt(index, _sha256(padded))


def read_block(path: Place, geometry: Geometry, index: int) -> NDArray[np.float32]:
    """Read one block, unpadded.

    Raises
    ------
    IntegrityFailure
        As :func:`read_stored`.
    """
    return encoding_of(path).decode(read_stored(path, geometry, index))


def read_stored(path: Place, geometry: Geometry, index: int) -> NDArray[Any]:
    """Read one block, unpadded, in the store's encoding.

    Raises
    ------
    IntegrityFailure
        The chunk is missing, fails its checksum, holds values that are not finite, is not the one
        that its receipt was written for, or belongs to another geometry.
    """
    padded = _read_padded(path, index)
    _check_receipt(path, index, padded)
    if padded.shape != geometry.shape:
        raise IntegrityFailure(
            f"noisy block {index} of {path} has shape {padded.shape}, expected "
            f"{geometry.shape}; the store was written with another block side"
        )
    rows, columns = geometry.region(index)
    return padded[: rows.stop - rows.start, : columns.stop - columns.start]


def encoding_of(path: Place) -> Encoding:
    """The encoding of a store's values.

    Raises
    ------
    IntegrityFailure
        The store can't be opened, or has a type that no store is made with.
    """
    array = _array(path)
    dtype, step = str(array.dtype), array.attrs.get(_STEP)
    positive = isinstance(step, float) and step > 0
    if dtype == "float32" and step is None:
        return FLOAT32
    if dtype in ("int8", "int16") and positive:
        return Encoding(dtype, step)  # type: ignore[arg-type]
    raise IntegrityFailure(
        f"the store of noisy blocks {path} has type {dtype} and step {step!r}; expected float32 "
        "without a step, or int8 or int16 with one"
    )


def matches(path: Place, receipt: Receipt) -> bool:
    """Whether the stored block is intact and is the one the receipt was written for."""
    try:
        return _sha256(_read_padded(path, receipt.block)) == receipt.sha256
    except IntegrityFailure:
        return False


def damaged_blocks(path: Place, geometry: Geometry) -> list[int]:
    """Every block of a finished store that is missing, damaged, or not the one of its receipt."""
    receipts = load_receipts(_receipts_of(path), geometry)
    return [
        index
        for index, receipt in enumerate(receipts)
        if receipt is None or not matches(path, receipt)
    ]


def save_receipt(folder: Place, receipt: Receipt) -> None:
    """Write a receipt durably; the block it names must have been written before."""
    text = json.dumps(asdict(receipt), sort_keys=True) + "\n"
    places.write(folder / f"{receipt.block}.json", text.encode())


def load_receipt(folder: Place, index: int) -> Receipt | None:
    """The receipt of one block, or None where it has none or an unreadable one."""
    try:
        receipt = Receipt(**json.loads((folder / f"{index}.json").read_text()))
        intact = receipt.block == index and _DIGEST.fullmatch(receipt.sha256) is not None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return receipt if intact else None


def load_receipts(folder: Place, geometry: Geometry) -> Iterator[Receipt | None]:
    """The receipt, or None, of every block in packed order."""
    indices = range(geometry.count)
    if not isinstance(folder, ObjectPath):
        return (load_receipt(folder, index) for index in indices)
    # A request each takes its time: only for those that are there, and many at once.
    stored = folder.files()
    with ThreadPoolExecutor(_RECEIPTS_AT_ONCE) as pool:
        found = pool.map(
            lambda index: load_receipt(folder, index) if f"{index}.json" in stored else None,
            indices,
        )
        return iter(list(found))


def combined_digest(receipts: list[Receipt]) -> str:
    """One SHA-256 for a whole store: over the blocks' digests in packed order."""
    digest = hashlib.sha256()
    for receipt in receipts:
        digest.update(bytes.fromhex(receipt.sha256))
    return digest.hexdigest()


def forget_stores() -> None:
    """Drop the handles of opened stores: a store of the same name may be another one by now."""
    _array.cache_clear()


def _read_padded(path: Place, index: int) -> NDArray[Any]:
    try:
        padded = np.asarray(_array(path)[index])
    except (OSError, ValueError, KeyError) as error:
        raise IntegrityFailure(
            f"noisy block {index} of {path} can't be read: {in_words(error)}"
        ) from error
    if not encoding_of(path).is_intact(padded):
        raise IntegrityFailure(
            f"noisy block {index} of {path} is missing or holds values that are not finite"
        )
    return padded


def _check_receipt(path: Place, index: int, padded: NDArray[Any]) -> None:
    """A block may be whole, and another one: two chunks that changed places."""
    folder = _receipts_of(path)
    # In an object store every run has receipts, and a request more would answer that.
    if not isinstance(folder, ObjectPath) and not folder.exists():
        return
    receipt = load_receipt(folder, index)
    if receipt is None or receipt.sha256 != _sha256(padded):
        raise IntegrityFailure(
            f"noisy block {index} of {path} is not the one that its receipt was written for; "
            "until the release is published the same command makes it again"
        )


def _receipts_of(path: Place) -> Place:
    return path.parent / RECEIPTS


def _refuse_foreign_files(path: Place, geometry: Geometry) -> None:
    """Nothing may lie in a store that no run writes, such as a chunk too many."""
    own = [METADATA, f"{NOISY_BLOCKS}/{METADATA}"]
    own += [f"{NOISY_BLOCKS}/c/{index}/0/0" for index in range(geometry.count)]
    foreign = [
        fault
        for fault in plain_file_faults(path, own)
        # A block that is missing is yet to be made; a worker of an earlier attempt may live on.
        if not fault.endswith(" is missing") and ".partial " not in fault
    ]
    if foreign:
        raise IntegrityFailure(
            f"{path}: {foreign[0]} ({len(foreign)} in all); remove what no run has written there, "
            "and run the same command again"
        )


def _sha256(padded: NDArray[Any]) -> str:
    little = np.ascontiguousarray(padded, dtype=padded.dtype.newbyteorder("<"))
    return hashlib.sha256(little.data).hexdigest()


def _words(encoding: Encoding) -> str:
    return encoding.dtype if encoding.step is None else f"{encoding.dtype} of step {encoding.step}"


@lru_cache(maxsize=8)
def _array(path: Place) -> Any:
    """The opened Zarr array; one handle a process and store."""
    try:
        # How to write empty chunks is not stored with an array: it is said at each opening.
        store = zarr_store(path, read_only=False)
        array: Any = zarr.open_group(store, mode="r+")[NOISY_BLOCKS]
        return array.with_config({"write_empty_chunks": True})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityFailure(
            f"the store of noisy blocks {path} can't be opened: {in_words(error)}"
        ) from error
