"""Runs that end at a chosen moment, and eyes on what other processes do meanwhile."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.progress import Tee


class Interrupted(Exception):
    """Ends a run in this process at a chosen moment."""


class InterruptAt(Tee):
    """A reporter that raises once ``done`` units of ``stage`` are finished."""

    def __init__(self, stage: str, done: int) -> None:
        super().__init__()
        self._wanted, self._done, self._stage = stage, done, ""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self._stage = stage

    def advance(self, done: int, **figures: Any) -> None:
        if self._stage == self._wanted and done == self._done:
            raise Interrupted


class KeyWatch:
    """Reads the release key while it exists, as its owner can."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.keys: list[bytes] = []

    def __enter__(self) -> KeyWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def key(self) -> bytes:
        """The one key that was seen."""
        assert len(self.keys) == 1, f"{len(self.keys)} keys were seen"
        return self.keys[0]

    def look(self) -> None:
        """Note a key that is there now."""
        for path in self._folder.glob("private/runs/*/release.key"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                key = bytes.fromhex(json.loads(path.read_text())["key"])
                if key not in self.keys:
                    self.keys.append(key)

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.look()


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
