"""The commands that run a cluster of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Result, prints_result, takes_config

if TYPE_CHECKING:
    from pipeline.config.model import Config


@click.group()
def cluster() -> None:
    """Run the scheduler and workers of a cluster of your own (cluster.kind: address)."""


@cluster.command("certificates")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--days",
    type=click.IntRange(1, 825),
    default=30,
    show_default=True,
    help="How long they are valid.",
)
@prints_result
def cluster_certificates(folder: Path, days: int) -> Result:
    """Make the certificates of a cluster in FOLDER: an authority, and one certificate it signed.

    Example: scoreshield cluster certificates tls
    """
    from pipeline.cluster.certificates import make_certificates

    made = make_certificates(folder, days)
    until = made.valid_until.date().isoformat()
    names = {"ca": made.ca, "certificate": made.certificate, "key": made.key}
    lines = [f"  {name}: {path}" for name, path in names.items()]
    return Result(
        {**{name: str(path) for name, path in names.items()}, "valid_until": until},
        "\n".join(["tls:", *lines])
        + f"\nvalid until {until}; whoever holds the key can read the gallery through the cluster",
    )


_listen_option = click.option(
    "--listen", help="Address of this machine to listen at; by default the one others reach it by."
)


@cluster.command("scheduler")
@_listen_option
@takes_config
def cluster_scheduler(settings: Config, listen: str | None) -> None:
    """Run the scheduler of CONFIG until it is ended.

    Example: scoreshield cluster scheduler configs/address.yaml
    """
    from pipeline.cluster.serve import run_scheduler

    run_scheduler(settings.cluster, listen)


@cluster.command("worker")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes of this machine.",
)
@_listen_option
@click.option(
    "--scratch", type=click.Path(path_type=Path), help="Folder for the workers' own files."
)
@takes_config
def cluster_worker(
    settings: Config, workers: int, listen: str | None, scratch: Path | None
) -> None:
    """Run workers of CONFIG on this machine until they are ended.

    Example: scoreshield cluster worker configs/address.yaml --workers 2
    """
    from pipeline.cluster.serve import run_workers

    run_workers(settings.cluster, workers, listen, scratch)
