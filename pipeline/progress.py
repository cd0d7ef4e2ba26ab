"""Telling a person, or a log, how far a run is: bars on a terminal, JSON lines elsewhere.

Lines name stages, counts, seconds and bytes; never a value.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from pipeline.quantities import show_bytes, show_seconds


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


class JsonLines:
    """One JSON object a line: every event, and at most one advance a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage: str | None = None
        self._total: int | None = None
        self._started = self._last = 0.0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage, self._total = stage, total
        self._started = self._last = time.monotonic()
        self._write("begin", stage=stage, total=total, unit=unit)

    def advance(self, done: int, **figures: Any) -> None:
        now = time.monotonic()
        # Reports from workers may arrive after their stage has ended.
        if self._stage is not None and now - self._last >= 1:
            self._last = now
            self._write("advance", stage=self._stage, done=done, total=self._total, **figures)

    def end(self, **figures: Any) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        stage, self._stage = self._stage, None
        self._write("end", stage=stage, seconds=seconds, **figures)

    def note(self, event: str, **figures: Any) -> None:
        self._write(event, **figures)

    def _write(self, event: str, **figures: Any) -> None:
        line = {"time": _now(), "event": event, **_finite(figures)}
        self._stream.write(json.dumps(line) + "\n")
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
        self._total: int | None = None
        self._done = 0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._progress.start()
        self._total, self._done = total, 0
        self._task = self._progress.add_task(stage, total=total, unit=unit, figures="")

    def advance(self, done: int, **figures: Any) -> None:
        # Reports from workers may arrive after their stage has ended.
        if self._task is not None:
            self._done = done
            self._progress.update(self._task, completed=done, figures=_shown(figures))

    def end(self, **figures: Any) -> None:
        task, self._task = self._task, None
        total = self._done if self._total is None else self._total
        self._progress.update(task, total=total, completed=total, figures=_shown(figures))
        # A finished bar stays on the terminal and is not drawn again with the next one.
        self.close()
        self._progress.remove_task(task)

    def note(self, event: str, **figures: Any) -> None:
        self._progress.console.print(f"{event} {_shown(figures)}".rstrip(), highlight=False)

    def close(self) -> None:
        """Leave the terminal as it was found, also when a stage ends early."""
        self._progress.stop()


class Tee:
    """Reports to several places, for instance a terminal and the run's own log, or to none."""

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


class Checking:
    """Makes stages of what :func:`pipeline.reader.verify.verify_release` tells of its progress."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._checked = ""

    def __call__(self, checked: str, done: int, total: int) -> None:
        if checked != self._checked:
            self._reporter.begin(checked, total, "parts")
            self._checked = checked
        self._reporter.advance(done)
        if done == total:
            self._reporter.end()
            self._checked = ""


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what is not finite is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def _shown(figures: dict[str, Any]) -> str:
    """Figures in a line; ``bytes_read`` and ``seconds_left`` in units that suit them."""
    return " ".join(_figure(name, value) for name, value in figures.items() if value is not None)


def _figure(name: str, value: Any) -> str:
    quantity, _, what = name.partition("_")
    if what and quantity in _UNITS:
        return f"{what} {_UNITS[quantity](value)}"
    return f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"


_UNITS = {"bytes": show_bytes, "seconds": show_seconds}
