"""Whether a planned run fits its workers and its disks, found out before anything is spent."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from pipeline.plan.release import StagePlan, check_fits
from pipeline.run.run import Run
from pipeline.storage.place import Place


def check_room(run: Run) -> None:
    """Refuse a plan that fits neither the workers nor the disks, of which there may be several.

    What an earlier attempt holds already counts as free: it is not needed twice. An object store
    does not tell what is free.
    """
    kept: dict[str, Place] = {
        "perturb": run.folder.blocks,
        "project": run.config.private,
        "publish": run.config.output,
    }
    disks: dict[int | None, list[StagePlan]] = {}
    for stage in run.plan.stages:
        disks.setdefault(_disk(kept[stage.name]), []).append(stage)
    limit = int(run.config.cluster.memory_limit)
    for disk, stages in disks.items():
        on_it = (place for place in kept.values() if _disk(place) == disk)
        free = next((free_disk(place) for place in on_it if isinstance(place, Path)), math.inf)
        used = sum(disk_used(folder) for folder in run.folder.folders() if _disk(folder) == disk)
        check_fits(replace(run.plan, stages=tuple(stages)), limit, free + used)


def _disk(place: Place) -> int | None:
    """The disk that holds a place; None for an object store."""
    return place.stat().st_dev if isinstance(place, Path) else None


def disk_used(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def free_disk(path: Path) -> int:
    """Bytes free for a path that may not exist yet."""
    while not path.exists():
        path = path.parent
    statistics = os.statvfs(path)
    return statistics.f_bavail * statistics.f_frsize
