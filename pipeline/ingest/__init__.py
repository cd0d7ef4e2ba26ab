"""Ingest: a matrix in somebody's file becomes a gallery.

One file a format (``npy``, ``npz``, ``zarr_array``), each of which turns a path into a ``Source``:
name, shape, dtype and successive row panels. ``formats`` lists them; a new format is one file and
one line there. ``write`` checks, normalises and writes the rows; ``staging`` makes sure that the
target appears complete or not at all. Nothing here holds more than a few panels in memory.

``sources`` takes a configuration's source to its gallery, ``queries`` reads the public queries.

May import ``gallery`` and the rooms above it; imports nothing that computes a release.
"""

from __future__ import annotations

from pipeline.ingest.formats import accepted_kinds, open_matrix, open_source
from pipeline.ingest.source import Source
from pipeline.ingest.write import ingest

__all__ = ["Source", "accepted_kinds", "ingest", "open_matrix", "open_source"]
