"""The private record of a run: complete, for its owner alone, and never part of a release."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from pipeline.gallery.open import content_digest
from pipeline.run.record import NOTICE, Timings
from tests.harness.curator import Finished


def test_it_holds_what_the_manifest_must_not(finished: Finished) -> None:
    run = finished.curator.prepared()
    file = run.folder.finished_record
    assert file.stat().st_mode & 0o777 == 0o600
    record = json.loads(file.read_text())
    assert record["notice"] == NOTICE
    assert record["private"] is True
    assert record["gallery"]["content_sha256"] == content_digest(run.gallery).hex()
    assert record["gallery"]["lineage"] == run.gallery.lineage
    assert record["receipts"]["count"] == record["receipts"]["expected"] == 15
    manifest = finished.path / "manifest.json"
    assert (
        record["receipts"]["combined_sha256"] == json.loads(manifest.read_text())["noisy"]["sha256"]
    )
    assert record["release"]["manifest_sha256"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert set(record["timings"]["seconds"]) == {"perturb", "project", "publish"}
    assert all(seconds >= 0 for seconds in record["timings"]["seconds"].values())
    assert record["host"]["name"]
    assert record["key"] == "drawn from the operating system's generator"


def test_none_of_it_is_published(finished: Finished) -> None:
    run = finished.curator.prepared()
    record = json.loads(run.folder.finished_record.read_text())
    private = (
        record["gallery"]["content_sha256"],
        record["host"]["platform"],
        record["timings"]["started_at"] + '"',
        NOTICE,
        "seconds",
    )
    for path in (entry for entry in Path(finished.path).rglob("*") if entry.is_file()):
        for value in private[:2] + private[3:]:
            assert value.encode() not in path.read_bytes(), path


def test_one_that_a_crash_prevented_is_written_by_the_next_command(
    finished: Finished, tmp_path: Path
) -> None:
    run = finished.curator.prepared()
    kept = shutil.copy2(run.folder.finished_record, tmp_path / "kept")
    run.folder.finished_record.unlink()
    try:
        assert not finished.curator.release().newly
        record = json.loads(run.folder.finished_record.read_text())
        assert record["timings"] is None
        assert record["receipts"]["count"] == 15
    finally:
        shutil.copy2(kept, run.folder.finished_record)


def test_timings_count_each_stage_once_it_ends() -> None:
    timings = Timings()
    timings.begin("perturb", 3, "blocks")
    timings.advance(1)
    assert timings.seconds == {}
    timings.end(blocks=3)
    timings.begin("project", None, "iterations")
    assert list(timings.seconds) == ["perturb"]
