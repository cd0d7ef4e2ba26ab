"""The commands of the record of spent budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Result, prints_result, takes_config

if TYPE_CHECKING:
    from pipeline.config.model import Config
    from pipeline.ledger import Account


@click.group()
def ledger() -> None:
    """Make and read the record of spent budget."""


@ledger.command("init")
@takes_config
@prints_result
def ledger_init(settings: Config) -> Result:
    """Make the ledger of CONFIG and open its gallery's account with the configured budget.

    Example: scoreshield ledger init configs/quickstart.yaml
    """
    from pipeline.ingest.sources import prepare_gallery
    from pipeline.progress import standard_reporter
    from pipeline.run.budget import ConfiguredLedger

    with standard_reporter() as reporter:
        configured = ConfiguredLedger(settings)
        gallery = configured.recognised(prepare_gallery(settings, reporter))
    return _account(configured.initialised(gallery))


@ledger.command("show")
@takes_config
@prints_result
def ledger_show(settings: Config) -> Result:
    """Print each release of CONFIG's gallery, what is spent after each, and what still fits.

    Example: scoreshield ledger show configs/quickstart.yaml
    """
    from pipeline.run.status import account_of

    return _account(account_of(settings))


@ledger.command("verify")
@click.option(
    "--adopt",
    is_flag=True,
    help="Trust a ledger that this private folder has never seen as the newest copy.",
)
@takes_config
@prints_result
def ledger_verify(settings: Config, adopt: bool) -> Result:
    """Check the whole ledger of CONFIG: rows, chain, head and sums. Exits 5 on any fault.

    Example: scoreshield ledger verify configs/quickstart.yaml
    """
    from pipeline.ledger.verify import adopt_ledger, verify_ledger

    check = adopt_ledger if adopt else verify_ledger
    checks = check(settings.ledger.url, settings.private)
    faults = sum(not check.ok for check in checks)
    return Result(
        {"ok": not faults, "checks": [check.to_json() for check in checks]},
        "\n".join(check.to_text() for check in checks),
        f"ledger: {faults} checks failed" if faults else None,
    )


@ledger.command("abandon")
@click.option("--release", "name", help="Name of a run that CONFIG no longer leads to.")
@takes_config
@prints_result
def ledger_abandon(settings: Config, name: str | None) -> Result:
    """Give up the unfinished release of CONFIG; its budget stays spent, its key is destroyed.

    Example: scoreshield ledger abandon configs/quickstart.yaml
    """
    from pipeline.run.abandon import abandon

    return _account(abandon(settings, name))


def _account(account: Account) -> Result:
    from pipeline.run.status import account_json, account_text

    return Result(account_json(account), account_text(account))
