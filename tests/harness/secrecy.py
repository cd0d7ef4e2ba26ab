"""What must not be found: keys, clean similarities and records, in every form they could take."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.gallery.dense import read_rows
from tests.harness.curator import Curator, Finished


def forms_of(key: bytes) -> list[bytes]:
    """What a key looks like in files and on screens; inside of base64, at all three alignments."""
    forms = [key, key.hex().encode(), key.hex().upper().encode(), key[::-1], repr(key).encode()]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # Without the digits that share bits with what stands before or after the key.
            forms.append(encode(bytes(before) + key)[4 if before else 0 : 40])
    return forms


def everything_written(finished: Finished) -> dict[Path, bytes]:
    """What a command left behind, files and output, but for the source it was given."""
    root = finished.curator.root
    written = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    written.pop(root / "source.npy")
    assert len(written) > 20
    return {
        **written,
        Path("stdout"): finished.output.encode(),
        Path("stderr"): finished.errors.encode(),
    }


def clean_gram(curator: Curator) -> NDArray[np.float64]:
    gallery = curator.prepared().gallery
    rows = read_rows(gallery.path, 0, gallery.n).astype(np.float64)
    return rows @ rows.T


def clean_patterns(curator: Curator) -> NDArray[np.uint64]:
    """Patterns of the clean matrix of a curator's gallery."""
    clean = clean_gram(curator)
    off_diagonal = clean[~np.eye(len(clean), dtype=bool)]
    return similarity_patterns(clean, off_diagonal, curator.prepared().mechanism.grid)


def similarity_patterns(
    clean: NDArray[np.float64], private: NDArray[np.float64], grid: float
) -> NDArray[np.uint64]:
    """Eight bytes each: a float64 similarity, or two neighbouring float32 ones.

    Integer products in units of 2^-48 and in those of the grid are told apart by their exponents
    alone, so both are here too. ``private`` are the similarities that are not the public 1 of a
    diagonal; pairs that hold one are still eight bytes of which four are private.
    """
    private = private.ravel()
    narrow = clean.astype(np.float32)
    narrow = narrow[:, : narrow.shape[1] // 2 * 2]
    pairs = [narrow[:, start : narrow.shape[1] - start] for start in (0, 1)]
    parts = [
        private,
        private * 2.0**48,
        np.rint(private * 2.0**48).astype(np.int64),
        np.rint(private / grid) * grid,
        np.rint(private / grid),
        np.rint(private / grid).astype(np.int64),
        *(np.ascontiguousarray(pair).view(np.float64).ravel() for pair in pairs),
    ]
    return np.unique(np.concatenate([part.view(np.uint64) for part in parts]))


def record_patterns(curator: Curator) -> NDArray[np.uint64]:
    """Eight bytes each: two neighbouring float32 features of a record, or a wider one.

    As in the source and as in the gallery, there also in integers of 2^-24.
    """
    gallery = curator.prepared().gallery
    fixed = read_rows(gallery.path, 0, gallery.n)
    wide = fixed.astype(np.float64)
    parts = [wide, np.rint(wide * 2.0**24), np.rint(wide * 2.0**24).astype(np.int64)]
    for narrow in (np.load(curator.root / "source.npy"), fixed):
        parts += [
            np.ascontiguousarray(narrow[:, start : narrow.shape[1] - start]).view(np.float64)
            for start in (0, 1)
        ]
    return np.unique(np.concatenate([part.ravel().view(np.uint64) for part in parts]))


def words_of(curator: Curator) -> set[bytes]:
    """Features of a few records as a message or a JSON line would show them."""
    rows = read_rows(curator.prepared().gallery.path, 0, 8)
    source = np.load(curator.root / "source.npy")[:8]
    values = [value for panel in (rows, source) for value in panel.ravel()]
    texts = {repr(value) for value in values} | {repr(float(value)) for value in values}
    texts |= {str(float(value))[:10] for value in values} | {f"{value:.6g}" for value in values}
    return {text.encode() for text in texts}


def assert_no_key(key: bytes, seen: dict[Path, bytes]) -> None:
    for path, content in seen.items():
        assert not any(form in content for form in forms_of(key)), path


def assert_nothing_clean(
    curator: Curator, seen: dict[Path, bytes], patterns: NDArray[np.uint64]
) -> None:
    """None of the patterns outside the gallery itself."""
    gallery = curator.prepared().gallery.path
    for path, content in seen.items():
        assert path.is_relative_to(gallery) or not holds(content, patterns), path


def assert_no_record(curator: Curator, seen: dict[Path, bytes]) -> None:
    """No feature of a record outside the gallery itself, neither in bytes nor in words."""
    assert_nothing_clean(curator, seen, record_patterns(curator))
    gallery, words = curator.prepared().gallery.path, words_of(curator)
    for path, content in seen.items():
        if path.suffix in ("", ".json", ".jsonl") and not path.is_relative_to(gallery):
            assert not any(word in content for word in words), path


def holds(content: bytes, patterns: NDArray[np.uint64]) -> bool:
    """Whether any eight bytes, at any offset, are among the sorted ``patterns``.

    Of eight bytes of which four are zero, such as a value on a coarse grid, two in a row must be:
    one alone may be a padding zero before a noisy float32.
    """
    for offset in range(8):
        size = (len(content) - offset) // 8
        if size < 1:
            continue
        words = np.frombuffer(content, "<u8", size, offset)
        nearest = np.searchsorted(patterns, words).clip(max=len(patterns) - 1)
        # Zero is no secret: padding and grid values at zero look alike.
        found = (patterns[nearest] == words) & (words != 0)
        telling = (words & np.uint64(0xFFFFFFFF) != 0) & (words >> np.uint64(32) != 0)
        if (found & telling).any() or (found[1:] & found[:-1]).any():
            return True
    return False
