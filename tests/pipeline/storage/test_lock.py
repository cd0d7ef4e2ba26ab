"""One process at a time in a folder, and no trace of one in which nothing was made."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pipeline.storage.layout import LOCK
from pipeline.storage.lock import locked_folder


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked_folder(folder, wait=False):
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(BlockingIOError), locked_folder(folder, wait=False):
            pytest.fail("held twice")
        # Whoever knows nothing but flock(2) on the file is kept out as well.
        with (folder / LOCK).open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not folder.exists()


def test_what_was_made_stays_with_the_lock_file(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run", wait=False):
        (tmp_path / "run" / "made").touch()
    assert sorted(os.listdir(tmp_path / "run")) == [LOCK, "made"]
    with locked_folder(tmp_path / "run", wait=True):
        pass
