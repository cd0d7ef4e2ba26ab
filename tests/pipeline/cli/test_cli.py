"""Commands: exit codes, one line an error, results a machine can read, a quick start."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from pipeline.cli import main as cli
from scoreshield.projection import METHODS

COMMAND = str(Path(sys.executable).with_name("scoreshield"))


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


class Shell:
    """Runs commands in this process, in a folder of their own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = self._capsys.readouterr()
        return Ended(int(str(ended.value.code)), captured.out, captured.err)

    def configure(self, name: str = "release.yaml", **changes: Any) -> None:
        """Write a configuration."""
        settings: dict[str, Any] = {
            "gallery": "faces.npy",
            "privacy": {"epsilon": 8.0, "delta": 1e-6, "adjacency": "output", "radius": 1.0},
            "projection": {"method": "none"},
            "arrays": ["gram"],
            "ledger": {"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": True},
            "cluster": {"workers": 1, "memory_limit": "1GiB"},
        }
        (self.folder / name).write_text(yaml.safe_dump({**settings, **changes}))


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(40, 4)))
    handler = signal.getsignal(signal.SIGTERM)
    made = Shell(tmp_path, monkeypatch, capsys)
    made.configure()
    yield made
    signal.signal(signal.SIGTERM, handler)


def assert_one_line(ended: Ended, code: int, said: str) -> None:
    """The last line, and the only one that is no progress, is the error."""
    assert ended.code == code
    lines = [line for line in ended.err.splitlines() if line and not line.startswith("{")]
    assert len(lines) == 1
    assert lines[0].startswith("scoreshield: ")
    assert said in lines[0]
    assert "Traceback" not in ended.err + ended.out


def commands() -> list[tuple[str, ...]]:
    """Every command with its words."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from walk(inner, (*words, name))
        else:
            yield words

    return list(walk(cli.cli, ()))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_explains_itself(shell: Shell, words: tuple[str, ...]) -> None:
    ended = shell(*words, "--help")
    assert ended.code == 0
    assert f"Example: scoreshield {' '.join(words)} " in ended.out
    # A service runs until it is ended, and so has no result.
    services = (("cluster", "scheduler"), ("cluster", "worker"))
    assert ("--json" in ended.out) == (words not in services)


def test_the_help_names_commands_and_exit_codes(shell: Shell) -> None:
    ended = shell("--help")
    assert ended.code == 0
    for words in commands():
        assert words[0] in ended.out
    assert "Exit codes: 0 done; 2 usage" in " ".join(ended.out.split())
    assert shell().code == 2


def test_the_help_of_release_lists_every_projection_method(shell: Shell) -> None:
    shown = shell("release", "--help").out.split("Projection methods:")[1]
    assert [line.split()[0] for line in shown.splitlines() if line[2:3].strip()] == list(METHODS)


def test_help_answers_in_half_a_second() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([COMMAND, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Of the processor alone, and once out of several times: other processes can only add to it.
    assert any(seconds() < 0.5 for _ in range(20))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("releas",), "No such command 'releas'"),
        (("release",), "Missing argument 'CONFIG'. See 'scoreshield release --help'"),
        (("release", "release.yaml", "--frobnicate"), "No such option"),
        (("release", "a", "b"), "unexpected extra argument"),
        (("ingest", "a", "b", "--zero-rows", "guess"), "guess"),
        (("plan", "missing.yaml"), "missing.yaml: can't read this configuration"),
        (("ledger", "frob"), "See 'scoreshield ledger --help'"),
        (("ingest", "faces.npy", "g", "--lineage", "x"), "expected 32 hexadecimal digits"),
    ],
)
def test_wrong_usage_is_2(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    assert_one_line(shell(*arguments), 2, said)
    failed = shell(*arguments, "--json")
    assert failed.json["exit_code"] == 2
    assert said in failed.json["error"]


@pytest.mark.parametrize("command", ["plan", "status", "release"])
def test_a_missing_source_is_3(shell: Shell, command: str) -> None:
    shell.configure(gallery="nowhere.npy")
    assert_one_line(shell(command, "release.yaml"), 3, "nowhere.npy: does not exist")


def test_a_refused_budget_is_4(shell: Shell) -> None:
    shell.configure(
        ledger={"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": False}
    )
    assert_one_line(shell("release", "release.yaml"), 4, "found no ledger")
    assert_one_line(shell("ledger", "show", "release.yaml"), 4, "nothing is recorded")


def test_an_overspend_is_4_with_its_four_numbers(shell: Shell) -> None:
    shell.configure(privacy={"epsilon": 10.0, "delta": 1e-6, "adjacency": "record"})
    failed = shell("release", "release.yaml", "--json")
    assert_one_line(failed, 4, "requested epsilon 10.0")
    assert failed.json == {
        "error": failed.json["error"],
        "exit_code": 4,
        "spent": 0.0,
        "requested": 10.0,
        "remaining": 9.0,
        "largest": 9.0,
    }
    # The gallery is made and can be released for less; nothing is left of the run.
    assert list(shell.folder.glob("private/galleries/*/gallery.zarr"))
    assert not (shell.folder / "private" / "runs").exists()
    assert not (shell.folder / "releases").exists()


def test_a_damaged_release_is_5_and_stays_one_document(shell: Shell) -> None:
    assert_one_line(shell("verify", "release"), 2, "expected the folder of a release")
    (shell.folder / "release" / "release.zarr").mkdir(parents=True)
    failed = shell("verify", "release", "--json")
    assert_one_line(failed, 5, "release: 1 checks failed")
    assert failed.json["ok"] is False
    assert_one_line(shell("show", "release"), 5, "manifest.json can't be read")
    assert shell("show", "release", "--json").json["exit_code"] == 5


def test_what_was_not_foreseen_is_6_on_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("pipeline.forecast.preview.preview", fail)
    assert_one_line(shell("plan", "release.yaml"), 6, "ZeroDivisionError: by zero. This was not")
    monkeypatch.setenv("SCORESHIELD_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["scoreshield", "plan", "release.yaml"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_whole_release_in_machine_words(shell: Shell) -> None:
    """Every command with --json prints one document and nothing else on standard output."""
    assert shell("ledger", "init", "release.yaml", "--json").json["spent"] == 0
    assert shell("plan", "release.yaml", "--json").json["ledger"]["fits"] is True
    assert shell("status", "release.yaml", "--json").json["stage"] == "not started"
    made = shell("release", "release.yaml", "--json")
    assert made.code == 0
    assert made.json["newly_released"] is True
    assert all(json.loads(line) for line in made.err.splitlines())
    path = made.json["path"]
    assert shell("release", "release.yaml", "--json").json["newly_released"] is False
    assert shell("status", "release.yaml", "--json").json["stage"] == "released"
    verified = shell("verify", path, "--json")
    assert verified.json["ok"] is True
    stages = [json.loads(line)["stage"] for line in verified.err.splitlines()]
    assert "checksums of gram" in stages
    assert shell("show", path, "--json").json["release_id"] == made.json["release_id"]
    (entry,) = shell("ledger", "show", "release.yaml", "--json").json["releases"]
    assert entry["state"] == "committed"
    assert_one_line(shell("ledger", "abandon", "release.yaml"), 4, "can't be abandoned any more")
    for words in (("plan",), ("status",), ("release",), ("ledger", "show")):
        assert shell(*words, "release.yaml").code == 0
    assert_a_lost_signing_key_is_missed(shell)
    chunk = next(Path(path).glob("release.zarr/gram/c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    assert_one_line(shell("verify", path), 5, "checks failed")


def assert_a_lost_signing_key_is_missed(shell: Shell) -> None:
    """Neither the finished release nor a new one goes on under another key; nothing is spent."""
    key = shell.folder / "private" / "signing-key.pem"
    kept = key.read_bytes()
    key.unlink()
    shell.configure("second.yaml", release="second")
    for name in ("release.yaml", "second.yaml"):
        assert_one_line(shell("release", name), 5, "the signing key is gone, while ")
    assert not key.exists()
    assert not (shell.folder / "private" / "runs" / "second").exists()
    assert len(shell("ledger", "show", "release.yaml", "--json").json["releases"]) == 1
    key.write_bytes(kept)
    key.chmod(0o600)


def test_ingest_in_machine_words(shell: Shell) -> None:
    made = shell("ingest", "faces.npy", "faces.zarr", "--json")
    assert (made.json["n"], made.json["d"]) == (40, 4)
    assert len(made.json["lineage"]) == 32
    assert_one_line(shell("ingest", "faces.npy", "faces.zarr"), 3, "a gallery exists there already")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_6_on_one_line_and_can_be_resumed(
    shell: Shell, number: signal.Signals
) -> None:
    """As a terminal does it: the signal goes to every process of the command."""
    np.save(shell.folder / "faces.npy", np.random.default_rng(1).normal(size=(3000, 4)))
    shell.configure(block_side=64)
    process = subprocess.Popen(
        [COMMAND, "release", "release.yaml", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    seen = ""
    while '"stage": "perturb"' not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen = line
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=120)
    ended = Ended(process.returncode, out, err)
    assert_one_line(ended, 6, "interrupted; run the same command again to resume")
    assert ended.json["exit_code"] == 6
    found = shell("status", "release.yaml", "--json").json
    assert found["stage"] == "perturb"
    assert found["ledger"]["releases"][0]["state"] == "reserved"
