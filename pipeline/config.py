"""The configuration of a release: strict, frozen, and checked before anything is read or spent.

Relative paths are relative to the configuration's own folder. An unknown key is an error that names
the nearest known one.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.errors import ConfigurationError
from scoreshield.calibration import check_privacy
from scoreshield.errors import ScoreShieldError
from scoreshield.sensitivity import FULL_RANGE, Adjacency, AdjacencyKind, ScoreRange


def _number(value: object) -> object:
    """Refuse YAML booleans, which count as 0 and 1; accept ``1e-6``, which YAML calls text."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {str(value).lower()}")
    return value


def _count_or_auto(value: object) -> object:
    """A union's two complaints about one wrong value, as one."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"expected a whole number or 'auto', found {_shown(value)}")


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
Bytes = Annotated[ByteSize, BeforeValidator(_number)]


class Section(BaseModel):
    """Strict and frozen: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Privacy(Section):
    """The guarantee to give; ``adjacency`` has no default, the curator says what is hidden."""

    epsilon: Number = Field(description="ε of this release.")
    delta: Number = Field(description="δ of this release.")
    adjacency: AdjacencyKind = Field(
        description="What one changed record means: `record` (replaced by any other), `shift` "
        "(moves by at most `radius` in embedding distance) or `output` (the similarities move "
        "by at most `radius` in Frobenius norm)."
    )
    radius: Number | None = Field(
        default=None, description="How far a record, or the output, moves; not for `record`."
    )
    score_range: tuple[Number, Number] | None = Field(
        default=None,
        description="Public promise `[lo, hi]` on every similarity, enforced by clipping before "
        "the noise; `[0, 1]` for non-negative embeddings halves the noise.",
    )

    @model_validator(mode="after")
    def _checked_by_the_mechanism(self) -> Privacy:
        check_privacy(self.epsilon, self.delta)
        self.to_adjacency()
        self.to_score_range()
        return self

    def to_adjacency(self) -> Adjacency:
        """The mechanism's own form of ``adjacency`` and ``radius``."""
        return Adjacency(self.adjacency, self.radius)

    def to_score_range(self) -> ScoreRange:
        """The promised range, or [-1, 1]."""
        return FULL_RANGE if self.score_range is None else ScoreRange(*self.score_range)


class Projection(Section):
    """How the noisy matrix becomes a valid one; post-processing, so it costs no privacy."""

    method: str = Field(
        default="aap", description="Projection method; `scoreshield release --help` lists them."
    )
    tolerance: Number = Field(
        default=1e-4, gt=0, lt=1, description="Residual at which the iteration stops."
    )
    max_iterations: Count = Field(
        default=500, ge=1, description="Iterations after which it stops all the same, and says so."
    )
    rank: CountOrAuto = Field(
        default="auto", description="Rank kept in each iteration; `auto` chooses it."
    )

    @field_validator("method")
    @classmethod
    def _registered(cls, method: str) -> str:
        from scoreshield.projection import METHODS

        if method not in METHODS:
            raise ValueError(f"expected one of {', '.join(METHODS)}, found {method!r}")
        return method

    @field_validator("rank")
    @classmethod
    def _positive(cls, rank: int | str) -> int | str:
        if isinstance(rank, int) and rank < 1:
            raise ValueError(f"expected at least 1 or 'auto', found {rank}")
        return rank


class Ledger(Section):
    """Where spent budget is recorded, and the gallery's total budget."""

    url: str = Field(description="Database URL, for instance `sqlite:///ledger.db`.")
    epsilon: Number = Field(description="ε of the gallery's total budget, over all its releases.")
    delta: Number = Field(description="δ of the gallery's total budget.")
    create: bool = Field(
        default=False,
        description="Let the first release of a gallery make the ledger. Refused where earlier "
        "releases or runs of that gallery are found.",
    )

    @model_validator(mode="after")
    def _budget_in_domain(self) -> Ledger:
        check_privacy(self.epsilon, self.delta)
        return self


class Cluster(Section):
    """The machines that compute."""

    kind: Literal["local"] = Field(
        default="local", description="`local`: worker processes on this machine."
    )
    workers: Count = Field(default=2, ge=1, le=1024, description="Worker processes.")
    threads_per_worker: Count = Field(
        default=1, ge=1, le=256, description="Blocks one worker computes at the same time."
    )
    memory_limit: Bytes = Field(
        default=ByteSize(4 * 2**30),
        ge=256 * 2**20,
        le=2**50,
        description="Memory of one worker, for instance `4GiB`; a plan that needs more is refused.",
    )


_LONGEST_TEXT = 2**18
_RELEASE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ArrayName = Literal["factor", "gram"]


class Config(Section):
    """One release."""

    gallery: Path = Field(description="A gallery, or any source that `scoreshield ingest` reads.")
    key: str | None = Field(
        default=None, description="Which array to read where the source holds several."
    )
    zero_rows: Literal["refuse", "substitute"] = Field(
        default="refuse",
        description="`substitute` maps records without direction to one fixed unit vector.",
    )
    lineage: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{32}$",
        description="Lineage to carry on when the source is a new version of an earlier gallery.",
    )
    output: Path = Field(
        default=Path("releases"),
        validate_default=True,
        description="Folder of published releases, one folder each.",
    )
    private: Path = Field(
        default=Path("private"),
        validate_default=True,
        description="Folder that only the curator can enter: runs, keys, ingested galleries.",
    )
    release: str | None = Field(
        default=None,
        description="Name of the release; by default one is derived from the settings, so that the "
        "same configuration is the same release.",
    )
    regime: Literal["gram"] = Field(
        default="gram", description="What is released: `gram`, the n × n similarities."
    )
    privacy: Privacy
    projection: Projection = Projection()
    arrays: tuple[ArrayName, ...] = Field(
        default=("factor", "gram"),
        min_length=1,
        description="What to publish: `factor` (n × r, with its diagonal), `gram` (dense n × n).",
    )
    ledger: Ledger
    cluster: Cluster = Cluster()
    block_side: CountOrAuto = Field(
        default="auto",
        description="Rows of one block; `auto` chooses it. The noise never depends on it.",
    )

    @field_validator("gallery", "output", "private")
    @classmethod
    def _relative_to_the_configuration(cls, path: Path, info: ValidationInfo) -> Path:
        return _anchored(path, info)

    @field_validator("ledger")
    @classmethod
    def _ledger_relative_to_the_configuration(cls, ledger: Ledger, info: ValidationInfo) -> Ledger:
        prefix = "sqlite:///"
        if not ledger.url.startswith(prefix):
            raise ValueError(f"url: expected sqlite:///PATH, found {ledger.url!r}")
        named = ledger.url.removeprefix(prefix)
        if named in ("", ":memory:") or "?" in named:
            raise ValueError(
                f"url: expected a file after sqlite:///, found {ledger.url!r}; a ledger must "
                "outlive the run"
            )
        path = _anchored(Path(named), info)
        return ledger.model_copy(update={"url": f"{prefix}{path}"})

    @field_validator("release")
    @classmethod
    def _release_is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not _RELEASE_NAME.fullmatch(name):
            raise ValueError(
                "expected 1 to 64 lower-case letters, digits, dots, dashes and underscores, "
                f"starting with a letter or digit; found {name!r}"
            )
        return name

    @field_validator("arrays")
    @classmethod
    def _each_array_once(cls, arrays: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(arrays)) < len(arrays):
            raise ValueError(f"expected each array once, found {', '.join(arrays)}")
        return arrays

    @field_validator("block_side")
    @classmethod
    def _block_side_in_range(cls, side: int | str) -> int | str:
        if isinstance(side, int) and not 16 <= side <= 16384:
            raise ValueError(f"expected 16 to 16384 or 'auto', found {side}")
        return side

    @model_validator(mode="after")
    def _private_is_not_published(self) -> Config:
        if self.private.is_relative_to(self.output):
            raise ValueError(
                f"private: expected a folder outside the published one, found {self.private} "
                f"inside output {self.output}; whoever reads releases would reach keys"
            )
        return self

    @model_validator(mode="after")
    def _arrays_exist_for_the_method(self) -> Config:
        if self.projection.method == "none" and "factor" in self.arrays:
            raise ValueError(
                "arrays: projection method 'none' makes no factor; ask for arrays: [gram]"
            )
        return self


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
        raise ConfigurationError(
            f"{path}: expected a mapping of settings such as 'gallery: faces.npy', "
            f"found {type(content).__name__}"
        )
    try:
        return Config.model_validate(content, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise ConfigurationError(
            "\n".join(f"{path}: {fault}" for fault in _faults(error))
        ) from error
    except ScoreShieldError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: can't read this configuration: {error}") from error
    if len(text) > _LONGEST_TEXT:
        raise ConfigurationError(
            f"{path}: expected a configuration of at most {_LONGEST_TEXT} characters, found more; "
            "is this the gallery?"
        )
    return text


def _parsed(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (derived from SafeLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML lets through what its constructors stumble over, such as an impossible date.
        raise ConfigurationError(f"{path}: not valid YAML: {_one_line(error)}") from error
    except RecursionError:
        raise ConfigurationError(
            f"{path}: expected settings at most two levels deep, found far more"
        ) from None


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses what would silently mislead.

    A key given twice, where the last one would win; and aliases, which no setting needs and which
    let a short text grow without bound.
    """

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


def _anchored(path: Path, info: ValidationInfo) -> Path:
    folder = (info.context or {}).get("folder", Path.cwd())
    if path == Path():
        raise ValueError("expected a path, found nothing")
    try:
        return Path(folder / path.expanduser()).resolve()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"expected a path, found {str(path)!r}: {error}") from error


def _faults(error: ValidationError) -> list[str]:
    return [_fault(fault) for fault in error.errors(include_url=False)]


def _fault(fault: Any) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    prefix = f"{place}: " if place else ""
    if fault["type"] == "extra_forbidden":
        return f"{prefix}unknown key{_suggestion(fault['loc'])}"
    if fault["type"] == "missing":
        return f"{prefix}this key is required"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    # A fault of a whole section names its key itself; the section would only bury it.
    named = "found" in message or isinstance(fault["input"], dict | BaseModel)
    shown = "" if named else f", found {_shown(fault['input'])}"
    return f"{prefix}{message[0].lower()}{message[1:]}{shown}"


def _shown(value: object) -> str:
    return reprlib.repr(value)


def _suggestion(location: tuple[str | int, ...]) -> str:
    section: Any = Config
    for part in location[:-1]:
        section = section.model_fields[str(part)].annotation
    known = list(section.model_fields)
    nearest = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known keys: {', '.join(known)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
