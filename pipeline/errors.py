"""The pipeline's errors and the exit code each one ends a command with."""

from __future__ import annotations

from scoreshield.errors import InputRejected as InputRejected
from scoreshield.errors import ParameterError as ParameterError
from scoreshield.errors import ScoreShieldError as ScoreShieldError


class ConfigurationError(ScoreShieldError):
    """The command line or the configuration file asks for something that does not exist."""


class BudgetRefused(ScoreShieldError):
    """The ledger does not allow this spend, or cannot be trusted to say so."""


class IntegrityFailure(ScoreShieldError):
    """Stored bytes are not what was written, or a resumed run is not the run that was started."""


class RunFailed(ScoreShieldError):
    """The run stopped before it finished; running the same command again resumes it."""


EXIT_CODES: dict[type[ScoreShieldError], int] = {
    ConfigurationError: 2,
    ParameterError: 2,
    InputRejected: 3,
    BudgetRefused: 4,
    IntegrityFailure: 5,
    RunFailed: 6,
}


def in_words(error: Exception) -> str:
    """On one line; of the operating system's refusals what and where, without their number."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f" ({error.filename})"
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())


def exit_code(error: ScoreShieldError) -> int:
    """Exit code of the command that ends with ``error`` (6, resumable, when it is not listed)."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return 6
