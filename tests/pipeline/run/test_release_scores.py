"""Scores of public queries by the same command: end to end, killed, refused, composed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from pipeline.config.yaml import load_config
from pipeline.errors import BudgetRefused, ConfigurationError, InputRejected, IntegrityFailure
from pipeline.forecast.preview import preview
from pipeline.gallery.dense import read_rows
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.abandon import abandon
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.status import release_status
from scoreshield import compose
from tests.harness.curator import ONE_WORKER, TWO_WORKERS, Curator, Finished, finished_by
from tests.harness.interruptions import KeyWatch, wait_until
from tests.harness.secrecy import (
    assert_no_key,
    assert_nothing_clean,
    everything_written,
    holds,
    similarity_patterns,
)

M = 5
SETTINGS: dict[str, Any] = {
    "gallery": "source.npy",
    "regime": "scores",
    "queries": "queries.npy",
    "privacy": {"epsilon": 4.0, "delta": 1e-6, "adjacency": "record"},
    "block_side": 64,
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": True},
    "cluster": ONE_WORKER,
}


def unit_queries(m: int = M, d: int = 16, seed: int = 2) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).normal(size=(m, d))
    return (rows / np.linalg.norm(rows, axis=1)[:, None]).astype(np.float32)


def scorer(root: Path) -> Curator:
    """A curator with a source, queries and a configuration for their scores."""
    fresh = Curator(root, dict(SETTINGS))
    fresh.write_source()
    np.save(root / "queries.npy", unit_queries())
    fresh.configure()
    return fresh


@pytest.fixture
def curator(tmp_path: Path) -> Curator:
    return scorer(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One command from two .npy files to scores on two workers; not to be changed."""
    return finished_by(scorer(tmp_path_factory.mktemp("scores")))


class TestOneCommand:
    def test_the_result_says_what_was_made(self, finished: Finished) -> None:
        result = json.loads(finished.output)
        assert (result["newly_released"], result["method"]) == (True, "clip")
        assert result["release_id"].startswith("scores-")
        stages = [
            json.loads(line)["stage"] for line in finished.errors.splitlines() if '"begin"' in line
        ]
        assert stages == ["ingest", "perturb", "publish"]

    def test_verify_accepts_it_with_its_queries_alone(self, finished: Finished) -> None:
        curator = finished.curator
        right = curator.command("verify", str(finished.path), "--queries", "queries.npy")
        assert right.returncode == 0, right.stderr
        assert "ok    queries: the scores are of the given queries" in right.stdout
        np.save(curator.root / "other.npy", unit_queries(seed=3))
        wrong = curator.command("verify", str(finished.path), "--queries", "other.npy")
        assert wrong.returncode == 5
        assert "FAULT queries" in wrong.stdout

    def test_two_workers_made_the_bits_of_the_mechanism_in_memory(self, finished: Finished) -> None:
        expected = finished.curator.expected_noisy(finished.key)
        np.testing.assert_array_equal(finished.curator.noisy(), expected)
        np.testing.assert_array_equal(
            open_release(finished.path).scores[:], np.clip(expected, -1, 1)
        )

    def test_the_ledger_is_committed_and_the_key_is_gone(self, finished: Finished) -> None:
        finished.curator.assert_spent_once()
        assert not list(finished.curator.root.rglob("*.key"))
        assert release_status(finished.curator.load()).stage == "released"

    def test_the_manifest_names_queries_and_noise(self, finished: Finished) -> None:
        run = finished.curator.prepared()
        manifest = open_release(finished.path).manifest
        assert manifest.shape.m == M
        assert manifest.queries_sha256 == run.queries.sha256
        assert manifest.post_processing.method == "clip"
        assert manifest.noisy.blocks == 5
        assert "one independent draw per released score" in manifest.mechanism.noise
        assert "||Q||_2" in manifest.mechanism.sensitivity.derivation

    def test_a_repeated_command_reports_it_and_spends_nothing(self, finished: Finished) -> None:
        before = finished.curator.account()
        outcome = finished.curator.release()
        assert outcome.newly is False
        assert "5 x 300 scores, clipped to their range" in outcome.to_text()
        assert finished.curator.account() == before

    def test_no_file_and_no_output_holds_key_or_clean_scores(self, finished: Finished) -> None:
        run = finished.curator.prepared()
        records = read_rows(run.gallery.path, 0, run.gallery.n).astype(np.float64)
        clean = run.queries.rows.astype(np.float64) @ records.T
        patterns = similarity_patterns(clean, clean, run.mechanism.grid)
        assert holds(b"abc" + clean.astype(np.float32)[2].tobytes(), patterns)
        written = everything_written(finished)
        assert_no_key(finished.key, written)
        assert_nothing_clean(finished.curator, written, patterns)


class TestResume:
    @pytest.mark.parametrize("moment", [("perturb", 2), ("publish", 2)])
    def test_an_interrupted_run_ends_with_the_bits_of_its_key(
        self, curator: Curator, moment: tuple[str, int]
    ) -> None:
        with KeyWatch(curator.root) as watch:
            curator.interrupt(*moment)
            watch.look()
        # A block that is damaged meanwhile is made again.
        chunk = next(curator.prepared().folder.store.glob("blocks/c/*/0/0"))
        chunk.write_bytes(chunk.read_bytes()[:-2])
        assert curator.release().newly
        np.testing.assert_array_equal(curator.noisy(), curator.expected_noisy(watch.key))
        curator.assert_spent_once()

    def test_a_killed_command_resumes_on_other_workers_and_spends_once(
        self, curator: Curator
    ) -> None:
        curator.write_source(n=1200)
        curator.configure(block_side=16)
        with KeyWatch(curator.root) as watch:
            process = curator.start("release", "release.yaml")
            receipts = curator.root / "private" / "runs"
            wait_until(lambda: len(list(receipts.glob("*/receipts/*.json"))) >= 10)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        left = len(list(receipts.glob("*/receipts/*.json")))
        assert 10 <= left < 75
        changes = {"block_side": 16, "cluster": TWO_WORKERS}
        outcome = curator.release(**changes)
        np.testing.assert_array_equal(
            curator.noisy(**changes), curator.expected_noisy(watch.key, **changes)
        )
        assert verify_release(outcome.path).ok
        curator.assert_spent_once(**changes)


class TestChangedQueries:
    def test_they_are_another_release_and_a_named_one_refuses_them(self, curator: Curator) -> None:
        curator.interrupt("perturb", 2, release="gate")
        derived = curator.prepared().release_id
        np.save(curator.root / "queries.npy", unit_queries(seed=3))
        assert curator.prepared().release_id != derived
        with pytest.raises(ConfigurationError, match="queries_sha256"):
            curator.release(release="gate")
        assert len(curator.account().entries) == 1

    def test_the_key_is_bound_to_them(self, curator: Curator) -> None:
        """One query has the noise settings of any other: only the binding tells them apart."""
        np.save(curator.root / "queries.npy", unit_queries(1))
        curator.interrupt("perturb", 2, release="gate")
        before = curator.prepared(release="gate")
        before.folder.record.unlink()
        np.save(curator.root / "queries.npy", unit_queries(1, seed=3))
        assert curator.prepared(release="gate").mechanism == before.mechanism
        with pytest.raises(IntegrityFailure, match="with other settings"):
            curator.release(release="gate")

    def test_an_unfinished_release_can_be_abandoned(self, curator: Curator) -> None:
        curator.interrupt("perturb", 2)
        assert [entry.state for entry in abandon(curator.load()).entries] == ["abandoned"]
        assert not curator.prepared().folder.store.exists()


class TestOneQuery:
    def test_a_single_query_is_released(self, curator: Curator) -> None:
        np.save(curator.root / "queries.npy", unit_queries(1))
        outcome = curator.release()
        opened = open_release(outcome.path)
        assert opened.scores.shape == (1, 300)
        assert verify_release(outcome.path).ok
        assert opened.manifest.mechanism.sensitivity.value == pytest.approx(2, rel=1e-5)


BAD_QUERIES = [
    (unit_queries(3, d=15), "queries have 15 features and records 16"),
    (unit_queries(3) * 1.5, "3 of 3 queries are not of unit length"),
    (unit_queries(3) * [[1], [0], [1]], "1 of 3 rows are zero"),
    (unit_queries(3)[:0], "Q holds no query"),
    (unit_queries(3)[[0, 1, 1]], "A query asked twice costs twice"),
]


class TestRefusals:
    @pytest.mark.parametrize(("rows", "said"), BAD_QUERIES)
    def test_bad_queries_end_with_3_before_anything_is_spent_or_ingested(
        self, curator: Curator, rows: NDArray[np.float64], said: str
    ) -> None:
        np.save(curator.root / "queries.npy", rows)
        with pytest.raises(InputRejected, match=said):
            curator.release()
        with pytest.raises(InputRejected, match=said):
            preview(curator.load())
        left = {path.name for path in curator.root.rglob("*")}
        assert left == {"source.npy", "queries.npy", "release.yaml"}

    def test_the_command_says_it_in_one_line(self, curator: Curator) -> None:
        np.save(curator.root / "queries.npy", unit_queries(2)[[0, 0]])
        done = curator.command("release", "release.yaml")
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("scoreshield: queries ")
        assert "costs twice" in done.stderr

    def test_missing_queries_end_with_3(self, curator: Curator) -> None:
        (curator.root / "queries.npy").unlink()
        with pytest.raises(InputRejected, match=r"queries\.npy: does not exist"):
            curator.release()

    def test_more_queries_than_the_budget_end_with_4(self, curator: Curator) -> None:
        greedy = {**SETTINGS["privacy"], "epsilon": 12.0}
        curator.configure(privacy=greedy)
        done = curator.command("release", "release.yaml")
        assert done.returncode == 4
        assert "requested epsilon 12" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("scoreshield: ")
        assert not list(curator.root.rglob("*.key"))
        assert not list(curator.root.rglob("noisy.zarr"))


class TestComposition:
    def test_batches_subsets_repeats_and_gram_matrices_share_one_budget(
        self, curator: Curator
    ) -> None:
        curator.release(release="whole")
        whole = curator.prepared(release="whole")
        ledger, lineage = ConfiguredLedger(whole.config).ledger, whole.gallery.lineage
        multipliers = [whole.mechanism.sigma / whole.mechanism.guarantee.sensitivity.value]
        for name, batch in (("subset", unit_queries()[1:3]), ("again", unit_queries())):
            np.save(curator.root / "queries.npy", batch)
            mechanism = curator.prepared(release=name).mechanism
            ledger.reserve(lineage, name, request_for(mechanism))
            multipliers.append(mechanism.sigma / mechanism.guarantee.sensitivity.value)
        spent = curator.account().spent_epsilon
        assert spent == pytest.approx(compose(multipliers, 1e-6), rel=1e-9)
        assert 7 < spent < 12
        gram = {name: value for name, value in SETTINGS.items() if name != "queries"}
        (curator.root / "gram.yaml").write_text(yaml.safe_dump({**gram, "regime": "gram"}))
        assert preview(load_config(curator.root / "gram.yaml")).ledger.spend.spent_epsilon == spent
        greedy = {**SETTINGS["privacy"], "epsilon": 5.5}
        with pytest.raises(BudgetRefused):
            curator.release(release="one-more", privacy=greedy)


class TestPlan:
    def test_it_states_both_calibrations_and_reads_no_record(self, curator: Curator) -> None:
        np.save(curator.root / "source.npy", np.full((300, 16), np.nan, dtype=np.float32))
        shown = preview(curator.load())
        forecast = shown.to_json()["forecast"]
        spectral = np.linalg.norm(unit_queries().astype(np.float64), 2)
        assert forecast["separate_sigma"] / forecast["sigma"] == pytest.approx(
            np.sqrt(M) / spectral, rel=1e-4
        )
        text = shown.to_text()
        assert "scores of 5 public queries against 300 records of 16 features" in text
        assert f"5 queries jointly, sigma {forecast['sigma']:.4g}" in text
        assert f"same total epsilon, sigma {forecast['separate_sigma']:.4g}" in text
        assert "WARNING: A single score would tell less than its range does" in text
        assert (shown.to_json()["m"], shown.to_json()["blocks"]) == (M, 5)

    def test_it_promises_what_the_run_then_costs(self, finished: Finished) -> None:
        plan = finished.curator.prepared().plan
        for stage, folder in zip(
            plan.stages, (finished.curator.prepared().folder.path, finished.path), strict=True
        ):
            stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            assert stored <= stage.disk_bytes

    def test_a_single_query_has_one_calibration_only(self, curator: Curator) -> None:
        np.save(curator.root / "queries.npy", unit_queries(1))
        assert "calibration:" not in preview(curator.load()).to_text()
