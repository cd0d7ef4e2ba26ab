"""What kind of file system a path lies on, as far as the operating system tells."""

from __future__ import annotations

from pathlib import Path

import psutil

_NETWORK = {"cifs", "ceph", "glusterfs", "lustre", "afs"}
_NETWORK_FAMILIES = ("nfs", "smb")
_NETWORK_FUSE = {"sshfs", "glusterfs", "ceph"}


def network_filesystem(path: Path) -> str | None:
    """Type of the network file system that holds ``path`` ("nfs4", ...); None if it is local.

    None as well where the mount table cannot be read: a best effort, not a proof.
    """
    kind = filesystem_type(path)
    if kind is None:
        return None
    if kind in _NETWORK or kind.startswith(_NETWORK_FAMILIES):
        return kind
    return kind if kind.removeprefix("fuse.") in _NETWORK_FUSE else None


def filesystem_type(path: Path) -> str | None:
    """Type of the file system that holds ``path``; None where the mount table can't be read."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return None
    resolved, deepest, kind = path.resolve(), -1, None
    for mount in mounts:
        parts = Path(mount.mountpoint).parts
        # A later mount on the same point hides the earlier one.
        if resolved.is_relative_to(mount.mountpoint) and len(parts) >= deepest:
            deepest, kind = len(parts), mount.fstype
    return kind
