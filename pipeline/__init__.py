"""The distributed batch pipeline: from a gallery to a published release.

Data flows left to right: ``ingest`` → ``gallery`` → ``perturb`` → ``blocks`` → ``project`` →
``publish`` → ``open`` and ``verify``. After ``perturb`` no module imports one that can read a
gallery. ``plan`` is pure; ``release`` runs what was planned; ``cli`` holds thin commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.reader.open import Release, open_release

__all__ = ["Release", "open_release"]


def __getattr__(name: str) -> Any:
    # Imported when asked for, so that a command starts without loading Zarr.
    if name in __all__:
        from pipeline.reader import open as opened

        return getattr(opened, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
