"""Where a run writes: whether it can, and that it alone does.

In the private folder the run's own lock keeps other processes away. A place that several machines
may share, an output in an object store or noisy blocks outside the private folder, is held by a
claim, from before anything is spent. An output's is given back when the release is published or
given up; that of noisy blocks stays as long as they do, so that no other run takes them for its
own.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace

from pipeline.errors import ConfigurationError
from pipeline.publish.gram import check_directory
from pipeline.run.folder import RunFolder
from pipeline.run.run import Run
from pipeline.storage.claim import claim, own_token, read_claim
from pipeline.storage.layout import BLOCKS_CLAIM, OUTPUT_CLAIMS, RELEASE_STORE
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, delete
from scoreshield.errors import ScoreShieldError


@contextlib.contextmanager
def checked_places(run: Run) -> Iterator[None]:
    """Find out before anything is spent whether blocks and release can be written; the body spends.

    Where the body refuses, what was claimed for a run that has not started is given back.

    Raises
    ------
    ConfigurationError
        Nothing can be written there, something is in the way, or another run holds the place.
    RunFailed
        An object store does not answer.
    """
    try:
        _hold_blocks(run.folder)
        _check_output(run)
        yield
    except ScoreShieldError:
        if run.folder.load_settings() is None:
            # What can't be given back now stays this run's, which can be repeated.
            with contextlib.suppress(ScoreShieldError):
                release_claim(run.folder, run.release)
                _give_back_blocks(run.folder)
        raise


def probe(place: ObjectPath) -> None:
    """Make, read and delete a small object, as a run will do there with large ones.

    Raises
    ------
    ConfigurationError
        There is no such bucket, the credentials don't allow it, or it has no conditional writes.
    RunFailed
        The object store does not answer.
    """
    trial = place / f".probe-{secrets.token_hex(8)}"
    trial.create(b"")
    trial.read_bytes()
    trial.delete()


def release_claim(folder: RunFolder, release: Place) -> None:
    """Give back the output of a run that is published or given up; another run's is left alone."""
    if isinstance(release, ObjectPath) and _is_held(folder, _claim_of(release)):
        _claim_of(release).delete()


def remove_unfinished(folder: RunFolder, release: Place) -> None:
    """Remove what an interrupted publication of this run left."""
    if isinstance(release, ObjectPath):
        if _is_held(folder, _claim_of(release)):
            (release / RELEASE_STORE).delete()
            release_claim(folder, release)
        return
    shutil.rmtree(release / RELEASE_STORE, ignore_errors=True)
    with contextlib.suppress(OSError):
        release.rmdir()


def remove_noise(folder: RunFolder) -> None:
    """Remove a run's noisy blocks and what was made of them; blocks of another run are left."""
    if folder.elsewhere is not None and not _is_held(folder, folder.blocks / BLOCKS_CLAIM):
        replace(folder, elsewhere=None).discard_noise()
        return
    folder.discard_noise()
    _give_back_blocks(folder)


def _hold_blocks(folder: RunFolder) -> None:
    """Claim noisy blocks that are not kept in the private folder: receipts vouch for one run's."""
    place = folder.elsewhere
    if place is None:
        return
    if isinstance(place, ObjectPath):
        probe(place.parent)
    held = place / BLOCKS_CLAIM
    if not claim(held, own_token(folder.claim), release=place.name):
        raise ConfigurationError(
            f"blocks: {place} holds noisy blocks of another run, of another private folder. Name "
            "another place, or give the release another name ('release:'); if that run is gone for "
            f"good, delete everything below {place}. Nothing was spent by this attempt"
        )


def _give_back_blocks(folder: RunFolder) -> None:
    place = folder.elsewhere
    if place is None or not _is_held(folder, place / BLOCKS_CLAIM):
        return
    # What is left of the folder is the claim and, on a file system, folders without blocks.
    delete(place)


def _check_output(run: Run) -> None:
    output = run.config.output
    if isinstance(output, ObjectPath):
        probe(output)
        _hold_output(run.folder, output / run.release_id)
        check_directory(run.release)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
        check_directory(run.release)
    except OSError as error:
        raise ConfigurationError(
            f"output: nothing can be written in {output} ({error.strerror}); name "
            "another folder, or change its permissions. Nothing was spent by this attempt"
        ) from error


def _hold_output(folder: RunFolder, release: ObjectPath) -> None:
    held = _claim_of(release)
    if not claim(held, own_token(folder.claim), release=release.name):
        raise ConfigurationError(
            f"output: another run, of another private folder, publishes {release}. Wait for it, or "
            "give the release another name ('release:') or output; if that run is gone for good, "
            f"delete {held} and what is below {release}. Nothing was spent by this attempt"
        )


def _is_held(folder: RunFolder, held: Place) -> bool:
    return read_claim(held).get("token") == own_token(folder.claim)


def _claim_of(release: ObjectPath) -> ObjectPath:
    # Beside the release, which holds its manifest and its store and nothing else.
    return release.parent / OUTPUT_CLAIMS / release.name
