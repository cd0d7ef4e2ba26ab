"""``audit_config``: the whole audit on a small gallery, as the command runs it."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError, ParameterError
from pipeline.run.audit import CURATOR_ONLY, audit_config
from scoreshield.audit.audit import audit, plan_audit
from tests.harness.command import run_command
from tests.harness.reporters import Told

# Of the standard library, so that worker processes can import it.
COUNTED_KEY = partial(int.to_bytes, length=32, byteorder="big")
ONE_KEY = defaultdict(partial(bytes, 32)).__getitem__


def configuration(folder: Path, n: int, **privacy: Any) -> Config:
    rows = np.random.default_rng(0).normal(size=(n, 6))
    np.save(folder / "gallery.npy", rows)
    content = {
        "gallery": "gallery.npy",
        "privacy": {"delta": 1e-6, "adjacency": "record", **privacy},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 1e5, "delta": 1e-5},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return load_config(folder / "config.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def recorder() -> Told:
    return Told()


@pytest.fixture(scope="module")
def report(folder: Path, recorder: Told) -> Any:
    return audit_config(configuration(folder, 40, epsilon=20.0), recorder, COUNTED_KEY)


def test_the_claim_is_met_closely(report: Any) -> None:
    assert report.consistent
    assert 0.85 < report.worst_case.tightness <= 1
    assert report.worst_case.claimed_epsilon == 20


def test_the_attacks_succeed_on_clean_values_only(report: Any) -> None:
    assert report.membership.clean_success == 1
    assert report.membership.released_success <= report.membership.success_bound + 0.04
    strategies = [result.strategy for result in report.reconstructions]
    assert strategies == ["hill climbing", "regression"]
    for result in report.reconstructions:
        assert result.clean_cosine > 0.95
        assert result.queries == 120


def test_it_says_what_is_for_the_curator_alone(report: Any) -> None:
    content = json.loads(json.dumps(report.to_json()))
    assert content["attacks"]["notice"] == CURATOR_ONLY
    assert content["worst_case"]["claimed_epsilon"] == 20
    worst_case, attacks = report.to_text().split("\n\n")
    assert CURATOR_ONLY in attacks
    assert CURATOR_ONLY not in worst_case


def test_progress_counts_every_release(report: Any, recorder: Told) -> None:
    releases = 2 * report.worst_case.releases
    assert {("audit", releases), ("attack", 3)} <= set(recorder.begun)
    assert releases in {line["done"] for line in recorder.lines}


def test_processes_count_what_one_process_counts(report: Any) -> None:
    plan = plan_audit(20.0, 1e-6)
    assert report.worst_case == audit(plan, COUNTED_KEY)


def test_nothing_is_spent_or_published(report: Any, folder: Path) -> None:
    assert not (folder / "ledger.db").exists()
    assert not (folder / "releases").exists()
    assert not list(folder.rglob("*.key"))


def test_a_gallery_too_small_to_attack_is_refused_before_the_work(tmp_path: Path) -> None:
    recorder = Told()
    with pytest.raises(ParameterError, match="at least 3 records"):
        audit_config(configuration(tmp_path, 2, epsilon=20.0), recorder)
    assert "audit" not in dict(recorder.begun)


def test_a_configuration_of_scores_is_refused(folder: Path) -> None:
    config = configuration(folder, 10, epsilon=1.0).model_copy(update={"regime": "scores"})
    with pytest.raises(ConfigurationError, match="regime: the audit knows the worst case of"):
        audit_config(config, Told())


def test_the_command_on_a_claim_that_holds(tmp_path: Path) -> None:
    configuration(tmp_path, 40, epsilon=20.0)
    done = run_command(tmp_path, "audit", "config.yaml", "--json")
    assert done.returncode == 0, done
    report = done.json
    assert report["consistent"] is True
    assert report["attacks"]["notice"] == CURATOR_ONLY
    assert not {"ledger.db", "releases"} & {path.name for path in tmp_path.iterdir()}


def test_the_command_on_a_claim_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration(tmp_path, 40, epsilon=20.0)
    failing = partial(audit_config, keys=ONE_KEY)
    monkeypatch.setattr("pipeline.run.audit.audit_config", failing)
    done = run_command(tmp_path, "audit", "config.yaml")
    assert done.returncode == 5
    assert "the audit contradicts the claim" in done.stderr
    assert "contradicts" in done.stdout.lower() or "not consistent" in done.stdout.lower()
