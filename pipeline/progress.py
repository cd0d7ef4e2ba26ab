"""Telling a person, or a log, how far a run is: bars on a terminal, JSON lines elsewhere.

Lines name stages, counts, seconds and bytes; never a value.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO


class Reporter(Protocol):
    """Where a run reports to."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """A stage starts; ``total`` units of work lie ahead, or an unknown number."""

    def advance(self, done: int, **figures: Any) -> None:
        """``done`` units of the stage are finished; ``figures`` are public numbers to show."""

    def end(self, **figures: Any) -> None:
        """The stage is finished."""

    def note(self, event: str, **figures: Any) -> None:
        """Something happened that is no stage."""


class Silent:
    """Reports nothing, for callers that watch by other means."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        pass

    def advance(self, done: int, **figures: Any) -> None:
        pass

    def end(self, **figures: Any) -> None:
        pass

    def note(self, event: str, **figures: Any) -> None:
        pass


class JsonLines:
    """One JSON object a line: every event, and at most one advance a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._total: int | None = None
        self._started = self._last = 0.0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage, self._total = stage, total
        self._started = self._last = time.monotonic()
        self._write("begin", stage=stage, total=total, unit=unit)

    def advance(self, done: int, **figures: Any) -> None:
        now = time.monotonic()
        if now - self._last >= 1:
            self._last = now
            self._write("advance", stage=self._stage, done=done, total=self._total, **figures)

    def end(self, **figures: Any) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        self._write("end", stage=self._stage, seconds=seconds, **figures)

    def note(self, event: str, **figures: Any) -> None:
        self._write(event, **figures)

    def _write(self, event: str, **figures: Any) -> None:
        self._stream.write(json.dumps({"event": event, **figures}) + "\n")
        self._stream.flush()


class Bars:
    """A progress bar a stage, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(file=sys.stderr),
        )
        self._task: Any = None

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._progress.start()
        self._task = self._progress.add_task(stage, total=total, unit=unit, figures="")

    def advance(self, done: int, **figures: Any) -> None:
        self._progress.update(self._task, completed=done, figures=_shown(figures))

    def end(self, **figures: Any) -> None:
        task = self._progress.tasks[self._task]
        total = task.total if task.total is not None else task.completed
        self._progress.update(self._task, total=total, completed=total, figures=_shown(figures))
        self.close()

    def note(self, event: str, **figures: Any) -> None:
        self._progress.console.print(f"{event} {_shown(figures)}".rstrip(), highlight=False)

    def close(self) -> None:
        """Leave the terminal as it was found, also when a stage ends early."""
        self._progress.stop()


class Tee:
    """Reports to several places, for instance a terminal and the run's own log."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        for reporter in self._reporters:
            reporter.begin(stage, total, unit)

    def advance(self, done: int, **figures: Any) -> None:
        for reporter in self._reporters:
            reporter.advance(done, **figures)

    def end(self, **figures: Any) -> None:
        for reporter in self._reporters:
            reporter.end(**figures)

    def note(self, event: str, **figures: Any) -> None:
        for reporter in self._reporters:
            reporter.note(event, **figures)


@contextmanager
def standard_reporter() -> Iterator[Reporter]:
    """Bars when standard error is a terminal, JSON lines on it otherwise."""
    if not sys.stderr.isatty():
        yield JsonLines(sys.stderr)
        return
    bars = Bars()
    try:
        yield bars
    finally:
        bars.close()


def _shown(figures: dict[str, Any]) -> str:
    return " ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
        if value is not None
    )
