"""A folder is compared with what it should hold, and no link in it is followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import IntegrityFailure
from pipeline.storage.plain_files import plain_file_faults, read_plain_file

FILES = ["top", "a/one", "a/c/0/0"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0").write_text("x")
    return root


def test_what_is_expected_is_no_fault(root: Path) -> None:
    assert plain_file_faults(root, FILES) == []
    assert plain_file_faults(root, ["top", "a/one"], unread=["a/c"]) == []
    assert plain_file_faults(root, ["top"], unread=["a", "absent"]) == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("missing", "a/c/0/0 is missing"),
        ("extra file", "a/c/0/1 does not belong there"),
        ("extra folder", "a/c/1 does not belong there"),
        ("linked file", "a/c/0/0 is a symbolic link"),
        ("linked folder", "a/c/0 is a symbolic link"),
        ("extra link", "b is a symbolic link"),
        ("pipe", "pipe does not belong there"),
        ("folder for a file", "a/one does not belong there"),
        ("forged line", r"x\nok does not belong there"),
    ],
)
def test_anything_else_is_named(root: Path, kind: str, fault: str) -> None:
    chunk, other = root / "a/c/0/0", root.parent / "elsewhere"
    if kind in ("missing", "linked file", "linked folder"):
        chunk.unlink()
    if kind == "extra file":
        (root / "a/c/0/1").write_text("")
    elif kind == "extra folder":
        (root / "a/c/1").mkdir()
    elif kind == "linked file":
        chunk.symlink_to(other / "0")
    elif kind == "linked folder":
        chunk.parent.rmdir()
        chunk.parent.symlink_to(other)
    elif kind == "extra link":
        (root / "b").symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(root / "pipe")
    elif kind == "folder for a file":
        (root / "a/one").unlink()
        (root / "a/one").mkdir()
    elif kind == "forged line":
        (root / "x\nok").write_text("")
    assert fault in plain_file_faults(root, FILES)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityFailure, match="can't be listed"):
        plain_file_faults(tmp_path / "absent", [])


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "path"
    (tmp_path / "real").write_bytes(b"x")
    assert read_plain_file(tmp_path / "real") == b"x"
    if kind == "link":
        path.symlink_to("real")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(IntegrityFailure, match="no regular file"):
        read_plain_file(path)
