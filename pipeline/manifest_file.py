"""The manifest of a release directory, as a reader meets it: on disk and in the store's attributes.

A directory without a valid manifest is not a release. The file must hold exactly the bytes that
publication writes for what it says, so that no edit, not even of white space or of a repeated
field, goes unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from pipeline.errors import IntegrityFailure
from pipeline.publish import ATTRIBUTE, MANIFEST, STORE
from scoreshield.errors import InputRejected
from scoreshield.manifest import ArrayRecord, Manifest, from_json, to_json


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a release directory; its signature is not checked here.

    Raises
    ------
    IntegrityFailure
        There is none, or it is not what publication wrote.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
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


def check_attributes(folder: Path, manifest: Manifest) -> None:
    """Raise IntegrityFailure unless the store's attributes are a copy of the manifest."""
    store = folder / STORE
    try:
        found = zarr.open_group(str(store), mode="r").attrs.asdict()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityFailure(f"{store}: can't be opened: {error}") from error
    expected = {ATTRIBUTE: manifest.model_dump(mode="json")}
    if _canonical(found) != _canonical(expected):
        different = sorted(_differences(expected, found))
        raise IntegrityFailure(
            f"{store}: attributes differ from {MANIFEST} in {', '.join(different[:5])}"
        )


def check_layout(manifest: Manifest) -> None:
    """Raise IntegrityFailure unless the manifest's arrays are those of its regime and sizes."""
    n, found = manifest.shape.n, {name: row.shape for name, row in manifest.arrays.items()}
    columns = found.get("factor", (n, 0))[-1:]
    allowed: dict[str, tuple[int | None, ...]] = (
        {"gram": (n, n), "factor": (n, *columns), "diagonal": (n,)}
        if manifest.regime == "gram"
        else {"scores": (manifest.shape.m, n)}
    )
    for name, shape in found.items():
        if allowed.get(name) != shape:
            raise IntegrityFailure(
                f"the manifest describes an array '{name}' of shape {shape}; a release of regime "
                f"{manifest.regime} has {allowed}"
            )
    if not found or ("factor" in found) != ("diagonal" in found):
        raise IntegrityFailure(
            f"the manifest describes arrays {sorted(found)}; expected gram, or factor with "
            "diagonal, or scores"
        )


def refuse_foreign_metadata(array: Any, record: ArrayRecord) -> None:
    """Raise IntegrityFailure unless an array's metadata are what publication writes."""
    metadata = array.metadata
    expected = {
        "shape": (tuple(array.shape), record.shape),
        "dtype": (str(array.dtype), record.dtype),
        "codecs": (tuple(metadata.codecs), (BytesCodec(endian="little"), Crc32cCodec())),
        # NaN differs from itself, hence as text.
        "fill_value": (str(metadata.fill_value), "nan"),
        "attributes": (dict(metadata.attributes), {}),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise IntegrityFailure(
                f"{array.store_path}: {name} is {found!r}, publication writes {wanted!r}"
            )


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
