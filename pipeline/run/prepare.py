"""From a configuration and its gallery to a run: its plan, name and places; nothing is written."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pipeline.config.model import Config
from pipeline.gallery.sparse import panels_of
from pipeline.gallery.store import Gallery
from pipeline.ingest.queries import Queries
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.folder import RunFolder
from pipeline.run.from_budget import FromBudget
from pipeline.run.regimes import REGIMES
from pipeline.run.run import Run, Spending


def prepare_run(
    config: Config,
    gallery: Gallery,
    spending: Spending | None = None,
    queries: Queries | None = None,
) -> Run:
    """Fix a run's plan, name and places; nothing is written.

    Parameters
    ----------
    spending : by default from the budget that the configured ledger keeps
    queries : the public queries where they were read already; by default they are read

    Raises
    ------
    InputRejected
        The queries can't be read or used.
    """
    regime = REGIMES[config.regime]
    spending = spending or FromBudget(ConfiguredLedger(config))
    if queries is None or queries.rows.shape[1] != gallery.d:
        # Also where the source was replaced by one of other features since they were read.
        queries = regime.queries(config, lambda: gallery.d)
    settings = spending.settings(run_settings(config, gallery, queries))
    canonical = json.dumps(spending.named_by(settings), sort_keys=True).encode()
    derived = f"{config.regime}-{hashlib.sha256(canonical).hexdigest()[:12]}"
    release_id = f"{config.release or derived}{spending.name_suffix}"
    return Run(
        config,
        gallery,
        regime,
        queries,
        regime.plan(config, gallery.n, gallery.d, queries, panels_of(gallery)),
        settings,
        release_id,
        run_folder(config, spending.folder, release_id),
        config.output / release_id,
        spending,
    )


def run_folder(config: Config, kind: str, release_id: str) -> RunFolder:
    """The folder of a run; its noisy blocks may be kept elsewhere."""
    elsewhere = None if config.blocks is None else config.blocks / release_id
    return RunFolder(config.private / kind / release_id, elsewhere)


def run_settings(
    config: Config, gallery: Gallery, queries: Queries | None = None
) -> dict[str, Any]:
    """The settings that make a release what it is; places and machines are not among them."""
    settings = {
        "regime": config.regime,
        "lineage": gallery.lineage,
        "n": gallery.n,
        "d": gallery.d,
        "privacy": config.privacy.model_dump(mode="json"),
        "arrays": sorted(config.arrays),
        **REGIMES[config.regime].settings(config, queries),
    }
    if gallery.record_kind is not None:
        settings["record_kind"] = gallery.record_kind
    return settings
