"""Ratings: lines of user, item and value become a sparse gallery.

``table`` finds out how a file is laid out and reads it block by block; ``numbering`` gives ids
their numbers; ``spool`` sorts interactions on disk, so that a file may be larger than memory;
``write`` takes a file all the way to a gallery. ``faults`` says which lines of a refused file are
at fault.
"""

from __future__ import annotations

from pipeline.ingest.ratings.table import RatingsOptions, open_ratings
from pipeline.ingest.ratings.write import count_ratings, ingest_ratings

__all__ = ["RatingsOptions", "count_ratings", "ingest_ratings", "open_ratings"]
