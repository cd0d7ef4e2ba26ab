"""Configurations that are refused: each file says in its first lines how.

``# says:`` is what the message must hold besides the file's name, ``# exit:`` the exit code where
it is not 2. What a text file can't show is built here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "configurations"
FILES = sorted(FOLDER.glob("*.yaml"))


def expectation(path: Path) -> dict[str, str]:
    """The comments at the head of a file, by their names."""
    heads = [line for line in path.read_text().splitlines() if line.startswith("# ")]
    pairs = [line.removeprefix("# ").partition(": ") for line in heads]
    return {name: value for name, _, value in pairs}


def test_the_corpus_has_not_been_lost() -> None:
    assert len(FILES) >= 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["plan", "release"])
def test_a_bad_configuration_is_refused(bench: Any, path: Path, command: str) -> None:
    expected = expectation(path)
    (bench.root / "bad.yaml").write_bytes(path.read_bytes())
    code = int(expected.get("exit", 2))
    named = "bad.yaml: " if code == 2 else ""
    said = bench.refuses(command, "bad.yaml", code=code, names=named, says=expected["says"])
    # Passwords of the corpus, which no message may repeat.
    assert "hunter2" not in said


BUILT = {
    "missing": (None, "can't read this configuration (No such file or directory); expected a YAML"),
    "binary": (b"\x93NUMPY\x01\x00\xff\xfe", "which is no text in UTF-8; expected a YAML file"),
    "null-byte": (b"gallery: a\0b\n", "found a character that is no text (number 11 of the file)"),
    "deep": (b"[" * 5000, "expected settings at most two levels deep, found far more"),
    "long": (b"# " + b"x" * 2**19, "expected a configuration of at most 262144 characters"),
    "long-number": (b"block_side: " + b"9" * 5000, "looks like a number or a date and is none"),
    "utf-16": ("gallery: x".encode("utf-16"), "which is no text in UTF-8"),
    "terminal-codes": (b'"gal\\e[2Jery": 1\n', "unknown key"),
}


@pytest.mark.parametrize("name", BUILT)
def test_what_is_no_text_of_settings_is_refused(bench: Any, name: str) -> None:
    content, says = BUILT[name]
    if content is not None:
        (bench.root / "bad.yaml").write_bytes(content)
    bench.refuses("plan", "bad.yaml", code=2, names="bad.yaml: ", says=says)


def test_a_folder_is_no_configuration(bench: Any) -> None:
    (bench.root / "bad.yaml").mkdir()
    bench.refuses("plan", "bad.yaml", code=2, names="bad.yaml: ", says="(Is a directory)")


def test_a_gallery_is_no_configuration(bench: Any) -> None:
    bench.refuses("plan", "faces.npy", code=2, names="faces.npy: ", says="Is this the gallery?")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "secret.file"),
        (lambda path: path.mkdir(), "secret.file"),
        (lambda path: (path.write_text("a1b2c3d4" * 8), path.chmod(0o644)), "mode 0644"),
        (lambda path: (path.write_text("short"), path.chmod(0o600)), "32 to 4096 bytes, found 5"),
        (lambda path: (path.write_text("a" * 64), path.chmod(0o600)), "which is a placeholder"),
        (lambda path: (path.write_bytes(b""), path.chmod(0o600)), "openssl rand -hex 32"),
    ],
    ids=["missing", "folder", "world-readable", "short", "placeholder", "empty"],
)
def test_a_secret_that_is_none_is_refused(bench: Any, make: Any, says: str) -> None:
    """Where it is read, before anything is spent; the release itself is tested elsewhere."""
    from pipeline.config.yaml import load_config
    from pipeline.errors import ConfigurationError
    from pipeline.perturb.secret import read_secret

    make(bench.root / "secret")
    bench.configure(secret={"file": "secret"})
    with pytest.raises(ConfigurationError) as refused:
        read_secret(load_config(bench.root / "release.yaml").secret)
    assert says in str(refused.value)
    bench.assert_for_people(str(refused.value))


@pytest.mark.parametrize("name", ["unknown-key", "source-missing"])
def test_the_installed_command_refuses_alike(bench: Any, name: str) -> None:
    """In a process of its own, with nothing of the tests in it."""
    (bench.root / "bad.yaml").write_bytes((FOLDER / f"{name}.yaml").read_bytes())
    expected = expectation(FOLDER / f"{name}.yaml")
    command = str(Path(sys.executable).with_name("scoreshield"))
    ended = subprocess.run([command, "release", "bad.yaml"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (int(expected.get("exit", 2)), "")
    assert expected["says"] in ended.stderr
    assert ended.stderr.startswith("scoreshield: ")
    bench.assert_for_people(ended.stderr)


def test_the_good_configuration_of_the_bench_is_one(bench: Any) -> None:
    """Or every refusal above could be of something else."""
    assert bench.run("plan", "release.yaml").code == 0
