"""The perturb stage against a plain dask.array script, both measured in the same run.

The plain script is the one that a person would write: X @ X.T plus da.random normals, to_zarr. It
knows nothing of privacy: float32 products, a seeded generator, the full square, no receipts. Both
sides read the same rows from Zarr, and each run gets a fresh local cluster of worker processes with
one thread and one BLAS thread each. Repetitions alternate between them, so that a busy machine
slows both, and medians are reported. Compare ratios between machines, not seconds.

    python benchmarks/perturb.py
    python benchmarks/perturb.py --n 40000 --without-baseline --json
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import zarr
from command_line import JSON, parser
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from stage import (
    DELTA,
    EPSILON,
    MEMORY_LIMIT,
    OPTIONS,
    Measurement,
    all_blocks,
    job_fields,
    measured,
    report,
    require_disk,
    scratch,
)

from pipeline.gallery.dense import create_embeddings
from pipeline.gallery.store import panels
from pipeline.perturb.tasks import PerturbJob, perturb_block
from pipeline.plan.gram import plan_release
from pipeline.plan.release import ReleasePlan
from pipeline.storage.blocks import create_store
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.noise.encoding import FLOAT32, Encoding

GALLERY = "gallery.zarr"
PLAIN_CHUNK = 2048
"""Rows of a chunk of X, and so the side of a block of the plain product: as wide as ours."""


def main() -> None:
    arguments = parser(
        __doc__,
        n=(20_000, "records"),
        d=(128, "features"),
        **OPTIONS,
        without_baseline=(False, "measure the perturb stage alone"),
        json=JSON,
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="perturb-benchmark-") as folder:
        place = Path(folder)
        plan = make_inputs(place, arguments.n, arguments.d)
        square = 0 if arguments.without_baseline else 8 * arguments.n**2
        require_disk(place, max(plan.stages[0].disk_bytes, square))
        sides: dict[str, list[Measurement]] = {"perturb": []}
        for _ in range(arguments.repeat):
            sides["perturb"].append(perturb_stage(place, place / GALLERY, plan, arguments.workers))
            if not arguments.without_baseline:
                plain = plain_script(place, plan, arguments.workers)
                sides.setdefault("plain", []).append(plain)
    facts = {"n": arguments.n, "d": arguments.d, "block_side": plan.geometry.shape[0]}
    report(arguments, plan, facts, sides, compared=("plain", "perturb"))


def make_inputs(place: Path, n: int, d: int) -> ReleasePlan:
    """Random unit rows from a fixed seed as a gallery, and the same rows as a plain Zarr array."""
    generator = np.random.default_rng(0)
    gallery = create_embeddings(place / GALLERY, n, d)
    plain = zarr.create_array(
        str(place / "x.zarr"), shape=(n, d), chunks=(min(n, PLAIN_CHUNK), d), dtype="float32"
    )
    for start, stop in panels(n, PLAIN_CHUNK):
        rows: NDArray[np.float32] = to_fixed(generator.standard_normal((stop - start, d)))
        gallery[start:stop] = plain[start:stop] = rows
    mechanism = calibrate_gram(n, d, EPSILON, DELTA)
    return plan_release(mechanism, "none", (), "auto", threads_per_worker=1)


def perturb_stage(
    place: Path,
    gallery: Path,
    plan: ReleasePlan,
    workers: int,
    sparse: bool = False,
    encoding: Encoding = FLOAT32,
) -> Measurement:
    """Our side: the perturb stage as a release runs it, with a fresh key and receipts."""
    with scratch(place / "ours") as folder:
        job = PerturbJob(gallery=gallery, sparse=sparse, **job_fields(folder, plan))
        create_store(job.store, plan.geometry, encoding)
        return all_blocks(folder, workers, perturb_block, job)


def plain_script(place: Path, plan: ReleasePlan, workers: int) -> Measurement:
    """The other side: a few lines of dask.array."""
    # Workers import this file; ours must not carry the memory of what only the other side needs.
    import dask.array as da

    with scratch(place / "theirs") as folder:
        store = folder / "noisy.zarr"

        def run(_: Client) -> None:
            x = da.from_zarr(str(place / "x.zarr"))
            gram = x @ x.T
            noise = da.random.default_rng(0).normal(
                0, plan.mechanism.sigma, size=gram.shape, chunks=gram.chunks
            )
            (gram + noise).to_zarr(str(store))

        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=MEMORY_LIMIT,
                dashboard_address=None,
                local_directory=str(folder / "scratch"),
            ) as cluster,
            Client(cluster) as client,
        ):
            return measured(client, "dask.array", run, store)


if __name__ == "__main__":
    main()
