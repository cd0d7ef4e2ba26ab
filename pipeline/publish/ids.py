"""The ids of the records in a release, where they were declared public."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.publish.gram import store_of
from pipeline.storage import arrays
from pipeline.storage.layout import IDS
from pipeline.storage.place import Place

_ROWS = 2**16


def publish_ids(directory: Place, kept: Path) -> int:
    """Copy a run's ids (n, w) into its release, and return n; 0 where the run has none."""
    if not kept.exists():
        return 0
    stored = np.load(kept, mmap_mode="r", allow_pickle=False)
    n, width = stored.shape
    rows = min(_ROWS, n)
    arrays.create_array(store_of(directory), IDS, (n, width), (rows, width), "uint8")
    array = arrays.open_for_writing(store_of(directory), IDS)
    for start in range(0, n, rows):
        array[start : start + rows, :] = stored[start : start + rows]
    return int(n)
