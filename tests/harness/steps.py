"""Steps of a release, watched as they are taken: the real functions run, and tell of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from pipeline.ledger import Ledger
from pipeline.perturb.keyfile import create_key, destroy_key, store_key
from pipeline.perturb.secret import read_secret
from pipeline.publish.gram import finish
from pipeline.run.folder import RunFolder
from pipeline.run.preflight import preflight
from pipeline.run.record import write_record
from pipeline.run.stages import project, publish
from pipeline.storage.blocks import write_block

STEPS: dict[Callable[..., Any], str] = {
    preflight: "preflight",
    read_secret: "secret",
    Ledger.reserve: "reserve",
    create_key: "key",
    store_key: "key",
    Ledger.commit_key: "commit_key",
    RunFolder.record_start: "record_start",
    write_block: "noise",
    project: "project",
    publish: "publish",
    finish: "manifest",
    Ledger.commit: "commit",
    destroy_key: "destroy_key",
    write_record: "record",
}


def watch(
    patch: pytest.MonkeyPatch,
    before: Callable[[str], None],
    after: Callable[[str], None] = lambda _: None,
) -> None:
    """Tell of each step before it begins and after it has ended, wherever it is called from."""
    owners = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == "pipeline"
    ]
    for owner in (*owners, Ledger, RunFolder):
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value in STEPS:
                patch.setattr(owner, name, _watched(value, STEPS[value], before, after))


def _watched(
    real: Callable[..., Any],
    step: str,
    before: Callable[[str], None],
    after: Callable[[str], None],
) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        before(step)
        result = real(*arguments, **named)
        after(step)
        return result

    return watched
