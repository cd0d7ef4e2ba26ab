"""The release key of a run: made once, or found to be the one it was started with."""

from __future__ import annotations

from pipeline.errors import IntegrityFailure
from pipeline.ledger import Entry
from pipeline.perturb.keyfile import (
    bound_message,
    check_binding,
    commitment,
    commitment_of,
    create_key,
    read_key,
    store_key,
)
from pipeline.perturb.secret import derive_key
from pipeline.run.run import Run
from pipeline.storage.blocks import damaged_blocks


def secure_key(run: Run, entry: Entry, digest: bytes, secret: bytes | None) -> str | None:
    """Make the key once, or check that it is the one this run was started with.

    Returns its commitment, or None where it was destroyed at commit and is not needed any more:
    the release was published before and lost since, and its noisy blocks are whole.

    Parameters
    ----------
    digest : what the key is bound to besides the settings
    secret : of the operator, where one is named

    Raises
    ------
    IntegrityFailure
        The key is gone, is another one, or is bound to another gallery or other settings.
    """
    key_file = run.folder.key_file
    if entry.state == "committed" and not key_file.exists():
        _check_noise_is_whole(run)
        return None
    if key_file.exists():
        check_binding(key_file, digest, run.release_id, run.mechanism)
        if secret is not None and read_key(key_file) != _derived_key(run, digest, secret):
            raise _another_key(run)
    elif secret is not None:
        _store_derived_key(run, entry, digest, secret)
    elif entry.key_commitment is None:
        # Blocks of a key that this ledger never saw must not be taken for this one's.
        run.folder.discard_noise()
        run.folder.make_receipts()
        create_key(key_file, digest, run.release_id, run.mechanism)
    else:
        raise IntegrityFailure(
            f"the key of release {run.release_id} is gone ({key_file}), and fresh noise on the "
            "same gallery would average out with noise already made. Restore the file, or give the "
            "release up with 'scoreshield ledger abandon CONFIG' and release under another name"
        )
    return commitment(key_file)


def _check_noise_is_whole(run: Run) -> None:
    """Once the key is destroyed no block can be made again."""
    damaged = damaged_blocks(run.folder.store, run.plan.geometry)
    if damaged:
        raise IntegrityFailure(
            f"release {run.release_id} was committed and its key destroyed, so its noise can't be "
            f"made again, and {len(damaged)} of {run.plan.geometry.count} noisy blocks in "
            f"{run.folder.store} are missing or damaged (the first is {damaged[0]}). Restore "
            f"{run.folder.path} or {run.release} from a copy; its budget stays spent"
        )


def _store_derived_key(run: Run, entry: Entry, digest: bytes, secret: bytes) -> None:
    """Derive the key from the operator's secret; where its file was lost, it is the same again.

    Raises
    ------
    IntegrityFailure
        The release had another key: the secret, the gallery or a setting is not what it was.
    """
    key = _derived_key(run, digest, secret)
    if entry.key_commitment not in (None, commitment_of(key)):
        raise _another_key(run)
    store_key(run.folder.key_file, key, digest, run.release_id, run.mechanism)


def _derived_key(run: Run, digest: bytes, secret: bytes) -> bytes:
    bound_to = bound_message(digest, run.release_id, run.mechanism)
    return derive_key(secret, run.gallery.lineage, bound_to)


def _another_key(run: Run) -> IntegrityFailure:
    return IntegrityFailure(
        f"release {run.release_id} was started with another key than its secret, gallery and "
        "settings give now, and two noises on one gallery average out. Restore what it was "
        "started with, or give the release up with 'scoreshield ledger abandon CONFIG' and "
        "release under another name"
    )
