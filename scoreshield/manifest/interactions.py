"""What a record of interactions is, in words: whom a release of ratings protects."""

from __future__ import annotations

from typing import Literal

RecordKind = Literal["item", "user"]
"""What a record of interactions is: one item with all its users' values, or the reverse."""

PROTECTED_RECORDS: dict[RecordKind, str] = {
    "item": (
        "A record is one item with the ratings that all users gave it. The ratings of one user "
        "are spread over many records, so a user is NOT protected as a unit"
    ),
    "user": (
        "A record is one user with all ratings that this user gave, which are protected as a unit"
    ),
}
"""Who is protected; sentences without their full stops."""

PUBLIC_SIZES: dict[RecordKind, str] = {
    "item": "records are items and features are users",
    "user": "records are users and features are items",
}
"""What the public sizes n and d count."""
