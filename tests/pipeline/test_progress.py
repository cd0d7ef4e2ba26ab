"""Progress: lines a machine can read, bars that leave a terminal as they found it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

from pipeline import progress
from pipeline.progress import Bars, Checking, JsonLines, Tee, standard_reporter

NOW = "2026-11-29T12:00:00.000+00:00"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fresh = Clock()
    monkeypatch.setattr(progress, "time", fresh)
    monkeypatch.setattr(progress, "_now", lambda: NOW)
    return fresh


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = [json.loads(line, parse_constant=refuse) for line in stream.getvalue().splitlines()]
    assert all(event.pop("time") == NOW for event in found)
    return found


def test_at_most_one_advance_a_second_is_written(clock: Clock) -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.begin("perturb", 1000, "blocks")
    for done in range(1, 1001):
        clock.now += 0.01
        lines.advance(done)
    lines.end(blocks=1000)
    found = events(stream)
    assert found[0] == {"event": "begin", "stage": "perturb", "total": 1000, "unit": "blocks"}
    assert found[-1] == {"event": "end", "stage": "perturb", "seconds": 10.0, "blocks": 1000}
    assert 9 <= len(found) - 2 <= 10
    assert all(event["event"] == "advance" for event in found[1:-1])


def test_a_report_after_the_end_of_its_stage_is_dropped(clock: Clock) -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.begin("project", None, "iterations")
    lines.end()
    clock.now += 5
    lines.advance(7, residual=0.5)
    assert [event["event"] for event in events(stream)] == ["begin", "end"]


def test_numbers_that_json_lacks_are_null(clock: Clock) -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.begin("project", None, "iterations")
    clock.now += 2
    lines.advance(1, residual=float("nan"))
    lines.note("strange", value=float("inf"))
    assert events(stream)[1]["residual"] is None
    assert events(stream)[2] == {"event": "strange", "value": None}


def test_lines_are_written_at_once(clock: Clock) -> None:
    flushed = []

    class Stream(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    JsonLines(Stream()).note("reserved", release="gram-a")
    assert flushed == [f'{{"time": "{NOW}", "event": "reserved", "release": "gram-a"}}\n']


def test_a_tee_tells_everybody(clock: Clock) -> None:
    streams = io.StringIO(), io.StringIO()
    tee = Tee(*(JsonLines(stream) for stream in streams))
    tee.begin("publish", 2, "blocks")
    clock.now += 1
    tee.advance(1)
    tee.end()
    tee.note("done")
    assert len(events(streams[0])) == 4
    assert streams[0].getvalue() == streams[1].getvalue()


def test_what_is_checked_becomes_stages(clock: Clock) -> None:
    stream = io.StringIO()
    checking = Checking(JsonLines(stream))
    for done in (1, 2):
        checking("checksums of gram", done, 2)
    checking("digests", 1, 3)
    found = [(event["event"], event["stage"]) for event in events(stream)]
    assert found == [
        ("begin", "checksums of gram"),
        ("end", "checksums of gram"),
        ("begin", "digests"),
    ]


def test_no_terminal_means_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with standard_reporter() as reporter:
        reporter.note("reserved", release="gram-a")
    captured = capsys.readouterr()
    line = json.loads(captured.err)
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert line == {"event": "reserved", "release": "gram-a"}
    assert captured.out == ""


ON_A_TERMINAL = """
from pipeline.progress import standard_reporter
with standard_reporter() as reporter:
    reporter.begin("ingest", 3, "records")
    reporter.advance(3)
    reporter.end()
    reporter.note("reserved", release="gram-a", epsilon=8.0)
    reporter.begin("project", None, "iterations")
    reporter.advance(4, residual=0.00123)
    reporter.end(rank=7)
    reporter.advance(5, residual=0.1)
    reporter.begin("publish", 9, "blocks")
    reporter.advance(2)
    {ending}
"""


def on_a_terminal(ending: str) -> tuple[int, str]:
    """Exit code and everything a terminal was sent."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(COLUMNS="120", TERM="xterm")
        script = ON_A_TERMINAL.format(ending=ending)
        os.execv(sys.executable, [sys.executable, "-c", script])  # noqa: S606 (no shell is wanted)
    sent = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        sent += part
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), sent.decode()


def lines_that_stay(sent: str) -> list[str]:
    """What is left on the screen, without colours and bars."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent.replace("\x1b[2K", "\x00"))
    last = [line.rsplit("\x00", 1)[-1] for line in plain.replace("\r\n", "\n").split("\n")]
    return [re.sub(r"[━╸╺ ]+", " ", line).strip() for line in last if line.strip()]


@pytest.mark.parametrize(
    ("ending", "code"), [("reporter.end()", 0), ("raise SystemExit(3)", 3), ("raise OSError", 1)]
)
def test_bars_give_the_terminal_back_however_they_end(ending: str, code: int) -> None:
    found, sent = on_a_terminal(ending)
    assert found == code
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h") > 0
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")


def test_every_stage_keeps_one_line() -> None:
    _, sent = on_a_terminal("reporter.end()")
    stay = lines_that_stay(sent)
    assert [line.split()[0] for line in stay] == ["ingest", "reserved", "project", "publish"]
    assert "3/3 records" in stay[0]
    assert stay[1] == "reserved release gram-a epsilon 8"
    assert "4/4 iterations" in stay[2]
    assert "rank 7" in stay[2]
    assert "9/9 blocks" in stay[3]


def test_bars_without_a_stage_close_quietly() -> None:
    Bars().close()
