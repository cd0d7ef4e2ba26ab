"""What a verification found: one thing that was checked after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scoreshield.printable import printable

Listener = Callable[[str, int, int], None]
"""Called with what is being checked, how much of it is done, and how much there is."""

_SHOWN_FAULTS = 5


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes
    ----------
    name : what
    ok : whether it holds
    detail : what was found, for people
    value : the figure that ``detail`` speaks of, for programs; None where there is none
    """

    name: str
    ok: bool
    detail: str
    value: float | str | None = None

    def __post_init__(self) -> None:
        # Details quote names of files, fields and rows, which an attacker chose.
        object.__setattr__(self, "detail", printable(self.detail))

    @classmethod
    def of_faults(cls, name: str, faults: Sequence[str], fine: str) -> Check:
        """A check that holds where no fault was found; ``value`` is their number."""
        if not faults:
            return cls(name, True, fine, 0)
        return cls(name, False, f"{len(faults)} fault(s): {listed(faults)}", len(faults))

    def to_json(self) -> dict[str, str | bool]:
        """For a machine."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail}

    def to_text(self) -> str:
        """For a person."""
        return f"{'ok   ' if self.ok else 'FAULT'} {self.name}: {self.detail}"


def faults_of(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that do not hold."""
    return tuple(check for check in checks if not check.ok)


def listed(faults: Sequence[str]) -> str:
    """The first few faults, in one line."""
    return "; ".join(faults[:_SHOWN_FAULTS]) + ("; ..." if len(faults) > _SHOWN_FAULTS else "")
