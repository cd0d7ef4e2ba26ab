"""Ratings: ingest of a large catalogue, and perturb on a subset of it against dense embeddings.

The catalogue is invented: item popularity follows Zipf's law, the activity of users a log-normal
one, pairs are distinct. It is written as a CSV file, whole and for two subsets of its items: some
at random, and those with the most ratings. Ingest is measured on the whole file. Perturb is
measured on the subsets, as a release runs it, against a dense gallery of as many records of d = 128
features; both sides run in turn on fresh local clusters, and medians of ratios are reported.

    python benchmarks/recommender.py
    python benchmarks/recommender.py --items 20000 --users 100000 --ratings 2000000 --subset 4000
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
from command_line import JSON, parser
from numpy.typing import NDArray
from perturb import perturb_stage
from stage import DELTA, EPSILON

from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.open import open_gallery
from pipeline.gallery.sparse import panels_of, row_pointers
from pipeline.gallery.store import Gallery, describe, open_group, panels
from pipeline.ingest.ratings import RatingsOptions, ingest_ratings
from pipeline.plan.gram import GramPlan, plan_release
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.gram import calibrate_gram

DENSE_FEATURES = 128
TARGET = 1.5
_INGEST = """
import resource, sys, time
from pipeline.ingest.ratings import RatingsOptions, ingest_ratings
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, busy = time.perf_counter(), time.process_time()
ingest_ratings(sys.argv[1], sys.argv[2], RatingsOptions("item"))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - start, time.process_time() - busy, 1024 * before, 1024 * peak)
"""


@dataclass(frozen=True)
class Catalogue:
    """Distinct pairs of item and user with a value; items in the order of their popularity."""

    items: NDArray[np.int64]
    users: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class IngestMeasurement:
    """Ingest of one file in a process of its own."""

    wall_seconds: float
    cpu_seconds: float
    bytes_of_imports: float
    peak_bytes: float


def main() -> None:
    arguments = parser(
        __doc__,
        items=(200_000, "of the catalogue"),
        users=(1_000_000, "of the catalogue"),
        ratings=(20_000_000, "of the catalogue"),
        subset=(20_000, "items of a subset"),
        workers=(2, "worker processes"),
        repeat=(2, "repetitions"),
        json=JSON,
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="recommender-benchmark-") as folder:
        place = Path(folder)
        catalogue = invented(arguments.items, arguments.users, arguments.ratings)
        names = np.random.default_rng(3).permutation(arguments.items)
        write_csv(place / "whole.csv", catalogue, names, slice(None))
        size = (place / "whole.csv").stat().st_size
        ingest = measured_ingest(place / "whole.csv", place / "whole.zarr")
        (place / "whole.csv").unlink()
        dense = dense_gallery(place / "dense.zarr", arguments.subset)
        subsets = {
            "random items": names[catalogue.items] < arguments.subset,
            "most rated items": catalogue.items < arguments.subset,
        }
        results = {
            name: against_dense(place, catalogue, names, chosen, dense, arguments)
            for name, chosen in subsets.items()
        }
    report(arguments, size, ingest, results)


def invented(items: int, users: int, ratings: int) -> Catalogue:
    """A catalogue from a fixed seed."""
    random = np.random.default_rng(0)
    popularity = np.cumsum(1 / (np.arange(items) + 10.0))
    activity = np.cumsum(np.exp(1.2 * random.standard_normal(users)))
    pairs = np.empty(0, dtype=np.int64)
    while len(pairs) < ratings:
        count = int(1.3 * (ratings - len(pairs))) + 1000
        item = np.searchsorted(popularity, popularity[-1] * random.random(count))
        user = np.searchsorted(activity, activity[-1] * random.random(count))
        drawn = np.minimum(item, items - 1) * users + np.minimum(user, users - 1)
        pairs = np.unique(np.concatenate([pairs, drawn]))
    chosen = random.permutation(pairs)[:ratings]
    values = random.integers(1, 11, size=ratings) / 2
    return Catalogue(*np.divmod(chosen, users), values)


def write_csv(path: Path, catalogue: Catalogue, names: NDArray[np.int64], chosen: Any) -> None:
    """User, item, rating; items under names that tell nothing of their popularity."""
    columns = {
        "userId": catalogue.users[chosen],
        "itemId": names[catalogue.items[chosen]],
        "rating": catalogue.values[chosen],
    }
    pyarrow.csv.write_csv(pyarrow.table(columns), path)


def measured_ingest(source: Path, target: Path) -> IngestMeasurement:
    """Time and peak memory of an ingest by items."""
    done = subprocess.run(
        [sys.executable, "-c", _INGEST, str(source), str(target)],
        capture_output=True,
        text=True,
        check=True,
    )
    return IngestMeasurement(*map(float, done.stdout.split()))


def dense_gallery(path: Path, n: int) -> Gallery:
    """Random unit rows of 128 features."""
    random = np.random.default_rng(0)
    array = create_embeddings(path, n, DENSE_FEATURES)
    for start, stop in panels(n, 2048):
        array[start:stop] = to_fixed(random.standard_normal((stop - start, DENSE_FEATURES)))
    describe(
        open_group(path, writable=True),
        lineage="0" * 32,
        n=n,
        d=DENSE_FEATURES,
        source_kind="npy",
        zero_rows="refuse",
        substituted=0,
    )
    return open_gallery(path)


def against_dense(
    place: Path,
    catalogue: Catalogue,
    names: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    dense: Gallery,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Perturb on a subset of the items and on the dense gallery, in turn."""
    write_csv(place / "subset.csv", catalogue, names, chosen)
    gallery = ingest_ratings(
        place / "subset.csv", place / "subset.zarr", RatingsOptions("item"), overwrite=True
    )
    sparse_plan, dense_plan = planned(gallery), planned(dense)
    sparse_runs, dense_runs = [], []
    for _ in range(arguments.repeat):
        sparse_runs.append(
            perturb_stage(place, gallery.path, sparse_plan, arguments.workers, sparse=True)
        )
        dense_runs.append(perturb_stage(place, dense.path, dense_plan, arguments.workers))
    pairs = list(zip(sparse_runs, dense_runs, strict=True))
    planned_peak = sparse_plan.stages[0].peak_worker_bytes
    return {
        "records": gallery.n,
        "features": gallery.d,
        "entries": int(row_pointers(gallery.path)[-1]),
        "wall_ratio": statistics.median(a.wall_seconds / b.wall_seconds for a, b in pairs),
        "cpu_ratio": statistics.median(a.cpu_seconds / b.cpu_seconds for a, b in pairs),
        "peak_over_planned": max(one.peak_worker_bytes for one in sparse_runs) / planned_peak,
        "sparse": [asdict(one) for one in sparse_runs],
        "dense": [asdict(one) for one in dense_runs],
    }


def planned(gallery: Gallery) -> GramPlan:
    """The plan of a Gram release without a projection."""
    mechanism = calibrate_gram(gallery.n, gallery.d, EPSILON, DELTA)
    return plan_release(mechanism, "none", (), "auto", 1, panels=panels_of(gallery))


def report(
    arguments: argparse.Namespace,
    size: int,
    ingest: IngestMeasurement,
    results: dict[str, dict[str, Any]],
) -> None:
    if arguments.json:
        print(json.dumps({"bytes": size, "ingest": asdict(ingest), "perturb": results}))
        return
    print(
        f"{arguments.ratings} ratings of {arguments.items} items by {arguments.users} users, "
        f"{size / 2**20:.0f} MiB\n"
        f"ingest: {ingest.wall_seconds:.0f} s, {ingest.cpu_seconds:.0f} s of the processor, peak "
        f"{ingest.peak_bytes / 2**20:.0f} MiB ({ingest.bytes_of_imports / 2**20:.0f} MiB before)"
    )
    for name, result in results.items():
        print(
            f"perturb, {result['records']} {name}, {result['entries']} entries: wall "
            f"{result['wall_ratio']:.2f}, processor {result['cpu_ratio']:.2f} of dense rows of "
            f"{DENSE_FEATURES} (target {TARGET}); peak {result['peak_over_planned']:.2f} of plan"
        )


if __name__ == "__main__":
    main()
