"""``scoreshield audit``: the report on standard output, and exit code 5 where the claim fails."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.run import audit
from pipeline.run.audit import CURATOR_ONLY

# Of the standard library, so that worker processes can import it.
ONE_KEY = defaultdict(partial(bytes, 32)).__getitem__


@pytest.fixture
def config(tmp_path: Path) -> Path:
    np.save(tmp_path / "faces.npy", np.random.default_rng(0).normal(size=(40, 6)))
    content = {
        "gallery": "faces.npy",
        "privacy": {"epsilon": 20.0, "delta": 1e-6, "adjacency": "record"},
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 1e5, "delta": 1e-5},
        "cluster": {"workers": 1},
    }
    path = tmp_path / "release.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_claim_that_holds(config: Path) -> None:
    done = CliRunner().invoke(cli, ["audit", str(config), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["consistent"] is True
    assert report["attacks"]["notice"] == CURATOR_ONLY
    assert not (config.parent / "ledger.db").exists()
    assert not (config.parent / "releases").exists()


def test_a_claim_that_fails(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "audit_config", partial(audit.audit_config, keys=ONE_KEY))
    done = CliRunner().invoke(cli, ["audit", str(config)])
    assert done.exit_code == 5
    assert "the audit contradicts the claim" in done.stderr
    assert "contradicts" in done.stdout.lower() or "not consistent" in done.stdout.lower()
