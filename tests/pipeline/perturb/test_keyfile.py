"""The release key: private, bound to one gallery and one set of settings, and gone after commit."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import IntegrityFailure
from pipeline.perturb.keyfile import (
    check_binding,
    commitment,
    create_key,
    destroy_key,
    read_committed_key,
    read_key,
)
from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import Adjacency, ScoreRange

DIGEST = bytes(range(32))
MECHANISM = calibrate_gram(50, 8, 1.0, 1e-6)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "release.key"
    create_key(path, DIGEST, "gram-a", MECHANISM)
    return path


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_key(tmp_path / "release.key", DIGEST, "gram-a", MECHANISM)
    finally:
        os.umask(before)
    assert (tmp_path / "release.key").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["release.key"]


def test_keys_are_256_bits_and_differ(tmp_path: Path) -> None:
    keys = set()
    for number in range(20):
        create_key(tmp_path / str(number), DIGEST, "gram-a", MECHANISM)
        keys.add(read_key(tmp_path / str(number)))
    assert len(keys) == 20
    assert {len(key) for key in keys} == {32}


def test_a_key_is_bound_to_what_it_was_made_for(key_file: Path) -> None:
    check_binding(key_file, DIGEST, "gram-a", MECHANISM)


DIFFERENT: list[tuple[bytes, str, Mechanism]] = [
    (bytes(32), "gram-a", MECHANISM),
    (DIGEST, "gram-b", MECHANISM),
    (DIGEST, "gram-a", replace(MECHANISM, n=51)),
    (DIGEST, "gram-a", replace(MECHANISM, d=9)),
    (DIGEST, "gram-a", replace(MECHANISM, m=1)),
    (DIGEST, "gram-a", replace(MECHANISM, regime="scores")),
    (DIGEST, "gram-a", replace(MECHANISM, sigma=MECHANISM.sigma * (1 + 2.0**-52))),
    (DIGEST, "gram-a", replace(MECHANISM, grid_exponent=MECHANISM.grid_exponent + 1)),
    (DIGEST, "gram-a", replace(MECHANISM, score_range=ScoreRange(0, 1))),
    (DIGEST, "gram-a", calibrate_gram(50, 8, 1.0, 1e-7)),
    (DIGEST, "gram-a", calibrate_gram(50, 8, 2.0, 1e-6)),
    (DIGEST, "gram-a", calibrate_gram(50, 8, 1.0, 1e-6, Adjacency("output", 1.0))),
]


@pytest.mark.parametrize(("digest", "name", "mechanism"), DIFFERENT)
def test_another_gallery_name_or_setting_is_refused(
    key_file: Path, digest: bytes, name: str, mechanism: Mechanism
) -> None:
    with pytest.raises(IntegrityFailure, match="another gallery or with other settings"):
        check_binding(key_file, digest, name, mechanism)


def test_every_setting_of_a_mechanism_is_in_the_binding(key_file: Path) -> None:
    # A field that is added later is covered by asdict; this fails when one stops being so.
    changed = {
        "regime": "scores",
        "n": 51,
        "d": 9,
        "m": 1,
        "score_range": ScoreRange(0, 1),
        "guarantee": replace(MECHANISM.guarantee, epsilon=9.0),
        "implied": replace(MECHANISM.implied, epsilon=9.0),
        "sigma": 1.0,
        "grid_exponent": -3,
    }
    assert changed.keys() == MECHANISM.__dataclass_fields__.keys()
    for name, value in changed.items():
        with pytest.raises(IntegrityFailure):
            check_binding(key_file, DIGEST, "gram-a", replace(MECHANISM, **{name: value}))


def test_a_swapped_key_breaks_the_binding(key_file: Path) -> None:
    content = json.loads(key_file.read_text())
    content["key"] = "11" * 32
    key_file.write_text(json.dumps(content))
    with pytest.raises(IntegrityFailure, match="another gallery"):
        check_binding(key_file, DIGEST, "gram-a", MECHANISM)


def test_the_commitment_identifies_the_key_and_does_not_contain_it(
    key_file: Path, tmp_path: Path
) -> None:
    create_key(tmp_path / "other", DIGEST, "gram-a", MECHANISM)
    assert commitment(key_file) == commitment(key_file) != commitment(tmp_path / "other")
    assert len(commitment(key_file)) == 64
    assert read_key(key_file).hex() not in commitment(key_file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_reach_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(IntegrityFailure, match=f"mode {mode:o}, expected 600.*abandon"):
        read_key(key_file)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def damaged(key: str) -> list[str]:
    whole = json.dumps({"key": key, "binding": "0" * 64})
    return [
        "",
        whole[:-1],
        whole + "x",
        whole.replace('"binding"', '"bound"'),
        json.dumps([key]),
        json.dumps({"key": key + "zz", "binding": ""}),
        json.dumps({"key": key[:-2], "binding": ""}),
        json.dumps({"key": [key], "binding": ""}),
    ]


@pytest.mark.parametrize("case", range(len(damaged(""))))
def test_no_error_shows_the_key(key_file: Path, case: int) -> None:
    key = read_key(key_file).hex()
    key_file.write_text(damaged(key)[case])
    with pytest.raises(IntegrityFailure, match="damaged") as caught:
        read_key(key_file)
    for error in chain(caught.value):
        shown: list[Any] = [error, *error.args, vars(error), pickle.dumps(error)]
        assert all(key[:16] not in str(part) and key[:16] not in repr(part) for part in shown)


def test_a_missing_key_is_an_integrity_failure(tmp_path: Path) -> None:
    with pytest.raises(IntegrityFailure, match="missing or damaged; restore the file, or give"):
        read_key(tmp_path / "release.key")


def test_destroying_overwrites_then_removes(key_file: Path, tmp_path: Path) -> None:
    # A hard link sees what happens to the bytes of a file that is removed.
    os.link(key_file, tmp_path / "link")
    size = key_file.stat().st_size
    destroy_key(key_file)
    assert not key_file.exists()
    assert (tmp_path / "link").read_bytes() == bytes(size)
    destroy_key(key_file)


def test_a_crash_between_overwriting_and_removing_can_be_repeated(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", crash)
    with pytest.raises(KeyboardInterrupt):
        destroy_key(key_file)
    monkeypatch.undo()
    assert set(key_file.read_bytes()) == {0}
    destroy_key(key_file)
    assert not key_file.exists()


def test_a_task_takes_only_the_key_that_was_committed_to(tmp_path: Path) -> None:
    """A key that replaces the run's own between two blocks is found at the next one."""
    mechanism = calibrate_gram(20, 4, 1.0, 1e-6)
    for name in ("own", "other"):
        create_key(tmp_path / name, b"gallery", "release", mechanism)
    committed = commitment(tmp_path / "own")
    assert read_committed_key(tmp_path / "own", committed) == read_key(tmp_path / "own")
    (tmp_path / "other").replace(tmp_path / "own")
    with pytest.raises(IntegrityFailure, match="not the one that this run was started with"):
        read_committed_key(tmp_path / "own", committed)


def test_a_link_in_place_of_the_key_is_not_followed(tmp_path: Path) -> None:
    create_key(tmp_path / "real", b"gallery", "release", calibrate_gram(20, 4, 1.0, 1e-6))
    (tmp_path / "release.key").symlink_to(tmp_path / "real")
    with pytest.raises(IntegrityFailure, match="missing or damaged"):
        read_key(tmp_path / "release.key")
