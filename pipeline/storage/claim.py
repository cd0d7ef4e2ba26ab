"""Holding a place that several machines reach, where no lock ends with its holder's process.

A claim is a file or object made under the condition that there is none: of several that ask for a
place, one gets it. It carries a token that its holder keeps, so that the holder knows it again
after a crash. It stays until it is given back, because nobody else can tell a crash from a long
silence.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from pipeline.storage.durable import write_atomically
from pipeline.storage.place import Place, create

_TOKEN = "token"  # noqa: S105 (the name of a field; a token names its holder and opens nothing)


def own_token(file: Path) -> str:
    """The token of a holder, kept in a file of its own; made where there is none yet."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        token = secrets.token_hex(16)
        write_atomically(file, token.encode())
        return token


def claim(place: Place, token: str, **facts: Any) -> bool:
    """Claim a place, or find that it is claimed already; whether it is the holder's now.

    Parameters
    ----------
    place : the file or object to make
    facts : whatever else whoever finds the claim should know; public
    """
    try:
        create(place, json.dumps({_TOKEN: token, **facts}, sort_keys=True).encode())
    except FileExistsError:
        return read_claim(place).get(_TOKEN) == token
    return True


def read_claim(place: Place) -> dict[str, Any]:
    """What a claim says; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(place.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
