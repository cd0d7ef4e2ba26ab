"""Numbers for ids: as they come at first, and at last in the order of the ids themselves.

The order of the lines of a file then makes no difference. Ids are in memory, some 150 bytes each;
interactions are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ingest.ratings.table import UnreadableBlock

# Python makes no numbers of thousands of digits.
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,99}", re.ASCII)


class Numbering:
    """Ids by the number they got when they were first seen."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for one in ids:
            self._number(one)

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, ids: Any) -> NDArray[np.int32]:
        """Numbers (k,) of Arrow strings; spaces around an id are no part of it.

        Raises
        ------
        UnreadableBlock
            An id is empty.
        """
        encoded = ids.dictionary_encode()
        stripped = [one.strip() for one in encoded.dictionary.to_pylist()]
        if "" in stripped:
            raise UnreadableBlock
        known = np.array([self._number(one) for one in stripped], dtype=np.int32)
        numbers: NDArray[np.int32] = known[encoded.indices.to_numpy()]
        return numbers

    def in_order(self) -> tuple[list[str], NDArray[np.int32]]:
        """The ids in order, and the place in it of each number given so far.

        Ids are in the order of numbers where all of them are whole numbers, else in that of text.
        """
        ids = list(self._numbers)
        whole = all(_WHOLE_NUMBER.fullmatch(one) for one in ids)
        keys: list[Any] = [int(one) for one in ids] if whole else ids
        order = sorted(range(len(ids)), key=keys.__getitem__)
        places = np.empty(len(ids), dtype=np.int32)
        places[order] = np.arange(len(ids), dtype=np.int32)
        return [ids[one] for one in order], places

    def _number(self, one: str) -> int:
        return self._numbers.setdefault(one, len(self._numbers))
