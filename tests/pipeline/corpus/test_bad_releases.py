"""Damaged releases and manifests, given to ``verify``, ``show`` and ``manifest verify``.

Each must end with exit code 5, or 2 where the path is no release, and leave everything as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.storage.layout import MANIFEST, RELEASE_STORE

Damage = Callable[[Path], Any]


def edited(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Damage that changes the manifest's content and keeps its form."""

    def damage(release: Path) -> None:
        content = json.loads((release / MANIFEST).read_text())
        change(content)
        (release / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")

    return damage


def written(content: str | bytes) -> Damage:
    """Damage that puts other bytes in the manifest's place."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda release: (release / MANIFEST).write_bytes(data)


def respelt(old: str, new: str) -> Damage:
    """Damage that changes the manifest's text in one place."""

    def damage(release: Path) -> None:
        text = (release / MANIFEST).read_text()
        (release / MANIFEST).write_text(text.replace(old, new, 1))

    return damage


def replaced_by(make: Callable[[Path], Any]) -> Damage:
    """Damage that puts something else than a file in the manifest's place."""

    def damage(release: Path) -> None:
        (release / MANIFEST).unlink()
        make(release / MANIFEST)

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (written(""), "the manifest is not JSON from line 1 on; it was cut short or edited"),
    "cut": (lambda r: os.truncate(r / MANIFEST, 900), "the manifest is not JSON from line"),
    "binary": (written(bytes(range(256))), "the manifest is not JSON"),
    "list": (written("[]"), "the manifest is a list in JSON, expected an object with fields"),
    "number": (written("5"), "the manifest is a single value in JSON"),
    "nothing": (written("null"), "the manifest is a single value in JSON"),
    "deep": (written("[" * 100_000), "the manifest is not JSON"),
    "huge-number": (written('{"schema_version": ' + "9" * 5000 + "}"), "the manifest is not JSON"),
    "other-version": (written('{"schema_version": 2}'), "the manifest has schema_version 2"),
    "no-fields": (written('{"schema_version": 1}'), "release_id: is missing"),
    "huge-file": (written(b" " * (16 * 2**20 + 1)), "expected at most 16777216"),
    "spaces": (
        lambda r: (r / MANIFEST).write_text((r / MANIFEST).read_text() + " "),
        "not in the form in which it was written; it was edited",
    ),
    "unknown-field": (edited(lambda m: m.update(extra=1)), "extra: unknown field"),
    "field-twice": (
        respelt("{", '{"schema_version": 1,'),
        "not in the form in which it was written",
    ),
    "field-missing": (edited(lambda m: m.pop("privacy")), "privacy: is missing"),
    "text-for-epsilon": (
        edited(lambda m: m["privacy"].update(epsilon="one")),
        "privacy.epsilon: expected a number, found 'one'",
    ),
    "bool-for-epsilon": (
        edited(lambda m: m["privacy"].update(epsilon=True)),
        "privacy.epsilon: expected a number, found true",
    ),
    "null-for-sigma": (
        edited(lambda m: m["mechanism"].update(sigma=None)),
        "mechanism.sigma: expected a number, found nothing",
    ),
    "negative-epsilon": (
        edited(lambda m: m["privacy"].update(epsilon=-1.0)),
        "privacy.epsilon: expected a value greater than 0, found -1.0",
    ),
    "infinite-sigma": (
        respelt('"sigma": ', '"sigma": 1e999, "was": '),
        "mechanism.sigma: expected ",
    ),
    "list-for-privacy": (
        edited(lambda m: m.update(privacy=[1])),
        "privacy: expected a mapping of keys to values, found [1]",
    ),
    "nested": (
        written('{"schema_version": 1, "privacy": ' + "[" * 900 + "]" * 900 + "}"),
        "manifest: expected JSON of a few levels",
    ),
    "range-of-three": (
        edited(lambda m: m["mechanism"].update(score_range=[0, 1, 2])),
        "mechanism.score_range: expected at most 2 entries",
    ),
    "range-of-one": (
        edited(lambda m: m["mechanism"].update(score_range=[0])),
        "mechanism.score_range.1: expected one entry more",
    ),
    "list-for-a-parameter": (
        edited(lambda m: m["post_processing"]["parameters"].update(alpha=[1])),
        "post_processing.parameters.alpha: expected text, a finite number, true, false or null",
    ),
    "short-digest": (
        edited(lambda m: m["arrays"]["factor"].update(sha256="ab")),
        "arrays.factor.sha256: expected text of the form ^[0-9a-f]{64}$, found 'ab'",
    ),
    "hidden-line": (
        edited(lambda m: m["privacy"].update(statement="fine\nFAULT none")),
        "holds characters without a glyph",
    ),
    "less-noise": (edited(lambda m: m["mechanism"].update(sigma=0.001)), "signature"),
    "folder": (replaced_by(lambda path: path.mkdir()), "found no regular file"),
    "pipe": (replaced_by(os.mkfifo), "found no regular file"),
    "link": (replaced_by(lambda path: path.symlink_to("/etc/hostname")), "found no regular file"),
    "gone": (
        lambda r: (r / MANIFEST).unlink(),
        "manifest.json can't be read (No such file or directory)",
    ),
    "no-store": (
        lambda r: (r / RELEASE_STORE).rename(r.parent / "elsewhere"),
        "release.zarr",
    ),
    "foreign-file": (lambda r: (r / "note.txt").write_text("x"), "note.txt does not belong"),
    "no-array": (
        lambda r: (r / RELEASE_STORE / "factor").rename(r.parent / "elsewhere"),
        "factor",
    ),
    "cut-metadata": (
        lambda r: (r / RELEASE_STORE / "zarr.json").write_text("{"),
        "zarr.json",
    ),
}
SHOWN = {"less-noise", "no-store", "foreign-file", "no-array", "cut-metadata"}
"""What ``show`` may not notice: it describes the manifest, and reads nothing else."""


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_release_is_refused(
    bench: Any, release_copy: Callable[..., Path], name: str
) -> None:
    damage, says = DAMAGES[name]
    release = release_copy()
    damage(release)
    # A pipe is not read, here or there.
    before = sorted(str(path) for path in bench.root.rglob("*"))
    found = bench.run("verify", str(release))
    assert found.code == 5
    assert says in found.out + found.said
    assert "restore it from a copy" in found.said
    for line in (found.out + found.said).splitlines():
        bench.assert_for_people(line.ljust(21))
    for command in (["show"], ["manifest", "verify", "--key", "0" * 64]):
        ended = bench.run(*command, str(release))
        assert ended.code == 5 or (command == ["show"] and name in SHOWN), ended
        if ended.code:
            bench.assert_for_people(ended.said)
    assert sorted(str(path) for path in bench.root.rglob("*")) == before


@pytest.mark.parametrize(
    "command", [["verify"], ["show"], ["manifest", "verify", "--key", "0" * 64]]
)
@pytest.mark.parametrize("kind", ["missing", "file", "empty", "gallery", "source"])
def test_what_is_no_release_is_refused(bench: Any, command: list[str], kind: str) -> None:
    path = bench.root / "thing"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("x")
    elif kind == "gallery":
        assert bench.run("ingest", "faces.npy", "thing").code == 0
    elif kind == "source":
        path = bench.root / "faces.npy"
    says = "expected the folder of a release, with manifest.json and release.zarr; found neither"
    bench.refuses(*command, str(path), code=2, names=path.name, says=says)


@pytest.mark.parametrize("key", ["", "zz", "0" * 63, "faces.npy"])
def test_what_is_no_public_key_is_refused(
    bench: Any, release_copy: Callable[..., Path], key: str
) -> None:
    release = release_copy()
    said = bench.refuses(
        "manifest", "verify", str(release), "--key", key, code=2, names="64 hexadecimal digits"
    )
    assert "NUMPY" not in said


def test_a_release_is_no_source_and_no_gallery(
    bench: Any, release_copy: Callable[..., Path]
) -> None:
    """Its store is Zarr, but holds several arrays of which none is the embeddings."""
    release = release_copy()
    bench.refuses("ingest", str(release), "faces.zarr", code=3, names=release.name, says="Zarr")
    bench.refuses(
        "ingest",
        str(release / RELEASE_STORE),
        "faces.zarr",
        code=3,
        names=RELEASE_STORE,
        says="a key",
    )
