"""The entry of the command line: its commands, and how errors become exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import NoReturn

import click

from pipeline.cli import audit, cluster, gallery, ledger, reader, release

_EXIT_CODES = (
    "Exit codes: 0 done; 2 usage or configuration; 3 input rejected; 4 budget refused; "
    "5 integrity failure; 6 run failed, resumable."
)


@click.group(epilog=_EXIT_CODES)
@click.version_option(package_name="scoreshield")
def cli() -> None:
    """Release the cosine similarities of a private gallery under differential privacy."""


for _command in (
    gallery.ingest,
    release.plan,
    release.release,
    release.status,
    reader.verify,
    reader.show,
    reader.manifest,
    audit.audit,
    ledger.ledger,
    cluster.cluster,
):
    cli.add_command(_command)


def main() -> None:
    """Run a command; errors become one message and the exit code that belongs to them."""
    # Schedulers of preemptible machines end a job with SIGTERM: stop as for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Every command says NOT PRIVATE in its result; a line of source code beside it helps nobody.
    warnings.filterwarnings("ignore", message=".* is NOT PRIVATE: ")
    try:
        sys.exit(cli.main(prog_name="scoreshield", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "scoreshield"
        _fail(f"{error.format_message()} See '{where} --help'", 2)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; run the same command again to resume", 6)
    except Exception as error:
        _explain(error)


def _explain(error: Exception) -> NoReturn:
    from pipeline.errors import ScoreShieldError, exit_code
    from pipeline.ledger import OverspendRefused

    if isinstance(error, ScoreShieldError):
        overspend = error.forecast.numbers() if isinstance(error, OverspendRefused) else {}
        _fail(str(error), exit_code(error), overspend)
    if os.environ.get("SCORESHIELD_DEBUG"):
        raise error
    _fail(
        f"{type(error).__name__}: {' '.join(str(error).split())}. This was not foreseen; "
        "finished work is kept, and SCORESHIELD_DEBUG=1 shows where it happened",
        6,
    )


def _fail(message: str, code: int, numbers: dict[str, float] | None = None) -> NoReturn:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": message, "exit_code": code, **(numbers or {})}))
    click.echo(f"scoreshield: {message}", err=True)
    sys.exit(code)
