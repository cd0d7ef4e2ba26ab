"""The commands of one release: foretell it, make it, and say how far it is."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Shown, prints_result, takes_config

if TYPE_CHECKING:
    from pipeline.config.model import Config


@click.command()
@click.option("--records", type=click.IntRange(min=2), help="Plan for so many records instead.")
@click.option("--features", type=click.IntRange(min=1), help="Plan for so many features instead.")
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Plan for so many workers of that kind instead."
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="First measure the rates of the configured cluster on made-up data, and keep them.",
)
@click.option(
    "--periods", is_flag=True, help="Show how many periods of a schedule the budget lasts."
)
@takes_config
@prints_result
def plan(
    settings: Config,
    records: int | None,
    features: int | None,
    workers: int | None,
    calibrate: bool,
    periods: bool,
) -> Shown:
    """Show what releasing CONFIG would do, cost and carry. Reads no record, spends nothing.

    Example: scoreshield plan configs/quickstart.yaml
    """
    from pipeline.forecast.preview import preview, preview_periods

    if periods and (records is not None or features is not None):
        raise click.UsageError(
            "--periods asks the ledger of the configured gallery; leave out --records and "
            "--features."
        )
    if calibrate:
        from pipeline.forecast.machine_rates import measure_rates
        from pipeline.forecast.preview import plan_of_size, planned_size
        from pipeline.progress import standard_reporter

        with standard_reporter() as reporter:
            size = planned_size(settings, records, features)
            measure_rates(settings, plan_of_size(settings, size), reporter)
    if periods:
        return preview_periods(settings, workers)
    return preview(settings, records, features, workers)


class _ListsMethods(click.Command):
    """A command whose help ends with the projection methods, loaded only when it is shown."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from scoreshield.projection import METHODS

        with formatter.section("Projection methods"):
            formatter.write_dl([(method.name, method.summary) for method in METHODS.values()])


@click.command(cls=_ListsMethods)
@click.option(
    "--unsafe-seed",
    type=click.IntRange(min=0),
    help="Test mode: noise from this seed. The result is NOT PRIVATE, and no ledger counts it.",
)
@click.option(
    "--period",
    help="Of a schedule, the period to release for, such as 2026-11; by default the present one.",
)
@click.option(
    "--performance-report",
    is_flag=True,
    help="Keep Dask's report of each stage, as HTML, in the run's private folder.",
)
@takes_config
@prints_result
def release(
    settings: Config,
    unsafe_seed: int | None,
    period: str | None,
    performance_report: bool,
) -> Shown:
    """Make the release of CONFIG, resume it, or report it where it is finished.

    Example: scoreshield release configs/quickstart.yaml
    """
    from pipeline.progress import standard_reporter
    from pipeline.run.release import release as run_release

    if not os.environ.get("SCORESHIELD_DEBUG"):
        # Dask tells of a lost scheduler in its log, with tracebacks; the error here says it once.
        logging.disable(logging.CRITICAL)
    with standard_reporter() as reporter:
        return run_release(settings, reporter, unsafe_seed, period, performance_report)


@click.command()
@takes_config
@prints_result
def status(settings: Config) -> Shown:
    """Say how far the release of CONFIG is, and what its gallery has spent.

    Example: scoreshield status configs/quickstart.yaml
    """
    from pipeline.run.status import release_status

    return release_status(settings)
