"""The head of a ledger's journal, kept in the private folder and so outside the database.

The file says which row was the newest that this folder's releases have seen. It is written after
each transaction, so that a crash leaves it behind the database and never ahead: a database that
does not hold that row was set back.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from pipeline.errors import BudgetRefused, RunFailed
from pipeline.ledger.journal import Head
from pipeline.storage.durable import make_private, write_atomically
from pipeline.storage.layout import ledger_head
from pipeline.storage.lock import locked


class HeadFile:
    """The file of one ledger in one private folder.

    Parameters
    ----------
    folder : the private folder; made when a head is written.
    identity : hash_0 of the ledger. A folder may know several ledgers, each by its own file.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.path = folder / ledger_head(identity)
        self._identity = identity

    def read(self) -> Head | None:
        """The head; None where this folder has none for this ledger.

        Raises
        ------
        BudgetRefused
            The file cannot be read, or is no head of this ledger.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from error
        try:
            content = json.loads(text)
            identity, sequence, digest = (content[key] for key in ("ledger", "sequence", "hash"))
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable("no ledger head in JSON") from error
        if identity != self._identity:
            raise self._unreadable("the head of another ledger")
        if type(sequence) is not int or sequence < 0 or not _is_digest(digest):
            raise self._unreadable("a row number or a hash that can be none")
        return Head(sequence, digest)

    def advance(self, head: Head) -> None:
        """Write a head, unless another process has meanwhile written a later one.

        Raises
        ------
        RunFailed
            The file cannot be written; the database is then ahead of it, which is allowed.
        """
        folder = self.path.parent
        try:
            # The lock is on the folder, so that it leaves no file behind.
            with locked(folder, partial(make_private, folder), wait=True):
                known = self.read()
                if known is not None and known.sequence >= head.sequence:
                    return
                content = {"ledger": self._identity, "sequence": head.sequence, "hash": head.hash}
                write_atomically(self.path, (json.dumps(content) + "\n").encode())
        except OSError as error:
            raise RunFailed(
                f"the ledger's head {self.path} cannot be written ({error.strerror}); what the "
                "ledger recorded is kept. Put this right (disk space, permissions) and run the "
                "same command again"
            ) from error

    def _unreadable(self, found: str) -> BudgetRefused:
        return BudgetRefused(
            f"{self.path}: found {found}, expected the head of the ledger's journal; without it "
            "nobody can say whether the ledger was set back. Restore the file from a backup; if it "
            "is lost, make sure that the ledger is the newest copy, remove what is left of the "
            "file, and run 'scoreshield ledger verify CONFIG --adopt'"
        )


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None
