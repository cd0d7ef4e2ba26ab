"""What ``scoreshield plan`` shows: the plan, its forecast in words, and the ledger's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from pipeline.config.model import Config
from pipeline.errors import BudgetRefused
from pipeline.forecast.rates_file import load_rates
from pipeline.forecast.workload import Workload
from pipeline.ingest.queries import Queries
from pipeline.ingest.sources import SourceSize, latest_gallery, publishes_ids, source_size
from pipeline.ledger import Account, SpendForecast, SpendRequest, State, forecast_spend
from pipeline.ledger.account import check_adjacency
from pipeline.plan.release import ReleasePlan
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.prepare import prepare_run
from pipeline.run.regimes import REGIMES
from pipeline.run.schedule import Outlook, outlook, scheduled
from pipeline.storage.object_path import ObjectPath
from scoreshield.manifest.interactions import RecordKind
from scoreshield.manifest.words import privacy_unit

_IDS = "ids: the ids of the records were declared public, and are published as they are"
NOT_ASKED = "ledger: not asked, this plan is for other sizes than those of the configured gallery"


@dataclass(frozen=True)
class LedgerAnswer:
    """What a plan would do to the ledger."""

    spend: SpendForecast
    found: bool
    state: State | None
    """This release in the ledger: reserved, committed or abandoned; None before its first run."""
    refusal: str | None
    """Why the ledger would refuse the release; None where it would not."""

    @property
    def after_epsilon(self) -> float | None:
        """ε spent once the release is made; a release that is in the ledger spends nothing more."""
        return self.spend.after_epsilon if self.state is None else self.spend.spent_epsilon

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            "found": self.found,
            "state": self.state,
            "fits": self.refusal is None,
            "refusal": self.refusal,
            **self.spend.numbers(),
            "after": self.after_epsilon,
            "budget_epsilon": self.spend.budget.epsilon,
            "budget_delta": self.spend.budget.delta,
        }

    def to_line(self) -> str:
        """The same for a person."""
        spend = self.spend
        state = "" if self.found else " (no ledger yet)"
        numbers = (
            f"spent {spend.spent_epsilon:.4g}, requested {spend.request.epsilon:.4g}, remaining "
            f"{spend.remaining_epsilon:.4g} of {spend.budget}; the largest epsilon that still fits "
            f"is {spend.largest_epsilon:.6g}"
        )
        if self.refusal is not None:
            return f"ledger{state}: REFUSES this release, {self.refusal} ({numbers})"
        if self.state is not None:
            return (
                f"ledger: this release is {self.state}, running it spends nothing more; {numbers}"
            )
        return f"ledger{state}: fits, {self.after_epsilon:.4g} will be spent after it; {numbers}"


@dataclass(frozen=True)
class Preview:
    """A plan, its work, and the ledger's answer."""

    plan: ReleasePlan
    workload: Workload
    ledger: LedgerAnswer | None
    """None where the plan is for other sizes than those of the configured gallery."""
    publishes_ids: bool
    """Whether the ids of the gallery's records are published with it, as they are."""
    record_kind: RecordKind | None = None
    """What a record of interactions is; None for embeddings."""
    outlook: Outlook | None = None
    """How many periods of a schedule the budget lasts, where that was asked for."""
    unmeasured: tuple[str, ...] = ()
    """Places in object stores, which don't tell what is free."""

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        plan, mechanism = self.plan, self.plan.mechanism
        return {
            "regime": mechanism.regime,
            "record_kind": self.record_kind,
            "protects": self.protects,
            "n": mechanism.n,
            "d": mechanism.d,
            "m": mechanism.m,
            "sigma": mechanism.sigma,
            "grid_exponent": mechanism.grid_exponent,
            "guarantee": asdict(mechanism.guarantee),
            "implied_record_replacement": asdict(mechanism.implied),
            "forecast": {
                **asdict(plan.forecast),
                "carries_signal": plan.forecast.carries_signal,
                "advice": plan.forecast.advice(mechanism),
            },
            "noisy": {
                **asdict(plan.encoding),
                "added_variance": plan.encoding.added_variance(mechanism.sigma),
            },
            "publishes_ids": self.publishes_ids,
            "block_side": plan.geometry.shape[1],
            "blocks": plan.geometry.count,
            "tasks": plan.tasks,
            "disk_bytes": plan.disk_bytes,
            "unmeasured": list(self.unmeasured),
            "peak_worker_bytes": plan.peak_worker_bytes,
            "stages": [asdict(stage) for stage in plan.stages],
            **self.workload.to_json(),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "schedule": None if self.outlook is None else self.outlook.to_json(),
        }

    @property
    def protects(self) -> str:
        """The privacy unit, in words."""
        return privacy_unit(self.plan.mechanism.guarantee, self.record_kind)

    def to_text(self) -> str:
        """The same for a person."""
        plan = self.plan
        return "\n".join(
            [
                *_guarantee_lines(plan),
                f"protected: {self.protects}",
                *([_IDS] if self.publishes_ids else []),
                "",
                *_forecast_lines(plan),
                "",
                *self.workload.to_lines(),
                *(
                    f"  {place}: an object store, whose free space isn't checked"
                    for place in self.unmeasured
                ),
                "",
                NOT_ASKED if self.ledger is None else self.ledger.to_line(),
                *([] if self.outlook is None else [self.outlook.to_text()]),
            ]
        )


def preview(
    config: Config,
    records: int | None = None,
    features: int | None = None,
    workers: int | None = None,
) -> Preview:
    """Plan a configuration and ask the ledger; nothing is written.

    Of a gallery the header is read and nothing else, of interactions how many each record has.
    Queries are public, and read: the noise of a joint release depends on them. Of a schedule the
    release of the present period is planned.

    Parameters
    ----------
    records, features : plan for other sizes than those of the gallery, which need not exist where
        both are given; the ledger is not asked then
    workers : plan for other workers than the configured ones
    """
    config = scheduled(config)
    if workers is not None:
        cluster = config.cluster.model_copy(update={"workers": workers})
        config = config.model_copy(update={"cluster": cluster})
    size = planned_size(config, records, features)
    queries = REGIMES[config.regime].queries(config, lambda: size.d)
    plan = plan_of_size(config, size, queries)
    workload = Workload(
        plan,
        config.cluster,
        load_rates(config.private),
        interactions=size.record_kind is not None,
        elsewhere=_kept_elsewhere(config),
    )
    asked = records is None and features is None
    answer = _ledger_answer(config, plan, queries) if asked else None
    ids = asked and publishes_ids(config)
    return Preview(plan, workload, answer, ids, size.record_kind, unmeasured=_object_stores(config))


def _object_stores(config: Config) -> tuple[str, ...]:
    """Places in object stores that a run would write to."""
    written = (config.blocks, config.output)
    return tuple(str(place) for place in written if isinstance(place, ObjectPath))


def _kept_elsewhere(config: Config) -> tuple[str, ...]:
    """Keys that name an object store, or another place for noisy blocks than the private folder."""
    stores = tuple(
        key for key in ("gallery", "output") if isinstance(getattr(config, key), ObjectPath)
    )
    return stores if config.blocks is None else (*stores, "blocks")


def planned_size(
    config: Config, records: int | None = None, features: int | None = None
) -> SourceSize:
    """The size of the configured source, or other sizes where they are given.

    The source need not exist where both are given.
    """
    if records is not None and features is not None:
        return SourceSize(records, features)
    found = source_size(config)
    if records is None and features is None:
        return found
    return SourceSize(records or found.n, features or found.d)


def plan_of_size(config: Config, size: SourceSize, queries: Queries | None = None) -> ReleasePlan:
    """The plan of a configuration for a source of that size, and queries that were read already."""
    regime = REGIMES[config.regime]
    queries = queries or regime.queries(config, lambda: size.d)
    return regime.plan(config, size.n, size.d, queries, size.panels)


def _ledger_answer(config: Config, plan: ReleasePlan, queries: Queries | None) -> LedgerAnswer:
    """What the ledger would say, without writing."""
    # What was spent is spent whatever became of the source since, so the newest gallery answers.
    gallery, configured = latest_gallery(config), ConfiguredLedger(config)
    account = None if gallery is None else configured.account(gallery.lineage)
    request = request_for(plan.mechanism)
    if account is None or gallery is None:
        spend = forecast_spend(configured.budget, Fraction(0), request)
        refusal = _refusal(spend, lambda: configured.check_may_create(gallery))
        return LedgerAnswer(spend, configured.exists, None, refusal)
    spend = forecast_spend(account.budget, account.spent, request)
    run = prepare_run(config, gallery, queries=queries)
    run.folder.check_settings(run.settings)
    entry = account.find(run.release_id)
    if entry is not None:
        refusal = "it was abandoned; give it another name" if entry.state == "abandoned" else None
        return LedgerAnswer(spend, True, entry.state, refusal)
    refusal = _refusal(spend, lambda: _check_account(configured, account, request))
    return LedgerAnswer(spend, True, None, refusal)


def preview_periods(config: Config, workers: int | None = None) -> Preview:
    """The same, with how many periods of the configuration's schedule its budget lasts.

    Raises
    ------
    ConfigurationError
        The configuration has no schedule.
    """
    shown = preview(config, workers=workers)
    gallery = latest_gallery(config)
    configured = ConfiguredLedger(config)
    account = None if gallery is None else configured.account(gallery.lineage)
    budget = configured.budget if account is None else account.budget
    return replace(
        shown, outlook=outlook(config, account, budget, request_for(shown.plan.mechanism))
    )


def _refusal(spend: SpendForecast, check: Callable[[], None]) -> str | None:
    try:
        check()
    except BudgetRefused as error:
        return str(error)
    return None if spend.fits else "it does not fit the budget"


def _check_account(configured: ConfiguredLedger, account: Account, request: SpendRequest) -> None:
    """What the ledger itself checks when the release reserves, without writing."""
    if account.budget != configured.budget:
        raise BudgetRefused(
            f"the account was opened with a budget of {account.budget}, the configuration says "
            f"{configured.budget}"
        )
    check_adjacency(account, request)


def _guarantee_lines(plan: ReleasePlan) -> list[str]:
    mechanism, guarantee = plan.mechanism, plan.mechanism.guarantee
    lines = [
        plan.heading,
        f"guarantee: epsilon {guarantee.epsilon:g} at delta {guarantee.delta:g}, adjacency "
        f"{guarantee.adjacency} (mu {guarantee.mu:.4g})",
        f"sensitivity: {guarantee.sensitivity.value:.6g}; {guarantee.sensitivity.derivation}",
        f"noise: sigma {mechanism.sigma:.6g} on the grid 2^{mechanism.grid_exponent}",
    ]
    if guarantee.adjacency.kind != "record":
        implied = mechanism.implied
        lines.append(
            f"for the full replacement of one record this gives only epsilon {implied.epsilon:.4g} "
            f"at delta {implied.delta:g} (mu {implied.mu:.4g})"
        )
    return lines


def _forecast_lines(plan: ReleasePlan) -> list[str]:
    advice = plan.forecast.advice(plan.mechanism)
    warning = [] if advice is None else [f"WARNING: {advice}"]
    return plan.forecast.to_lines(plan.mechanism) + warning
