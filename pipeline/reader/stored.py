"""What a release's store holds: the metadata of its arrays, its exact set of files, every chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.check import Check, Listener
from pipeline.errors import IntegrityFailure, in_words
from pipeline.reader.manifest_file import check_layout, check_metadata
from pipeline.storage import arrays
from pipeline.storage.layout import IDS, METADATA
from pipeline.storage.place import Place
from pipeline.storage.plain_files import plain_file_faults, plain_file_sizes
from scoreshield.manifest.schema import Manifest


def stored_checks(store: Place, manifest: Manifest, tell: Listener) -> Iterator[Check]:
    """Metadata, the exact set of files, and the checksum of every chunk."""
    try:
        check_layout(manifest)
        for name, record in manifest.arrays.items():
            check_metadata(store, name, record)
        opened = {name: arrays.open_for_reading(store, name) for name in manifest.arrays}
    except IntegrityFailure as error:
        yield Check("metadata", False, str(error))
        return
    yield Check("metadata", True, f"arrays {', '.join(sorted(opened)) or 'none'} as described")
    try:
        faults = _file_faults(store, opened)
    except IntegrityFailure as error:
        faults = [str(error)]
    yield Check.of_faults("files", faults, "no file is missing, extra or cut short")
    if faults:
        return
    faults = [fault for name in opened for fault in _chunk_faults(name, opened[name], tell)]
    yield Check.of_faults("checksums", faults, "every chunk passes its crc32c and is finite")


def _file_faults(store: Place, opened: dict[str, Any]) -> list[str]:
    sizes = {
        f"{name}/{file}": arrays.chunk_bytes(array)
        for name, array in opened.items()
        for file in arrays.chunk_files(array)
    }
    metadata = {METADATA} | {f"{name}/{METADATA}" for name in opened}
    faults = plain_file_faults(store, metadata | set(sizes))
    # One that is not there is a fault already.
    for file, size in plain_file_sizes(store, sizes).items():
        if size != sizes[file]:
            faults.append(f"{file} has {size} bytes, expected {sizes[file]}")
    return faults


def _chunk_faults(name: str, array: Any, tell: Listener) -> Iterator[str]:
    files = arrays.chunk_files(array)
    for done, file in enumerate(files, start=1):
        position = [int(part) for part in file.split("/")[1:]]
        region = tuple(
            slice(k * chunk, min((k + 1) * chunk, size))
            for k, chunk, size in zip(position, array.chunks, array.shape, strict=True)
        )
        try:
            _read_chunk(name, array, region)
        except IntegrityFailure as error:
            yield f"{name}/{file}: {in_words(error)}"
        tell(f"checksums of {name}", done, len(files))


def _read_chunk(name: str, array: Any, region: tuple[slice, ...]) -> None:
    if name == IDS:
        arrays.read_ids(array, region[0])
    else:
        arrays.read(array, region)
