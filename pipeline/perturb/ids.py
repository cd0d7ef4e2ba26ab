"""Public ids of the records, copied into the run's folder: publication never opens the gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.gallery.store import Gallery, panels, stored_ids
from pipeline.storage.durable import sync

_ROWS = 2**16


def keep_ids(gallery: Gallery, file: Path) -> None:
    """Write the stored ids (n, w) of a gallery that has some, and no others.

    Ids are no setting of a release: they may have been withdrawn or put right since an earlier
    attempt kept them.

    Raises
    ------
    IntegrityFailure
        They are not what ingest wrote.
    """
    if gallery.id_width is None:
        file.unlink(missing_ok=True)
        return
    partial = file.with_name(f".{file.name}")
    partial.touch(mode=0o600)
    shape = (gallery.n, gallery.id_width)
    kept = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
    for start, stop in panels(gallery.n, _ROWS):
        kept[start:stop] = stored_ids(gallery, start, stop)
    kept.flush()
    sync(partial)
    partial.replace(file)
    sync(file.parent)
