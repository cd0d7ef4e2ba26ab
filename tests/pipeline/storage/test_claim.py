"""A claim is its holder's alone, on disk and in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.storage.claim import claim, own_token, read_claim
from pipeline.storage.place import Place


@pytest.fixture(params=["on disk", "in an object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place: Place = tmp_path if request.param == "on disk" else request.getfixturevalue("bucket")
    return place


def test_a_claim_is_known_again_by_its_holder_alone(folder: Place, tmp_path: Path) -> None:
    token = own_token(tmp_path / "token")
    assert own_token(tmp_path / "token") == token
    assert claim(folder / "claim", token, release="a")
    assert claim(folder / "claim", token, release="b")
    assert not claim(folder / "claim", "another", release="a")
    assert read_claim(folder / "claim")["release"] == "a"
    assert read_claim(folder / "nothing") == {}


@pytest.mark.parametrize("content", [b"{", b"[]", b"[" * 10**5, b"\xff"])
def test_a_claim_that_makes_no_sense_is_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "claim").write_bytes(content)
    assert not claim(tmp_path / "claim", "token", release="a")
