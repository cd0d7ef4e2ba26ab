"""From what a configuration names to a gallery: opened where it is one, ingested where it isn't.

An ingested copy stays in the private folder with its lineage, so that the budget spent on a source
follows it: reading the same file again, or a newer version of it, is no way to a fresh budget.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.model import Config
from pipeline.errors import ConfigurationError
from pipeline.gallery.open import open_gallery
from pipeline.gallery.sparse import panels_of
from pipeline.gallery.store import Gallery, is_gallery, stored_lineage
from pipeline.ingest import ingest, open_source
from pipeline.ingest.ratings import RatingsOptions, count_ratings, ingest_ratings, open_ratings
from pipeline.plan.memory import PanelMemory, SparsePanels
from pipeline.progress import Reporter
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import GALLERIES, GALLERY_STORE, SOURCE_NOTE
from pipeline.storage.lock import locked_folder, without_empty
from pipeline.storage.object_path import ObjectPath
from scoreshield.errors import InputRejected
from scoreshield.manifest.interactions import RecordKind


@dataclass(frozen=True)
class SourceSize:
    """What a plan needs to know of a source: n records of d features, and what panels cost."""

    n: int
    d: int
    panels: PanelMemory | None = None
    """None for embeddings, whose size says it."""
    record_kind: RecordKind | None = None
    """What a record of interactions is; None for embeddings."""


def source_size(config: Config) -> SourceSize:
    """Size of the configured source, from its header; of ratings, by counting them."""
    if config.ratings.by is None and not is_gallery(config.gallery):
        return SourceSize(*open_source(_local_source(config), config.key).shape)
    gallery = known_gallery(config)
    if gallery is not None:
        return SourceSize(gallery.n, gallery.d, panels_of(gallery), gallery.record_kind)
    options = _ratings_options(config)
    counts = count_ratings(_local_source(config), options)
    pointers = np.concatenate([[0], np.cumsum(counts.entries)])
    return SourceSize(counts.n, counts.d, SparsePanels(counts.d, pointers), options.by)


def source_shape(config: Config) -> tuple[int, int]:
    """(n, d) of the configured source, as :func:`source_size`."""
    size = source_size(config)
    return size.n, size.d


def _ratings_options(config: Config) -> RatingsOptions:
    ratings = config.ratings
    if ratings.by is None:
        raise ConfigurationError(
            f"gallery: {config.gallery} is no gallery; ratings are read where ratings.by says "
            "what a record is"
        )
    return RatingsOptions(ratings.by, ratings.columns, ratings.duplicates, ratings.records)


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
    if _recorded_stamp(copy) == _stamp(config) and is_gallery(copy / GALLERY_STORE):
        return _with_lineage(open_gallery(copy / GALLERY_STORE), config)
    return None


def latest_gallery(config: Config) -> Gallery | None:
    """The gallery that the newest run of a configuration used, whatever became of its source."""
    if is_gallery(config.gallery):
        return _with_lineage(open_gallery(config.gallery), config)
    if isinstance(config.gallery, ObjectPath):
        return None
    copy = _copy_folder(config) / GALLERY_STORE
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
    n = _check_source(config)
    copy = _copy_folder(config)
    with without_empty(copy.parent, config.private):
        make_private(config.private)
        # One process ingests a source; another waits, and may find it ingested.
        with locked_folder(copy, wait=True):
            return known_gallery(config) or _ingested(config, copy, n, reporter)


def _check_source(config: Config) -> int | None:
    """Refuse what can't be ingested before a folder is made for it.

    Returns the number of records, which a file of ratings tells only once it is read.
    """
    if config.ratings.by is None:
        return source_shape(config)[0]
    open_ratings(_local_source(config), config.ratings.columns)
    return None


def _ingested(config: Config, copy: Path, n: int | None, reporter: Reporter) -> Gallery:
    earlier = stored_lineage(copy / GALLERY_STORE)
    if earlier is not None:
        _check_lineage(earlier, config)
    # Before the source is read: one that changes meanwhile is read again the next time.
    stamp = _stamp(config)
    reporter.begin("ingest", n, "records" if config.ratings.by is None else "ratings")
    source, target = _local_source(config), copy / GALLERY_STORE
    common: dict[str, Any] = {
        "public_ids": config.public_ids,
        "zero_rows": config.zero_rows,
        "lineage": config.lineage,
        "overwrite": True,
        "progress": reporter.advance,
    }
    if config.ratings.by is None:
        gallery = ingest(source, target, key=config.key, **common)
    else:
        gallery = ingest_ratings(source, target, _ratings_options(config), **common)
    write_atomically(copy / SOURCE_NOTE, json.dumps(stamp).encode())
    reporter.end()
    return gallery


def _with_lineage(gallery: Gallery, config: Config) -> Gallery:
    _check_lineage(gallery.lineage, config)
    if is_gallery(config.gallery) and config.public_ids is not None and gallery.id_width is None:
        raise ConfigurationError(
            f"public_ids: {config.gallery} is a gallery without ids; leave the key out, or ingest "
            f"its source again with --public-ids {config.public_ids}"
        )
    if config.ratings.by not in (None, gallery.record_kind):
        raise ConfigurationError(
            f"ratings.by: the gallery of {config.gallery} has records of kind "
            f"{gallery.record_kind or 'embedding'}, the configuration says {config.ratings.by}"
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
    # Ratings by item and by user are two galleries of one file, with a budget each.
    which = config.key if config.ratings.by is None else f"by {config.ratings.by}"
    named = hashlib.sha256(f"{source}\0{which}".encode()).hexdigest()[:12]
    return config.private / GALLERIES / f"{source.stem[:40]}-{named}"


def _recorded_stamp(copy: Path) -> Any:
    try:
        return json.loads((copy / SOURCE_NOTE).read_text())
    except (OSError, ValueError):
        return None


def _stamp(config: Config) -> Any:
    """What tells a changed source: name, size and time of each file, and how it is read."""
    stamp = {"files": _files(_local_source(config)), "zero_rows": config.zero_rows}
    if config.public_ids is not None:
        stamp["public_ids"] = config.public_ids
    ratings = config.ratings
    if ratings.by is None:
        return stamp
    listed = None if ratings.records is None else _files(ratings.records)
    return {**stamp, "ratings": ratings.model_dump(mode="json"), "listed": listed}


def _files(root: Path) -> str:
    """Digest of the name, size and time of each file at or below a path."""
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    described = "\n".join(
        f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}"
        for file in files
        if file.is_file() and (status := os.stat(file))
    )
    return hashlib.sha256(described.encode()).hexdigest()
