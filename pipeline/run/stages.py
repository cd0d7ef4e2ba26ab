"""The stages that all regimes share, each cut into tasks, each repeatable after a crash."""

from __future__ import annotations

from typing import Any

from distributed import Client

from pipeline.cluster.window import run_tasks
from pipeline.perturb.ids import keep_ids
from pipeline.progress import Reporter
from pipeline.publish.ids import publish_ids
from pipeline.run.run import Run
from pipeline.storage import blocks
from scoreshield.manifest.schema import NoisyRecord, PostProcessing


def perturb(run: Run, client: Client, reporter: Reporter, key_commitment: str) -> NoisyRecord:
    """Make every noisy block that has no intact receipt yet.

    Each task refuses any key but the one of ``key_commitment``.

    Raises
    ------
    IntegrityFailure
        The gallery, the key or the block store is not what it was.
    RunFailed
        A task failed; finished blocks are kept.
    """
    geometry = run.plan.geometry
    keep_ids(run.gallery, run.folder.ids)
    blocks.create_store(run.folder.store, geometry, run.plan.encoding)
    receipts: dict[int, blocks.Receipt] = {}
    reporter.begin("perturb", geometry.count, "blocks")
    task, job = run.regime.perturb(run, _common_fields(run, key_commitment))
    for receipt in run_tasks(client, "perturb", task, job, range(geometry.count)):
        receipts[receipt.block] = receipt
        reporter.advance(len(receipts))
    reporter.end(blocks=geometry.count, bytes=_disk_bytes(run, "perturb"))
    ordered = [receipts[index] for index in range(geometry.count)]
    return NoisyRecord(
        sha256=blocks.combined_digest(ordered),
        blocks=geometry.count,
        block_side=geometry.shape[1],
        dtype=run.plan.encoding.dtype,
        step=run.plan.encoding.step,
        rounding=run.plan.encoding.described(run.mechanism.sigma),
    )


def project(run: Run, client: Client, reporter: Reporter) -> PostProcessing:
    """Make the noisy blocks feasible, as the regime does it; the gallery is not read."""
    return run.regime.project(run, client, reporter)


def _common_fields(run: Run, key_commitment: str) -> dict[str, Any]:
    """What the perturb job of every regime holds: places and settings, no values, no key."""
    return {
        "gallery": run.gallery.path,
        "store": run.folder.store,
        "receipts": run.folder.receipts,
        "key_file": run.folder.key_file,
        "key_commitment": key_commitment,
        "release_id": run.release_id,
        "mechanism": run.mechanism,
        "geometry": run.plan.geometry,
        "sparse": run.gallery.sparse,
    }


def publish(run: Run, client: Client, reporter: Reporter) -> None:
    """Write the arrays of the release afresh, block by block."""
    reporter.begin("publish", run.plan.stages[-1].tasks, "blocks")
    done = 0
    for done, _ in enumerate(run.regime.publish(run, client), start=1):
        reporter.advance(done)
    named = publish_ids(run.release, run.folder.ids)
    if named:
        reporter.note("ids of the records are public", release=run.release_id, ids=named)
    reporter.end(blocks=done, bytes=_disk_bytes(run, "publish"))


def _disk_bytes(run: Run, stage: str) -> int:
    """Bytes that a stage leaves on disk, as planned."""
    return sum(planned.disk_bytes for planned in run.plan.stages if planned.name == stage)
