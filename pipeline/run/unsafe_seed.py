"""Test mode: noise from a seed that anybody may know, no ledger, and NOT PRIVATE on everything."""

from __future__ import annotations

from typing import Any

from pipeline.config.model import NOT_PRIVATE_SUFFIX
from pipeline.errors import IntegrityFailure
from pipeline.gallery.store import Gallery
from pipeline.perturb.keyfile import (
    bound_message,
    commitment_of,
    destroy_key,
    read_key,
    store_key,
)
from pipeline.perturb.secret import unsafe_key
from pipeline.progress import Reporter
from pipeline.run.run import Run, Spending
from pipeline.storage.layout import TEST_RUNS
from scoreshield.manifest.schema import Composition


class UnsafeSeed(Spending):
    """A release for demonstrations that anybody can repeat.

    Parameters
    ----------
    seed : what its noise follows from
    """

    folder = TEST_RUNS
    name_suffix = NOT_PRIVATE_SUFFIX

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.not_private_reason = (
            f"made in test mode with --unsafe-seed {seed}, so anybody can recompute its noise and "
            "take it off again; no budget was spent and no ledger knows of it"
        )

    def recognised(self, gallery: Gallery) -> Gallery:
        """As it is."""
        return gallery

    def lineage(self, gallery: Gallery) -> str | None:
        """None: no account is kept."""
        return None

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Those of the configuration, and the seed."""
        return {**settings, "unsafe_seed": self._seed}

    def named_by(self, settings: dict[str, Any]) -> dict[str, Any]:
        """All but the lineage, which is random: the same seed gives the same bits anywhere."""
        return {**settings, "lineage": None}

    def check_affordable(self, run: Run) -> None:
        """It costs nothing."""

    def secure_key(self, run: Run, digest: bytes, reporter: Reporter) -> str:
        """Store the key, from the seed alone; returns its commitment.

        Raises
        ------
        IntegrityFailure
            The folder holds another key: a run that this one must not touch, or another gallery.
        """
        reporter.note("NOT PRIVATE", release=run.release_id, reason=self.not_private_reason)
        key_file, bound_to = run.folder.key_file, run.bound_content(digest)
        key = unsafe_key(self._seed, bound_message(bound_to, run.release_id, run.mechanism))
        if not key_file.exists():
            store_key(key_file, key, bound_to, run.release_id, run.mechanism)
        if read_key(key_file) != key:
            raise IntegrityFailure(
                f"{run.folder.path} holds the key of another run, or of another gallery, than this "
                "seed gives; remove that folder if nothing depends on it, or give the release "
                "another name ('release:')"
            )
        return commitment_of(key)

    def composition(self, run: Run) -> Composition | None:
        """None: no ledger knows of it."""
        return None

    def settle(self, run: Run, newly: bool) -> None:
        """Destroy the key; nothing is committed."""
        destroy_key(run.folder.key_file)

    def key_origin(self, run: Run) -> str:
        """The seed, which is no secret."""
        return f"test mode, seed {self._seed}"
