"""Commands: exit codes, one line an error, results a machine can read, a quick start."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from pipeline.cli import main as cli
from scoreshield.projection import METHODS
from tests.harness.command import COMMAND, end_of
from tests.harness.curator import ONE_WORKER, Curator

SETTINGS: dict[str, Any] = {
    "gallery": "faces.npy",
    "privacy": {"epsilon": 8.0, "delta": 1e-6, "adjacency": "output", "radius": 1.0},
    "projection": {"method": "none"},
    "arrays": ["gram"],
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": True},
    "cluster": ONE_WORKER,
}


@pytest.fixture
def shell(tmp_path: Path) -> Curator:
    """A folder in which commands run in this process."""
    np.save(tmp_path / "faces.npy", np.random.default_rng(1).normal(size=(40, 4)))
    made = Curator(tmp_path, dict(SETTINGS))
    made.configure()
    return made


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
def test_every_command_explains_itself(shell: Curator, words: tuple[str, ...]) -> None:
    ended = shell.command(*words, "--help")
    assert ended.returncode == 0
    assert f"Example: scoreshield {' '.join(words)} " in ended.stdout
    # A service runs until it is ended, and so has no result.
    services = (("cluster", "scheduler"), ("cluster", "worker"))
    assert ("--json" in ended.stdout) == (words not in services)


def test_the_help_names_commands_and_exit_codes(shell: Curator) -> None:
    ended = shell.command("--help")
    assert ended.returncode == 0
    for words in commands():
        assert words[0] in ended.stdout
    assert "Exit codes: 0 done; 2 usage" in " ".join(ended.stdout.split())
    assert shell.command().returncode == 2


def test_the_help_of_release_lists_every_projection_method(shell: Curator) -> None:
    shown = shell.command("release", "--help").stdout.split("Projection methods:")[1]
    assert [line.split()[0] for line in shown.splitlines() if line[2:3].strip()] == list(METHODS)


def test_help_answers_in_half_a_second() -> None:
    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Of the processor alone, and once out of several times: other processes can only add to it,
    # as they do to the start of the language itself, which takes a fortieth of a second.
    limits = (max(0.5, 20 * seconds(sys.executable, "-c", "pass")) for _ in range(20))
    assert any(seconds(COMMAND, "--help") < limit for limit in limits)


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
def test_wrong_usage_is_2(shell: Curator, arguments: tuple[str, ...], said: str) -> None:
    shell.command(*arguments).assert_one_line(2, said)
    failed = shell.command(*arguments, "--json")
    assert failed.json["exit_code"] == 2
    assert said in failed.json["error"]


@pytest.mark.parametrize("command", ["plan", "status", "release"])
def test_a_missing_source_is_3(shell: Curator, command: str) -> None:
    shell.configure(gallery="nowhere.npy")
    shell.command(command, "release.yaml").assert_one_line(3, "nowhere.npy: does not exist")


def test_a_refused_budget_is_4(shell: Curator) -> None:
    shell.configure(
        ledger={"url": "sqlite:///ledger.db", "epsilon": 9.0, "delta": 1e-6, "create": False}
    )
    shell.command("release", "release.yaml").assert_one_line(4, "found no ledger")
    shell.command("ledger", "show", "release.yaml").assert_one_line(4, "nothing is recorded")


def test_an_overspend_is_4_with_its_four_numbers(shell: Curator) -> None:
    shell.configure(privacy={"epsilon": 10.0, "delta": 1e-6, "adjacency": "record"})
    failed = shell.command("release", "release.yaml", "--json")
    failed.assert_one_line(4, "requested epsilon 10.0")
    assert failed.json == {
        "error": failed.json["error"],
        "exit_code": 4,
        "spent": 0.0,
        "requested": 10.0,
        "remaining": 9.0,
        "largest": 9.0,
    }
    # The gallery is made and can be released for less; nothing is left of the run.
    assert list(shell.root.glob("private/galleries/*/gallery.zarr"))
    assert not (shell.root / "private" / "runs").exists()
    assert not (shell.root / "releases").exists()


def test_a_damaged_release_is_5_and_stays_one_document(shell: Curator) -> None:
    shell.command("verify", "release").assert_one_line(2, "expected the folder of a release")
    (shell.root / "release" / "release.zarr").mkdir(parents=True)
    failed = shell.command("verify", "release", "--json")
    failed.assert_one_line(5, "release: 1 checks failed")
    assert failed.json["ok"] is False
    shell.command("show", "release").assert_one_line(5, "manifest.json can't be read")
    assert shell.command("show", "release", "--json").json["exit_code"] == 5


def test_what_was_not_foreseen_is_6_on_one_line(
    shell: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("pipeline.forecast.preview.preview", fail)
    failed = shell.command("plan", "release.yaml")
    failed.assert_one_line(6, "ZeroDivisionError: by zero. This was not")
    monkeypatch.setenv("SCORESHIELD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        shell.command("plan", "release.yaml")


def test_a_whole_release_in_machine_words(shell: Curator) -> None:
    """Every command with --json prints one document and nothing else on standard output."""
    assert shell.command("ledger", "init", "release.yaml", "--json").json["spent"] == 0
    assert shell.command("plan", "release.yaml", "--json").json["ledger"]["fits"] is True
    assert shell.command("status", "release.yaml", "--json").json["stage"] == "not started"
    made = shell.command("release", "release.yaml", "--json")
    assert made.returncode == 0
    assert made.json["newly_released"] is True
    assert all(json.loads(line) for line in made.stderr.splitlines())
    path = made.json["path"]
    assert shell.command("release", "release.yaml", "--json").json["newly_released"] is False
    assert shell.command("status", "release.yaml", "--json").json["stage"] == "released"
    verified = shell.command("verify", path, "--json")
    assert verified.json["ok"] is True
    stages = [json.loads(line)["stage"] for line in verified.stderr.splitlines()]
    assert "checksums of gram" in stages
    assert shell.command("show", path, "--json").json["release_id"] == made.json["release_id"]
    (entry,) = shell.command("ledger", "show", "release.yaml", "--json").json["releases"]
    assert entry["state"] == "committed"
    refused = shell.command("ledger", "abandon", "release.yaml")
    refused.assert_one_line(4, "can't be abandoned any more")
    for words in (("plan",), ("status",), ("release",), ("ledger", "show")):
        assert shell.command(*words, "release.yaml").returncode == 0
    assert_a_lost_signing_key_is_missed(shell)
    chunk = next(Path(path).glob("release.zarr/gram/c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    shell.command("verify", path).assert_one_line(5, "checks failed")


def assert_a_lost_signing_key_is_missed(shell: Curator) -> None:
    """Neither the finished release nor a new one goes on under another key; nothing is spent."""
    key = shell.root / "private" / "signing-key.pem"
    kept = key.read_bytes()
    key.unlink()
    shell.configure("second.yaml", release="second")
    for name in ("release.yaml", "second.yaml"):
        shell.command("release", name).assert_one_line(5, "the signing key is gone, while ")
    assert not key.exists()
    assert not (shell.root / "private" / "runs" / "second").exists()
    assert len(shell.command("ledger", "show", "release.yaml", "--json").json["releases"]) == 1
    key.write_bytes(kept)
    key.chmod(0o600)


def test_ingest_in_machine_words(shell: Curator) -> None:
    made = shell.command("ingest", "faces.npy", "faces.zarr", "--json")
    assert (made.json["n"], made.json["d"]) == (40, 4)
    assert len(made.json["lineage"]) == 32
    again = shell.command("ingest", "faces.npy", "faces.zarr")
    again.assert_one_line(3, "a gallery exists there already")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_6_on_one_line_and_can_be_resumed(
    shell: Curator, number: signal.Signals
) -> None:
    """As a terminal does it: the signal goes to every process of the command."""
    np.save(shell.root / "faces.npy", np.random.default_rng(1).normal(size=(3000, 4)))
    shell.configure(block_side=64)
    process = shell.start("release", "release.yaml", "--json")
    assert process.stderr is not None
    seen = ""
    while '"stage": "perturb"' not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen = line
    os.killpg(process.pid, number)
    ended = end_of(process)
    ended.assert_one_line(6, "interrupted; run the same command again to resume")
    assert ended.json["exit_code"] == 6
    found = shell.command("status", "release.yaml", "--json").json
    assert found["stage"] == "perturb"
    assert found["ledger"]["releases"][0]["state"] == "reserved"
