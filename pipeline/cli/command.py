"""What commands share: their arguments, and how a result is printed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click


class Shown(Protocol):
    """What a command can print."""

    def to_json(self) -> dict[str, Any]:
        """For a machine."""

    def to_text(self) -> str:
        """For a person."""


@dataclass(frozen=True)
class Result:
    """A result in both forms, and the fault that ends its command with exit code 5."""

    machine: dict[str, Any]
    text: str
    fault: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For a machine."""
        return self.machine

    def to_text(self) -> str:
        """For a person."""
        return self.text


def path_or_url(value: Any) -> Any:
    """A path, or a URL of an object store."""
    from pipeline.storage.place import is_url, place_of

    return place_of(value) if isinstance(value, str) and is_url(value) else Path(value)


def prints_result(run: Callable[..., Shown]) -> Callable[..., None]:
    """Give a command ``--json``, and print what it returns; a fault in it exits with 5."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @functools.wraps(run)
    def command(*settings: Any, as_json: bool, **given: Any) -> None:
        from pipeline.errors import IntegrityFailure, exit_code

        shown = run(*settings, **given)
        click.echo(json.dumps(shown.to_json(), indent=1) if as_json else shown.to_text())
        if isinstance(shown, Result) and shown.fault is not None:
            # The result is printed already: one more object would make it two.
            click.echo(f"scoreshield: {shown.fault}", err=True)
            click.get_current_context().exit(exit_code(IntegrityFailure()))

    return command


config_argument = click.argument("config", type=click.Path(path_type=Path))


def takes_config(run: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument CONFIG, and its settings as the first argument."""

    @config_argument
    @functools.wraps(run)
    def command(*, config: Path, **given: Any) -> Any:
        from pipeline.config.yaml import load_config

        return run(load_config(config), **given)

    return command
