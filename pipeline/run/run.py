"""One run: everything it is made of, fixed before it starts.

A run has a regime, which says how its stages are done, and a spending, which says what it costs and
where its key comes from. Nothing else asks which of them it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Client

from pipeline.config.model import Config
from pipeline.gallery.store import Gallery
from pipeline.ingest.queries import Queries
from pipeline.plan.memory import PanelMemory
from pipeline.plan.release import ReleasePlan
from pipeline.progress import Reporter
from pipeline.run.folder import RunFolder
from pipeline.storage.blocks import Receipt
from pipeline.storage.layout import MANIFEST
from pipeline.storage.place import Place
from scoreshield.manifest.schema import Composition, PostProcessing
from scoreshield.mechanisms.gaussian import Mechanism

Task = Callable[[Any, int], Receipt]
"""What makes one noisy block: a job and the block's number in, its receipt out."""


@dataclass(frozen=True)
class Run:
    """Everything a run is made of.

    Attributes
    ----------
    queries : the public queries, of a regime that asks some
    settings : what this run is recorded to have been started with
    release : place of the release
    """

    config: Config
    gallery: Gallery
    regime: RunRegime
    queries: Queries | None
    plan: ReleasePlan
    settings: dict[str, Any]
    release_id: str
    folder: RunFolder
    release: Place
    spending: Spending

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism."""
        return self.plan.mechanism

    @property
    def queries_sha256(self) -> str | None:
        """Digest of the public queries."""
        found: str | None = self.settings.get("queries_sha256")
        return found

    def bound_content(self, gallery_digest: bytes) -> bytes:
        """What the release key is bound to besides the settings: the gallery, and the queries."""
        return self.regime.bound_content(gallery_digest, self.queries)

    @property
    def published(self) -> bool:
        """Whether the release is there, complete: the manifest is written last."""
        return (self.release / MANIFEST).exists()


@dataclass(frozen=True)
class RunRegime:
    """How one regime is run; what it is in numbers and words says :mod:`scoreshield.regimes`.

    Attributes
    ----------
    name : as a configuration gives it
    queries : reads the public queries of a configuration, for records of as many features as the
        function says; None where the regime asks none
    plan : of a configuration, for n records of d features, its queries, and what panels of the
        gallery cost
    settings : what makes such a release what it is, besides what all regimes have
    bound_content : what a key is bound to, from the gallery's digest and the queries
    perturb : the task of one noisy block, and its job with the fields that all regimes have
    project : makes the noisy blocks feasible, and says how
    publish : writes the arrays; yields once a task
    """

    name: str
    queries: Callable[[Config, Callable[[], int]], Queries | None]
    plan: Callable[[Config, int, int, Queries | None, PanelMemory | None], ReleasePlan]
    settings: Callable[[Config, Queries | None], dict[str, Any]]
    bound_content: Callable[[bytes, Queries | None], bytes]
    perturb: Callable[[Run, dict[str, Any]], tuple[Task, Any]]
    project: Callable[[Run, Client, Reporter], PostProcessing]
    publish: Callable[[Run, Client], Iterator[int]]


class Spending(ABC):
    """How a release is paid for."""

    folder: str
    """Where the private folder keeps runs of this kind."""
    name_suffix: str = ""
    """Ends the name of every release of this kind."""
    not_private_reason: str | None = None
    """What the result says of itself where nobody may rely on it; None for a real release."""

    def recognised(self, gallery: Gallery) -> Gallery:
        """The gallery under the lineage that its budget is kept for."""
        return gallery

    def lineage(self, gallery: Gallery) -> str | None:
        """The lineage that the manifest names."""
        return gallery.lineage

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What the run is recorded to have been started with."""
        return settings

    def named_by(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What of its recorded settings a derived name depends on."""
        return settings

    @abstractmethod
    def check_affordable(self, run: Run) -> None:
        """Refuse now what :meth:`secure_key` would refuse once a cluster is there."""

    @abstractmethod
    def secure_key(self, run: Run, digest: bytes, reporter: Reporter) -> str:
        """Spend, then make the key; returns the commitment that every task must find.

        Parameters
        ----------
        digest : content digest of the gallery
        """

    @abstractmethod
    def composition(self, run: Run) -> Composition | None:
        """What the gallery's releases have spent, before and with this one."""

    @abstractmethod
    def settle(self, run: Run, newly: bool) -> None:
        """Once the release is published: commit the spend, then destroy the key; repeatable.

        Parameters
        ----------
        newly : whether this attempt has published it
        """

    @abstractmethod
    def key_origin(self, run: Run) -> str:
        """Where the key comes from, in words; never anything of the key."""
