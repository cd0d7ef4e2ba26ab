"""From what a configuration names to a gallery: opened where it is one, ingested where it isn't.

An ingested copy stays in the private folder with its lineage, so that the budget spent on a source
follows it: reading the same file again, or a newer version of it, is no way to a fresh budget.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.durable import make_private, write_atomically
from pipeline.errors import ConfigurationError
from pipeline.gallery import Gallery, is_gallery, open_gallery, stored_lineage
from pipeline.ingest import ingest, open_source
from pipeline.object_path import ObjectPath
from pipeline.progress import Reporter
from scoreshield.errors import InputRejected


def source_shape(config: Config) -> tuple[int, int]:
    """(n, d) of the configured source, from its header alone."""
    if is_gallery(config.gallery):
        gallery = open_gallery(config.gallery)
        return gallery.n, gallery.d
    return open_source(_local_source(config), config.key).shape


def _local_source(config: Config) -> Path:
    """The configured source, which a run may ingest where it is a path.

    Raises
    ------
    InputRejected
        It is a URL, and no gallery is there: a copy of it is the curator's to make.
    """
    if isinstance(config.gallery, ObjectPath):
        raise InputRejected(
            f"{config.gallery}: found no gallery, and only a gallery may lie in an object store. "
            f"Make one with 'scoreshield ingest SOURCE {config.gallery}'."
        )
    return config.gallery


def publishes_ids(config: Config) -> bool:
    """Whether releases of the configured source carry the ids of its records."""
    if is_gallery(config.gallery):
        return open_gallery(config.gallery).id_width is not None
    return config.public_ids is not None


def known_gallery(config: Config) -> Gallery | None:
    """The gallery of a configuration if it is there already; None where it must be ingested."""
    if is_gallery(config.gallery):
        return _with_lineage(open_gallery(config.gallery), config)
    if isinstance(config.gallery, ObjectPath):
        return None
    copy = _copy_folder(config)
    if _recorded_stamp(copy) == _stamp(config) and is_gallery(copy / "gallery.zarr"):
        return _with_lineage(open_gallery(copy / "gallery.zarr"), config)
    return None


def latest_gallery(config: Config) -> Gallery | None:
    """The gallery that the newest run of a configuration used, whatever became of its source."""
    if is_gallery(config.gallery):
        return _with_lineage(open_gallery(config.gallery), config)
    if isinstance(config.gallery, ObjectPath):
        return None
    copy = _copy_folder(config) / "gallery.zarr"
    return _with_lineage(open_gallery(copy), config) if is_gallery(copy) else None


def prepare_gallery(config: Config, reporter: Reporter) -> Gallery:
    """The gallery of a configuration, ingested first where its source is not one.

    Raises
    ------
    InputRejected
        The source can't be a gallery.
    ConfigurationError
        The gallery belongs to another lineage than the configuration says.
    """
    gallery = known_gallery(config)
    if gallery is not None:
        return gallery
    n, _ = source_shape(config)
    copy = make_private(_copy_folder(config))
    with _ingesting(copy):
        # Whoever held the folder may have ingested the same source meanwhile.
        return known_gallery(config) or _ingested(config, copy, n, reporter)


@contextmanager
def _ingesting(copy: Path) -> Iterator[None]:
    """Hold a copy's folder, after waiting for whoever does: one process ingests a source."""
    with (copy / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ingested(config: Config, copy: Path, n: int, reporter: Reporter) -> Gallery:
    earlier = stored_lineage(copy / "gallery.zarr")
    if earlier is not None:
        _check_lineage(earlier, config)
    # Before the source is read: one that changes meanwhile is read again the next time.
    stamp = _stamp(config)
    reporter.begin("ingest", n, "records")
    gallery = ingest(
        _local_source(config),
        copy / "gallery.zarr",
        key=config.key,
        public_ids=config.public_ids,
        zero_rows=config.zero_rows,
        lineage=config.lineage,
        overwrite=True,
        progress=lambda done, _total: reporter.advance(done),
    )
    write_atomically(copy / "source.json", json.dumps(stamp).encode())
    reporter.end()
    return gallery


def _with_lineage(gallery: Gallery, config: Config) -> Gallery:
    _check_lineage(gallery.lineage, config)
    if is_gallery(config.gallery) and config.public_ids is not None and gallery.id_width is None:
        raise ConfigurationError(
            f"public_ids: {config.gallery} is a gallery without ids; leave the key out, or ingest "
            f"its source again with --public-ids {config.public_ids}"
        )
    return gallery


def _check_lineage(lineage: str, config: Config) -> None:
    if config.lineage not in (None, lineage):
        raise ConfigurationError(
            f"lineage: the gallery of {config.gallery} has lineage {lineage}, the configuration "
            f"says {config.lineage}; leave it out, or ingest with --lineage {config.lineage}"
        )


def _copy_folder(config: Config) -> Path:
    source = _local_source(config)
    named = hashlib.sha256(f"{source}\0{config.key}".encode()).hexdigest()[:12]
    return config.private / "galleries" / f"{source.stem[:40]}-{named}"


def _recorded_stamp(copy: Path) -> Any:
    try:
        return json.loads((copy / "source.json").read_text())
    except (OSError, ValueError):
        return None


def _stamp(config: Config) -> Any:
    """What tells a changed source: name, size and time of each file, and how it is read."""
    root = _local_source(config)
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    described = "\n".join(
        f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}"
        for file in files
        if file.is_file() and (status := os.stat(file))
    )
    digest = hashlib.sha256(described.encode()).hexdigest()
    stamp = {"files": digest, "zero_rows": config.zero_rows}
    return stamp if config.public_ids is None else {**stamp, "public_ids": config.public_ids}
