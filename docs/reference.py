"""Writes the parts of the documents that the code knows best.

``python docs/reference.py`` fills what stands between ``<!-- command NAME -->`` or
``<!-- keys SECTION -->`` and ``<!-- end -->`` from the commands and the configuration's models, and
writes the schema of the manifest. A test tells when it has to be run again.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from pipeline.cli.main import cli
from pipeline.config.model import Config
from scoreshield.manifest.schema import schema_text

DOCS = Path(__file__).resolve().parent
TOP, FURTHER = "of the file", " of other kinds"
MARKED = re.compile(r"<!-- (command|keys) (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def walked(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from walked(command, *words, name)
        else:
            yield " ".join((*words, name)), command


def sections(key: str, *models: type[BaseModel]) -> Iterator[tuple[str, list[type[BaseModel]]]]:
    """Every section of the configuration by its key, with one model or one a kind."""
    yield key, list(models)
    for model in models:
        for name, field in model.model_fields.items():
            inner = models_of(field.annotation)
            if inner:
                yield from sections(name, *inner)


def models_of(annotation: object) -> list[type[BaseModel]]:
    """The models that a value may be of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in models_of(inner)]


COMMANDS = dict(walked(cli))
SECTIONS = dict(sections(TOP, Config))


def command_text(name: str) -> str:
    """How a command is called, what it does, an example, and its options."""
    command = COMMANDS[name]
    context = click.Context(command)
    summary, *_, example = inspect.cleandoc(str(command.help)).split("\n\n")
    options = [one for one in command.params if isinstance(one, click.Option)]
    words = [str(one.human_readable_name) for one in command.params if one not in options]
    words += [f"{one.opts[0]} {one.make_metavar(context)}" for one in options if one.required]
    rows = [(one.opts[0], f"{one.help}{_remark(one)}") for one in options]
    return "\n".join(
        [
            f"```\nscoreshield {name} {' '.join(words)} [OPTIONS]\n```\n",
            f"{summary}\n\nExample: `{example.removeprefix('Example: ')}`\n",
            *_table("option", "meaning", rows=rows),
        ]
    )


def _remark(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return f" ({_listed(option.type.choices, 'or')})"
    others = _listed(option.opts[1:], "or")
    return f" (Also spelled {others}.)" if others else ""


def keys_text(section: str) -> str:
    """The keys of a section, their defaults and meanings; of all its kinds after the first."""
    further = section.endswith(FURTHER)
    first, *others = SECTIONS[section.removesuffix(FURTHER)]
    fields = dict(first.model_fields)
    if further:
        fields = {
            name: field
            for model in others
            for name, field in model.model_fields.items()
            if name not in first.model_fields
        }
    rows = [
        (name, _default(field), _meaning(name, field, others if further else []))
        for name, field in fields.items()
    ]
    return "\n".join(_table("key", "default", "meaning", rows=rows))


def _meaning(name: str, field: FieldInfo, kinds: list[type[BaseModel]]) -> str:
    if not models_of(field.annotation):
        return str(field.description)
    having = [kind.model_fields["kind"] for kind in kinds if name in kind.model_fields]
    named = [str(typing.get_args(kind.annotation)[0]) for kind in having]
    return f"the section [{name}](#{name})" + (f", for {_listed(named, 'and')}" if named else "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if models_of(field.annotation):
        return "see below"
    if field.default is None:
        return "none"
    return f"`{_yaml(field.default)}`"


def _yaml(value: object) -> str:
    """A default as one writes it into a configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(words: typing.Iterable[str], last: str) -> str:
    *before, final = [f"`{word}`" for word in words] or [""]
    return f"{', '.join(before)} {last} {final}" if before else final


def _table(*heads: str, rows: list[tuple[str, ...]]) -> list[str]:
    lines = [heads, *((f"`{key}`", *rest) for key, *rest in rows)]
    first, *others = [f"| {' | '.join(line)} |" for line in lines]
    return [first, "|---" * len(heads) + "|", *others]


GENERATED: dict[str, Callable[[str], str]] = {"command": command_text, "keys": keys_text}


def filled(document: str) -> str:
    """The same document with its marked parts as the code has them now."""
    return MARKED.sub(
        lambda found: (
            f"<!-- {found[1]} {found[2]} -->\n{GENERATED[found[1]](found[2])}\n<!-- end -->"
        ),
        document,
    )


def expected() -> dict[Path, str]:
    """What each of the documents should hold."""
    texts = {
        DOCS / name: filled((DOCS / name).read_text())
        for name in ("commands.md", "configuration.md")
    }
    return {**texts, DOCS / "manifest.schema.json": schema_text()}


if __name__ == "__main__":
    for path, text in expected().items():
        path.write_text(text)
