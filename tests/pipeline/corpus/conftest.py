"""Commands run on bad input in a folder of their own, and what each of them must not do."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.cli import main as cli

SETTINGS = {
    "gallery": "faces.npy",
    "privacy": {"epsilon": 8.0, "delta": 1e-6, "adjacency": "record"},
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": True},
    "cluster": {"workers": 1, "memory_limit": "1GiB"},
}

LIBRARY_WORDS = re.compile(
    r"Traceback|NoneType|\bNone\b|\bTrue\b|\bFalse\b|[Ee]rrno|<class|\bobject at 0x"
    r"|Input should|should be|should have|should match|valid (tuple|string|integer|number|list|"
    r"dictionary|boolean|path)|valid_|_type\b|pydantic|_parsing"
    r"|constructor|unhashable|codec|positional|keyword argument|recursion|subscriptable|iterable"
    r"|has no attribute|out of range|could not convert|invalid literal|sys\.set_int"
    r"|\b[A-Z][A-Za-z]*(Error|Exception)\b|BadZipFile|This was not foreseen"
    r"|\b(numpy|zarr|h5py|pyarrow|anndata|safetensors|zipfile|yaml|json|pipeline|scoreshield)\.[a-z_]"
    r"+\.?[a-z_]*\("
)
"""What only a programmer understands, in any message of any command."""


def contents(root: Path) -> dict[str, bytes | None]:
    """Every path below a folder with what a file holds; private names included."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in sorted(root.rglob("*"))
    }


@dataclass
class Refusal:
    """How a command refused its input."""

    code: int
    said: str
    """What it printed as its error, without the name of the command."""
    out: str


class Bench:
    """A curator's folder with a good source, good queries and a good configuration."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self._monkeypatch, self._capfd = root, monkeypatch, capfd
        rows = np.random.default_rng(1).normal(size=(12, 4))
        np.save(root / "faces.npy", rows)
        np.save(root / "queries.npy", rows[:3] / np.linalg.norm(rows[:3], axis=1)[:, None])
        self.configure()

    def configure(self, **changes: object) -> None:
        """Write ``release.yaml``."""
        (self.root / "release.yaml").write_text(yaml.safe_dump({**SETTINGS, **changes}))

    assert_for_people = staticmethod(lambda said: assert_for_people(said))

    def run(self, *arguments: str) -> Refusal:
        """Run a command in this process."""
        self._monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capfd.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith("{")]
        said = "\n".join(lines).removeprefix("scoreshield: ")
        return Refusal(int(str(ended.value.code)), said, out)

    def refuses(self, *arguments: str, code: int, names: str, says: str = "") -> str:
        """Run a command that must refuse: with this exit code, in these words, without a trace.

        Returns what it said.
        """
        before = contents(self.root)
        refusal = self.run(*arguments)
        assert (refusal.code, refusal.out) == (code, ""), refusal
        assert names in refusal.said, refusal.said
        assert says in " ".join(refusal.said.split()), refusal.said
        assert_for_people(refusal.said)
        # No gallery, no staging folder, no run, no key, no ledger and so no spend.
        assert contents(self.root) == before
        return refusal.said


def assert_for_people(said: str) -> None:
    """A message is short, can be shown, and speaks of the reader's things."""
    found = LIBRARY_WORDS.search(said)
    assert found is None, f"{found} in: {said}"
    assert all(line.isprintable() and 20 < len(line) < 1200 for line in said.splitlines()), said


@pytest.fixture(scope="session")
def for_people() -> Callable[[str], None]:
    """The assertion that a message is for people."""
    return assert_for_people


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Bench]:
    """A folder in which commands run; their temporary files lie in it as well."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    handler = signal.getsignal(signal.SIGTERM)
    yield Bench(tmp_path, monkeypatch, capfd)
    signal.signal(signal.SIGTERM, handler)
