"""Each kind of error has the exit code that the command line promises."""

from __future__ import annotations

import pytest

from pipeline import errors
from pipeline.errors import (
    BudgetRefused,
    ConfigurationError,
    InputRejected,
    IntegrityFailure,
    ParameterError,
    RunFailed,
    ScoreShieldError,
    exit_code,
)
from pipeline.ledger import OverspendRefused


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ConfigurationError, 2),
        (ParameterError, 2),
        (InputRejected, 3),
        (BudgetRefused, 4),
        (IntegrityFailure, 5),
        (RunFailed, 6),
        (ScoreShieldError, 6),
    ],
)
def test_exit_codes(kind: type[ScoreShieldError], code: int) -> None:
    assert exit_code(kind("message")) == code


def test_a_special_case_has_the_code_of_its_kind() -> None:
    assert exit_code(OverspendRefused.__new__(OverspendRefused)) == 4


def test_every_error_of_the_pipeline_has_a_code() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ScoreShieldError)
    }
    assert kinds - {ScoreShieldError} == set(errors.EXIT_CODES)
