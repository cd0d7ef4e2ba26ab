"""Giving up an unfinished release."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.model import Config
from pipeline.errors import BudgetRefused
from pipeline.ingest.sources import latest_gallery
from pipeline.ledger import Account
from pipeline.perturb.keyfile import destroy_key
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.folder import RunFolder
from pipeline.run.from_budget import FromBudget
from pipeline.run.output import remove_noise, remove_unfinished
from pipeline.run.prepare import prepare_run, run_folder
from pipeline.run.schedule import scheduled
from pipeline.storage.layout import MANIFEST
from pipeline.storage.place import Place


def abandon(config: Config, release_id: str | None = None) -> Account:
    """Give up an unfinished release: its budget stays spent, its key and noise are destroyed.

    Parameters
    ----------
    release_id : names a run whose source or settings have changed since, so that the
        configuration no longer leads to it; None for the release of the configuration

    Raises
    ------
    BudgetRefused
        Nothing was reserved under that name, or the release is published.
    """
    lineage, folder, published = (
        _configured_run(scheduled(config))
        if release_id is None
        else _recorded_run(config, release_id)
    )
    ledger = ConfiguredLedger(config).ledger
    with folder.locked():
        if (published / MANIFEST).exists():
            raise BudgetRefused(f"{published} is published and can't be abandoned any more")
        ledger.abandon(lineage, folder.path.name)
        destroy_key(folder.key_file)
        remove_noise(folder)
        remove_unfinished(folder, published)
    return ledger.account(lineage)


def _configured_run(config: Config) -> tuple[str, RunFolder, Place]:
    """Lineage, run folder and release folder of a configuration's run."""
    gallery = latest_gallery(config)
    if gallery is None:
        raise BudgetRefused(
            "this configuration's source was never ingested, so nothing is reserved"
        )
    run = prepare_run(config, gallery)
    return gallery.lineage, run.folder, run.release


def _recorded_run(config: Config, release_id: str) -> tuple[str, RunFolder, Place]:
    """The same for a run named by its release, from its own record."""
    folder = run_folder(config, FromBudget.folder, release_id)
    named = Path(release_id).name == release_id
    settings = folder.load_settings() if named else None
    if settings is None:
        raise BudgetRefused(
            f"no run of that name was started: {folder.path} holds no record. 'scoreshield ledger "
            "show CONFIG' lists the releases of this gallery"
        )
    return str(settings["lineage"]), folder, config.output / release_id
