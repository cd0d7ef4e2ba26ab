"""The command line: thin commands over functions. Heavy imports happen where they are used."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from pipeline.storage.layout import MANIFEST, RELEASE_STORE

_EXIT_CODES = (
    "Exit codes: 0 done; 2 usage or configuration; 3 input rejected; 4 budget refused; "
    "5 integrity failure; 6 run failed, resumable."
)


def _path_or_url(value: Any) -> Any:
    """A path, or a URL of an object store."""
    from pipeline.storage.place import is_url, place_of

    return place_of(value) if isinstance(value, str) and is_url(value) else Path(value)


_config_argument = click.argument("config", type=click.Path(path_type=Path))
_release_argument = click.argument("release", type=_path_or_url)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group(epilog=_EXIT_CODES)
@click.version_option(package_name="scoreshield")
def cli() -> None:
    """Release the cosine similarities of a private gallery under differential privacy."""


@cli.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("gallery", type=_path_or_url)
@click.option(
    "--key",
    "--column",
    "--member",
    "key",
    help="Which array, where the source holds several: a path, a column or a member.",
)
@click.option(
    "--public-ids",
    metavar="NAME",
    help="Keep the ids under this key and publish them with every release: they are public.",
)
@click.option(
    "--zero-rows",
    type=click.Choice(["refuse", "substitute"]),
    default="refuse",
    show_default=True,
    help="Refuse records without direction, or map them to one fixed unit vector.",
)
@click.option("--ratings", is_flag=True, help="SOURCE is a text file of ratings; needs --by.")
@click.option(
    "--by",
    type=click.Choice(["item", "user"]),
    help="Of ratings: what a record is, and so what a release protects.",
)
@click.option(
    "--columns",
    help="Of ratings: user, item and rating by name or by position from 1, such as 1,2,3.",
)
@click.option(
    "--duplicates",
    type=click.Choice(["refuse", "last", "sum"]),
    help="Of ratings: what to do with a pair that comes more than once; refuse it by default.",
)
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    help="Of ratings: file whose first column lists all records, rated or not.",
)
@click.option("--lineage", help="Carry on the budget of an earlier gallery (32 hex digits).")
@click.option("--overwrite", is_flag=True, help="Replace an existing gallery, keeping its lineage.")
@_json_option
def ingest(
    source: Path,
    gallery: Any,
    key: str | None,
    public_ids: str | None,
    zero_rows: Any,
    ratings: bool,
    by: Any,
    columns: str | None,
    duplicates: Any,
    records: Path | None,
    lineage: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Turn SOURCE into GALLERY: checked, normalised, fixed-point.

    Kinds of source: docs/formats.md; --key, --column and --member are one option.
    A file of ratings: docs/recommender.md.

    Example: scoreshield ingest faces.npy faces.zarr
    """
    from pipeline.ingest import ingest as run_ingest
    from pipeline.ingest import open_source
    from pipeline.ingest.ratings import ingest_ratings
    from pipeline.progress import standard_reporter

    options = _ratings_options(ratings, by, columns, duplicates, records, key)
    common: dict[str, Any] = {
        "public_ids": public_ids,
        "zero_rows": zero_rows,
        "lineage": lineage,
        "overwrite": overwrite,
    }
    with standard_reporter() as reporter:
        if options is None:
            reporter.begin("ingest", open_source(source, key).shape[0], "records")
            made = run_ingest(source, gallery, key=key, progress=reporter.advance, **common)
        else:
            reporter.begin("ingest", None, "ratings")
            made = ingest_ratings(source, gallery, options, progress=reporter.advance, **common)
        reporter.end()
    _print(
        as_json,
        {"gallery": str(made.path), "n": made.n, "d": made.d, "lineage": made.lineage},
        f"{made.path}: {made.n} records of {made.d} features, lineage {made.lineage}",
    )


def _ratings_options(
    ratings: bool,
    by: Any,
    columns: str | None,
    duplicates: Any,
    records: Path | None,
    key: str | None,
) -> Any:
    """What --ratings and the options that belong to it say; None without it."""
    from pipeline.ingest.ratings import RatingsOptions

    given = {"--by": by, "--columns": columns, "--duplicates": duplicates, "--records": records}
    if not ratings:
        alone = [name for name, value in given.items() if value is not None]
        if alone:
            raise click.UsageError(f"{', '.join(alone)} belong(s) to --ratings.")
        return None
    if by is None:
        raise click.UsageError("--ratings needs --by item or --by user: what a release protects.")
    if key is not None:
        raise click.UsageError("--key names an array, and ratings have none; see --columns.")
    split = None if columns is None else tuple(one.strip() for one in columns.split(","))
    return RatingsOptions(by, split, duplicates or "refuse", records)


@cli.command()
@_config_argument
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
@_json_option
def plan(
    config: Path,
    records: int | None,
    features: int | None,
    workers: int | None,
    calibrate: bool,
    periods: bool,
    as_json: bool,
) -> None:
    """Show what releasing CONFIG would do, cost and carry. Reads no record, spends nothing.

    Example: scoreshield plan configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.forecast.preview import preview, preview_periods

    settings = load_config(config)
    if periods and (records is not None or features is not None):
        raise click.UsageError(
            "--periods asks the ledger of the configured gallery; leave out --records and "
            "--features."
        )
    if calibrate:
        from pipeline.forecast.machine_rates import calibrate as measure_rates
        from pipeline.forecast.preview import plan_of_size, planned_size
        from pipeline.progress import standard_reporter

        with standard_reporter() as reporter:
            size = planned_size(settings, records, features)
            measure_rates(settings, plan_of_size(settings, size), reporter)
    if periods:
        shown = preview_periods(settings, workers)
    else:
        shown = preview(settings, records, features, workers)
    _print(as_json, shown.to_json(), shown.to_text())


class _ListsMethods(click.Command):
    """A command whose help ends with the projection methods, loaded only when it is shown."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from scoreshield.projection import METHODS

        with formatter.section("Projection methods"):
            formatter.write_dl([(method.name, method.summary) for method in METHODS.values()])


@cli.command(cls=_ListsMethods)
@_config_argument
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
@_json_option
def release(
    config: Path,
    unsafe_seed: int | None,
    period: str | None,
    performance_report: bool,
    as_json: bool,
) -> None:
    """Make the release of CONFIG, resume it, or report it where it is finished.

    Example: scoreshield release configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.progress import standard_reporter
    from pipeline.run.release import release as run_release

    settings = load_config(config)
    if not os.environ.get("SCORESHIELD_DEBUG"):
        # Dask tells of a lost scheduler in its log, with tracebacks; the error here says it once.
        logging.disable(logging.CRITICAL)
    with standard_reporter() as reporter:
        outcome = run_release(settings, reporter, unsafe_seed, period, performance_report)
    _print(as_json, outcome.to_json(), outcome.to_text())


@cli.command()
@_config_argument
@_json_option
def status(config: Path, as_json: bool) -> None:
    """Say how far the release of CONFIG is, and what its gallery has spent.

    Example: scoreshield status configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.run.status import release_status

    found = release_status(load_config(config))
    _print(as_json, found.to_json(), found.to_text())


@cli.command()
@_release_argument
@click.option("--public-key", help="Accept only this signer: an Ed25519 key in hex, or its file.")
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="Check that the scores are those of the queries in this file.",
)
@click.option("--queries-key", help="Which array of that file, where it holds several.")
@_json_option
def verify(
    release: Any,
    public_key: str | None,
    queries: Path | None,
    queries_key: str | None,
    as_json: bool,
) -> None:
    """Check RELEASE: signature, digests, completeness and feasibility. Exits 5 on any fault.

    Example: scoreshield verify releases/gram-0123456789ab
    """
    from pipeline.errors import IntegrityFailure, exit_code
    from pipeline.ingest.queries import load_queries
    from pipeline.progress import Checking, standard_reporter
    from pipeline.publish.signing import read_public_key
    from pipeline.reader.verify import verify_release

    _check_is_release(release)
    signer = None if public_key is None else read_public_key(public_key)
    asked = None if queries is None else load_queries(queries, queries_key).sha256
    with standard_reporter() as reporter:
        report = verify_release(release, signer, Checking(reporter), asked)
    faults = [check for check in report.checks if not check.ok]
    _print(
        as_json,
        {
            "release": str(release),
            "ok": not faults,
            "not_private_reason": report.not_private_reason,
            "checks": [
                {"name": check.name, "ok": check.ok, "detail": check.detail}
                for check in report.checks
            ],
        },
        _not_private_line(report.not_private_reason)
        + "\n".join(
            f"{'ok   ' if check.ok else 'FAULT'} {check.name}: {check.detail}"
            for check in report.checks
        ),
    )
    if faults:
        # The result is printed already: one more object would make it two.
        click.echo(
            f"scoreshield: {release}: {len(faults)} checks failed; restore it from a copy. Its "
            "curator can also move it away and run 'scoreshield release CONFIG' again, which "
            "publishes it anew from intact noisy blocks and spends nothing",
            err=True,
        )
        click.get_current_context().exit(exit_code(IntegrityFailure()))


@cli.command()
@_release_argument
@_json_option
def show(release: Any, as_json: bool) -> None:
    """Describe RELEASE from its manifest: guarantee, noise, projection, arrays.

    Example: scoreshield show releases/gram-0123456789ab
    """
    from pipeline.reader.open import open_release
    from pipeline.reader.show import render_markdown
    from scoreshield.manifest.schema import to_json

    _check_is_release(release)
    manifest = open_release(release).manifest
    _print(as_json, json.loads(to_json(manifest)), render_markdown(manifest))


@cli.command()
@_config_argument
@_json_option
def audit(config: Path, as_json: bool) -> None:
    """Put the claim of CONFIG to the test on releases that nobody keeps. Exits 5 if it fails.

    Example: scoreshield audit configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.errors import IntegrityFailure, exit_code
    from pipeline.progress import standard_reporter
    from pipeline.run.audit import audit_config

    settings = load_config(config)
    with standard_reporter() as reporter:
        report = audit_config(settings, reporter)
    _print(as_json, report.to_json(), report.to_text())
    if not report.consistent:
        click.echo(f"scoreshield: {config}: the audit contradicts the claim", err=True)
        click.get_current_context().exit(exit_code(IntegrityFailure()))


@cli.group()
def manifest() -> None:
    """Check what a release says of itself."""


@manifest.command("verify")
@_release_argument
@click.option(
    "--key", "signer", required=True, help="The curator's Ed25519 public key in hex, or its file."
)
@_json_option
def manifest_verify(release: Any, signer: str, as_json: bool) -> None:
    """Check who signed RELEASE and that no character of its manifest changed; reads no array.

    Example: scoreshield manifest verify releases/gram-0123456789ab --key curator.pub
    """
    from pipeline.publish.signing import read_public_key
    from pipeline.reader.manifest_file import verify_manifest

    _check_is_release(release)
    key = read_public_key(signer)
    found = verify_manifest(release, key)
    _print(
        as_json,
        {
            "release": str(release),
            "release_id": found.release_id,
            "ok": True,
            "public_key": key,
            "private": found.private,
            "not_private_reason": found.not_private_reason,
        },
        _not_private_line(found.not_private_reason)
        + f"{release}: manifest of {found.release_id}, signed by the holder of {key}",
    )


@cli.group()
def ledger() -> None:
    """Make and read the record of spent budget."""


@ledger.command("init")
@_config_argument
@_json_option
def ledger_init(config: Path, as_json: bool) -> None:
    """Make the ledger of CONFIG and open its gallery's account with the configured budget.

    Example: scoreshield ledger init configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.ingest.sources import prepare_gallery
    from pipeline.progress import standard_reporter
    from pipeline.run.budget import ConfiguredLedger
    from pipeline.run.status import account_json, account_text

    settings = load_config(config)
    with standard_reporter() as reporter:
        configured = ConfiguredLedger(settings)
        gallery = configured.recognised(prepare_gallery(settings, reporter))
    account = configured.initialised(gallery)
    _print(as_json, account_json(account), account_text(account))


@ledger.command("show")
@_config_argument
@_json_option
def ledger_show(config: Path, as_json: bool) -> None:
    """Print each release of CONFIG's gallery, what is spent after each, and what still fits.

    Example: scoreshield ledger show configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.run.status import account_json, account_of, account_text

    account = account_of(load_config(config))
    _print(as_json, account_json(account), account_text(account))


@ledger.command("verify")
@_config_argument
@click.option(
    "--adopt",
    is_flag=True,
    help="Trust a ledger that this private folder has never seen as the newest copy.",
)
@_json_option
def ledger_verify(config: Path, adopt: bool, as_json: bool) -> None:
    """Check the whole ledger of CONFIG: rows, chain, head and sums. Exits 5 on any fault.

    Example: scoreshield ledger verify configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.errors import IntegrityFailure, exit_code
    from pipeline.ledger.verify import adopt_ledger, verify_ledger

    settings = load_config(config)
    check = adopt_ledger if adopt else verify_ledger
    checks = check(settings.ledger.url, settings.private)
    faults = sum(not check.ok for check in checks)
    _print(
        as_json,
        {"ok": not faults, "checks": [check.to_json() for check in checks]},
        "\n".join(
            f"{'ok   ' if check.ok else 'FAULT'} {check.name}: {check.detail}" for check in checks
        ),
    )
    if faults:
        # The result is printed already: one more object would make it two.
        click.echo(f"scoreshield: ledger: {faults} checks failed", err=True)
        click.get_current_context().exit(exit_code(IntegrityFailure()))


@ledger.command("abandon")
@_config_argument
@click.option("--release", "name", help="Name of a run that CONFIG no longer leads to.")
@_json_option
def ledger_abandon(config: Path, name: str | None, as_json: bool) -> None:
    """Give up the unfinished release of CONFIG; its budget stays spent, its key is destroyed.

    Example: scoreshield ledger abandon configs/quickstart.yaml
    """
    from pipeline.config.yaml import load_config
    from pipeline.run.abandon import abandon
    from pipeline.run.status import account_json, account_text

    account = abandon(load_config(config), name)
    _print(as_json, account_json(account), account_text(account))


@cli.group()
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
@_json_option
def cluster_certificates(folder: Path, days: int, as_json: bool) -> None:
    """Make the certificates of a cluster in FOLDER: an authority, and one certificate it signed.

    Example: scoreshield cluster certificates tls
    """
    from pipeline.cluster.certificates import make_certificates

    made = make_certificates(folder, days)
    until = made.valid_until.date().isoformat()
    names = {"ca": made.ca, "certificate": made.certificate, "key": made.key}
    lines = [f"  {name}: {path}" for name, path in names.items()]
    _print(
        as_json,
        {**{name: str(path) for name, path in names.items()}, "valid_until": until},
        "\n".join(["tls:", *lines])
        + f"\nvalid until {until}; whoever holds the key can read the gallery through the cluster",
    )


_listen_option = click.option(
    "--listen", help="Address of this machine to listen at; by default the one others reach it by."
)


@cluster.command("scheduler")
@_config_argument
@_listen_option
def cluster_scheduler(config: Path, listen: str | None) -> None:
    """Run the scheduler of CONFIG until it is ended.

    Example: scoreshield cluster scheduler configs/address.yaml
    """
    from pipeline.cluster.serve import run_scheduler
    from pipeline.config.yaml import load_config

    run_scheduler(load_config(config).cluster, listen)


@cluster.command("worker")
@_config_argument
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
def cluster_worker(config: Path, workers: int, listen: str | None, scratch: Path | None) -> None:
    """Run workers of CONFIG on this machine until they are ended.

    Example: scoreshield cluster worker configs/address.yaml --workers 2
    """
    from pipeline.cluster.serve import run_workers
    from pipeline.config.yaml import load_config

    run_workers(load_config(config).cluster, workers, listen, scratch)


def _check_is_release(folder: Any) -> None:
    """A mistyped path is no damaged release."""
    from pipeline.errors import ConfigurationError

    if not any((folder / name).exists() for name in (MANIFEST, RELEASE_STORE)):
        raise ConfigurationError(
            f"{folder}: expected the folder of a release, with manifest.json and release.zarr; "
            "found neither"
        )


def main() -> None:
    """Run a command; errors become one message and the exit code that belongs to them."""
    from pipeline.errors import ScoreShieldError, exit_code

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
    except ScoreShieldError as error:
        _fail(str(error), exit_code(error), _numbers(error))
    except Exception as error:
        if os.environ.get("SCORESHIELD_DEBUG"):
            raise
        _fail(
            f"{type(error).__name__}: {' '.join(str(error).split())}. This was not foreseen; "
            "finished work is kept, and SCORESHIELD_DEBUG=1 shows where it happened",
            6,
        )


def _numbers(error: Exception) -> dict[str, float]:
    """What an overspend error states, as numbers."""
    from pipeline.ledger import OverspendRefused

    return error.forecast.numbers() if isinstance(error, OverspendRefused) else {}


def _fail(message: str, code: int, numbers: dict[str, float] | None = None) -> None:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": message, "exit_code": code, **(numbers or {})}))
    click.echo(f"scoreshield: {message}", err=True)
    sys.exit(code)


def _not_private_line(reason: str | None) -> str:
    return "" if reason is None else f"NOT PRIVATE: {reason}\n"


def _print(as_json: bool, result: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(result, indent=1) if as_json else text)
