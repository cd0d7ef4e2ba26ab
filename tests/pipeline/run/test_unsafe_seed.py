"""Test mode: the same bits for everybody, NOT PRIVATE wherever one looks, and in no ledger."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

from pipeline.errors import ConfigurationError, IntegrityFailure
from pipeline.reader.description import render_markdown
from pipeline.reader.open import NotPrivateWarning, open_release
from pipeline.reader.verify import verify_release
from pipeline.run.outcome import Outcome
from tests.harness.curator import Curator, Finished
from tests.harness.interruptions import KeyWatch

SEED = 7
FACTOR = {"arrays": ["factor"]}


def make(curator: Curator, seed: int = SEED, **changes: Any) -> Outcome:
    with pytest.warns(NotPrivateWarning, match="is NOT PRIVATE: made in test mode"):
        return curator.release(unsafe_seed=seed, **{**FACTOR, **changes})


def run_folder(curator: Curator) -> Path:
    (folder,) = (curator.root / "private" / "test-runs").iterdir()
    return Path(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A release in test mode by the command, without any ledger or leave to make one."""
    curator = Curator(tmp_path_factory.mktemp("demonstration"))
    curator.write_source()
    curator.settings["ledger"]["create"] = False
    curator.configure(**FACTOR)
    done = curator.command("release", "release.yaml", "--unsafe-seed", "7", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return curator, result, done


class TestEverythingSaysNotPrivate:
    def test_the_commands_result(self, made: Any) -> None:
        curator, result, done = made
        assert result["private"] is False
        assert "--unsafe-seed 7" in result["not_private_reason"]
        assert result["release_id"].endswith("-not-private")
        assert any(json.loads(line)["event"] == "NOT PRIVATE" for line in done.stderr.splitlines())
        text = curator.command("release", "release.yaml", "--unsafe-seed", "7")
        assert text.returncode == 0, text.stderr
        assert text.stdout.startswith("NOT PRIVATE: made in test mode with --unsafe-seed 7")
        assert "already released" in text.stdout

    def test_the_manifest_and_the_stores_attributes(self, made: Any) -> None:
        path = Path(made[1]["path"])
        manifest = json.loads((path / "manifest.json").read_text())
        store = zarr.open_group(str(path / "release.zarr"), mode="r").attrs["scoreshield_manifest"]
        for said in (manifest, store):
            assert said["private"] is False
            assert "anybody can recompute its noise" in said["not_private_reason"]
            assert said["privacy"]["statement"].startswith("NOT PRIVATE: ")
            assert "No guarantee is given" in said["privacy"]["statement"]
            assert said["mechanism"]["key_stream"].startswith("NOT PRIVATE: ")
            assert "operating system" not in said["mechanism"]["key_stream"]
            assert said["composition"] is None

    def test_show_verify_and_manifest_verify(self, made: Any) -> None:
        curator, result, _ = made
        path, key = result["path"], result["public_key"]
        shown = curator.command("show", path)
        assert "**NOT PRIVATE: made in test mode" in shown.stdout
        assert "## Guarantee\n\nNOT PRIVATE" in shown.stdout
        assert "- epsilon =" not in shown.stdout
        assert shown.stderr == ""
        for words in (("verify", path), ("manifest", "verify", path, "--key", key)):
            checked = curator.command(*words)
            assert checked.returncode == 0, checked.stderr
            assert checked.stdout.startswith("NOT PRIVATE: made in test mode"), words
            machine = json.loads(curator.command(*words, "--json").stdout)
            assert "made in test mode" in machine["not_private_reason"]

    def test_opening_it(self, made: Any) -> None:
        with pytest.warns(NotPrivateWarning, match="is NOT PRIVATE"):
            opened = open_release(made[1]["path"])
        assert "NOT PRIVATE" in repr(opened)
        assert opened.to_xarray().attrs["private"] == "False"
        assert "test mode" in opened.to_xarray().attrs["not_private_reason"]

    def test_the_runs_own_log_and_record(self, made: Any) -> None:
        folder = run_folder(made[0])
        assert '"event": "NOT PRIVATE"' in (folder / "log.jsonl").read_text()
        record = json.loads((folder / "run-record.json").read_text())
        assert record["private"] is False
        assert record["key"] == "test mode, seed 7"

    def test_no_ledger_was_asked_and_no_key_is_left(self, made: Any) -> None:
        curator = made[0]
        assert not (curator.root / "ledger.db").exists()
        assert not list(curator.root.rglob("*.key"))
        assert not list((curator.root / "private").glob("runs/*"))


class TestReproducible:
    def test_the_same_bits_in_another_folder_with_another_lineage(self, curator: Curator) -> None:
        other = curator.beside("other")
        first = make(curator).manifest
        second = make(other, block_side=128).manifest
        assert curator.prepared().gallery.lineage != other.prepared().gallery.lineage
        assert first.release_id == second.release_id
        assert first.arrays["factor"].sha256 == second.arrays["factor"].sha256
        third = make(curator, SEED + 1).manifest
        assert third.release_id != first.release_id
        assert third.noisy != first.noisy

    def test_a_named_one_keeps_its_seed(self, curator: Curator) -> None:
        made = make(curator, release="faces")
        assert made.path.name == "faces-not-private"
        with pytest.raises(ConfigurationError, match="unsafe_seed = 7, this configuration says 8"):
            curator.release(unsafe_seed=8, **FACTOR, release="faces")
        shutil.rmtree(curator.root / "private" / "test-runs")
        with (
            pytest.warns(NotPrivateWarning),
            pytest.raises(ConfigurationError, match="another release: it has not_private_reason"),
        ):
            curator.release(unsafe_seed=8, **FACTOR, release="faces")


class TestApartFromRealRuns:
    def test_a_real_release_is_made_beside_it_and_spends_once(self, curator: Curator) -> None:
        demonstration = make(curator, release="faces")
        real = curator.release(**FACTOR, release="faces")
        assert real.newly
        assert real.manifest.private
        assert real.path != demonstration.path
        assert real.manifest.noisy != demonstration.manifest.noisy
        curator.assert_spent_once(**FACTOR, release="faces")
        spent = curator.account().spent
        assert not make(curator, release="faces").newly
        assert curator.account().spent == spent

    def test_an_unfinished_real_run_is_left_alone(self, curator: Curator) -> None:
        with KeyWatch(curator.root) as watch:
            curator.interrupt("perturb", 4, **FACTOR, release="faces")
            watch.look()
            folder = curator.prepared(**FACTOR, release="faces").folder
            before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
            make(curator, release="faces")
            assert {
                path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()
            } == before
            curator.release(**FACTOR, release="faces")
        np.testing.assert_array_equal(
            curator.noisy(**FACTOR, release="faces"),
            curator.expected_noisy(watch.key, **FACTOR, release="faces"),
        )

    def test_a_real_runs_folder_in_its_place_is_refused(self, curator: Curator) -> None:
        curator.interrupt("perturb", 4, **FACTOR, release="faces")
        named = {**FACTOR, "release": "faces"}
        real = curator.prepared(**named).folder.path
        place = curator.prepared(SEED, **named).folder.path
        place.parent.mkdir()
        shutil.copytree(real, place)
        with pytest.raises(ConfigurationError, match="unsafe_seed = None"):
            curator.release(unsafe_seed=SEED, **named)
        (place / "run.json").unlink()
        key = (place / "release.key").read_bytes()
        with pytest.raises(IntegrityFailure, match="holds the key of another run"):
            curator.release(unsafe_seed=SEED, **named)
        assert (place / "release.key").read_bytes() == key

    def test_a_real_release_never_takes_the_name_of_one(self, curator: Curator) -> None:
        with pytest.raises(ConfigurationError, match="marks releases of test mode"):
            curator.load(release="faces-not-private")

    def test_a_signed_demonstration_under_a_real_name_is_not_taken_for_the_release(
        self, curator: Curator
    ) -> None:
        made = make(curator, release="faces")
        made.path.rename(made.path.with_name("faces"))
        with (
            pytest.warns(NotPrivateWarning),
            pytest.raises(ConfigurationError, match="is another release: it has lineage = None"),
        ):
            curator.release(**FACTOR, release="faces")
        assert curator.account() is None

    def test_no_configuration_turns_it_on(self, curator: Curator) -> None:
        for key in ("unsafe_seed", "unsafe-seed", "seed"):
            with pytest.raises(ConfigurationError, match="unknown key"):
                curator.load(**{key: 7})

    @pytest.mark.parametrize("seed", ["-1", "x", ""])
    def test_a_seed_is_a_whole_number(self, curator: Curator, seed: str) -> None:
        curator.configure()
        assert curator.command("release", "release.yaml", "--unsafe-seed", seed).returncode == 2


class TestResumed:
    def test_an_interrupted_one_goes_on_with_the_noise_of_its_seed(self, curator: Curator) -> None:
        curator.interrupt("perturb", 5, unsafe_seed=SEED, **FACTOR)
        resumed = make(curator)
        assert resumed.newly
        assert verify_release(resumed.path).ok
        test_mode = {"unsafe_seed": SEED, **FACTOR}
        np.testing.assert_array_equal(
            curator.noisy(**test_mode),
            curator.expected_noisy(curator.seeded_key(**test_mode), **test_mode),
        )

    def test_a_changed_gallery_is_refused(self, curator: Curator) -> None:
        curator.interrupt("perturb", 5, unsafe_seed=SEED, **FACTOR)
        curator.write_source(seed=2)
        with pytest.raises(IntegrityFailure, match="other content"):
            curator.release(unsafe_seed=SEED, **FACTOR)


def test_a_real_release_says_nothing_of_the_kind(finished: Finished) -> None:
    opened = open_release(finished.path)
    assert opened.manifest.private
    for text in (finished.output, finished.errors, render_markdown(opened.manifest), repr(opened)):
        assert "NOT PRIVATE" not in text
    assert json.loads(finished.output)["private"] is True
    assert verify_release(finished.path).not_private_reason is None
    settings = yaml.safe_load((finished.curator.root / "release.yaml").read_text())
    assert "unsafe_seed" not in settings
