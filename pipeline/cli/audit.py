"""The command that puts a claim to the test."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.command import Result, config_argument, prints_result


@click.command()
@config_argument
@prints_result
def audit(config: Path) -> Result:
    """Put the claim of CONFIG to the test on releases that nobody keeps. Exits 5 if it fails.

    Example: scoreshield audit configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.progress import standard_reporter
    from pipeline.run.audit import audit_config

    settings = load_config(config)
    with standard_reporter() as reporter:
        report = audit_config(settings, reporter)
    fault = None if report.consistent else f"{config}: the audit contradicts the claim"
    return Result(report.to_json(), report.to_text(), fault)
