"""The end of a release: its spend committed, its key destroyed, its private record written."""

from __future__ import annotations

from pipeline.config.model import Config
from pipeline.errors import IntegrityFailure
from pipeline.gallery.open import content_digest
from pipeline.perturb.keyfile import destroy_key
from pipeline.publish.signing import public_key, signing_key
from pipeline.reader.open import open_release
from pipeline.run.budget import ConfiguredLedger
from pipeline.run.from_budget import FromBudget
from pipeline.run.outcome import Outcome
from pipeline.run.output import release_claim
from pipeline.run.prepare import run_folder
from pipeline.run.record import Timings, write_record
from pipeline.run.run import Run
from pipeline.run.sameness import check_same_release, check_started_on
from pipeline.storage.layout import MANIFEST
from pipeline.storage.place import Place
from scoreshield.manifest.schema import Manifest


def conclude(run: Run, newly: bool, timings: Timings) -> Outcome:
    """Settle a published release, also where an earlier attempt got no further.

    Parameters
    ----------
    newly : whether this attempt has published it
    """
    manifest = _signed_manifest(run.config, run.release)
    check_same_release(run, manifest)
    if not newly:
        check_started_on(run, content_digest(run.gallery))
    run.spending.settle(run, newly)
    if newly or not run.folder.finished_record.exists():
        write_record(run, manifest, timings if newly else None)
    release_claim(run.folder, run.release)
    run.folder.discard_published()
    return Outcome(run.release, newly, manifest)


def finished_period(config: Config, ledger: ConfiguredLedger) -> Outcome | None:
    """The scheduled release of a period that is published, whatever became of its gallery since.

    The gallery of a schedule changes between its releases, and a job that is started once more must
    not fail for it. A spend that is only reserved yet is committed, and the key destroyed.
    """
    release_id = str(config.release)
    folder = run_folder(config, FromBudget.folder, release_id)
    published = config.output / release_id
    settings = folder.load_settings()
    if settings is None or not (published / MANIFEST).exists():
        return None
    with folder.locked():
        manifest = _signed_manifest(config, published)
        if manifest.release_id != release_id:
            raise IntegrityFailure(
                f"{published} holds release {manifest.release_id}, expected {release_id}; "
                "somebody put it there. Remove it, or name another output folder"
            )
        ledger.ledger.commit(str(settings["lineage"]), release_id)
        destroy_key(folder.key_file)
        release_claim(folder, published)
        folder.discard_published()
    return Outcome(published, False, manifest)


def _signed_manifest(config: Config, release: Place) -> Manifest:
    """The manifest of a published release, once this curator's signature is found on it."""
    curator = public_key(signing_key(config.private, config.output))
    return open_release(release, verify_key=curator).manifest
