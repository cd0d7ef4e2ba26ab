"""The private folder of one run: what is needed to resume it, and nothing that may be published."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.durable import make_private, write_atomically
from pipeline.errors import ConfigurationError, IntegrityFailure, RunFailed


@dataclass(frozen=True)
class RunFolder:
    """Names inside a run's folder."""

    path: Path

    @property
    def record(self) -> Path:
        """The settings the run was started with."""
        return self.path / "run.json"

    @property
    def key_file(self) -> Path:
        """The release key, while it exists."""
        return self.path / "release.key"

    @property
    def store(self) -> Path:
        """The noisy blocks."""
        return self.path / "noisy.zarr"

    @property
    def receipts(self) -> Path:
        """One file a finished noisy block."""
        return self.path / "receipts"

    @property
    def projection(self) -> Path:
        """The finished projection, until it is published."""
        return self.path / "projection"

    @property
    def log(self) -> Path:
        """What happened, as JSON lines."""
        return self.path / "log.jsonl"

    @property
    def scratch(self) -> Path:
        """Where workers keep their own files."""
        return self.path / "scratch"

    def projection_done(self) -> bool:
        """Whether a finished projection waits to be published."""
        return self.projection.exists()

    def disk_used(self) -> int:
        """Bytes that an earlier attempt of this run already holds."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold it: two processes never drive one run.

        Raises
        ------
        RunFailed
            Another process holds it.
        """
        make_private(self.path)
        make_private(self.receipts)
        make_private(self.scratch)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunFailed(
                    f"another process is running this release ({self.path}); wait for it, "
                    "then run the same command again"
                ) from error
            yield

    def load_settings(self) -> dict[str, Any] | None:
        """The settings the run was started with, or None before its start."""
        try:
            settings = json.loads(self.record.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise IntegrityFailure(f"the run record {self.record} is damaged: {error}") from error
        if not isinstance(settings, dict):
            raise IntegrityFailure(f"the run record {self.record} is damaged: not a mapping")
        return settings

    def pin_settings(self, settings: dict[str, Any]) -> None:
        """Record the settings at the first start; refuse others afterwards.

        Raises
        ------
        ConfigurationError
            The run was started with other settings; the first difference is named.
        """
        started_with = self.load_settings()
        if started_with is None:
            content = json.dumps(settings, indent=1, sort_keys=True) + "\n"
            write_atomically(self.record, content.encode())
            return
        difference = first_difference(started_with, json.loads(json.dumps(settings)))
        if difference is not None:
            place, before, now = difference
            raise ConfigurationError(
                f"release {self.path.name} was started with {place} = {before!r}, this "
                f"configuration says {now!r}; a release can't change half way. Restore the "
                "setting, or give the release another name ('release:')"
            )


def first_difference(
    before: dict[str, Any], now: dict[str, Any], place: str = ""
) -> tuple[str, Any, Any] | None:
    """The first setting in which two nested mappings differ, with both values."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            deeper = first_difference(old, new, f"{place}{key}.")
            if deeper is not None:
                return deeper
        elif old != new:
            return f"{place}{key}", old, new
    return None


def free_disk(path: Path) -> int:
    """Bytes free for a path that may not exist yet."""
    while not path.exists():
        path = path.parent
    statistics = os.statvfs(path)
    return statistics.f_bavail * statistics.f_frsize
