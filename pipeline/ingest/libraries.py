"""Libraries that only one format needs: extras, imported when a source of that format is opened."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigurationError


def library(module: str, extra: str, path: Path) -> Any:
    """The module that reads ``path``.

    Raises
    ------
    ConfigurationError
        It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{path}: reading this format needs {module.partition('.')[0]}, which is not "
            f"installed: pip install 'scoreshield[{extra}]'"
        ) from error
