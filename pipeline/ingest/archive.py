"""Zip archives from anywhere: their members are looked at before any of them is read.

Nothing is ever extracted. Names that would lead out of a folder, links and encrypted members are
refused all the same: no program that stores arrays writes them.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from zipfile import ZipInfo

from scoreshield.errors import InputRejected

_ENCRYPTED = 0x1
_SHOWN_MEMBERS = 5


def check_members(path: Path, members: Sequence[ZipInfo]) -> None:
    """Refuse an archive with members that no array needs.

    Raises
    ------
    InputRejected
        A name is absolute, leads upwards or occurs twice; a member is a link or encrypted.
    """
    seen: set[str] = set()
    wrong = []
    for member in members:
        fault = _fault(member)
        if fault is None and member.filename in seen:
            fault = "is there twice"
        seen.add(member.filename)
        if fault is not None:
            wrong.append(f"{member.filename!r} {fault}")
    if wrong:
        shown = "; ".join(wrong[:_SHOWN_MEMBERS]) + ("; ..." if len(wrong) > _SHOWN_MEMBERS else "")
        raise InputRejected(
            f"{path}: found {len(wrong)} members that no archive of arrays has ({shown}). Make the "
            "archive again from its arrays."
        )


def _fault(member: ZipInfo) -> str | None:
    # zipfile cuts names at a zero byte and turns the other system's separators around.
    name = member.orig_filename.replace("\\", "/")
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "has an absolute name"
    if ".." in PurePosixPath(name).parts or "\0" in name:
        return "leads out of the archive"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "is a link"
    if member.flag_bits & _ENCRYPTED:
        return "is encrypted"
    return None
