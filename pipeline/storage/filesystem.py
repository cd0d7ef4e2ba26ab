"""What kind of file system a path lies on, as far as Linux tells."""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = {"cifs", "ceph", "glusterfs", "lustre", "afs"}
_NETWORK_FAMILIES = ("nfs", "smb")
_NETWORK_FUSE = {"sshfs", "glusterfs", "ceph"}


def network_filesystem(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Type of the network file system that holds ``path`` ("nfs4", ...); None if it is local.

    None as well where the mount table cannot be read: a best effort, not a proof.
    """
    kind = filesystem_type(path, mounts)
    if kind is None:
        return None
    if kind in _NETWORK or kind.startswith(_NETWORK_FAMILIES):
        return kind
    return kind if kind.removeprefix("fuse.") in _NETWORK_FUSE else None


def filesystem_type(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Type of the file system that holds ``path``, from a mount table in fstab(5) format."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved, deepest, kind = path.resolve(), -1, None
    for line in lines:
        _, point, found, *_ = line.split(" ")
        mounted = Path(_unescaped(point))
        # A later mount on the same point hides the earlier one.
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= deepest:
            deepest, kind = len(mounted.parts), found
    return kind


def _unescaped(field: str) -> str:
    """Undo fstab(5)'s octal escapes of blank, tab, newline and backslash."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
