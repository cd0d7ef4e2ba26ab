"""Prometheus metrics: what a scrape and a text collector find, and what outlives a run."""

from __future__ import annotations

import math
import socket
import stat
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.config.sections import MetricsSettings
from pipeline.errors import BudgetRefused, ConfigurationError
from pipeline.run.metrics import exported


def samples(text: str) -> dict[tuple[str, str], float]:
    """Value by name and stage."""
    return {
        (sample.name.removeprefix("scoreshield_"), sample.labels.get("stage", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_a_scrape_finds_how_far_a_run_is() -> None:
    port = free_port()
    with exported(MetricsSettings(port=port)) as exporter:
        assert exporter is not None
        exporter.begin("perturb", 8, "blocks")
        exporter.advance(3)
        exporter.end(blocks=8)
        exporter.begin("project", None, "iterations")
        exporter.advance(5, residual=0.25, products=11, method="nearest", seconds_left=None)
        with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            found = samples(reply.read().decode())
    assert found["stage_done", "perturb"] == 3
    assert found["stage_total", "perturb"] == 8
    assert found["stage_seconds", "perturb"] >= 0
    assert math.isnan(found["stage_total", "project"])
    assert found["projection_residual", ""] == 0.25
    assert found["projection_products", ""] == 11
    assert found["running", ""] == 1
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics")


def test_the_text_file_outlives_runs_and_remembers_the_last_success(tmp_path: Path) -> None:
    settings = MetricsSettings(textfile=tmp_path / "scoreshield.prom")
    with exported(settings) as exporter:
        assert exporter is not None
        exporter.finish(0, None)
    first = samples((tmp_path / "scoreshield.prom").read_text())
    assert first["last_success_timestamp_seconds", ""] > 1.7e9
    with pytest.raises(BudgetRefused), exported(settings):
        raise BudgetRefused("no budget is left")
    second = samples((tmp_path / "scoreshield.prom").read_text())
    assert second["last_exit_code", ""] == 4
    assert second["running", ""] == 0
    name = ("last_success_timestamp_seconds", "")
    assert second[name] == first[name]
    assert [file.name for file in tmp_path.iterdir()] == ["scoreshield.prom"]
    assert stat.S_IMODE((tmp_path / "scoreshield.prom").stat().st_mode) & 0o022 == 0


def test_a_damaged_text_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "old.prom").write_text("scoreshield_last_success {{{")
    with exported(MetricsSettings(textfile=tmp_path / "old.prom")) as exporter:
        assert exporter is not None
        exporter.finish(0, None)
    assert samples((tmp_path / "old.prom").read_text())["last_exit_code", ""] == 0


def test_a_taken_port_or_a_missing_folder_is_found_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"metrics: 127.0.0.1:{port} can't be used"),
            exported(MetricsSettings(port=port)),
        ):
            pass
    with (
        pytest.raises(ConfigurationError, match=r"gone/x\.prom can't be used"),
        exported(MetricsSettings(textfile=tmp_path / "gone" / "x.prom")),
    ):
        pass


def test_without_settings_nothing_is_exported() -> None:
    with exported(MetricsSettings()) as exporter:
        assert exporter is None
