"""Dask's performance reports of the stages, for whoever tunes a cluster.

They name tasks, workers and running times. Running times depend on private things, so the reports
stay in the run's private folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import ConfigurationError
from pipeline.storage.durable import make_private


class StageReports:
    """Where the reports go; None where nobody asked for them.

    Raises
    ------
    ConfigurationError
        The library that draws them is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and find_spec("bokeh") is None:
            raise ConfigurationError(
                "--performance-report: the library that draws it is not installed; pip install "
                "'scoreshield[performance]', or leave the option out. Nothing was spent"
            )
        self._folder = folder

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Record one stage, into ``STAGE.html``; needs the run's cluster as the default client."""
        if self._folder is None:
            yield
            return
        from distributed import performance_report

        make_private(self._folder)
        with performance_report(filename=str(self._folder / f"{stage}.html")):
            yield
