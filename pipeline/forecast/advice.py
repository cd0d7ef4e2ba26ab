"""What a planned release can carry, in words: the forecast, and what would change it."""

from __future__ import annotations

from pipeline.plan.gram import GramPlan
from pipeline.plan.scores import ScoresPlan


def forecast_lines(plan: GramPlan | ScoresPlan) -> list[str]:
    """The forecast of a plan for a person."""
    return _gram_lines(plan) if isinstance(plan, GramPlan) else _scores_lines(plan)


def signal_advice(plan: GramPlan | ScoresPlan) -> str | None:
    """Where the noise would bury everything: plain words, and what would change it."""
    if plan.forecast.carries_signal:
        return None
    return _gram_advice(plan) if isinstance(plan, GramPlan) else _scores_advice(plan)


def _gram_lines(plan: GramPlan) -> list[str]:
    forecast = plan.forecast
    return [
        f"forecast: noise of {forecast.sigma:.4g} on each similarity; noise edge 2*sigma*sqrt(n) = "
        f"{forecast.noise_edge:.4g}",
        "a component is recoverable when it carries more than "
        f"{forecast.recoverable_share:.3g} of the trace (sigma/sqrt(n))",
    ]


def _gram_advice(plan: GramPlan) -> str:
    forecast, guarantee = plan.forecast, plan.mechanism.guarantee
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


def _scores_lines(plan: ScoresPlan) -> list[str]:
    forecast, score_range = plan.forecast, plan.mechanism.score_range
    m = plan.rectangle.m
    joint = (
        f"calibration: {m} queries jointly, sigma {forecast.sigma:.4g}; as {m} releases of one "
        f"query each at the same total epsilon, sigma {forecast.separate_sigma:.4g}. The joint "
        "one is never worse, so it is used"
    )
    return [
        *([joint] if m > 1 else []),
        f"forecast: noise of {forecast.sigma:.4g} on each score of a range "
        f"[{score_range.low:g}, {score_range.high:g}]; once clipped, a score in the middle errs by "
        f"{forecast.error_in_the_middle:.4g} and one at an end by {forecast.error_at_an_end:.4g} "
        "(root mean square)",
    ]


def _scores_advice(plan: ScoresPlan) -> str:
    forecast, guarantee = plan.forecast, plan.mechanism.guarantee
    return (
        f"A single score would tell less than its range does: sigma {forecast.sigma:.4g} is at "
        f"least half the width of the range, {forecast.half_range:g}. Only what many scores share "
        "can be told, such as a query's mean over k records, to about sigma/sqrt(k) once the pull "
        "of clipping is allowed for. At "
        f"delta {guarantee.delta:g} and adjacency {guarantee.adjacency} single scores begin to "
        f"tell above epsilon {forecast.epsilon_for_signal:.3g}; fewer queries lower sigma as well."
    )
