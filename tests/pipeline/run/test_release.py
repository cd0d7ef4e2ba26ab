"""One command from a source to a verified release, and what a repeated or changed one does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from pipeline.errors import (
    BudgetRefused,
    ConfigurationError,
    IntegrityFailure,
    RunFailed,
    exit_code,
)
from pipeline.gallery.dense import read_rows
from pipeline.gallery.open import content_digest
from pipeline.ingest import ingest
from pipeline.ingest.sources import _copy_folder
from pipeline.ledger.verify import adopt_ledger
from pipeline.perturb.keyfile import create_key, read_key
from pipeline.progress import Tee
from pipeline.publish.signing import load_or_create_signing_key
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run import keys
from pipeline.run.abandon import abandon
from pipeline.run.budget import request_for
from pipeline.run.status import release_status
from pipeline.storage.layout import SIGNING_KEY
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.manifest.schema import Manifest, canonical_bytes
from scoreshield.projection import project
from tests.harness.curator import ONE_WORKER, Curator, Finished, embeddings

DIGITS = Path(__file__).resolve().parents[3] / "configs" / "data" / "digits.npy"


class TestOneCommand:
    def test_the_result_says_what_was_made(self, finished: Finished) -> None:
        result = json.loads(finished.output)
        assert result["newly_released"] is True
        assert (result["epsilon"], result["delta"], result["method"]) == (50.0, 1e-6, "shrink")
        stages = [json.loads(line)["event"] for line in finished.errors.splitlines()]
        assert stages.count("end") == 4

    def test_verify_accepts_it(self, finished: Finished) -> None:
        done = finished.curator.command("verify", str(finished.path), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ok"] is True

    def test_noisy_blocks_are_those_of_the_in_memory_mechanism(self, finished: Finished) -> None:
        curator = finished.curator
        np.testing.assert_array_equal(curator.noisy(), curator.expected_noisy(finished.key))

    def test_it_reads_back_as_the_projection_of_the_noisy_blocks(self, finished: Finished) -> None:
        opened = open_release(finished.path)
        run = finished.curator.prepared()
        projection = project(
            finished.curator.noisy().astype(np.float64), sigma=run.mechanism.sigma, method="shrink"
        )
        gram = opened.rows(0, opened.n)
        np.testing.assert_allclose(gram, projection.gram(), rtol=0, atol=2e-6)
        assert opened.manifest.post_processing.rank == projection.rank >= 1
        indices, values = opened.topk(3)
        assert indices.shape == values.shape == (opened.n, 3)

    def test_the_manifest_states_the_precision_of_the_noisy_blocks(
        self, finished: Finished
    ) -> None:
        noisy, run = open_release(finished.path).manifest.noisy, finished.curator.prepared()
        assert noisy is not None
        assert (noisy.dtype, noisy.step) == ("int8", run.plan.encoding.step)
        assert f"multiples of {noisy.step!r}" in noisy.rounding
        assert noisy.rounding in finished.curator.command("show", str(finished.path)).stdout

    def test_the_ledger_is_committed_and_the_key_is_gone(self, finished: Finished) -> None:
        finished.curator.assert_spent_once()
        assert not list(finished.curator.root.rglob("*.key"))
        assert release_status(finished.curator.load()).stage == "released"

    def test_a_repeated_command_reports_it_and_changes_nothing(self, finished: Finished) -> None:
        before = finished.curator.account(), files_under(finished.path)
        outcome = finished.curator.release()
        assert outcome.newly is False
        assert "already released, nothing was spent" in outcome.to_text()
        assert (finished.curator.account(), files_under(finished.path)) == before

    def test_only_its_owner_can_enter_the_private_folder(self, finished: Finished) -> None:
        private = finished.curator.root / "private"
        assert private.stat().st_mode & 0o777 == 0o700
        for folder in (entry for entry in finished.path.rglob("*") if entry.is_dir()):
            assert folder.stat().st_mode & 0o777 == 0o755


def files_under(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def as_npz(root: Path, rows: NDArray[np.float32]) -> dict[str, Any]:
    np.savez(root / "two.npz", other=rows[:2], faces=rows)
    return {"gallery": "two.npz", "key": "faces"}


def as_zarr_v2(root: Path, rows: NDArray[np.float32]) -> dict[str, Any]:
    zarr.create_array(root / "v2.zarr", data=rows, chunks=(70, 5), zarr_format=2)
    return {"gallery": "v2.zarr"}


def as_zarr_v3(root: Path, rows: NDArray[np.float32]) -> dict[str, Any]:
    zarr.create_array(root / "v3.zarr", data=rows, chunks=(100, 16), zarr_format=3)
    return {"gallery": "v3.zarr"}


def as_gallery(root: Path, rows: NDArray[np.float32]) -> dict[str, Any]:
    ingest(root / "source.npy", root / "made.zarr")
    return {"gallery": "made.zarr"}


@pytest.mark.parametrize("form", [as_npz, as_zarr_v2, as_zarr_v3, as_gallery])
def test_every_source_is_released(
    form: Callable[[Path, NDArray[np.float32]], dict[str, Any]], curator: Curator
) -> None:
    rows = embeddings()
    changes = form(curator.root, rows)
    outcome = curator.release(arrays=["factor"], **changes)
    assert outcome.newly
    assert verify_release(outcome.path).ok
    gallery = curator.prepared(arrays=["factor"], **changes).gallery
    np.testing.assert_array_equal(read_rows(gallery.path, 0, gallery.n), to_fixed(rows))


class TestArrays:
    def test_the_gram_matrix_alone_without_a_projection(self, curator: Curator) -> None:
        changes = {"projection": {"method": "none"}, "arrays": ["gram"]}
        outcome = curator.release(**changes)
        assert outcome.manifest.post_processing.feasible is False
        assert "clipped only" in outcome.to_text()
        opened = open_release(outcome.path)
        noisy = np.clip(curator.noisy(**changes), -1, 1)
        np.testing.assert_array_equal(opened.rows(0, opened.n), noisy)
        assert sorted(outcome.manifest.arrays) == ["gram"]
        assert verify_release(outcome.path).ok

    def test_the_factor_alone(self, curator: Curator) -> None:
        outcome = curator.release(arrays=["factor"])
        assert sorted(outcome.manifest.arrays) == ["diagonal", "factor"]
        assert sorted(entry.name for entry in (outcome.path / "release.zarr").iterdir()) == [
            "diagonal",
            "factor",
            "zarr.json",
        ]
        assert verify_release(outcome.path).ok


class TestChangedSettings:
    def test_another_projection_is_another_release_and_spends_again(
        self, finished: Finished
    ) -> None:
        curator = copied(finished)
        changes = {
            "projection": {"method": "nearest"},
            "privacy": {**curator.settings["privacy"], "epsilon": 30.0},
        }
        before = curator.account().spent
        outcome = curator.release(**changes)
        assert outcome.newly
        assert outcome.path != finished.path
        own = request_for(curator.prepared(**changes).mechanism).spend
        assert curator.account().spent == before + own
        spent_before = outcome.manifest.composition.spent_before.mu_squared
        assert spent_before == f"{before.numerator}/{before.denominator}"

    @pytest.mark.parametrize("unfinished", [True, False])
    def test_a_named_release_refuses_them_and_names_the_first(
        self, curator: Curator, unfinished: bool
    ) -> None:
        if unfinished:
            curator.interrupt("perturb", 3, release="faces")
        else:
            curator.release(release="faces", arrays=["factor"])
        spent = curator.account().spent
        curator.configure(release="faces", arrays=["factor"], projection={"method": "nearest"})
        refused = curator.command("release", "release.yaml")
        assert refused.returncode == 2
        expected = "arrays = ['factor', 'gram']" if unfinished else "projection.method = 'shrink'"
        assert expected in refused.stderr
        same = {"release": "faces"} if unfinished else {"release": "faces", "arrays": ["factor"]}
        curator.configure(**same, precision="float32")
        refused = curator.command("release", "release.yaml")
        assert refused.returncode == 2
        assert "precision = 'auto', this configuration says 'float32'" in refused.stderr
        assert curator.account().spent == spent

    def test_a_refused_release_pins_nothing(self, curator: Curator) -> None:
        greedy = {"epsilon": 500.0, "delta": 1e-6, "adjacency": "record"}
        with pytest.raises(BudgetRefused):
            curator.release(release="faces", privacy=greedy)
        assert curator.release(release="faces").newly
        curator.assert_spent_once(release="faces")

    def test_a_name_taken_by_another_private_folder_is_refused(self, curator: Curator) -> None:
        ingest(curator.root / "source.npy", curator.root / "made.zarr")
        curator.release(gallery="made.zarr", release="faces", arrays=["factor"])
        changes = {"gallery": "made.zarr", "release": "faces", "private": "elsewhere"}
        with pytest.raises(BudgetRefused, match="this private folder has never seen it"):
            curator.release(**changes)
        config = curator.load(**changes)
        adopt_ledger(config.ledger.url, config.private)
        with pytest.raises(IntegrityFailure, match="the signing key is gone"):
            curator.release(**changes, arrays=["factor"])
        load_or_create_signing_key(config.private)
        with pytest.raises(IntegrityFailure, match="not published by the holder of that key"):
            curator.release(**changes, arrays=["factor"])
        # Not even with the curator's own signing key.
        shutil.copy(curator.root / "private" / SIGNING_KEY, config.private / SIGNING_KEY)
        for different, place in (
            ({"arrays": ["gram"]}, "arrays"),
            ({"arrays": ["factor"], "projection": {"method": "nearest"}}, "projection.method"),
        ):
            with pytest.raises(ConfigurationError, match=f"is another release: it has {place}"):
                curator.release(**{**changes, **different})
        assert len(curator.account(gallery="made.zarr").entries) == 1


def copied(finished: Finished) -> Curator:
    """A finished release that a test may go on from."""
    root = finished.curator.root.with_name(f"{finished.curator.root.name}-copy")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(finished.curator.root, root)
    # The source keeps its time, so that it is the source that was ingested.
    fresh = Curator(root, {**finished.curator.settings, "cluster": ONE_WORKER})
    # A copy's folder is named after the place of its source.
    (ingested,) = (root / "private" / "galleries").iterdir()
    ingested.rename(_copy_folder(fresh.load()))
    return fresh


class TestChangedGallery:
    def test_a_changed_source_is_refused_until_it_is_restored(self, curator: Curator) -> None:
        curator.interrupt("perturb", 4)
        curator.write_source(seed=2)
        curator.configure()
        refused = curator.command("release", "release.yaml")
        assert refused.returncode == 5
        assert "other content" in refused.stderr
        curator.write_source(seed=1)
        assert curator.release().newly
        curator.assert_spent_once()

    def test_before_the_key_is_made_a_source_may_still_change(
        self, curator: Curator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: object) -> None:
            raise OSError("no space left")

        with monkeypatch.context() as patched:
            patched.setattr(keys, "create_key", failing)
            with pytest.raises(RunFailed, match="no space left"):
                curator.release()
        curator.write_source(seed=2)
        assert curator.release().newly
        curator.assert_spent_once()
        assert not curator.release().newly

    def test_a_gallery_edited_in_place_is_refused(self, curator: Curator) -> None:
        ingest(curator.root / "source.npy", curator.root / "made.zarr")
        curator.interrupt("perturb", 4, gallery="made.zarr")
        swap_two_rows(curator.root / "made.zarr")
        with pytest.raises(IntegrityFailure, match="other content"):
            curator.release(gallery="made.zarr")

    def test_a_gallery_edited_after_its_release_is_not_taken_for_released(
        self, finished: Finished
    ) -> None:
        curator = copied(finished)
        swap_two_rows(curator.prepared().gallery.path)
        with pytest.raises(IntegrityFailure, match="other content"):
            curator.release()

    def test_a_gallery_edited_while_it_is_perturbed_leaves_no_noise_behind(
        self, curator: Curator
    ) -> None:
        ingest(curator.root / "source.npy", curator.root / "made.zarr")

        class Editor(Tee):
            def advance(self, done: int, **figures: Any) -> None:
                if done == 5:
                    swap_two_rows(curator.root / "made.zarr")

        with pytest.raises(IntegrityFailure, match="was changed while release"):
            curator.release(Editor(), gallery="made.zarr")
        run = curator.prepared(gallery="made.zarr")
        assert not run.folder.store.exists()
        assert not run.folder.receipts.exists()
        swap_two_rows(curator.root / "made.zarr")
        key = read_key(run.folder.key_file)
        curator.release(gallery="made.zarr")
        np.testing.assert_array_equal(
            curator.noisy(gallery="made.zarr"), curator.expected_noisy(key, gallery="made.zarr")
        )


def swap_two_rows(gallery: Path) -> None:
    """Every checksum and every fixed-point bound still holds afterwards."""
    array = zarr.open_group(str(gallery), mode="r+")["embeddings"]
    rows = array[:]
    rows[[0, 1]] = rows[[1, 0]]
    array[:] = rows


class TestOneKeyOneMatrix:
    """Negative controls: what would reveal a difference, or average noise out, is refused."""

    def test_one_key_on_two_galleries(self, curator: Curator) -> None:
        curator.interrupt("perturb", 2, release="faces")
        first = curator.prepared(release="faces").folder.key_file
        other = curator.beside("other", seed=2)
        other.interrupt("perturb", 1, release="faces")
        shutil.copyfile(first, other.prepared(release="faces").folder.key_file)
        with pytest.raises(IntegrityFailure, match="the same noise on both would reveal"):
            other.release(release="faces")

    def test_fresh_noise_on_a_retry(self, curator: Curator) -> None:
        curator.interrupt("perturb", 2)
        run = curator.prepared()
        digest = content_digest(run.gallery)
        run.folder.key_file.unlink()
        with pytest.raises(IntegrityFailure, match="would average out"):
            curator.release()
        create_key(run.folder.key_file, digest, run.release_id, run.mechanism)
        with pytest.raises(IntegrityFailure, match="two noises on one gallery average out"):
            curator.release()


class TestBudget:
    @pytest.mark.parametrize("state", ["missing", "corrupt", "overspent"])
    def test_a_refusal_comes_before_key_and_noise(self, curator: Curator, state: str) -> None:
        changes: dict[str, Any] = {}
        ledger = curator.root / "ledger.db"
        if state == "missing":
            changes = {"ledger": {**curator.settings["ledger"], "create": False}}
        elif state == "corrupt":
            ledger.write_bytes(b"\x00\x01" * 4096)
        else:
            changes = {"privacy": {"epsilon": 80.0, "delta": 1e-6, "adjacency": "record"}}
        with pytest.raises(BudgetRefused) as refusal:
            curator.release(**changes)
        assert exit_code(refusal.value) == 4
        run = curator.prepared(**changes)
        for made in (run.folder.key_file, run.folder.store, run.folder.record, run.release):
            assert not made.exists()
        if state == "missing":
            assert "scoreshield ledger init" in str(refusal.value)
            assert not ledger.exists()

    def test_an_overspend_says_four_numbers_and_plan_said_them_before(
        self, finished: Finished
    ) -> None:
        curator = copied(finished)
        curator.configure(
            projection={"method": "aap"}, privacy={**curator.settings["privacy"], "epsilon": 70.0}
        )
        planned = curator.command("plan", "release.yaml", "--json")
        assert planned.returncode == 0
        ledger = json.loads(planned.stdout)["ledger"]
        assert ledger["fits"] is False
        refused = curator.command("release", "release.yaml")
        assert refused.returncode == 4
        assert ledger["spent"] == pytest.approx(50.0, abs=1e-6)
        assert ledger["requested"] == 70.0
        assert ledger["remaining"] == pytest.approx(25.0, abs=1e-6)
        for name in ("spent", "requested", "remaining", "largest"):
            assert f"{ledger[name]:.6g}" in refused.stderr
        affordable = {**curator.settings["privacy"], "epsilon": ledger["largest"]}
        assert curator.release(
            projection={"method": "aap", "max_iterations": 2}, privacy=affordable
        ).newly

    def test_a_lost_ledger_is_not_made_again(self, finished: Finished) -> None:
        curator = copied(finished)
        (curator.root / "ledger.db").unlink()
        with pytest.raises(BudgetRefused, match="an earlier release or run is there"):
            curator.release(projection={"method": "nearest"})


class TestAbandoning:
    def test_it_stays_spent_and_its_name_is_used_up(self, curator: Curator) -> None:
        curator.interrupt("publish", 3, release="faces")
        run = curator.prepared(release="faces")
        spent = curator.account().spent
        account = abandon(curator.load(release="faces"))
        assert [entry.state for entry in account.entries] == ["abandoned"]
        assert account.spent == spent
        for made in (run.folder.key_file, run.folder.store, run.folder.receipts, run.release):
            assert not made.exists()
        with pytest.raises(BudgetRefused, match="was abandoned"):
            curator.release(release="faces")
        (curator.root / "ledger.db").unlink()
        with pytest.raises(BudgetRefused, match="an earlier release or run is there"):
            curator.release(release="again")

    def test_a_run_is_named_where_its_source_has_grown(self, curator: Curator) -> None:
        run = curator.interrupt("perturb", 1) or curator.prepared()
        rows = np.load(curator.root / "source.npy")
        np.save(curator.root / "source.npy", np.vstack([rows, rows[:1] + 1]))
        curator.command("plan", "release.yaml")
        with pytest.raises(BudgetRefused, match="no run of that name"):
            abandon(curator.load(), "../" + run.release_id)
        account = abandon(curator.load(), run.release_id)
        assert [entry.state for entry in account.entries] == ["abandoned"]
        assert not run.folder.key_file.exists()

    def test_it_needs_no_source_any_more(self, curator: Curator) -> None:
        curator.interrupt("perturb", 1)
        (curator.root / "source.npy").unlink()
        account = abandon(curator.load())
        assert [entry.state for entry in account.entries] == ["abandoned"]

    def test_a_published_release_is_not_abandoned(self, finished: Finished) -> None:
        with pytest.raises(BudgetRefused, match="is published"):
            abandon(finished.curator.load())


class TestPlaces:
    def test_an_output_that_cannot_be_written_is_found_before_spending(
        self, curator: Curator
    ) -> None:
        (curator.root / "file").touch()
        with pytest.raises(ConfigurationError, match="Nothing was spent"):
            curator.release(output="file/releases")
        assert curator.account() is None

    def test_a_full_private_folder_is_a_failed_run_in_one_line(self, curator: Curator) -> None:
        (curator.root / "file").touch()
        curator.configure(private="file/private")
        failed = curator.command("release", "release.yaml")
        assert failed.returncode == 6
        assert len(failed.stderr.strip().splitlines()) == 1


def test_two_galleries_with_the_same_noisy_values_get_the_same_manifest(curator: Curator) -> None:
    """Whatever the manifest says of the gallery's content, it says through the noisy values."""
    first = curator.release(release="faces").manifest
    other = curator.beside("other", seed=99)
    other.interrupt("perturb", 15, release="faces")
    run, source = other.prepared(release="faces"), curator.prepared(release="faces")
    assert content_digest(run.gallery) != content_digest(source.gallery)
    for name in ("noisy.zarr", "receipts"):
        shutil.rmtree(run.folder.path / name)
        shutil.copytree(source.folder.path / name, run.folder.path / name)
    second = other.release(release="faces").manifest
    assert normalised(first) == normalised(second)
    assert first.noisy == second.noisy


def normalised(manifest: Manifest) -> bytes:
    """The manifest without its time, its signature and the random name of its gallery."""
    assert manifest.composition is not None
    composition = manifest.composition.model_copy(update={"lineage": "0" * 32})
    return canonical_bytes(
        manifest.model_copy(update={"published_at": None, "composition": composition})
    )


@pytest.mark.parametrize("method", ["nearest", "aap"])
@pytest.mark.parametrize("n", [700, pytest.param(1797, marks=pytest.mark.slow)])
def test_projection_takes_most_of_the_noise_away(curator: Curator, method: str, n: int) -> None:
    """Digits under adjacency `output` at ε = 1; the curator alone can measure this."""
    np.save(curator.root / "source.npy", np.load(DIGITS)[:n])
    changes = {
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "output", "radius": 1.0},
        "projection": {"method": method, "max_iterations": 10},
        "arrays": ["gram"],
        "block_side": 512,
        "cluster": {"workers": 2, "memory_limit": "2GiB"},
    }
    outcome = curator.release(**changes)
    opened = open_release(outcome.path)
    clean = clean_gram_of(curator, **changes)
    released = np.sum((opened.rows(0, n) - clean) ** 2)
    noisy = np.sum((curator.noisy(**changes) - clean) ** 2)
    assert released * 5 <= noisy


def clean_gram_of(curator: Curator, **changes: Any) -> NDArray[np.float64]:
    gallery = curator.prepared(**changes).gallery
    rows = read_rows(gallery.path, 0, gallery.n).astype(np.float64)
    clean = rows @ rows.T
    np.fill_diagonal(clean, 1.0)
    return clean
