"""The configured ledger: opened once, asked what a release may spend, and when one may be made."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pipeline.config.model import Config
from pipeline.errors import BudgetRefused, IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.gallery.store import Gallery, adopt_lineage
from pipeline.ledger import Account, Budget, Ledger, SpendRequest
from pipeline.ledger.account import admitted
from pipeline.ledger.kinds import database_for
from pipeline.storage.durable import make_private
from pipeline.storage.layout import MANIFEST, RUN_RECORD, RUNS
from pipeline.storage.place import Place, one_below
from pipeline.storage.plain_files import read_plain_file
from scoreshield.mechanisms.gaussian import Mechanism

_UNREADABLE = (OSError, ValueError, RecursionError, IntegrityFailure)
"""What reading a record may fail with: it is missing, no JSON, nested without end, or no file."""


def request_for(mechanism: Mechanism) -> SpendRequest:
    """What a release with this mechanism asks of the ledger."""
    guarantee = mechanism.guarantee
    return SpendRequest(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        sensitivity=guarantee.sensitivity.value,
        sigma=mechanism.sigma,
        adjacency=str(guarantee.adjacency),
    )


class ConfiguredLedger:
    """What a configuration says of its ledger, and that ledger once it is there.

    Attributes
    ----------
    budget : the total budget of a gallery
    name : where the ledger is, for people; without a password
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._database = database_for(config.ledger.url)
        self.name = self._database.name
        self.budget = Budget(config.ledger.epsilon, config.ledger.delta)

    @property
    def exists(self) -> bool:
        """Whether there is a database at the configured URL, of whatever kind."""
        return "ledger" in self.__dict__ or self._database.exists()

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger; BudgetRefused where there is none, or none that can be trusted."""
        return Ledger.open(self._config.ledger.url, self._config.private)

    def account(self, lineage: str | None) -> Account | None:
        """The account of a lineage, or None where there is no ledger or no account yet."""
        if lineage is None or not self.exists:
            return None
        return self.ledger.find_account(lineage)

    def opened(self, gallery: Gallery, fingerprint: bytes) -> Ledger:
        """The ledger, with an account for this gallery; made where the configuration allows it.

        Raises
        ------
        BudgetRefused
            There is no ledger or no account, and making one is not allowed or would forget a
            spend.
        """
        if self.account(gallery.lineage) is None:
            self.check_may_create(gallery)
        if not self.exists:
            self._make()
        self.ledger.open_account(gallery.lineage, self.budget, fingerprint)
        return self.ledger

    def initialised(self, gallery: Gallery) -> Account:
        """The gallery's account, in a ledger that is made whatever was released before."""
        self._make()
        return self.ledger.open_account(gallery.lineage, self.budget, content_digest(gallery))

    def recognised(self, gallery: Gallery) -> Gallery:
        """The gallery under the lineage by which the ledger knows its content, if it does.

        So ingesting a source again is no way to a fresh budget, and needs no ``lineage:`` either.
        The values are read only where the ledger has no account for the gallery's own lineage.

        Raises
        ------
        BudgetRefused
            The configuration says another lineage, or there are releases under the gallery's own.
        """
        if not self.exists or self.account(gallery.lineage) is not None:
            return gallery
        holder = self.ledger.lineage_of(content_digest(gallery))
        if holder is None:
            return gallery
        traces, stated = self.earlier_traces(gallery.lineage), self._config.lineage
        if stated is not None or traces:
            found = f"the configuration says {stated}" if stated else str(traces[0])
            raise BudgetRefused(
                f"the ledger knows this gallery's content as lineage {holder}, but it was used as "
                f"lineage {gallery.lineage} ({found}); one content has one budget. Set the "
                f"configuration to lineage {holder} and ingest with --lineage {holder}, if nothing "
                "was released under the other"
            )
        return adopt_lineage(gallery, holder)

    def check_affordable(self, gallery: Gallery, release_id: str, request: SpendRequest) -> None:
        """Refuse a release that the ledger would refuse now, before a cluster is started for it.

        Nothing is written: the reservation, once the cluster is there, is what decides.

        Raises
        ------
        BudgetRefused
            As :meth:`opened`, or the release does not fit what is left.
        """
        account = self.account(gallery.lineage)
        if account is None:
            self.check_may_create(gallery)
            account = Account(gallery.lineage, self.budget, "")
        admitted(account, release_id, request)

    def check_may_create(self, gallery: Gallery | None) -> None:
        """Refuse to open an account where that is not allowed or would forget a spend.

        Parameters
        ----------
        gallery : None where the source was never ingested here, and so has left no trace.

        Raises
        ------
        BudgetRefused
            ``ledger.create`` is not set, or there are earlier releases or runs.
        """
        found = "no account for this gallery" if self.exists else "no ledger"
        if not self._config.ledger.create:
            raise BudgetRefused(
                f"{self.name}: found {found}. Make one with 'scoreshield ledger init CONFIG', or "
                "set ledger.create: true to let the first release of a gallery make it"
            )
        traces = self.earlier_traces(gallery.lineage) if gallery is not None else []
        traces += self._unaccounted_releases()
        if traces:
            raise BudgetRefused(
                f"{self.name}: found {found}, but an earlier release or run is there "
                f"({traces[0]}), so what this gallery spent is unknown. Restore the ledger from a "
                "backup, or name another output if that release is of another gallery; only if the "
                "ledger is lost for good, make one with 'scoreshield ledger init CONFIG', and "
                "answer for the earlier spend"
            )

    def earlier_traces(self, lineage: str) -> list[Place]:
        """Releases and runs of a gallery lineage that lie beside this configuration."""
        # A run is recorded before its first noise, and stays recorded when it is abandoned.
        runs = one_below(self._config.private / RUNS, RUN_RECORD)
        published = [
            file.parent
            for file in self._manifests()
            if _may_be_of(lineage, file, "composition", "lineage")
        ]
        return published + [file.parent for file in runs if _may_be_of(lineage, file, "lineage")]

    def _unaccounted_releases(self) -> list[Place]:
        """Releases in the output folder whose lineage the ledger does not know.

        With the private folder a gallery loses its lineage, and then nothing tells whether they
        are releases of it under its old one.
        """
        known = self.ledger.lineages() if self.exists else ()
        return [file.parent for file in self._manifests() if not _is_accounted(file, known)]

    def _manifests(self) -> list[Place]:
        return one_below(self._config.output, MANIFEST)

    def _make(self) -> None:
        make_private(self._config.private)
        if self._config.ledger.file is not None:
            self._config.ledger.file.parent.mkdir(parents=True, exist_ok=True)
        self._database.make()


def _is_accounted(manifest: Place, known: tuple[str, ...]) -> bool:
    """Whether a manifest names a lineage of the ledger, or says that nothing was spent on it."""
    try:
        found = json.loads(read_plain_file(manifest))
        return found["private"] is False or found["composition"]["lineage"] in known
    except (*_UNREADABLE, KeyError, TypeError):
        return False


def _may_be_of(lineage: str, file: Place, *place: str) -> bool:
    """Whether a record names a lineage, or can't be read and so may have named it."""
    try:
        found: Any = json.loads(read_plain_file(file))
    except _UNREADABLE:
        return True
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return bool(found == lineage)
