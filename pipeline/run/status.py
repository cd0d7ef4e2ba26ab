"""How far a release is and what its gallery has spent, from what is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.model import Config
from pipeline.errors import BudgetRefused
from pipeline.ingest.sources import latest_gallery, source_shape
from pipeline.ledger import Account
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.prepare import prepare_run
from pipeline.run.run import Run
from pipeline.run.schedule import scheduled
from pipeline.storage.blocks import load_receipts
from pipeline.storage.layout import MANIFEST


@dataclass(frozen=True)
class ReleaseStatus:
    """One release as it stands."""

    release_id: str | None
    stage: str
    """`not started`, `perturb`, `project`, `publish`, `released` or `abandoned`."""
    blocks_done: int
    blocks: int
    account: Account | None

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "release_id": self.release_id,
            "stage": self.stage,
            "blocks_done": self.blocks_done,
            "blocks": self.blocks,
            "ledger": None if self.account is None else account_json(self.account),
        }

    def to_text(self) -> str:
        """For a person."""
        name = self.release_id or "its name is fixed when the source is ingested"
        lines = [f"release: {name}", f"stage: {self.stage}"]
        if self.blocks:
            lines.append(f"noisy blocks: {self.blocks_done} of {self.blocks}")
        lines.append("no ledger yet" if self.account is None else account_text(self.account))
        return "\n".join(lines)


def release_status(config: Config) -> ReleaseStatus:
    """Where the release of a configuration stands; nothing is changed.

    Raises
    ------
    InputRejected
        The source is not there, or is none.
    """
    config = scheduled(config)
    source_shape(config)
    gallery = latest_gallery(config)
    if gallery is None:
        return ReleaseStatus(None, "not started", 0, 0, None)
    run = prepare_run(config, gallery)
    done = sum(
        receipt is not None for receipt in load_receipts(run.folder.receipts, run.plan.geometry)
    )
    account = ConfiguredLedger(config).account(gallery.lineage)
    entry = account.find(run.release_id) if account is not None else None
    abandoned = entry is not None and entry.state == "abandoned"
    stage = "abandoned" if abandoned else _stage(run, done)
    return ReleaseStatus(run.release_id, stage, done, run.plan.geometry.count, account)


def account_of(config: Config) -> Account:
    """The account of a configuration's gallery.

    Raises
    ------
    BudgetRefused
        There is none yet.
    """
    gallery = latest_gallery(config)
    configured = ConfiguredLedger(config)
    account = None if gallery is None else configured.account(gallery.lineage)
    if account is None:
        raise BudgetRefused(
            f"{configured.name}: nothing is recorded for this gallery yet; "
            "'scoreshield ledger init CONFIG' opens its account"
        )
    return account


def account_json(account: Account) -> dict[str, Any]:
    """An account for a machine."""
    return {
        "lineage": account.lineage,
        "budget": {"epsilon": account.budget.epsilon, "delta": account.budget.delta},
        "spent": account.spent_epsilon,
        "remaining": account.remaining_epsilon,
        "largest": account.largest_epsilon,
        "releases": [
            {
                "release_id": entry.release_id,
                "state": entry.state,
                "epsilon": entry.request.epsilon,
                "delta": entry.request.delta,
                "adjacency": entry.request.adjacency,
                "mu_squared": f"{entry.spend.numerator}/{entry.spend.denominator}",
                "reserved_at": entry.reserved_at,
                "settled_at": entry.settled_at,
                "cumulative_epsilon": cumulative,
            }
            for entry, cumulative in zip(account.entries, account.cumulative_epsilons, strict=True)
        ],
    }


def account_text(account: Account) -> str:
    """An account for a person."""
    delta = account.budget.delta
    lines = [
        f"ledger of lineage {account.lineage}: spent epsilon {account.spent_epsilon:.4g} of "
        f"{account.budget.epsilon:g} at delta {delta:g}; the largest epsilon that still fits at "
        f"that delta is {account.largest_epsilon:.6g}"
    ]
    return "\n".join(
        lines
        + [
            f"  {entry.release_id}: {entry.state}, epsilon {entry.request.epsilon:g} at delta "
            f"{entry.request.delta:g}, adjacency {entry.request.adjacency}; all up to here epsilon "
            f"{cumulative:.6g} at delta {delta:g}"
            for entry, cumulative in zip(account.entries, account.cumulative_epsilons, strict=True)
        ]
    )


def _stage(run: Run, blocks_done: int) -> str:
    if (run.release / MANIFEST).exists():
        return "released"
    if run.folder.projection_done():
        return "publish"
    if blocks_done == run.plan.geometry.count:
        return "project" if run.plan.projects else "publish"
    return "perturb" if run.folder.load_settings() is not None else "not started"
