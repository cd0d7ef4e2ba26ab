"""Small files are whole or absent, whatever fails while they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.storage.durable import make_file, make_private, write_atomically


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_content_and_mode_do_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o777)
    try:
        write_atomically(tmp_path / "file", b"content", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_private_is_the_default(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("failing", ["fsync", "chmod", "replace"])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_leaves_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        happened.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def record_name(source: Any, target: Any) -> None:
        happened.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_name)
    write_atomically(tmp_path / "file", b"content")
    assert happened == ["file", "name", "folder"]


def test_a_private_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "private"
    assert make_private(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_there_is_never_made_again(tmp_path: Path) -> None:
    make_file(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        make_file(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
