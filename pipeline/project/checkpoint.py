"""Where a blockwise projection stands, on disk after each iteration.

A checkpoint is one small file: the numbers of the solver's state, and the names of its panels,
which lie beside it already. Panels are made durable first, then the file replaces the one before,
so whatever is killed, the last finished iteration is there to go on from.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityFailure
from pipeline.plan.shares import RowRanges
from pipeline.project.panel_file import PanelFile
from pipeline.project.panel_store import ClusterPanel, ClusterPanels
from pipeline.storage.durable import write_atomically
from pipeline.storage.layout import CHECKPOINT
from scoreshield.projection import METHODS
from scoreshield.projection.blockwise.density import SpectralDensity
from scoreshield.projection.blockwise.subspace import RitzPairs
from scoreshield.projection.result import Iteration

_DESCRIPTION = "description"
_PARTS = (RitzPairs, SpectralDensity, Iteration)
"""What the states of several methods are made of, beside numbers, arrays and panels."""


@dataclass(frozen=True)
class Checkpoint:
    """A stored state, before its panels are taken over.

    Attributes
    ----------
    folder : in which it lies, with its panels
    purpose : what it was made for; another purpose must not go on from it
    ranges : how its panels are cut
    """

    folder: Path
    purpose: dict[str, Any]
    ranges: RowRanges
    _encoded: Any
    _arrays: dict[str, Any]

    def panels(self) -> list[Path]:
        """Folders of the panels that it refers to."""
        return [self.folder / name for name in _panel_names(self._encoded)]

    def state(self, algebra: ClusterPanels) -> Any:
        """The state, its panels at home in ``algebra``."""
        return _decoded(self._encoded, self._arrays, self.folder, algebra)


class Checkpoints:
    """Writes the states of one solve.

    Parameters
    ----------
    folder : for the file; the panels must lie in it
    purpose : as in :class:`Checkpoint`
    algebra : home of the panels
    """

    def __init__(self, folder: Path, purpose: dict[str, Any], algebra: ClusterPanels) -> None:
        self._folder, self._purpose, self._algebra = folder, purpose, algebra
        self._written: Any = None

    def save(self, state: Any) -> None:
        """Replace the checkpoint by this state."""
        arrays: dict[str, Any] = {}
        encoded = _encoded(state, arrays, self._folder, self._algebra)
        ranges = self._algebra.ranges
        description = {
            "purpose": self._purpose,
            "n": ranges.n,
            "rows": ranges.rows,
            "state": encoded,
        }
        buffer = io.BytesIO()
        text = np.array(json.dumps(description))
        np.savez(buffer, allow_pickle=False, **{_DESCRIPTION: text}, **arrays)
        write_atomically(self._folder / CHECKPOINT, buffer.getvalue())
        # The panels of the state before may go from here on, and not earlier.
        self._written = state


def read_checkpoint(folder: Path, purpose: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint in a folder, or None where there is none of that purpose, or a damaged one."""
    try:
        with np.load(folder / CHECKPOINT, allow_pickle=False) as file:
            arrays = dict(file)
        found = json.loads(str(arrays.pop(_DESCRIPTION)))
        ranges = RowRanges(found["n"], found["rows"])
        checkpoint = Checkpoint(folder, found["purpose"], ranges, found["state"], arrays)
        complete = all(_complete(panel) for panel in _panels(found["state"], folder, ranges))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    return checkpoint if complete and checkpoint.purpose == purpose else None


def sweep(folder: Path, checkpoint: Checkpoint | None) -> None:
    """Remove the panels of earlier attempts that no checkpoint needs."""
    kept = set() if checkpoint is None else set(checkpoint.panels())
    for attempt in folder.glob("panels-*"):
        for panel in attempt.iterdir():
            if panel not in kept:
                shutil.rmtree(panel, ignore_errors=True)
        if not any(attempt.iterdir()):
            attempt.rmdir()


def _kinds() -> dict[str, Any]:
    """Dataclasses that a checkpoint may hold, by the names that they have in it."""
    forms = [method.blockwise for method in METHODS.values() if method.blockwise is not None]
    states = [state for form in forms for state in form.states]
    return {kind.__name__: kind for kind in (*_PARTS, *states)}


def _encoded(value: Any, arrays: dict[str, Any], folder: Path, algebra: ClusterPanels) -> Any:
    if isinstance(value, ClusterPanel):
        file = algebra.stored(value)
        file.sync()
        return {"panel": str(file.folder.relative_to(folder)), "columns": file.columns}
    if isinstance(value, np.ndarray):
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if is_dataclass(value) and type(value) in _kinds().values():
        parts = {
            field.name: _encoded(getattr(value, field.name), arrays, folder, algebra)
            for field in fields(value)
        }
        return {"type": type(value).__name__, "fields": parts}
    if isinstance(value, tuple):
        return [_encoded(part, arrays, folder, algebra) for part in value]
    if isinstance(value, int | float):
        return value
    raise IntegrityFailure(
        f"a checkpoint can't hold a {type(value).__name__}; expected numbers, arrays and panels"
    )


def _decoded(value: Any, arrays: dict[str, Any], folder: Path, algebra: ClusterPanels) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(part, arrays, folder, algebra) for part in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "panel" in value:
        return algebra.adopt(_panel_file(value, folder, algebra.ranges))
    parts = {
        name: _decoded(part, arrays, folder, algebra) for name, part in value["fields"].items()
    }
    return _kinds()[value["type"]](**parts)


def _panels(value: Any, folder: Path, ranges: RowRanges) -> Iterator[PanelFile]:
    return (_panel_file(found, folder, ranges) for found in _panel_entries(value))


def _panel_names(value: Any) -> Iterator[str]:
    return (str(found["panel"]) for found in _panel_entries(value))


def _panel_entries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "panel" in value:
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _panel_entries(part)


def _panel_file(value: dict[str, Any], folder: Path, ranges: RowRanges) -> PanelFile:
    return PanelFile(folder / value["panel"], ranges, value["columns"])


def _complete(panel: PanelFile) -> bool:
    spans = [panel.ranges.span(index) for index in range(panel.ranges.count)]
    return all(
        panel.path(index).stat().st_size == 4 * (span.stop - span.start) * panel.columns
        for index, span in enumerate(spans)
    )
