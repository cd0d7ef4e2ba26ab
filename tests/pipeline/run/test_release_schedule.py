"""Scheduled releases on a real ledger: one a period, until the budget is gone."""

from __future__ import annotations

import json
import stat
from typing import Any

import pytest

import pipeline.run.release
from pipeline.forecast.preview import preview_periods
from pipeline.run.budget import ConfiguredLedger
from tests.harness.curator import Curator, N
from tests.harness.interruptions import Interrupted

SCHEDULE: dict[str, Any] = {"release": "similar", "period": "monthly"}


def test_a_schedule_from_its_first_release_to_the_end_of_its_budget(curator: Curator) -> None:
    curator.write_source()
    ledger = {**curator.settings["ledger"], "epsilon": 90.0}
    metrics = {"textfile": "scoreshield.prom"}
    curator.settings |= {**SCHEDULE, "ledger": ledger, "metrics": metrics}
    config = curator.load()
    assert preview_periods(config).outlook.fitting == 2
    first = curator.release(due="2026-08")
    assert (first.newly, first.path.name) == (True, "similar-2026-08")

    # The gallery has grown meanwhile: the period's release is reported, the next one carries it.
    curator.write_source(n=N + 10, seed=2)
    again = curator.release(due="2026-08")
    assert (again.newly, again.manifest) == (False, first.manifest)
    second = curator.release(due="2026-09")
    told = (curator.root / "scoreshield.prom").read_text()
    assert "scoreshield_last_exit_code 0.0" in told
    assert 'scoreshield_stage_done{stage="perturb"} 15.0' in told
    assert "scoreshield_budget_epsilon 90.0" in told
    assert (second.newly, second.manifest.shape.n) == (True, N + 10)
    assert second.manifest.composition.lineage == first.manifest.composition.lineage

    shown = preview_periods(config)
    assert shown.outlook.fitting == 0
    assert "used up" in shown.to_text()
    result = curator.command("release", "release.yaml", "--period", "2026-10", "--json")
    assert result.returncode == 4
    assert json.loads(result.stdout)["largest"] < 50
    assert {path.name for path in first.path.parent.iterdir()} == {
        "similar-2026-08",
        "similar-2026-09",
    }
    told = (curator.root / "scoreshield.prom").read_text()
    assert "scoreshield_last_exit_code 4.0" in told
    assert "scoreshield_budget_epsilon 0.0" in told


def test_two_schedulers_in_one_period_spend_once(curator: Curator) -> None:
    curator.write_source()
    curator.configure(**SCHEDULE)
    arguments = ("release", "release.yaml", "--period", "2026-08", "--json")
    started = [curator.start(*arguments) for _ in range(2)]
    outcomes = [(process.communicate(timeout=120)[0], process.returncode) for process in started]
    codes = sorted(code for _, code in outcomes)
    # The second one either waits for the folder of the source and then reports, or finds the run.
    assert codes in ([0, 0], [0, 6]), outcomes
    made = [json.loads(output) for output, code in outcomes if code == 0]
    assert sum(outcome["newly_released"] for outcome in made) == 1
    account = curator.account(release="similar-2026-08")
    assert [entry.release_id for entry in account.entries] == ["similar-2026-08"]


def test_an_interrupted_period_is_resumed(curator: Curator) -> None:
    curator.write_source()
    curator.interrupt("perturb", 3, due="2026-08", **SCHEDULE)
    assert curator.release(due="2026-08", performance=True, **SCHEDULE).newly
    curator.assert_spent_once(release="similar-2026-08")
    reports = curator.root / "private" / "runs" / "similar-2026-08" / "performance"
    assert stat.S_IMODE(reports.stat().st_mode) == 0o700
    assert {file.name for file in reports.iterdir()} == {
        "perturb.html",
        "project.html",
        "publish.html",
    }
    assert "perturb-" in (reports / "perturb.html").read_text()


def test_a_published_period_is_settled_though_its_gallery_changed(
    curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise Interrupted

    curator.write_source()
    config = curator.load(**SCHEDULE)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.run.release, "conclude", crash)
        with pytest.raises(Interrupted):
            curator.release(due="2026-08", **SCHEDULE)
    key_file = config.private / "runs" / "similar-2026-08" / "release.key"
    assert key_file.exists()
    curator.write_source(n=N + 10, seed=2)
    outcome = curator.release(due="2026-08", **SCHEDULE)
    assert not outcome.newly
    assert not key_file.exists()
    entry = ConfiguredLedger(config).ledger.account(outcome.manifest.composition.lineage).entries[0]
    assert (entry.release_id, entry.state) == ("similar-2026-08", "committed")
