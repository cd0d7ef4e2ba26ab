"""The private record of a finished run: what the curator must keep and nobody else may read.

It holds what a manifest must not: the gallery's digest and place, running times and the machine.
It stays in the run's folder, for its owner alone, and is never published.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.run.run import Run
from pipeline.storage.blocks import combined_digest, load_receipts
from pipeline.storage.durable import write_atomically
from pipeline.storage.layout import MANIFEST, SIGNING_KEY
from scoreshield.manifest.schema import Manifest

NOTICE = "PRIVATE: holds digests of the gallery and running times; never publish it"


class Timings:
    """A reporter that keeps the seconds of each stage of one attempt."""

    def __init__(self) -> None:
        self.started_at = _now()
        self.seconds: dict[str, float] = {}
        self._stage, self._begun = "", 0.0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage, self._begun = stage, time.monotonic()

    def advance(self, done: int, **figures: Any) -> None:
        pass

    def end(self, **figures: Any) -> None:
        self.seconds[self._stage] = round(time.monotonic() - self._begun, 3)

    def note(self, event: str, **figures: Any) -> None:
        pass


def write_record(run: Run, manifest: Manifest, timings: Timings | None) -> Path:
    """Write the record of a published run to its folder, mode 0600.

    Parameters
    ----------
    timings : of the attempt that published; None where that attempt ended before its record
    """
    receipts = [
        receipt
        for receipt in load_receipts(run.folder.receipts, run.plan.geometry)
        if receipt is not None
    ]
    complete = len(receipts) == run.plan.geometry.count
    content = {
        "notice": NOTICE,
        "release_id": run.release_id,
        "private": manifest.private,
        "recorded_at": _now(),
        "settings": run.settings,
        "gallery": {
            "path": str(run.gallery.path),
            "lineage": run.gallery.lineage,
            "content_sha256": run.folder.recorded_content(),
        },
        "key": run.spending.key_origin(run),
        "receipts": {
            "count": len(receipts),
            "expected": run.plan.geometry.count,
            "combined_sha256": combined_digest(receipts) if complete else None,
        },
        "release": {
            "path": str(run.release),
            "manifest_sha256": hashlib.sha256((run.release / MANIFEST).read_bytes()).hexdigest(),
            "signing_key_file": str(run.config.private / SIGNING_KEY),
        },
        "cluster": run.config.cluster.model_dump(mode="json"),
        "block_side": run.plan.geometry.shape[1],
        "timings": None
        if timings is None
        else {"started_at": timings.started_at, "seconds": timings.seconds},
        "host": _host(),
        "software": manifest.software,
    }
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    write_atomically(run.folder.finished_record, text.encode(), mode=0o600)
    return run.folder.finished_record


def _host() -> dict[str, Any]:
    return {
        "name": socket.gethostname(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
