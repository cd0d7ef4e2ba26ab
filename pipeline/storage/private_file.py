"""Reading a file that holds a secret, together with who else could have read it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PrivateFile:
    """What a file held when it was read.

    Attributes
    ----------
    content : nothing where it is no plain file
    plain : whether it is a plain file, and no folder, pipe or device
    mode : its permission bits
    owner : number of the user that it belongs to
    """

    content: bytes
    plain: bool
    mode: int
    owner: int

    @property
    def open_to_others(self) -> bool:
        """Whether others than its owner can do anything with it."""
        return self.mode & 0o077 != 0


def read_private(path: Path, longest: int = -1, *, follow_links: bool = False) -> PrivateFile:
    """Read a file, at most ``longest`` bytes of it; status and content are those of one file.

    Raises
    ------
    OSError
        It can't be opened or read; where links are not followed, also for a link.
    """
    # Without waiting: a pipe that nobody writes to would hold the run for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    plain = stat.S_ISREG(status.st_mode)
    if plain:
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(longest)
    else:
        os.close(descriptor)
        content = b""
    return PrivateFile(content, plain, stat.S_IMODE(status.st_mode), status.st_uid)
