"""From what a configuration names to a gallery: opened where it is one, ingested where it isn't.

An ingested copy stays in the private folder with its lineage, so that the budget spent on a source
follows it: reading the same file again, or a newer version of it, is no way to a fresh budget.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.durable import make_private, write_atomically
from pipeline.errors import ConfigurationError
from pipeline.gallery import Gallery, is_gallery, open_gallery
from pipeline.ingest import ingest, open_source
from pipeline.progress import Reporter


def source_shape(config: Config) -> tuple[int, int]:
    """(n, d) of the configured source, from its header alone."""
    if is_gallery(config.gallery):
        gallery = open_gallery(config.gallery)
        return gallery.n, gallery.d
    return open_source(config.gallery, config.key).shape


def known_gallery(config: Config) -> Gallery | None:
    """The gallery of a configuration if it is there already; None where it must be ingested."""
    if is_gallery(config.gallery):
        return _with_lineage(open_gallery(config.gallery), config)
    copy = _copy_folder(config)
    if _recorded_stamp(copy) == _stamp(config):
        return _with_lineage(open_gallery(copy / "gallery.zarr"), config)
    return None


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
    copy = make_private(_copy_folder(config))
    stamp = _stamp(config)
    reporter.begin("ingest", source_shape(config)[0], "records")
    gallery = ingest(
        config.gallery,
        copy / "gallery.zarr",
        key=config.key,
        zero_rows=config.zero_rows,
        lineage=config.lineage,
        overwrite=True,
        progress=lambda done, _total: reporter.advance(done),
    )
    write_atomically(copy / "source.json", json.dumps(stamp).encode())
    reporter.end()
    return gallery


def _with_lineage(gallery: Gallery, config: Config) -> Gallery:
    if config.lineage not in (None, gallery.lineage):
        raise ConfigurationError(
            f"lineage: the gallery {gallery.path} has lineage {gallery.lineage}, the configuration "
            f"says {config.lineage}; leave it out, or ingest with --lineage {config.lineage}"
        )
    return gallery


def _copy_folder(config: Config) -> Path:
    named = hashlib.sha256(f"{config.gallery}\0{config.key}".encode()).hexdigest()[:12]
    return config.private / "galleries" / f"{config.gallery.stem}-{named}"


def _recorded_stamp(copy: Path) -> Any:
    try:
        return json.loads((copy / "source.json").read_text())
    except (OSError, ValueError):
        return None


def _stamp(config: Config) -> Any:
    """What tells a changed source: name, size and time of each file, and how it is read."""
    root = config.gallery
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    described = "\n".join(
        f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}"
        for file in files
        if file.is_file() and (status := os.stat(file))
    )
    digest = hashlib.sha256(described.encode()).hexdigest()
    return {"files": digest, "zero_rows": config.zero_rows}
