"""Where a release goes: whether it can be written there, and by this run alone.

On a file system the run's own lock keeps other processes away. In an object store, which runs on
several machines may share, a claim does, from before anything is spent until the release is
published or given up.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator

from pipeline.claim import claim, own_token, read_claim
from pipeline.errors import ConfigurationError
from pipeline.object_path import ObjectPath
from pipeline.place import Place
from pipeline.publish import STORE, check_directory
from pipeline.run import Run, RunFolder
from scoreshield.errors import ScoreShieldError

_CLAIMS = ".publishing"


@contextlib.contextmanager
def checked_output(run: Run) -> Iterator[None]:
    """Find out before anything is spent whether the release can be written; the body spends.

    Where the body refuses, an output that was claimed for a run not yet started is given back.

    Raises
    ------
    ConfigurationError
        Nothing can be written there, something is in the way, or another run publishes a release
        of that name there.
    RunFailed
        The object store does not answer.
    """
    output = run.config.output
    if isinstance(output, ObjectPath):
        probe(output)
        _hold(run.folder, output / run.release_id)
        try:
            check_directory(run.release)
            yield
        except ScoreShieldError:
            if run.folder.load_settings() is None:
                release_claim(run.folder, run.release)
            raise
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
    yield


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
    """Give back the claim of a run that is published or given up; another run's is left alone."""
    if isinstance(release, ObjectPath) and _is_held(folder, release):
        _claim_of(release).delete()


def remove_unfinished(folder: RunFolder, release: Place) -> None:
    """Remove what an interrupted publication of this run left."""
    if isinstance(release, ObjectPath):
        if _is_held(folder, release):
            (release / STORE).delete()
            release_claim(folder, release)
        return
    shutil.rmtree(release / STORE, ignore_errors=True)
    with contextlib.suppress(OSError):
        release.rmdir()


def _hold(folder: RunFolder, release: ObjectPath) -> None:
    held = _claim_of(release)
    if not claim(held, own_token(folder.claim), release=release.name):
        raise ConfigurationError(
            f"output: another run, of another private folder, publishes {release}. Wait for it, or "
            "give the release another name ('release:') or output; if that run is gone for good, "
            f"delete {held} and what is below {release}. Nothing was spent by this attempt"
        )


def _is_held(folder: RunFolder, release: ObjectPath) -> bool:
    return read_claim(_claim_of(release)).get("token") == own_token(folder.claim)


def _claim_of(release: ObjectPath) -> ObjectPath:
    # Beside the release, which holds its manifest and its store and nothing else.
    return release.parent / _CLAIMS / release.name
