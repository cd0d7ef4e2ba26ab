"""A bad object store: a finished identical release, or exit code 6 and a run that resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.errors import RunFailed, exit_code
from pipeline.run.outcome import Outcome
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE

HANG_UP = 0


def now_and_then(*answers: int | float) -> Callable[[str, str], int | float | None]:
    """Every fourth request meets one of the answers, in turn."""
    seen = 0

    def fault(method: str, path: str) -> int | float | None:
        nonlocal seen
        seen += 1
        return answers[seen // 4 % len(answers)] if seen % 4 == 0 else None

    return fault


def test_errors_and_silence_now_and_then_change_nothing(
    curator: Any, reference: Outcome, bucket: ObjectPath, proxy: Any
) -> None:
    config = curator.load(output=bucket / "public", blocks=bucket / "vault")
    proxy.fault = now_and_then(500, 503, 0.3)
    made = curator.repeatable(config)
    assert proxy.faults > 20
    proxy.fault = None
    assert made.newly
    assert curator.contents(made.path) == curator.contents(reference.path)


@pytest.mark.parametrize(
    "answer",
    [pytest.param(HANG_UP, id="gone"), pytest.param(503, id="slow down", marks=pytest.mark.slow)],
)
def test_an_object_store_that_fails_for_good_leaves_a_run_to_resume(
    curator: Any,
    reference: Outcome,
    bucket: ObjectPath,
    proxy: Any,
    monkeypatch: pytest.MonkeyPatch,
    answer: int,
) -> None:
    monkeypatch.setenv(DEADLINE, "1.5")
    config = curator.load(output=bucket / "public", blocks=bucket / "vault")
    failing = False

    def from_the_third_receipt_on(method: str, path: str) -> int | None:
        nonlocal failing
        failing = failing or (method == "PUT" and path.endswith("/receipts/2.json"))
        return answer if failing else None

    proxy.fault = from_the_third_receipt_on
    with pytest.raises(RunFailed, match="the object store failed") as caught:
        curator.repeatable(config)
    assert exit_code(caught.value) == 6
    assert "\n" not in str(caught.value)
    proxy.fault = None
    assert (bucket / "public" / "gram-not-private").files() == {}
    made = curator.repeatable(config)
    assert curator.contents(made.path) == curator.contents(reference.path)
