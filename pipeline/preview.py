"""What ``scoreshield plan`` shows: the plan, its forecast in words, and the ledger's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from pipeline.budget import (
    check_may_create,
    configured_budget,
    existing_account,
    ledger_exists,
    request_for,
)
from pipeline.config import Config
from pipeline.errors import BudgetRefused
from pipeline.ledger import Account, Forecast, Ledger, Request, State
from pipeline.ledger import forecast as forecast_spend
from pipeline.plan import ReleasePlan, show_bytes
from pipeline.run import plan_for, prepare_run
from pipeline.sources import known_gallery, source_shape


@dataclass(frozen=True)
class Preview:
    """A plan and what it would do to the ledger."""

    plan: ReleasePlan
    spend: Forecast
    ledger_found: bool
    state: State | None
    """This release in the ledger: reserved, committed or abandoned; None before its first run."""
    refusal: str | None
    """Why the ledger would refuse the release; None where it would not."""

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        plan, mechanism = self.plan, self.plan.mechanism
        return {
            "n": mechanism.n,
            "d": mechanism.d,
            "sigma": mechanism.sigma,
            "grid_exponent": mechanism.grid_exponent,
            "guarantee": asdict(mechanism.guarantee),
            "implied_record_replacement": asdict(mechanism.implied),
            "forecast": {
                **asdict(plan.forecast),
                "carries_signal": plan.forecast.carries_signal,
                "advice": signal_advice(plan),
            },
            "block_side": plan.triangle.side,
            "blocks": plan.triangle.count,
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
        }

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
                "",
                *_forecast_lines(plan),
                "",
                *_work_lines(plan),
                "",
                self._ledger_line(),
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
    """Plan a configuration and ask the ledger, reading headers only and writing nothing."""
    n, d = source_shape(config)
    plan = plan_for(config, n, d)
    gallery = known_gallery(config)
    account = existing_account(config, gallery) if gallery is not None else None
    request = request_for(plan.mechanism)
    if account is None or gallery is None:
        spend = forecast_spend(configured_budget(config), Fraction(0), request)
        refusal = _refusal(spend, lambda: check_may_create(config, gallery))
        return Preview(plan, spend, ledger_exists(config), None, refusal)
    spend = forecast_spend(account.budget, account.spent, request)
    entry = account.find(prepare_run(config, gallery).release_id)
    if entry is not None:
        refusal = "it was abandoned; give it another name" if entry.state == "abandoned" else None
        return Preview(plan, spend, True, entry.state, refusal)
    refusal = _refusal(spend, lambda: _check_account(config, account, request))
    return Preview(plan, spend, True, None, refusal)


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
    Ledger.open(config.ledger.url).forecast(account.lineage, request)


def signal_advice(plan: ReleasePlan) -> str | None:
    """Where the noise would bury everything: plain words, and what would change it."""
    forecast, guarantee = plan.forecast, plan.mechanism.guarantee
    if forecast.carries_signal:
        return None
    advice = (
        "This release would carry no recoverable signal: a component would need "
        f"{forecast.recoverable_share:.2f} times the whole trace to stand out of the noise. "
        f"At delta {guarantee.delta:g} and adjacency {guarantee.adjacency} signal becomes "
        f"possible above epsilon {forecast.epsilon_for_signal:.3g}; at epsilon "
        f"{guarantee.epsilon:g} it does under adjacency shift with a radius below "
        f"{forecast.shift_radius_for_signal:.3g}"
    )
    if guarantee.adjacency.kind == "record" and plan.mechanism.score_range.width > 1:
        advice += ", or with score_range: [0, 1] at a lower epsilon if all similarities lie there"
    return advice + "."


def _guarantee_lines(plan: ReleasePlan) -> list[str]:
    mechanism, guarantee = plan.mechanism, plan.mechanism.guarantee
    lines = [
        f"gram of {mechanism.n} records of {mechanism.d} features, projection {plan.method}",
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
    forecast = plan.forecast
    lines = [
        f"forecast: noise of {forecast.sigma:.4g} on each similarity; noise edge 2*sigma*sqrt(n) = "
        f"{forecast.noise_edge:.4g}",
        "a component is recoverable when it carries more than "
        f"{forecast.recoverable_share:.3g} of the trace (sigma/sqrt(n))",
    ]
    advice = signal_advice(plan)
    return lines if advice is None else [*lines, f"WARNING: {advice}"]


def _work_lines(plan: ReleasePlan) -> list[str]:
    triangle = plan.triangle
    lines = [
        f"work: {triangle.count} blocks of {triangle.side} x {triangle.side}, {plan.tasks} tasks, "
        f"{show_bytes(plan.disk_bytes)} on disk, at most {show_bytes(plan.peak_worker_bytes)} on "
        "one worker"
    ]
    return lines + [
        f"  {stage.name}: {stage.tasks} tasks, {show_bytes(stage.disk_bytes)} on disk, "
        f"{show_bytes(stage.peak_worker_bytes)} on one worker"
        for stage in plan.stages
    ]
