"""Between a configuration and the ledger: what a release asks, and when a ledger may be made."""

from __future__ import annotations

import json
from typing import Any

from pipeline.config.model import Config
from pipeline.errors import BudgetRefused, IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.gallery.store import Gallery, adopt_lineage
from pipeline.ledger import Account, Budget, Ledger, OverspendRefused, Request, forecast
from pipeline.ledger.account import check_adjacency, reserved_before
from pipeline.ledger.database import database_for
from pipeline.storage.durable import make_private
from pipeline.storage.place import Place, one_below
from pipeline.storage.tree import read_plain_file
from scoreshield.mechanisms.gaussian import Mechanism

_UNREADABLE = (OSError, ValueError, RecursionError, IntegrityFailure)
"""What reading a record may fail with: it is missing, no JSON, nested without end, or no file."""


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
        ledger = existing_ledger(config)
        if ledger.find_account(gallery.lineage) is None:
            check_may_create(config, gallery)
    else:
        check_may_create(config, gallery)
        ledger = _create(config)
    ledger.open_account(gallery.lineage, configured_budget(config), fingerprint)
    return ledger


def initialise_ledger(config: Config, gallery: Gallery) -> Account:
    """Make the ledger and the gallery's account, whatever was released before."""
    ledger, fingerprint = _create(config), content_digest(gallery)
    return ledger.open_account(gallery.lineage, configured_budget(config), fingerprint)


def recognised(config: Config, gallery: Gallery) -> Gallery:
    """The gallery under the lineage by which the ledger knows its content, if it does.

    So ingesting a source again is no way to a fresh budget, and needs no ``lineage:`` either. The
    values are read only where the ledger has no account for the gallery's own lineage.

    Raises
    ------
    BudgetRefused
        The configuration says another lineage, or there are releases under the gallery's own.
    """
    if not ledger_exists(config):
        return gallery
    ledger = existing_ledger(config)
    if ledger.find_account(gallery.lineage) is not None:
        return gallery
    holder = ledger.lineage_of(content_digest(gallery))
    if holder is None:
        return gallery
    traces = earlier_traces(config, gallery.lineage)
    if config.lineage is not None or traces:
        found = f"the configuration says {config.lineage}" if config.lineage else str(traces[0])
        raise BudgetRefused(
            f"the ledger knows this gallery's content as lineage {holder}, but it was used as "
            f"lineage {gallery.lineage} ({found}); one content has one budget. Set the "
            f"configuration to lineage {holder} and ingest with --lineage {holder}, if nothing was "
            "released under the other"
        )
    return adopt_lineage(gallery, holder)


def check_affordable(config: Config, gallery: Gallery, release_id: str, request: Request) -> None:
    """Refuse a release that the ledger would refuse now, before a cluster is started for it.

    Nothing is written: the reservation, once the cluster is there, is what decides.

    Raises
    ------
    BudgetRefused
        As :func:`open_ledger`, or the release does not fit what is left.
    """
    account = existing_account(config, gallery)
    if account is None:
        check_may_create(config, gallery)
        account = Account(gallery.lineage, configured_budget(config), "")
    entry = account.find(release_id)
    if entry is not None:
        reserved_before(entry, request)
        return
    check_adjacency(account, request)
    outcome = forecast(account.budget, account.spent, request)
    if not outcome.fits:
        raise OverspendRefused(gallery.lineage, outcome)


def existing_account(config: Config, gallery: Gallery) -> Account | None:
    """The gallery's account, or None where there is no ledger or no account yet."""
    if not ledger_exists(config):
        return None
    return existing_ledger(config).find_account(gallery.lineage)


def existing_ledger(config: Config) -> Ledger:
    """The configured ledger; BudgetRefused where there is none, or none that can be trusted."""
    return Ledger.open(config.ledger.url, config.private)


def ledger_exists(config: Config) -> bool:
    """Whether there is a database at the configured URL, of whatever kind."""
    return database_for(config.ledger.url).exists()


def ledger_name(config: Config) -> str:
    """Where the configured ledger is, for people; without a password."""
    return database_for(config.ledger.url).name


def earlier_traces(config: Config, lineage: str) -> list[Place]:
    """Releases and runs of a gallery lineage that lie beside this configuration."""
    manifests = one_below(config.output, "manifest.json")
    # A run is recorded before its first noise, and stays recorded when it is abandoned.
    runs = one_below(config.private / "runs", "run.json")
    published = [
        file.parent for file in manifests if _may_be_of(lineage, file, "composition", "lineage")
    ]
    return published + [file.parent for file in runs if _may_be_of(lineage, file, "lineage")]


def _create(config: Config) -> Ledger:
    make_private(config.private)
    if config.ledger.file is not None:
        config.ledger.file.parent.mkdir(parents=True, exist_ok=True)
    return Ledger.create(config.ledger.url, config.private)


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
    where = ledger_name(config)
    found = "no account for this gallery" if ledger_exists(config) else "no ledger"
    if not config.ledger.create:
        raise BudgetRefused(
            f"{where}: found {found}. Make one with 'scoreshield ledger init CONFIG', or set "
            "ledger.create: true to let the first release of a gallery make it"
        )
    traces = earlier_traces(config, gallery.lineage) if gallery is not None else []
    traces += _unaccounted_releases(config)
    if traces:
        raise BudgetRefused(
            f"{where}: found {found}, but an earlier release or run is there ({traces[0]}), so "
            "what this gallery spent is unknown. Restore the ledger from a backup, or name another "
            "output if that release is of another gallery; only if the ledger is lost for good, "
            "make one with 'scoreshield ledger init CONFIG', and answer for the earlier spend"
        )


def _unaccounted_releases(config: Config) -> list[Place]:
    """Releases in the output folder whose lineage the ledger does not know.

    With the private folder a gallery loses its lineage, and then nothing tells whether they are
    releases of it under its old one.
    """
    known = existing_ledger(config).lineages() if ledger_exists(config) else ()
    manifests = one_below(config.output, "manifest.json")
    return [file.parent for file in manifests if not _is_accounted(file, known)]


def _is_accounted(manifest: Place, known: tuple[str, ...]) -> bool:
    """Whether a manifest names a lineage of the ledger, or says that nothing was spent on it."""
    try:
        found = json.loads(read_plain_file(manifest))
        return found["private"] is False or found["composition"]["lineage"] in known
    except (*_UNREADABLE, KeyError, TypeError):
        return False


def _may_be_of(lineage: str, file: Place, *place: str) -> bool:
    """Whether a record names a lineage, or can't be read and so may have named it."""
    try:
        found: Any = json.loads(read_plain_file(file))
    except _UNREADABLE:
        return True
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return bool(found == lineage)
