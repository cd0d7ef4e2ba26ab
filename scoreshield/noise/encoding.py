"""How noisy values are stored: as float32, or as integer codes with one public step.

A value v is stored as round(v/s), half to even, held to the largest code of its type, and read back
as s times the code. The code is a function of the noisy value alone, so it is post-processing: it
costs no privacy. Rounding adds s²/12 to the noise variance σ².

The step follows from σ and from nothing else. It is the least one whose codes reach 1 + 8σ, rounded
up to eight significant bits, so that s times a code is exact in float32. A normal variable goes
beyond 8σ with probability 1.2e-15; a value that far out is stored as the largest code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import ParameterError

IntegerType = Literal["int16", "int8"]
StoredType = Literal["float32", "int16", "int8"]
Precision = Literal["auto", "float32", "int16", "int8"]
"""What may be asked for; ``auto`` takes the smallest type whose step is at most σ/12."""

COARSEST_STEP = 1 / 12
"""Largest step in units of σ: it adds 1/1728 = 0.058 % to the noise variance, and so half of that,
0.029 %, to an error that is proportional to σ."""

RANGE_IN_SIGMA = 8.0
"""Codes reach this many σ beyond the largest similarity."""

_STEP_BITS = 8
_STRIP_ROWS = 64


@dataclass(frozen=True)
class Encoding:
    """Type and step of stored noisy values.

    Attributes
    ----------
    dtype : of a stored value
    step : s, for integer types; None for float32
    """

    dtype: StoredType
    step: float | None = None

    @property
    def bytes(self) -> int:
        """Of one stored value."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def scale(self) -> float:
        """What a stored value is multiplied with: s, or 1 for float32."""
        return 1.0 if self.step is None else self.step

    @property
    def missing(self) -> float | int:
        """The stored value that no noisy value has: NaN, or the least integer of the type."""
        return math.nan if self.step is None else int(np.iinfo(self.dtype).min)

    @property
    def largest_code(self) -> int:
        """Of an integer type; codes are symmetric around 0."""
        return int(np.iinfo(self.dtype).max)

    def encode(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Finite noisy values (k, l) as they are stored."""
        if self.step is None:
            return values
        codes = np.empty(values.shape, dtype=self.dtype)
        # In strips: a whole block in float64 would be the largest array of its task.
        for start in range(0, len(values), _STRIP_ROWS):
            rows = slice(start, start + _STRIP_ROWS)
            part = values[rows].astype(np.float64)
            part /= self.step
            np.rint(part, out=part)
            np.clip(part, -self.largest_code, self.largest_code, out=part)
            codes[rows] = part
        return codes

    def decode(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """Stored values (k, l) as float32; exact."""
        if self.step is None:
            return stored
        values = stored.astype(np.float32)
        values *= np.float32(self.step)
        return values

    def is_intact(self, stored: NDArray[Any]) -> bool:
        """Whether every stored value is one that :meth:`encode` makes."""
        if self.step is None:
            return bool(np.isfinite(stored).all())
        return bool(stored.min() != self.missing)

    def added_variance(self, sigma: float) -> float:
        """What rounding adds to the noise variance, relative to σ²: (s/σ)²/12."""
        return 0.0 if self.step is None else (self.step / sigma) ** 2 / 12

    def described(self, sigma: float) -> str:
        """In words, for plan and manifest."""
        if self.step is None:
            return "noisy values are kept as float32"
        return (
            f"noisy values are rounded, half to even, to multiples of {self.step!r} "
            f"(sigma/{sigma / self.step:.1f}) and kept as {self.dtype} codes from "
            f"-{self.largest_code} to {self.largest_code}; this post-processing adds "
            f"{self.added_variance(sigma):.2g} times sigma^2 to the noise variance"
        )


FLOAT32 = Encoding("float32")


def choose_encoding(sigma: float, precision: Precision = "auto") -> Encoding:
    """The encoding of values with noise of standard deviation σ.

    Raises
    ------
    ParameterError
        The step of the type that is asked for is coarser than σ/12.
    """
    if precision == "float32":
        return FLOAT32
    candidates = {"int8": integer_codes("int8", sigma), "int16": integer_codes("int16", sigma)}
    if precision != "auto":
        _check_step(candidates[precision], sigma)
        return candidates[precision]
    fine = [found for found in candidates.values() if _is_fine(found, sigma)]
    return fine[0] if fine else FLOAT32


def integer_codes(dtype: IntegerType, sigma: float) -> Encoding:
    """Codes of a type that reach 1 + 8σ, however coarse their step is for it."""
    least = (1.0 + RANGE_IN_SIGMA * sigma) / np.iinfo(dtype).max
    fraction, exponent = math.frexp(math.nextafter(least, math.inf))
    return Encoding(
        dtype, math.ldexp(math.ceil(math.ldexp(fraction, _STEP_BITS)), exponent - _STEP_BITS)
    )


def _is_fine(encoding: Encoding, sigma: float) -> bool:
    return encoding.scale <= COARSEST_STEP * sigma


def _check_step(encoding: Encoding, sigma: float) -> None:
    if not _is_fine(encoding, sigma):
        raise ParameterError(
            f"precision: {encoding.dtype} codes that reach 1 + {RANGE_IN_SIGMA:g} sigma = "
            f"{1 + RANGE_IN_SIGMA * sigma:.6g} have a step of {encoding.scale:.6g}, which is "
            f"{encoding.scale / sigma:.3g} times sigma = {sigma:.6g}; at most "
            f"{COARSEST_STEP:.3g} times is allowed. Leave precision out, which takes "
            f"{choose_encoding(sigma).dtype}"
        )
