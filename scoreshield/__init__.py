"""The ScoreShield mechanism: private cosine similarities on arrays.

Pure NumPy and SciPy: nothing here knows of Dask, Zarr, files or clocks. Data flows from
``fixedpoint`` through ``mechanism`` (which draws on ``sensitivity``, ``calibration`` and ``noise``)
to ``projection``; ``accounting`` and ``forecast`` answer questions about releases, and ``manifest``
describes one.
"""

from __future__ import annotations

from scoreshield.inmemory import GramRelease, ScoresRelease, release_gram, release_scores
from scoreshield.prepared import PreparedGallery
from scoreshield.privacy.calibration import compose, noise_multiplier
from scoreshield.projection import Projection, project

__version__ = "0.1.0"

__all__ = [
    "GramRelease",
    "PreparedGallery",
    "Projection",
    "ScoresRelease",
    "__version__",
    "compose",
    "noise_multiplier",
    "project",
    "release_gram",
    "release_scores",
]
