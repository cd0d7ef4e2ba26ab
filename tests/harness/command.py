"""The command line, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main as cli

COMMAND = str(Path(sys.executable).with_name("scoreshield"))


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.stdout)

    @property
    def messages(self) -> list[str]:
        """What was written for a person: the lines of errors that are no progress events."""
        return [line for line in self.stderr.splitlines() if line and not line.startswith("{")]

    def assert_one_line(self, code: int, said: str) -> None:
        """The command failed: its one message is a line that says so, and no trace."""
        assert self.returncode == code, self
        assert len(self.messages) == 1, self
        assert self.messages[0].startswith("scoreshield: ")
        assert said in self.messages[0]
        assert "Traceback" not in self.stderr + self.stdout


def run_command(folder: Path, *arguments: str) -> Ended:
    """Run a command in this process, as a shell in ``folder`` would start it."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(file, "utf-8", write_through=True) for file in written)
    with (
        contextlib.chdir(folder),
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["scoreshield", *arguments])
        code = _exit_code()
    return Ended(code, *(file.getvalue().decode() for file in written))


def _exit_code() -> int:
    """That of the command line; it leaves a handler of signals behind."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        cli.main()
    except SystemExit as ended:
        return int(str(ended.code))
    finally:
        signal.signal(signal.SIGTERM, handler)
    raise AssertionError("the command line returned instead of exiting")


def start_command(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, with its output in pipes."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        **options,
    )


def end_of(process: subprocess.Popen[str], seconds: float = 120.0) -> Ended:
    """Wait for a command that was started."""
    out, err = process.communicate(timeout=seconds)
    return Ended(process.returncode, out, err)


def run_process(folder: Path, *arguments: str, **options: Any) -> Ended:
    """Run a command in a process of its own to its end."""
    return end_of(start_command(folder, *arguments, **options))
