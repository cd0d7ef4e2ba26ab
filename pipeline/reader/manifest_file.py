"""The manifest of a release directory, as a reader meets it: on disk and in the store's attributes.

A directory without a valid manifest is not a release. The file must hold exactly the bytes that
publication writes for what it says, so that no edit, not even of white space or of a repeated
field, goes unnoticed. The store may hold nothing that the manifest does not describe either: other
readers would take an array, a codec or a consolidated copy of the metadata that was slipped in
beside a genuine signature for signed.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from pipeline.check import listed
from pipeline.errors import IntegrityFailure, in_words
from pipeline.publish.signing import check_signature
from pipeline.storage import ids
from pipeline.storage.arrays import array_metadata, chunk_counts
from pipeline.storage.layout import IDS, MANIFEST, MANIFEST_ATTRIBUTE, METADATA, RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place
from pipeline.storage.plain_files import plain_file_faults, read_plain_file
from scoreshield.errors import InputRejected
from scoreshield.manifest.numbers import number_faults
from scoreshield.manifest.schema import ArrayRecord, Manifest, from_json, to_json
from scoreshield.printable import printable
from scoreshield.regimes.registry import REGIMES

_MOST_CHUNKS = 2**24
"""More than any plan makes: 10,000 tasks, each of which writes 1,024 chunks at most."""


def read_manifest(folder: Place) -> Manifest:
    """The manifest of a release directory; its signature is not checked here.

    Raises
    ------
    IntegrityFailure
        There is none, or it is not what publication wrote.
    """
    try:
        content = read_plain_file(folder / MANIFEST)
    except OSError as error:
        raise IntegrityFailure(
            f"{folder}: {MANIFEST} can't be read ({error.strerror}); this is no release, or one "
            "whose publication was interrupted"
        ) from error
    try:
        manifest = from_json(content)
    except InputRejected as error:
        raise IntegrityFailure(f"{folder / MANIFEST}: {error}") from error
    if content != to_json(manifest).encode():
        raise IntegrityFailure(
            f"{folder / MANIFEST}: not in the form in which it was written; it was edited"
        )
    return manifest


def verify_manifest(folder: Place, expected_public_key: str) -> Manifest:
    """The manifest of a release directory, once it is proven to be what a key's holder published.

    Checked are its form, its signature, its numbers, the copy in the store's attributes and what
    describes the arrays. The arrays are not read: their digests are in what is signed, and
    :mod:`pipeline.reader.verify` compares them.

    Raises
    ------
    IntegrityFailure
        It is missing or edited, signed by another key, contradicts itself, or is not alone.
    """
    manifest = read_manifest(folder)
    check_signature(manifest, expected_public_key)
    faults = number_faults(manifest)
    if faults:
        raise IntegrityFailure(f"{folder / MANIFEST}: {listed(faults)}")
    check_store(folder, manifest)
    return manifest


def check_store(folder: Place, manifest: Manifest) -> None:
    """Raise IntegrityFailure unless folders and metadata are those that the manifest describes.

    Chunks are not looked at.
    """
    check_nothing_else(folder)
    check_attributes(folder, manifest)
    check_layout(manifest)
    store = folder / RELEASE_STORE
    files = [METADATA, *(f"{name}/{METADATA}" for name in manifest.arrays)]
    faults = plain_file_faults(store, files, unread=[f"{name}/c" for name in manifest.arrays])
    if faults:
        raise IntegrityFailure(f"{store}: {listed(faults)}")
    for name, record in manifest.arrays.items():
        check_metadata(store, name, record)


def check_nothing_else(folder: Place) -> None:
    """Raise IntegrityFailure unless a release directory holds its manifest, its store, no more."""
    faults = [
        f"{fault}: a temporary file of an interrupted write, which may be removed"
        if fault.startswith(f".{MANIFEST}.")
        else fault
        for fault in plain_file_faults(folder, [MANIFEST], unread=[RELEASE_STORE])
    ]
    if faults:
        raise IntegrityFailure(
            f"{folder}: {listed(faults)}; expected {MANIFEST} and {RELEASE_STORE}, nothing else"
        )


def check_name(folder: Place, manifest: Manifest) -> None:
    """Raise IntegrityFailure unless the release lies in a folder of its own name."""
    if isinstance(folder, ObjectPath):
        called, names = folder.name, {folder.name}
    else:
        called, names = folder.resolve().name, {folder.absolute().name, folder.resolve().name}
    if manifest.release_id not in names:
        raise IntegrityFailure(
            f"this is release {manifest.release_id}, in a folder called "
            f"{printable(called)!r}; if it is the release that you mean, rename the "
            f"folder back to {manifest.release_id}"
        )


def check_attributes(folder: Place, manifest: Manifest) -> None:
    """Raise IntegrityFailure unless the store's group says what the manifest says, and no more."""
    expected = {
        "attributes": {MANIFEST_ATTRIBUTE: manifest.model_dump(mode="json")},
        "zarr_format": 3,
        "node_type": "group",
    }
    _compare_metadata(folder / RELEASE_STORE / METADATA, expected)


def check_metadata(store: Place, name: str, record: ArrayRecord) -> None:
    """Raise IntegrityFailure unless an array's metadata are what publication writes."""
    _compare_metadata(
        store / name / METADATA, array_metadata(record.shape, record.chunks, record.dtype)
    )


def check_layout(manifest: Manifest) -> None:
    """Raise IntegrityFailure unless the manifest's arrays are those of its regime and sizes."""
    n, found = manifest.shape.n, {name: row.shape for name, row in manifest.arrays.items()}
    _, columns = found["factor"] if len(found.get("factor", ())) == 2 else (n, 0)
    regime = REGIMES[manifest.regime]
    allowed = dict(regime.shapes(n, manifest.shape.m, columns))
    if IDS in found:
        width = found[IDS][-1:]
        fits = bool(width) and 1 <= width[0] <= ids.LONGEST_ID
        allowed[IDS] = (n, width[0] if fits else ids.LONGEST_ID)
    for name, shape in found.items():
        if allowed.get(name) != shape:
            raise IntegrityFailure(
                f"the manifest describes an array '{name}' of shape {shape}; a release of regime "
                f"{manifest.regime} has {allowed}"
            )
    public = manifest.shape.m is not None, manifest.queries_sha256 is not None
    if public != (regime.asks_queries,) * 2:
        raise IntegrityFailure(
            f"the manifest of a release of regime {manifest.regime} has m = {manifest.shape.m} and "
            f"queries_sha256 = {manifest.queries_sha256}; expected both with scores, neither else"
        )
    if not found.keys() - {IDS} or ("factor" in found) != ("diagonal" in found):
        raise IntegrityFailure(
            f"the manifest describes arrays {sorted(found)}; expected gram, or factor with "
            "diagonal, or scores; ids only beside them"
        )
    for name, record in manifest.arrays.items():
        _check_chunks(name, record)


def _check_chunks(name: str, record: ArrayRecord) -> None:
    """Chunks cover their array, in a number that a reader can list."""
    expected = "uint8" if name == IDS else "float32"
    if record.dtype != expected:
        raise IntegrityFailure(f"array '{name}' has type {record.dtype}, expected {expected}")
    fitting = len(record.chunks) == len(record.shape) and all(
        min(1, size) <= chunk <= size
        for size, chunk in zip(record.shape, record.chunks, strict=True)
    )
    if not fitting:
        raise IntegrityFailure(
            f"array '{name}' of shape {record.shape} has chunks of shape {record.chunks}, which do "
            "not fit it"
        )
    count = math.prod(chunk_counts(record.shape, record.chunks))
    if count > _MOST_CHUNKS:
        raise IntegrityFailure(
            f"array '{name}' of shape {record.shape} is cut into {count} chunks of shape "
            f"{record.chunks}; no release has more than {_MOST_CHUNKS}"
        )


def _compare_metadata(path: Place, expected: dict[str, Any]) -> None:
    """Raise IntegrityFailure unless a file holds the expected JSON, whatever its white space."""
    try:
        found = json.loads(
            read_plain_file(path), object_pairs_hook=_each_once, parse_constant=_no_number
        )
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityFailure(f"{path}: can't be read: {printable(in_words(error))}") from error
    if _canonical(found) != _canonical(expected):
        different = [printable(name) for name in sorted(_differences(expected, found))]
        raise IntegrityFailure(
            f"{path}: differs from what publication writes in {listed(different) or 'its form'}"
        )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers disagree on which of two equal names counts.
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"field {name!r} is repeated")
        fields[name] = value
    return fields


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _canonical(value: Any) -> str:
    # As text, because 1, 1.0 and True are equal in Python and are not the same manifest.
    return json.dumps(value, sort_keys=True)


def _differences(expected: Any, found: Any, path: str = "") -> list[str]:
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return [path] if _canonical(expected) != _canonical(found) else []
    return [
        difference
        for name in expected.keys() | found.keys()
        for difference in _differences(
            expected.get(name), found.get(name), f"{path}.{name}" if path else str(name)
        )
    ] or ([path] if _canonical(expected) != _canonical(found) else [])
