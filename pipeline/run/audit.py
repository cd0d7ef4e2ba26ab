"""``scoreshield audit``: the claim of a configuration, tested on releases that nobody keeps.

The worst-case audit needs no data. The attacks run on a sample of the gallery, so their part of the
report is for the curator alone. Nothing is published and no budget is spent: every noisy value is
discarded once it is counted, and only counts of right and wrong guesses are shown.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.model import Config
from pipeline.errors import ConfigurationError
from pipeline.gallery.dense import read_rows
from pipeline.gallery.sparse import read_sparse
from pipeline.gallery.store import Gallery
from pipeline.ingest.sources import prepare_gallery
from pipeline.progress import Reporter
from pipeline.run.gram import gram_mechanism
from scoreshield.arithmetic.fixedpoint import LARGEST_DIMENSION
from scoreshield.audit.attacks import (
    MembershipResult,
    ReconstructionResult,
    hill_climbing,
    membership_inference,
    reconstruction,
    regression,
)
from scoreshield.audit.audit import (
    AuditPlan,
    KeySource,
    Tally,
    conclude,
    fresh_key,
    plan_audit,
    tally_releases,
)
from scoreshield.audit.result import AuditResult
from scoreshield.regimes.registry import REGIMES

CURATOR_ONLY = "CURATOR ONLY: computed from the private gallery; do not publish"

_PARTS = 64
_ATTACKED_RECORDS = 300
_MEMBERSHIP_TRIALS = 2000
_TARGETS = 5
# Hill climbing needs some 20 queries a feature to come within a per cent on clean scores.
_QUERIES_A_FEATURE, _MOST_QUERIES = 20, 4000
_ATTACK_SEED = b"scoreshield audit"


@dataclass(frozen=True)
class AuditReport:
    """What the audit demonstrates, and how far two attacks come on the curator's own gallery."""

    worst_case: AuditResult
    membership: MembershipResult
    reconstructions: tuple[ReconstructionResult, ...]

    @property
    def consistent(self) -> bool:
        """Whether nothing contradicts the claim."""
        return self.worst_case.consistent

    def to_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            "consistent": self.consistent,
            "worst_case": self.worst_case.to_json(),
            "attacks": {
                "notice": CURATOR_ONLY,
                "membership": asdict(self.membership),
                "reconstructions": [asdict(result) for result in self.reconstructions],
            },
        }

    def to_text(self) -> str:
        """The same for a person."""
        return "\n".join(
            [
                self.worst_case.to_text(),
                "",
                f"attacks at the claimed epsilon {self.worst_case.claimed_epsilon:.4g} "
                f"({CURATOR_ONLY})",
                _membership_line(self.membership),
                *(_reconstruction_line(result) for result in self.reconstructions),
            ]
        )


def audit_config(config: Config, reporter: Reporter, keys: KeySource = fresh_key) -> AuditReport:
    """Attack a sample of a configuration's gallery, and audit its claim.

    ``keys`` must be picklable; it supplies the keys of the releases, none of which is kept.

    Raises
    ------
    ConfigurationError
        The configuration releases scores.
    InputRejected
        The source can't be a gallery.
    ParameterError
        The gallery has fewer than 3 records, or the claim allows no pair that could be audited.
    """
    if not REGIMES[config.regime].audited:
        raise ConfigurationError(
            f"regime: the audit knows the worst case of regime gram, found {config.regime}; audit "
            "the same privacy section under regime: gram, whose noise comes from the same mechanism"
        )
    privacy = config.privacy
    plan = plan_audit(
        privacy.epsilon, privacy.delta, privacy.to_adjacency(), privacy.to_score_range()
    )
    gallery = prepare_gallery(config, reporter)
    membership, reconstructions = _attack(config, gallery, keys, reporter)
    processes = config.cluster.workers * config.cluster.threads_per_worker
    tally = _tally_in_processes(plan, keys, processes, reporter)
    return AuditReport(conclude(plan, tally), membership, reconstructions)


def _attack(
    config: Config, gallery: Gallery, keys: KeySource, reporter: Reporter
) -> tuple[MembershipResult, tuple[ReconstructionResult, ...]]:
    rows = _sample(gallery)
    mechanism = gram_mechanism(config, gallery.n, gallery.d)
    targets = min(_TARGETS, len(rows))
    queries = min(_QUERIES_A_FEATURE * gallery.d, _MOST_QUERIES)
    strategies = (hill_climbing, regression)
    reporter.begin("attack", 1 + len(strategies), "attacks")
    membership = membership_inference(rows, mechanism, _MEMBERSHIP_TRIALS, _ATTACK_SEED, keys)
    reporter.advance(1)
    reconstructions = []
    for strategy in strategies:
        reconstructions.append(
            reconstruction(rows, mechanism, strategy, targets, queries, _ATTACK_SEED, keys)
        )
        reporter.advance(1 + len(reconstructions))
    reporter.end()
    return membership, tuple(reconstructions)


def _tally_in_processes(
    plan: AuditPlan, keys: KeySource, processes: int, reporter: Reporter
) -> Tally:
    """All planned releases, in parts on several processes; counts do not depend on the parts."""
    bounds = np.linspace(0, plan.releases, _PARTS + 1).astype(int).tolist()
    parts = [(start, stop) for start, stop in pairwise(bounds) if start < stop]
    reporter.begin("audit", 2 * plan.releases, "releases")
    done, tallies = 0, []
    # Spawned, not forked: the parent may hold threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(parts)), mp_context=context) as pool:
        futures = [pool.submit(tally_releases, plan, start, stop, keys) for start, stop in parts]
        for future in as_completed(futures):
            tallies.append(future.result())
            done += 2 * tallies[-1].releases
            reporter.advance(done)
    reporter.end(releases=done)
    return sum(tallies[1:], start=tallies[0])


def _sample(gallery: Gallery) -> NDArray[np.float32]:
    """At most 300 records (k, d), evenly spaced: galleries are often sorted by class."""
    if gallery.d > LARGEST_DIMENSION:
        raise ConfigurationError(
            f"gallery: the attacks of an audit write records out, and those of {gallery.path} have "
            f"{gallery.d} features, more than {LARGEST_DIMENSION}; audit the same privacy section "
            "on a gallery with fewer features, whose noise comes from the same mechanism"
        )
    count = min(_ATTACKED_RECORDS, gallery.n)
    chosen = [index * gallery.n // count for index in range(count)]
    return np.concatenate([_record(gallery, index) for index in chosen])


def _record(gallery: Gallery, index: int) -> NDArray[np.float32]:
    """One record (1, d), written out."""
    if gallery.sparse:
        return read_sparse(gallery.path, index, index + 1).dense()
    return read_rows(gallery.path, index, index + 1)


def _membership_line(result: MembershipResult) -> str:
    return (
        f"  membership inference, {2 * result.trials} guesses: right in "
        f"{100 * result.clean_success:.1f} % on clean similarities, "
        f"{100 * result.released_success:.1f} % on released ones (AUC {result.released_auc:.3f}); "
        f"chance is 50 %, and no adversary exceeds {100 * result.success_bound:.1f} %"
    )


def _reconstruction_line(result: ReconstructionResult) -> str:
    return (
        f"  {result.strategy}, {result.queries} queries on each of {result.targets} records: "
        f"cosine {result.clean_cosine:.3f} on clean scores, {result.released_cosine:.3f} on "
        f"released ones (the public start has {result.start_cosine:.3f}); the record was "
        f"identified in {100 * result.clean_identified:.0f} % and "
        f"{100 * result.released_identified:.0f} % of the attacks"
    )
