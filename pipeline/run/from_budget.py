"""How a release is paid for: from the budget that the ledger keeps for its gallery."""

from __future__ import annotations

from pipeline.gallery.store import Gallery
from pipeline.ledger import Entry
from pipeline.perturb.keyfile import destroy_key
from pipeline.perturb.secret import read_secret
from pipeline.progress import Reporter
from pipeline.run.budget import ConfiguredLedger, request_for
from pipeline.run.keys import secure_key
from pipeline.run.run import Run, Spending
from pipeline.storage.layout import RUNS
from scoreshield.manifest.build import describe_composition
from scoreshield.manifest.schema import Composition


class FromBudget(Spending):
    """A release that the gallery's ledger pays for."""

    folder = RUNS

    def __init__(self, ledger: ConfiguredLedger) -> None:
        self._configured = ledger

    def recognised(self, gallery: Gallery) -> Gallery:
        """By its content, where the ledger has seen that under another lineage."""
        return self._configured.recognised(gallery)

    def check_affordable(self, run: Run) -> None:
        """Whether the release fits what is left of the budget."""
        request = request_for(run.mechanism)
        self._configured.check_affordable(run.gallery, run.release_id, request)

    def secure_key(self, run: Run, digest: bytes, reporter: Reporter) -> str:
        """Reserve the budget, then secure the key: in this order, both before the first noise."""
        # A secret that can't be read is found out before anything is spent.
        secret = read_secret(run.config.secret) if run.config.secret.named else None
        ledger = self._configured.opened(run.gallery, digest)
        lineage = run.gallery.lineage
        entry = ledger.reserve(lineage, run.release_id, request_for(run.mechanism))
        reporter.note("reserved", release=run.release_id, epsilon=entry.request.epsilon)
        found = secure_key(run, entry, run.bound_content(digest), secret)
        if found is None:
            return entry.key_commitment or ""
        ledger.commit_key(lineage, run.release_id, found)
        return found

    def composition(self, run: Run) -> Composition | None:
        """From the ledger's own entries."""
        account = self._configured.ledger.account(run.gallery.lineage)
        names = [entry.release_id for entry in account.entries]
        earlier = account.entries[: names.index(run.release_id)]
        own = account.entries[len(earlier)]
        return describe_composition(
            account.lineage,
            account.budget.epsilon,
            account.budget.delta,
            sum((entry.spend for entry in earlier), start=0 * own.spend),
            own.spend,
        )

    def settle(self, run: Run, newly: bool) -> None:
        """Nothing is recorded where an earlier attempt has settled it."""
        if newly or run.folder.key_file.exists() or self._is_reserved(run):
            self._configured.ledger.commit(run.gallery.lineage, run.release_id)
            destroy_key(run.folder.key_file)

    def key_origin(self, run: Run) -> str:
        """As configured."""
        if run.config.secret.named:
            return "derived from the operator's secret"
        return "drawn from the operating system's generator"

    def _is_reserved(self, run: Run) -> bool:
        account = self._configured.account(run.gallery.lineage)
        entry: Entry | None = account.find(run.release_id) if account is not None else None
        return entry is not None and entry.state == "reserved"
