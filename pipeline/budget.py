"""Between a configuration and the ledger: what a release asks, and when a ledger may be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.errors import BudgetRefused
from pipeline.gallery import Gallery, content_digest
from pipeline.ledger import Account, Budget, Ledger, Request
from scoreshield.mechanism import Mechanism

_SQLITE = "sqlite:///"


def request_for(mechanism: Mechanism) -> Request:
    """What a release with this mechanism asks of the ledger."""
    guarantee = mechanism.guarantee
    return Request(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        sensitivity=guarantee.sensitivity.value,
        sigma=mechanism.sigma,
        adjacency=str(guarantee.adjacency),
    )


def open_ledger(config: Config, gallery: Gallery, fingerprint: bytes) -> Ledger:
    """The ledger, with an account for this gallery; made where the configuration allows it.

    Raises
    ------
    BudgetRefused
        There is no ledger or no account, and making one is not allowed or would forget a spend.
    """
    if ledger_exists(config):
        ledger = Ledger.open(config.ledger.url)
        if ledger.find_account(gallery.lineage) is None:
            check_may_create(config, gallery)
    else:
        check_may_create(config, gallery)
        ledger = _create(config)
    ledger.open_account(gallery.lineage, configured_budget(config), fingerprint)
    return ledger


def initialise_ledger(config: Config, gallery: Gallery) -> Account:
    """Make the ledger and the gallery's account, whatever was released before."""
    return _create(config).open_account(
        gallery.lineage, configured_budget(config), content_digest(gallery)
    )


def existing_account(config: Config, gallery: Gallery) -> Account | None:
    """The gallery's account, or None where there is no ledger or no account yet."""
    if not ledger_exists(config):
        return None
    return Ledger.open(config.ledger.url).find_account(gallery.lineage)


def ledger_exists(config: Config) -> bool:
    """Whether there is a database at the configured URL, of whatever kind."""
    return ledger_path(config).exists()


def ledger_path(config: Config) -> Path:
    """The file of the configured ledger."""
    return Path(config.ledger.url.removeprefix(_SQLITE))


def earlier_traces(config: Config, lineage: str) -> list[Path]:
    """Releases and runs of a gallery lineage that lie beside this configuration."""
    manifests = sorted(config.output.glob("*/manifest.json"))
    # A run is recorded before its first noise, and stays recorded when it is abandoned.
    runs = sorted((config.private / "runs").glob("*/run.json"))
    published = [
        file.parent for file in manifests if _may_be_of(lineage, file, "composition", "lineage")
    ]
    return published + [file.parent for file in runs if _may_be_of(lineage, file, "lineage")]


def _create(config: Config) -> Ledger:
    ledger_path(config).parent.mkdir(parents=True, exist_ok=True)
    return Ledger.create(config.ledger.url)


def configured_budget(config: Config) -> Budget:
    """The total budget that a configuration names."""
    return Budget(config.ledger.epsilon, config.ledger.delta)


def check_may_create(config: Config, gallery: Gallery | None) -> None:
    """Refuse to open an account where that is not allowed or would forget a spend.

    Parameters
    ----------
    gallery : None where the source was never ingested here, and so has left no trace.

    Raises
    ------
    BudgetRefused
        ``ledger.create`` is not set, or there are earlier releases or runs.
    """
    where = ledger_path(config)
    found = "no account for this gallery" if where.exists() else "no ledger"
    if not config.ledger.create:
        raise BudgetRefused(
            f"{where}: found {found}. Make one with 'scoreshield ledger init CONFIG', or set "
            "ledger.create: true to let the first release of a gallery make it"
        )
    traces = earlier_traces(config, gallery.lineage) if gallery is not None else []
    if traces:
        raise BudgetRefused(
            f"{where}: found {found}, but this gallery was released before ({traces[0]}), so what "
            "it spent is unknown. Restore the ledger from a backup; only if it is lost for good, "
            "make one with 'scoreshield ledger init CONFIG', and answer for the earlier spend"
        )


def _may_be_of(lineage: str, file: Path, *place: str) -> bool:
    """Whether a record names a lineage, or can't be read and so may have named it."""
    try:
        found: Any = json.loads(file.read_text())
    except (OSError, ValueError):
        return True
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return bool(found == lineage)
