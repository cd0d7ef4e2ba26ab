"""The registry of regimes: a new one is a file in each room that it needs, and a line here."""

from __future__ import annotations

from pipeline.run.gram import GRAM
from pipeline.run.run import RunRegime
from pipeline.run.scores import SCORES

REGIMES: dict[str, RunRegime] = {regime.name: regime for regime in (GRAM, SCORES)}
"""How each regime is run, by its name in configurations."""
