"""Network file systems, by the table of mounts."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from pipeline.storage.filesystem import filesystem_type, network_filesystem

Mount = namedtuple("Mount", "mountpoint fstype")


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ([("/", "ext4")], None),
        ([("/", "overlay")], None),
        ([("/", "9p")], None),
        ([("/", "tmpfs")], None),
        ([("/", "nfs")], "nfs"),
        ([("/", "nfs4")], "nfs4"),
        ([("/", "cifs")], "cifs"),
        ([("/", "smb3")], "smb3"),
        ([("/", "fuse.sshfs")], "fuse.sshfs"),
        ([("/", "fuse.glusterfs")], "fuse.glusterfs"),
        ([("/", "lustre")], "lustre"),
        # The deepest mount decides, and of two on one point the later.
        ([("/", "nfs"), ("{folder}", "ext4")], None),
        ([("/", "ext4"), ("{folder}", "nfs")], "nfs"),
        ([("{folder}", "nfs"), ("/", "ext4")], "nfs"),
        ([("{folder}", "ext4"), ("{folder}", "nfs")], "nfs"),
        # A neighbour whose name only begins alike is not above us.
        ([("/", "ext4"), ("{sibling}", "nfs")], None),
    ],
)
def test_the_deepest_mount_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mounts: list[tuple[str, str]],
    found: str | None,
) -> None:
    folder, sibling = tmp_path / "my folder", tmp_path / "my"
    folder.mkdir()
    table = [
        Mount(point.format(folder=folder.resolve(), sibling=sibling.resolve()), kind)
        for point, kind in mounts
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: table)
    assert network_filesystem(folder) == found


def test_no_mount_table_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(all: bool) -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "disk_partitions", unreadable)
    assert network_filesystem(tmp_path) is None


def test_the_mounts_of_this_machine_are_read() -> None:
    assert filesystem_type(Path("/proc")) == "proc"
