"""Which settings go with which regime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pipeline.storage.place import Place
from scoreshield.noise.encoding import Precision


class RegimeSettings(Protocol):
    """What a regime looks at of a configuration."""

    @property
    def gallery(self) -> Place: ...
    @property
    def key(self) -> str | None: ...
    @property
    def queries(self) -> Path | None: ...
    @property
    def queries_key(self) -> str | None: ...
    @property
    def arrays(self) -> Sequence[str]: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def check_gram_settings(config: RegimeSettings) -> None:
    """Raise ValueError where a Gram matrix can't be released as a configuration asks."""
    for name in ("queries", "queries_key"):
        found = getattr(config, name)
        if found is not None:
            raise ValueError(
                f"{name}: regime gram compares the records with one another, found {name} {found}; "
                "leave it out, or ask for regime: scores"
            )
    if "scores" in config.arrays:
        raise ValueError(
            "arrays: regime gram publishes factor, gram or both, found scores; ask for "
            "regime: scores"
        )


def check_scores_settings(config: RegimeSettings) -> None:
    """Raise ValueError where scores can't be released as a configuration asks."""
    if config.queries is None:
        raise ValueError(
            "queries: regime scores needs public queries, found none; name a file of unit "
            "embeddings, such as queries: queries.npy"
        )
    if config.queries == config.gallery and config.queries_key == config.key:
        raise ValueError(
            f"queries: expected public embeddings, found the gallery itself ({config.queries}); "
            "to compare records with one another ask for regime: gram"
        )
    if config.arrays != ("scores",):
        raise ValueError(
            f"arrays: regime scores publishes [scores], found {', '.join(config.arrays)}"
        )
    if "projection" in config.model_fields_set:
        raise ValueError(
            "projection: scores are clipped to their range and not projected, found a projection; "
            "leave the section out"
        )
    if config.precision not in ("auto", "float32"):
        raise ValueError(
            f"precision: scores are published as they are stored, in float32, found "
            f"{config.precision}; leave it out"
        )
