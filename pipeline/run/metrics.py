"""Prometheus metrics of a release, from the process that drives it.

A release is a batch job: a scrape reaches it while it runs, and a text file for node_exporter's
collector outlives it. Both name stages, counts, seconds and spent budget, never a value. Running
times depend on private things, so these metrics are the operator's, not the public's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.sections import MetricsSettings
from pipeline.errors import ConfigurationError, ScoreShieldError, exit_code
from scoreshield.manifest.schema import Manifest

_SUCCESS = "scoreshield_last_success_timestamp_seconds"


class MetricsExporter:
    """A reporter (:mod:`pipeline.progress`) that keeps the metrics of one run."""

    def __init__(self, settings: MetricsSettings) -> None:
        from prometheus_client import CollectorRegistry, Gauge

        self._textfile = settings.textfile
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(f"scoreshield_{name}", text, labels, registry=self.registry)

        self._done = gauge("stage_done", "Units of work that a stage has finished.", "stage")
        self._total = gauge("stage_total", "Units of work of a stage, where known.", "stage")
        self._seconds = gauge("stage_seconds", "Seconds of a finished stage.", "stage")
        self._figures = {
            "residual": gauge("projection_residual", "Residual of the last iteration."),
            "products": gauge("projection_products", "Products with the noisy matrix so far."),
            "bytes_read": gauge("projection_bytes_read", "Bytes of noisy blocks read so far."),
            "seconds_left": gauge("projection_seconds_left", "Estimated seconds still to go."),
        }
        self._running = gauge("running", "1 while a release is being made, 0 after it.")
        self._code = gauge("last_exit_code", "Exit code of the last run; 0 is success.")
        self._ended = gauge("last_end_timestamp_seconds", "When the last run ended.")
        self._success = gauge("last_success_timestamp_seconds", "When a run last succeeded.")
        self._spent = gauge("budget_spent_epsilon", "Epsilon spent on the gallery so far.")
        self._budget = gauge("budget_epsilon", "Epsilon of the gallery's whole budget.")
        self._stage, self._begun = "", 0.0
        self._success.set(_earlier_success(self._textfile))
        self._running.set(1)
        self._write()

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage, self._begun = stage, time.monotonic()
        self._done.labels(stage).set(0)
        self._total.labels(stage).set(math.nan if total is None else total)

    def advance(self, done: int, **figures: Any) -> None:
        # Reports from workers may arrive after their stage has ended.
        if self._stage:
            self._done.labels(self._stage).set(done)
            for name, gauge in self._figures.items():
                if figures.get(name) is not None:
                    gauge.set(figures[name])

    def end(self, **figures: Any) -> None:
        self._seconds.labels(self._stage).set(time.monotonic() - self._begun)
        self._stage = ""
        self._write()

    def note(self, event: str, **figures: Any) -> None:
        pass

    def finish(self, code: int, manifest: Manifest | None) -> None:
        """The run has ended with this exit code, and made or found the release of a manifest."""
        self._running.set(0)
        self._code.set(code)
        self._ended.set_to_current_time()
        if code == 0:
            self._success.set_to_current_time()
        if manifest is not None and manifest.composition is not None:
            self._spent.set(manifest.composition.spent_after.epsilon)
            self._budget.set(manifest.composition.budget_epsilon)
        self._write()

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        if self._textfile is not None:
            # Written beside it and renamed, so that a collector never reads half of it.
            write_to_textfile(str(self._textfile), self.registry)


@contextmanager
def exported(settings: MetricsSettings) -> Iterator[MetricsExporter | None]:
    """Serve and write the configured metrics while a run lasts; None where none are configured.

    Raises
    ------
    ConfigurationError
        The library is not installed, the port is taken, or the file can't be written.
    """
    if settings.port is None and settings.textfile is None:
        yield None
        return
    try:
        from prometheus_client import start_http_server
    except ImportError as error:
        raise ConfigurationError(
            "metrics: the library for them is not installed; pip install 'scoreshield[metrics]'"
        ) from error
    try:
        exporter = MetricsExporter(settings)
        server = None
        if settings.port is not None:
            server, _ = start_http_server(settings.port, settings.address, exporter.registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics: {_place(settings)} can't be used ({error.strerror}); name another one, or "
            "leave 'metrics' out. Nothing was spent"
        ) from error
    try:
        yield exporter
    except BaseException as error:
        exporter.finish(exit_code(error) if isinstance(error, ScoreShieldError) else 6, None)
        raise
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _place(settings: MetricsSettings) -> str:
    places = [] if settings.port is None else [f"{settings.address}:{settings.port}"]
    return " or ".join(places + ([] if settings.textfile is None else [str(settings.textfile)]))


def _earlier_success(textfile: Path | None) -> float:
    """When a run last succeeded, from the file that an earlier run left; 0 where none did."""
    from prometheus_client.parser import text_string_to_metric_families

    if textfile is None or not textfile.exists():
        return 0.0
    try:
        for family in text_string_to_metric_families(textfile.read_text(encoding="utf-8")):
            for sample in family.samples:
                if sample.name == _SUCCESS:
                    return float(sample.value)
    except (OSError, ValueError):
        # A damaged file is replaced; it is no reason to hold a release up.
        pass
    return 0.0
