"""Writing a release of scores: noisy blocks clipped to their range, block by block.

Clipping is all there is to do: it is the projection onto the feasible set [lo, hi]^(m × n), and it
never reads the gallery.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.plan.geometry import Rectangle
from pipeline.publish.gram import start_release, store_of
from pipeline.storage import arrays
from pipeline.storage.blocks import read_block
from pipeline.storage.place import Place


@dataclass(frozen=True)
class PublishScoresJob:
    """One release of scores to write.

    Attributes
    ----------
    directory : release directory
    rectangle : geometry of the noisy blocks
    chunk_rows : queries of one published chunk, which is as many records wide as a noisy block
    noisy : noisy block store
    low, high : range that the scores are clipped to
    """

    directory: Place
    rectangle: Rectangle
    chunk_rows: int
    noisy: Place
    low: float
    high: float


def prepare_scores(job: PublishScoresJob) -> None:
    """Make the release directory with an empty array; an interrupted publication is cleared.

    Raises
    ------
    ConfigurationError
        The directory holds a finished release or foreign files.
    """
    start_release(job.directory)
    shape = (job.rectangle.m, job.rectangle.n)
    chunks = (job.chunk_rows, job.rectangle.columns)
    arrays.create_array(store_of(job.directory), "scores", shape, chunks)


def publish_scores(job: PublishScoresJob, index: int) -> int:
    """Clip noisy block ``index`` and write its chunks; one task of ``rectangle.count``.

    Raises
    ------
    IntegrityFailure
        The noisy block is missing or damaged.
    """
    noisy = read_block(job.noisy, job.rectangle, index)
    clipped = np.clip(noisy, np.float32(job.low), np.float32(job.high))
    scores = arrays.open_for_writing(store_of(job.directory), "scores")
    scores[job.rectangle.region(index)] = clipped
    return index
