"""Reading private files: of other kinds than plain ones their status, and nothing stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.storage.private_file import read_private


def test_a_plain_file_with_its_status(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"abcdef")
    path.chmod(0o640)
    file = read_private(path, 4)
    assert (file.content, file.plain, file.mode) == (b"abcd", True, 0o640)
    assert file.open_to_others
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        read_private(tmp_path / "link")
    assert read_private(tmp_path / "link", follow_links=True).content == b"abcdef"


def test_a_folder_and_a_pipe_are_told_apart_and_not_left_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "pipe"):
        file = read_private(path)
        assert (file.content, file.plain) == (b"", False)
    assert len(os.listdir("/proc/self/fd")) == before
