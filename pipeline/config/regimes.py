"""Which settings go with which regime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pipeline.storage.place import Place
from scoreshield.noise.encoding import Precision
from scoreshield.regimes.registry import REGIMES, publisher


class RegimeSettings(Protocol):
    """What a regime looks at of a configuration."""

    @property
    def regime(self) -> str: ...
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


def check_regime_settings(config: RegimeSettings) -> None:
    """Raise ValueError where the regime can't be released as a configuration asks."""
    regime = REGIMES[config.regime]
    (_check_queries if regime.asks_queries else _check_no_queries)(config)
    foreign = [name for name in config.arrays if name not in regime.arrays]
    if foreign:
        raise ValueError(
            f"arrays: regime {regime.name} publishes {regime.published}, found "
            f"{', '.join(foreign)}; ask for regime: {publisher(foreign[0]).name}"
        )
    if regime.projected:
        return
    if "projection" in config.model_fields_set:
        raise ValueError(
            f"projection: {regime.name} are clipped to their range and not projected, found a "
            "projection; leave the section out"
        )
    if config.precision not in ("auto", "float32"):
        raise ValueError(
            f"precision: {regime.name} are published as they are stored, in float32, found "
            f"{config.precision}; leave it out"
        )


def _check_no_queries(config: RegimeSettings) -> None:
    for name in ("queries", "queries_key"):
        found = getattr(config, name)
        if found is not None:
            raise ValueError(
                f"{name}: regime {config.regime} compares the records with one another, found "
                f"{name} {found}; leave it out, or ask for regime: scores"
            )


def _check_queries(config: RegimeSettings) -> None:
    if config.queries is None:
        raise ValueError(
            f"queries: regime {config.regime} needs public queries, found none; name a file of "
            "unit embeddings, such as queries: queries.npy"
        )
    if config.queries == config.gallery and config.queries_key == config.key:
        raise ValueError(
            f"queries: expected public embeddings, found the gallery itself ({config.queries}); "
            "to compare records with one another ask for regime: gram"
        )
