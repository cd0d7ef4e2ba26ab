"""No key, record or clean value is in what a run leaves behind, or shows while it runs."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pipeline.gallery.dense import read_rows
from tests.harness.curator import TWO_WORKERS, Curator, Finished
from tests.harness.interruptions import wait_until
from tests.harness.secrecy import (
    assert_no_key,
    assert_no_record,
    assert_nothing_clean,
    clean_gram,
    clean_patterns,
    everything_written,
    forms_of,
    holds,
    record_patterns,
    words_of,
)


class TestNothingIsLeftBehind:
    def test_no_file_and_no_output_holds_the_key(self, finished: Finished) -> None:
        written = everything_written(finished)
        assert len(written) > 50
        assert_no_key(finished.key, written)

    def test_no_file_and_no_output_holds_clean_similarities(self, finished: Finished) -> None:
        patterns = clean_patterns(finished.curator)
        assert_nothing_clean(finished.curator, everything_written(finished), patterns)

    def test_no_file_and_no_output_holds_a_record(self, finished: Finished) -> None:
        assert_no_record(finished.curator, everything_written(finished))

    def test_the_search_finds_what_it_looks_for(self, finished: Finished) -> None:
        patterns = clean_patterns(finished.curator)
        clean = clean_gram(finished.curator)
        grid = finished.curator.prepared().mechanism.grid
        rows = read_rows(finished.curator.prepared().gallery.path, 5, 6)
        wide = rows.astype(np.float64)
        for planted_row in (rows, wide, np.rint(wide * 2.0**24)):
            assert holds(b"abc" + planted_row.tobytes(), record_patterns(finished.curator))
        assert repr(float(rows[0, 3])).encode() in words_of(finished.curator)
        for planted in (
            clean[3:5, 10:40],
            clean[7:8, 90:].astype(np.float32),
            np.rint(clean[3:5, 10:40] * 2.0**48).astype(np.int64),
            np.rint(clean[3:5, 10:40] / grid),
            np.rint(clean[3:5, 10:40] / grid).astype(np.int64),
        ):
            assert holds(b"abc" + planted.tobytes() + b"x", patterns)
        key = finished.key
        for planted_key in (key, key.hex().encode(), base64.b64encode(b"x" + key + b"yz")):
            assert any(form in b"abc" + planted_key for form in forms_of(key))


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Curator(tmp_path_factory.mktemp("halted"))
    made.write_source(n=640)
    made.settings["cluster"] = TWO_WORKERS
    made.configure()
    process = made.start("release", "release.yaml")
    receipts = "private/runs/*/receipts/*.json"
    wait_until(lambda: len(list(made.root.glob(receipts))) >= 10)
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        (file,) = made.root.glob("private/runs/*/release.key")
        key = bytes.fromhex(json.loads(file.read_text())["key"])
        seen = {path: path.read_bytes() for path in made.root.rglob("*") if path.is_file()}
        for number in process_group(process.pid):
            for name in ("cmdline", "environ"):
                path = Path("/proc") / str(number) / name
                seen[path] = path.read_bytes()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    seen |= {Path("stdout"): output.encode(), Path("stderr"): errors.encode()}
    assert seen.pop(file)
    seen.pop(made.root / "source.npy")
    return made, key, seen


class TestNothingShowsWhileItRuns:
    """A run is stopped between two blocks, and everything that others might see is searched."""

    def test_the_places_that_matter_are_among_those_searched(self, halted: Any) -> None:
        names = [str(path) for path in halted[2]]
        for place in ("/scratch/", "/noisy.zarr/", "log.jsonl", "run.json", "cmdline", "environ"):
            assert any(place in name for name in names), place
        assert sum(name.endswith("cmdline") for name in names) >= 3

    def test_the_key_is_in_its_file_alone(self, halted: Any) -> None:
        _, key, seen = halted
        assert_no_key(key, seen)

    def test_clean_similarities_are_nowhere(self, halted: Any) -> None:
        made, _, seen = halted
        assert_nothing_clean(made, seen, clean_patterns(made))

    def test_records_are_nowhere(self, halted: Any) -> None:
        made, _, seen = halted
        assert_no_record(made, seen)


def process_group(leader: int) -> list[int]:
    """Every process that a command started, and the command."""
    command = psutil.Process(leader)
    return [leader, *(child.pid for child in command.children(recursive=True))]
