"""The private folder of one run: the names in it, and who may drive it.

It holds what is needed to resume the run, and nothing that may be published.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigurationError, IntegrityFailure, RunFailed
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import (
    CLAIM_TOKEN,
    FINISHED_RECORD,
    LOG,
    NOISY_STORE,
    PERFORMANCE,
    PROJECTION,
    RECEIPTS,
    RELEASE_KEY,
    RUN_RECORD,
    SCRATCH,
    SOLVER,
)
from pipeline.storage.lock import locked_folder
from pipeline.storage.place import Place, delete

_CONTENT = "content_sha256"


@dataclass(frozen=True)
class RunFolder:
    """Names inside a run's folder."""

    path: Path
    elsewhere: Place | None = None
    """Folder of the noisy blocks and their receipts, where they are not kept in this one."""

    @property
    def record(self) -> Path:
        """The settings the run was started with."""
        return self.path / RUN_RECORD

    @property
    def finished_record(self) -> Path:
        """What the curator keeps of the finished run (:mod:`pipeline.run.record`)."""
        return self.path / FINISHED_RECORD

    @property
    def key_file(self) -> Path:
        """The release key, while it exists."""
        return self.path / RELEASE_KEY

    @property
    def claim(self) -> Path:
        """By which this run knows its own claims in object stores."""
        return self.path / CLAIM_TOKEN

    @property
    def blocks(self) -> Place:
        """Where the noisy blocks and their receipts are."""
        return self.path if self.elsewhere is None else self.elsewhere

    @property
    def store(self) -> Place:
        """The noisy blocks."""
        return self.blocks / NOISY_STORE

    @property
    def receipts(self) -> Place:
        """One file a finished noisy block."""
        return self.blocks / RECEIPTS

    @property
    def ids(self) -> Path:
        """Public ids of the records, until they are published."""
        return self.path / "ids.npy"

    @property
    def projection(self) -> Path:
        """The finished projection, until it is published."""
        return self.path / PROJECTION

    @property
    def solver(self) -> Path:
        """Panels and checkpoints of a blockwise projection, until it is finished."""
        return self.path / SOLVER

    @property
    def log(self) -> Path:
        """What happened, as JSON lines."""
        return self.path / LOG

    @property
    def performance(self) -> Path:
        """Dask's reports of the stages, where they were asked for."""
        return self.path / PERFORMANCE

    @property
    def scratch(self) -> Path:
        """Where workers keep their own files."""
        return self.path / SCRATCH

    def projection_done(self) -> bool:
        """Whether a finished projection waits to be published."""
        return self.projection.exists()

    def folders(self) -> list[Path]:
        """All folders of a file system that hold something of this run."""
        return [folder for folder in {self.path, self.blocks} if isinstance(folder, Path)]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold it: two processes never drive one run.

        The folder of a run that was refused before it started goes again.

        Raises
        ------
        RunFailed
            Another process holds it.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked_folder(self.path, wait=False))
            except BlockingIOError as error:
                raise RunFailed(
                    f"another process is running this release ({self.path}); wait for it, "
                    "then run the same command again"
                ) from error
            self.make_receipts()
            # What workers of a driver that was killed have left.
            self._sweep_scratch()
            try:
                yield
            finally:
                self._sweep_scratch()
                self._forget_unstarted()

    def make_receipts(self) -> None:
        """Make the folder of the receipts, which an object store needs none of."""
        if isinstance(self.receipts, Path):
            if isinstance(self.elsewhere, Path):
                make_private(self.elsewhere)
            make_private(self.receipts)

    def record_start(self, settings: dict[str, Any], content: bytes) -> None:
        """Record what the run is started with, once its key is bound to it; a record is kept.

        ``content`` is the digest of the gallery; it is as private as the gallery and stays here.
        """
        if self.load_settings() is None:
            record = {**settings, _CONTENT: content.hex()}
            text = json.dumps(record, indent=1, sort_keys=True) + "\n"
            write_atomically(self.record, text.encode())

    def load_settings(self) -> dict[str, Any] | None:
        """The settings the run was started with, or None before its start."""
        record = self._load_record()
        if record is None:
            return None
        return {name: value for name, value in record.items() if name != _CONTENT}

    def check_settings(self, settings: dict[str, Any]) -> None:
        """Refuse settings other than those the run was started with.

        Raises
        ------
        ConfigurationError
            The first difference is named.
        """
        started_with = self.load_settings()
        if started_with is None:
            return
        difference = first_difference(started_with, json.loads(json.dumps(settings)))
        if difference is not None:
            place, before, now = difference
            raise ConfigurationError(
                f"release {self.path.name} was started with {place} = {before!r}, this "
                f"configuration says {now!r}; a release can't change half way. Restore the "
                "setting, or give the release another name ('release:')"
            )

    def started_on(self, content: bytes) -> bool:
        """Whether the gallery is the one the run was started on, as far as is recorded."""
        return self.recorded_content() in (None, content.hex())

    def recorded_content(self) -> str | None:
        """The recorded digest of the gallery, in hexadecimal; as private as the gallery."""
        found: str | None = (self._load_record() or {}).get(_CONTENT)
        return found

    def discard_noise(self) -> None:
        """Remove the noisy blocks and what was made of them."""
        for folder in (self.receipts, self.store, self.projection, self.solver):
            delete(folder)
        self.ids.unlink(missing_ok=True)

    def discard_published(self) -> None:
        """Remove what the release holds as well, once it is published."""
        shutil.rmtree(self.projection, ignore_errors=True)
        self.ids.unlink(missing_ok=True)

    def _sweep_scratch(self) -> None:
        """Leave the workers' folder empty, and its owner's alone."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        make_private(self.scratch)

    def _forget_unstarted(self) -> None:
        """Leave nothing of a run that has neither a key nor a record of its start."""
        if self.key_file.exists() or self.record.exists():
            return
        self.log.unlink(missing_ok=True)
        for folder in (self.scratch, self.receipts, self.elsewhere):
            if isinstance(folder, Path):
                # Receipts of an earlier attempt stay, and with them the folder.
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _load_record(self) -> dict[str, Any] | None:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise IntegrityFailure(
                f"the run record {self.record} is damaged; restore it from a copy, or give the "
                "release another name ('release:')"
            )
        return record


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
