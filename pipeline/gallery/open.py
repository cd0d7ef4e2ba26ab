"""Opening a gallery of whatever form, and the digest by which the ledger knows it."""

from __future__ import annotations

from pipeline.gallery.dense import dense_digest, open_dense
from pipeline.gallery.sparse import open_sparse, sparse_digest
from pipeline.gallery.store import FORMAT_VERSION, Gallery, Location, attributes_of
from pipeline.storage.layout import GALLERY_MARKER
from pipeline.storage.place import resolved
from scoreshield.errors import InputRejected


def open_gallery(path: Location) -> Gallery:
    """Open the gallery at ``path`` after checking its layout and that every chunk is there.

    The values are not read: their checksums are checked as they are read.

    Raises
    ------
    InputRejected
        There is nothing at ``path``, or something that is not a gallery of this version.
    IntegrityFailure
        It is a gallery whose stored parts are missing, cut short, or contradict one another.
    """
    place = resolved(path)
    attributes = attributes_of(place)
    if attributes is None:
        found = "something else" if place.exists() else "nothing"
        raise InputRejected(
            f"{path}: found {found}, expected a gallery. Make one with "
            f"'scoreshield ingest SOURCE {path}'."
        )
    if attributes[GALLERY_MARKER] != FORMAT_VERSION:
        raise InputRejected(
            f"{path}: found a gallery of format version {attributes[GALLERY_MARKER]!r}, expected "
            f"{FORMAT_VERSION}. Ingest its source again with this version of ScoreShield."
        )
    opened = open_sparse if "form" in attributes else open_dense
    return opened(place, attributes)


def content_digest(gallery: Gallery) -> bytes:
    """SHA-256 of what the gallery holds, independent of its chunks; not of its ids.

    Private: a public digest would let anyone test a guessed gallery.
    """
    return sparse_digest(gallery) if gallery.sparse else dense_digest(gallery)
