"""Small releases for the tests of those who read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.small_release import Made, make


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Releases by method and arrays, each made once a session and not to be changed."""
    made: dict[tuple[str, tuple[str, ...]], Made] = {}

    def get(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Made:
        if (method, arrays) not in made:
            made[method, arrays] = make(tmp_path_factory.mktemp(method), method, arrays)
        return made[method, arrays]

    return get


@pytest.fixture
def release_copy(releases: Callable[..., Made], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a release that a test may damage."""

    def copy(method: str = "nearest", arrays: tuple[str, ...] = ("factor", "gram")) -> Path:
        return Path(shutil.copytree(releases(method, arrays).folder, tmp_path / "gram-test"))

    return copy
