"""A reporter that remembers."""

from __future__ import annotations

from typing import Any

from pipeline.progress import Tee


class Told(Tee):
    """What a person would have been told: stages with their total, and how far each one came."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, int | None]] = []
        self.lines: list[dict[str, Any]] = []

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self.begun.append((stage, total))

    def advance(self, done: int, **figures: Any) -> None:
        self.lines.append({"done": done, **figures})
