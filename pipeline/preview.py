"""What ``scoreshield plan`` shows: the plan, its forecast in words, and the ledger's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from pipeline.advice import forecast_lines, signal_advice
from pipeline.budget import (
    check_may_create,
    configured_budget,
    existing_account,
    existing_ledger,
    ledger_exists,
    request_for,
)
from pipeline.config import Config
from pipeline.errors import BudgetRefused
from pipeline.ledger import Account, Forecast, Request, State
from pipeline.ledger import forecast as forecast_spend
from pipeline.plan import GramPlan, show_bytes
from pipeline.plan_scores import ScoresPlan
from pipeline.run import configured_queries, plan_for, prepare_run
from pipeline.schedule import Outlook, outlook, scheduled
from pipeline.sources import latest_gallery, publishes_ids, source_size
from scoreshield.interactions import RecordKind
from scoreshield.manifest import privacy_unit

_IDS = "ids: the ids of the records were declared public, and are published as they are"


@dataclass(frozen=True)
class Preview:
    """A plan and what it would do to the ledger."""

    plan: GramPlan | ScoresPlan
    spend: Forecast
    ledger_found: bool
    state: State | None
    """This release in the ledger: reserved, committed or abandoned; None before its first run."""
    refusal: str | None
    """Why the ledger would refuse the release; None where it would not."""
    publishes_ids: bool
    """Whether the records' ids are published with it, as they are."""
    record_kind: RecordKind | None = None
    """What a record of interactions is; None for embeddings."""
    outlook: Outlook | None = None
    """How many periods of a schedule the budget lasts, where that was asked for."""

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
                "advice": signal_advice(plan),
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
            "peak_worker_bytes": plan.peak_worker_bytes,
            "stages": [asdict(stage) for stage in plan.stages],
            "ledger": {
                "found": self.ledger_found,
                "state": self.state,
                "fits": self.refusal is None,
                "refusal": self.refusal,
                **self.spend.numbers(),
                "after": self.after_epsilon,
                "budget_epsilon": self.spend.budget.epsilon,
                "budget_delta": self.spend.budget.delta,
            },
            "schedule": None if self.outlook is None else self.outlook.to_json(),
        }

    @property
    def protects(self) -> str:
        """The privacy unit, in words."""
        return privacy_unit(self.plan.mechanism.guarantee, self.record_kind)

    @property
    def after_epsilon(self) -> float | None:
        """ε spent once the release is made; a release that is in the ledger spends nothing more."""
        return self.spend.after_epsilon if self.state is None else self.spend.spent_epsilon

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
                *_work_lines(plan),
                "",
                self._ledger_line(),
                *([] if self.outlook is None else [self.outlook.to_text()]),
            ]
        )

    def _ledger_line(self) -> str:
        spend = self.spend
        state = "" if self.ledger_found else " (no ledger yet)"
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


def preview(config: Config) -> Preview:
    """Plan a configuration and ask the ledger; nothing is written.

    Of a gallery the header is read and nothing else, of interactions how many each record has.
    Queries are public, and read: the noise of a joint release depends on them. Of a schedule the
    release of the present period is planned.
    """
    config = scheduled(config)
    size = source_size(config)
    plan = plan_for(config, size.n, size.d, configured_queries(config, size.d), size.panels)
    public = publishes_ids(config), size.record_kind
    # What was spent is spent whatever became of the source since, so the newest gallery answers.
    gallery = latest_gallery(config)
    account = existing_account(config, gallery) if gallery is not None else None
    request = request_for(plan.mechanism)
    if account is None or gallery is None:
        spend = forecast_spend(configured_budget(config), Fraction(0), request)
        refusal = _refusal(spend, lambda: check_may_create(config, gallery))
        return Preview(plan, spend, ledger_exists(config), None, refusal, *public)
    spend = forecast_spend(account.budget, account.spent, request)
    run = prepare_run(config, gallery)
    run.folder.check_settings(run.settings)
    entry = account.find(run.release_id)
    if entry is not None:
        refusal = "it was abandoned; give it another name" if entry.state == "abandoned" else None
        return Preview(plan, spend, True, entry.state, refusal, *public)
    refusal = _refusal(spend, lambda: _check_account(config, account, request))
    return Preview(plan, spend, True, None, refusal, *public)


def preview_periods(config: Config) -> Preview:
    """The same, with how many periods of the configuration's schedule its budget lasts.

    Raises
    ------
    ConfigurationError
        The configuration has no schedule.
    """
    shown = preview(config)
    gallery = latest_gallery(config)
    account = existing_account(config, gallery) if gallery is not None else None
    budget = configured_budget(config) if account is None else account.budget
    return replace(
        shown, outlook=outlook(config, account, budget, request_for(shown.plan.mechanism))
    )


def _refusal(spend: Forecast, check: Callable[[], None]) -> str | None:
    try:
        check()
    except BudgetRefused as error:
        return str(error)
    return None if spend.fits else "it does not fit the budget"


def _check_account(config: Config, account: Account, request: Request) -> None:
    """What the ledger itself checks when the release reserves, without writing."""
    if account.budget != configured_budget(config):
        raise BudgetRefused(
            f"the account was opened with a budget of {account.budget}, the configuration says "
            f"{configured_budget(config)}"
        )
    existing_ledger(config).forecast(account.lineage, request)


def _guarantee_lines(plan: GramPlan | ScoresPlan) -> list[str]:
    mechanism, guarantee = plan.mechanism, plan.mechanism.guarantee
    lines = [
        _heading(plan),
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


def _forecast_lines(plan: GramPlan | ScoresPlan) -> list[str]:
    advice = signal_advice(plan)
    warning = [] if advice is None else [f"WARNING: {advice}"]
    return forecast_lines(plan) + warning


def _heading(plan: GramPlan | ScoresPlan) -> str:
    records = f"{plan.mechanism.n} records of {plan.mechanism.d} features"
    if isinstance(plan, GramPlan):
        return f"gram of {records}, projection {plan.method}"
    words = "public query" if plan.rectangle.m == 1 else "public queries"
    return f"scores of {plan.rectangle.m} {words} against {records}, clipped to their range"


def _work_lines(plan: GramPlan | ScoresPlan) -> list[str]:
    count, (rows, columns) = plan.geometry.count, plan.geometry.shape
    lines = [
        f"work: {count} blocks of {rows} x {columns}, {plan.tasks} tasks, "
        f"{show_bytes(plan.disk_bytes)} on disk, at most {show_bytes(plan.peak_worker_bytes)} on "
        "one worker",
        f"  {plan.encoding.described(plan.mechanism.sigma)}",
    ]
    return lines + [
        f"  {stage.name}: {stage.tasks} tasks, {show_bytes(stage.disk_bytes)} on disk, "
        f"{show_bytes(stage.peak_worker_bytes)} on one worker"
        for stage in plan.stages
    ]
