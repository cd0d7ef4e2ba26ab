"""From a YAML file to a configuration: what would silently mislead is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.faults import faults_of
from pipeline.config.model import Config
from pipeline.errors import ConfigurationError
from scoreshield.errors import ScoreShieldError
from scoreshield.printable import printable

_LONGEST_TEXT = 2**18


def load_config(path: Path) -> Config:
    """Read a YAML configuration.

    Raises
    ------
    ConfigurationError
        The file can't be read, isn't a mapping, or a key or value isn't allowed; all faults are
        listed, each with its place.
    """
    content = _parsed(path, _text(path))
    if not isinstance(content, dict):
        found = "a list" if isinstance(content, list) else "a single value"
        raise ConfigurationError(
            f"{path}: expected a mapping of settings such as 'gallery: faces.npy', found "
            f"{'nothing' if content is None else found}; docs/configuration.md lists the keys"
        )
    try:
        return Config.model_validate(content, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise ConfigurationError(
            "\n".join(f"{path}: {fault}" for fault in faults_of(error, Config))
        ) from error
    except ScoreShieldError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST_TEXT + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't read this configuration ({error.strerror}); expected a YAML file, such "
            "as configs/quickstart.yaml"
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path}: can't read this configuration, which is no text in UTF-8; expected a YAML "
            "file. Is this the gallery?"
        ) from error
    if len(text) > _LONGEST_TEXT:
        raise ConfigurationError(
            f"{path}: expected a configuration of at most {_LONGEST_TEXT} characters, found more; "
            "is this the gallery?"
        )
    return text


def _parsed(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (derived from SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {_described(error)}") from None
    except (ValueError, LookupError, AttributeError, TypeError):
        # PyYAML lets through what its own parser stumbles over.
        raise ConfigurationError(
            f"{path}: not valid YAML, somewhere; compare it with configs/quickstart.yaml"
        ) from None
    except RecursionError:
        raise ConfigurationError(
            f"{path}: expected settings at most two levels deep, found far more; compare it with "
            "configs/quickstart.yaml"
        ) from None


def _described(error: yaml.YAMLError) -> str:
    """The fault and its line; not the text around it, which may be data and no configuration."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"found a character that is no text (number {error.position + 1} of the file)"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    said = printable(_in_words(problem or "it has no structure"))
    return f"line {mark.line + 1}: {said}" if mark is not None else said


def _in_words(problem: str) -> str:
    """A complaint of PyYAML with what to do, where its own words leave that to be guessed."""
    if problem.startswith("could not determine a constructor for the tag"):
        return (
            "found a tag, expected plain values; no setting needs what starts with '!', remove it"
        )
    if "unhashable" in problem:
        return "expected text as key, found a list or a mapping"
    if "'\\t'" in problem:
        return "found a tab; indent with spaces"
    return problem


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses what would silently mislead.

    A key given twice, where the last one would win; aliases, which no setting needs and which let
    a short text grow without bound; and numbers to another base than ten (010 is 8, 1:30 is 90).
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                "found what looks like a number or a date and is none; put text in quotes",
                node.start_mark,
            ) from error

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if number and (":" in value or re.match(r"[-+]?0[0-9xXbB_]", value)):
            raise yaml.constructor.ConstructorError(
                None, None, f"expected a number to base ten, found {value!r}", node.start_mark
            )
        return value

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)
