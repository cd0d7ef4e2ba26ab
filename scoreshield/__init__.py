"""The ScoreShield mechanism: private cosine similarities on arrays.

Pure NumPy and SciPy: nothing here knows of Dask, Zarr, files or clocks. Rooms in reading order,
each importing only those before it: ``arithmetic``, ``privacy`` and ``noise`` make ``mechanisms``;
``projection`` repairs what the noise broke; ``utility`` says what a release is worth; ``regimes``
and ``manifest`` describe one; ``audit`` puts the claim to the test.
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
