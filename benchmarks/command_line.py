"""The command line of a benchmark, from a table of its options."""

from __future__ import annotations

import argparse
from typing import Any

Option = tuple[Any, str]
"""The default, whose type is that of the option, and what it is; a list takes several values."""


def parser(doc: str | None, **options: Option) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the script, with these options."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(made, **options)
    return made


def add_options(parser: argparse.ArgumentParser, **options: Option) -> None:
    """Add options; those that are False by default are flags."""
    for name, (default, words) in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=words)
            continue
        several = isinstance(default, list)
        shown = " ".join(map(str, default)) if several else default
        parser.add_argument(
            flag,
            type=type(default[0] if several else default),
            nargs="+" if several else None,
            default=default,
            help=f"{words} (default {shown})",
        )


JSON: Option = (False, "print one JSON object")
