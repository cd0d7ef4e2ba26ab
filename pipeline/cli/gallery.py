"""The command that makes a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Result, path_or_url, prints_result


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("gallery", type=path_or_url)
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
@prints_result
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
) -> Result:
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
    return Result(
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
