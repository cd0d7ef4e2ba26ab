"""Network file systems, by the table of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.storage.filesystem import network_filesystem


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("/dev/sda / ext4 rw 0 0", None),
        ("overlay / overlay rw 0 0", None),
        ("share / 9p rw 0 0", None),
        ("tmpfs / tmpfs rw 0 0", None),
        ("server:/export / nfs rw 0 0", "nfs"),
        ("server:/export / nfs4 rw 0 0", "nfs4"),
        ("//server/export / cifs rw 0 0", "cifs"),
        ("//server/export / smb3 rw 0 0", "smb3"),
        ("someone@server: / fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("server:/volume / fuse.glusterfs rw 0 0", "fuse.glusterfs"),
        ("server:/volume / lustre rw 0 0", "lustre"),
        # The deepest mount decides, and of two on one point the later.
        ("server:/export / nfs rw 0 0\n/dev/sda {folder} ext4 rw 0 0", None),
        ("/dev/sda / ext4 rw 0 0\nserver:/export {folder} nfs rw 0 0", "nfs"),
        ("server:/export {folder} nfs rw 0 0\n/dev/sda / ext4 rw 0 0", "nfs"),
        ("/dev/sda {folder} ext4 rw 0 0\nserver:/export {folder} nfs rw 0 0", "nfs"),
        # A neighbour whose name only begins alike is not above us.
        ("/dev/sda / ext4 rw 0 0\nserver:/export {sibling} nfs rw 0 0", None),
    ],
)
def test_the_mount_table_is_read_right(tmp_path: Path, mounts: str, found: str | None) -> None:
    folder, sibling = tmp_path / "my folder", tmp_path / "my"
    folder.mkdir()
    table = tmp_path / "mounts"
    escaped = [str(path.resolve()).replace(" ", "\\040") for path in (folder, sibling)]
    table.write_text(mounts.format(folder=escaped[0], sibling=escaped[1]) + "\n")
    assert network_filesystem(folder, table) == found


def test_no_mount_table_says_nothing(tmp_path: Path) -> None:
    assert network_filesystem(tmp_path, tmp_path / "missing") is None
