"""The configuration of a release: strict, frozen, and checked before anything is read or spent.

Relative paths are relative to the configuration's own folder. An unknown key is an error that names
the nearest known one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.config.cluster import AddressCluster, AnyCluster, KubernetesCluster
from pipeline.config.cluster import Cluster as Cluster
from pipeline.config.faults import faults_of
from pipeline.config.period import PeriodKind
from pipeline.config.section import Count, Number, Section, anchored, matching
from pipeline.errors import ConfigurationError
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.place import Place, lies_in, place_of
from scoreshield.errors import ScoreShieldError
from scoreshield.faults import shown
from scoreshield.noise.encoding import Precision
from scoreshield.printable import printable
from scoreshield.privacy.calibration import check_privacy
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, AdjacencyKind, ScoreRange


def _count_or_auto(value: object) -> object:
    """A union's two complaints about one wrong value, as one."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"expected a whole number or 'auto', found {shown(value)}")


def _place(value: object) -> Place:
    """A path, or a URL of an object store."""
    if not isinstance(value, str | Path | ObjectPath):
        raise ValueError(f"expected a path or a URL, found {shown(value)}")
    try:
        return place_of(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _place_or_none(value: object) -> Place | None:
    """The same of a key that may be left out."""
    return None if value is None else _place(value)


def _two_ends(value: object) -> object:
    """One complaint about a range that has another number of ends."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return value
    raise ValueError(f"expected two numbers [lo, hi], found {shown(value)}")


def _variable_name(value: object) -> str:
    # What was found is not shown: somebody may have put the secret itself there.
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    raise ValueError("expected the name of an environment variable, found something else")


PathOrUrl = Annotated[Place, PlainValidator(_place)]
OptionalPathOrUrl = Annotated[Place | None, PlainValidator(_place_or_none)]
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]


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
    score_range: Annotated[tuple[Number, Number], BeforeValidator(_two_ends)] | None = Field(
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
    form: Literal["auto", "dense", "blockwise"] = Field(
        default="auto",
        description="`dense` projects in one task on one worker, `blockwise` by products on all of "
        "them; `auto` takes the dense form up to 3000 records.",
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

    @model_validator(mode="after")
    def _form_exists_for_the_method(self) -> Projection:
        if self.form == "blockwise" and self.method == "none":
            raise ValueError(
                "form: method 'none' projects nothing, found 'blockwise'; leave it out"
            )
        if self.form == "blockwise" and self.rank != "auto" and self.method != "aap":
            raise ValueError(
                f"rank: the blockwise form of method {self.method!r} finds its own rank, found "
                f"{self.rank}; leave rank out, or use method 'aap' for a truncated step"
            )
        return self


class Ledger(Section):
    """Where spent budget is recorded, and the gallery's total budget."""

    # Not shown: it may hold a password.
    url: str = Field(
        repr=False,
        description="`sqlite:///` and a file, or `postgresql://USER@HOST/DATABASE` (its password "
        "from `PGPASSWORD` or `PGPASSFILE`).",
    )
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


class Secret(Section):
    """An operator's secret that release keys are derived from; by default keys are random."""

    file: Path | None = Field(
        default=None, description="File that holds the secret, readable by its owner alone."
    )
    environment: Annotated[str, PlainValidator(_variable_name)] | None = Field(
        default=None, description="Environment variable that names such a file."
    )
    command: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="Program and arguments, as a list, that prints the secret; no shell is used.",
    )
    timeout: Number = Field(
        default=30.0, gt=0, le=3600, description="Seconds the command may take."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if len(self._places()) > 1:
            raise ValueError(
                "expected one of file, environment and command, found "
                f"{' and '.join(self._places())}"
            )
        return self

    @property
    def named(self) -> bool:
        """Whether the operator names a secret at all."""
        return bool(self._places())

    def _places(self) -> list[str]:
        names = ("file", "environment", "command")
        return [name for name in names if getattr(self, name) is not None]


class Metrics(Section):
    """Prometheus metrics of a release, for the operator; none by default."""

    port: Count | None = Field(
        default=None,
        ge=1024,
        le=65535,
        description="Port at which a scrape finds the metrics while the release runs.",
    )
    address: str = Field(
        default="127.0.0.1",
        description="Address of that port. Whoever reaches it reads how long each stage takes.",
    )
    textfile: Path | None = Field(
        default=None,
        description="File for node_exporter's text collector, `.prom`; it outlives the release.",
    )


def _as_texts(value: object) -> object:
    """Columns by position as the text that a command line would have."""
    if isinstance(value, list):
        return [str(one) if type(one) is int else one for one in value]
    return value


class Ratings(Section):
    """A text file of ratings as the source: lines of user, item and value."""

    by: Literal["item", "user"] | None = Field(
        default=None,
        description="Makes the gallery a file of ratings, and says what a record is, and so what "
        "is protected: an `item` with all its users' ratings, or a `user` with all of theirs.",
    )
    columns: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] | None = Field(
        default=None,
        description="Columns of user, item and rating, by name or by position from 1; two of them "
        "where every interaction counts 1. By default they are recognised, or the first three.",
    )
    duplicates: Literal["refuse", "last", "sum"] = Field(
        default="refuse",
        description="A pair of user and item that comes more than once is refused, or its `last` "
        "rating counts, or their `sum`.",
    )
    records: Path | None = Field(
        default=None,
        description="File whose first column lists the ids of all records; those without ratings "
        "are zero rows.",
    )

    @model_validator(mode="after")
    def _says_what_a_record_is(self) -> Ratings:
        if self.by is None and self.model_fields_set:
            raise ValueError("by: expected 'item' or 'user', found nothing")
        return self


_LONGEST_TEXT = 2**18
NOT_PRIVATE_SUFFIX = "-not-private"
"""Ends the name of every release of test mode, and of no other."""
_LONGEST_SCHEDULED_NAME = 64 - len("-2026-11-29")
_RELEASE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEY_NAMES = ("key", "column", "member")
ArrayName = Literal["factor", "gram", "scores"]


class Config(Section):
    """One release."""

    gallery: PathOrUrl = Field(
        description="A gallery, or any source that `scoreshield ingest` reads. A gallery may lie "
        "in an object store: `s3://BUCKET/PREFIX`."
    )
    key: str | None = Field(
        default=None,
        description="Which array to read where the source holds several; also called `column` or "
        "`member`.",
    )
    public_ids: str | None = Field(
        default=None,
        description="Where the source holds the records' ids, named like `key`. Naming them "
        "declares them public: every release of the gallery carries them.",
    )
    zero_rows: Literal["refuse", "substitute"] = Field(
        default="refuse",
        description="`substitute` maps records without direction to one fixed unit vector.",
    )
    ratings: Ratings = Ratings()
    lineage: Annotated[str, matching("[0-9a-f]{32}", "32 hexadecimal digits")] | None = Field(
        default=None,
        description="Lineage to carry on when the source is a new version of an earlier gallery.",
    )
    output: PathOrUrl = Field(
        default=Path("releases"),
        validate_default=True,
        description="Folder of published releases, one folder each; or a URL in an object store.",
    )
    private: Path = Field(
        default=Path("private"),
        validate_default=True,
        description="Folder that only the curator can enter: runs, keys, ingested galleries.",
    )
    blocks: OptionalPathOrUrl = Field(
        default=None,
        description="Folder for noisy blocks and their receipts, or a URL in an object store; by "
        "default they are kept in `private`.",
    )
    release: str | None = Field(
        default=None,
        description="Name of the release; by default one is derived from the settings, so that the "
        "same configuration is the same release.",
    )
    period: PeriodKind | None = Field(
        default=None,
        description="Makes one release a period, in UTC: `yearly`, `quarterly`, `monthly`, "
        "`weekly` or `daily`. Its name is that of `release`, which must be set, and the period's: "
        "`NAME-2026-11`.",
    )
    regime: Literal["gram", "scores"] = Field(
        default="gram",
        description="What is released: `gram`, the n × n similarities of the records with one "
        "another, or `scores`, those of m public queries with the n records.",
    )
    queries: Path | None = Field(
        default=None,
        description="For `scores`: the public queries, distinct unit embeddings in any source that "
        "`scoreshield ingest` reads. They must not come from the gallery.",
    )
    queries_key: str | None = Field(
        default=None, description="Which array of `queries` to read where it holds several."
    )
    privacy: Privacy
    projection: Projection = Projection()
    arrays: tuple[ArrayName, ...] = Field(
        default=("factor", "gram"),
        min_length=1,
        description="What to publish: `factor` (n × r, with its diagonal), `gram` (dense n × n); "
        "regime `scores` publishes `[scores]` (m × n).",
    )
    ledger: Ledger
    secret: Secret = Secret()
    cluster: AnyCluster = Cluster()
    metrics: Metrics = Metrics()
    block_side: CountOrAuto = Field(
        default="auto",
        description="Records along one side of a block; `auto` chooses it. The noise never depends "
        "on it.",
    )
    precision: Precision = Field(
        default="auto",
        description="How noisy similarities are kept until they are projected: `float32`, or "
        "`int16` or `int8` codes with one step for the whole matrix; `auto` takes the smallest "
        "whose step is at most σ/12, which adds less than 0.06 % to the noise variance; what is "
        "published as it is stored (scores, method `none`) stays `float32`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _key_under_one_of_its_names(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        given = [name for name in _KEY_NAMES if name in settings]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: is another name for {given[0]}, found both; give one")
        return {"key" if name in given else name: value for name, value in settings.items()}

    @model_validator(mode="before")
    @classmethod
    def _scores_publish_scores(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("regime") == "scores":
            return {"arrays": ["scores"], **settings}
        return settings

    @field_validator("gallery", "output", "private")
    @classmethod
    def _relative_to_the_configuration(cls, path: Place, info: ValidationInfo) -> Place:
        return path if isinstance(path, ObjectPath) else anchored(path, info)

    @field_validator("blocks")
    @classmethod
    def _blocks_relative_to_the_configuration(
        cls, path: Place | None, info: ValidationInfo
    ) -> Place | None:
        return anchored(path, info) if isinstance(path, Path) else path

    @field_validator("queries")
    @classmethod
    def _queries_relative_to_the_configuration(
        cls, path: Path | None, info: ValidationInfo
    ) -> Path | None:
        return None if path is None else anchored(path, info)

    @field_validator("ledger")
    @classmethod
    def _ledger_relative_to_the_configuration(cls, ledger: Ledger, info: ValidationInfo) -> Ledger:
        prefix = "sqlite:///"
        if not ledger.url.startswith(prefix):
            _check_server_url(ledger.url)
            return ledger
        named = ledger.url.removeprefix(prefix)
        if named in ("", ":memory:") or "?" in named:
            raise ValueError(
                f"url: expected a file after sqlite:///, found {ledger.url!r}; a ledger must "
                "outlive the run"
            )
        path = anchored(Path(named), info)
        return ledger.model_copy(update={"url": f"{prefix}{path}"})

    @field_validator("secret")
    @classmethod
    def _secret_relative_to_the_configuration(cls, secret: Secret, info: ValidationInfo) -> Secret:
        if not secret.named:
            raise ValueError(
                "expected one of file, environment and command, found none; name where the secret "
                "is, or leave the section out to let each release draw a random key"
            )
        if secret.file is None:
            return secret
        return secret.model_copy(update={"file": anchored(secret.file, info)})

    @field_validator("metrics")
    @classmethod
    def _metrics_relative_to_the_configuration(
        cls, metrics: Metrics, info: ValidationInfo
    ) -> Metrics:
        if metrics.port is None and metrics.textfile is None:
            raise ValueError(
                "expected port, textfile or both, found neither; leave the section out where no "
                "metrics are wanted"
            )
        if metrics.textfile is None:
            return metrics
        return metrics.model_copy(update={"textfile": anchored(metrics.textfile, info)})

    @field_validator("ratings")
    @classmethod
    def _records_relative_to_the_configuration(
        cls, ratings: Ratings, info: ValidationInfo
    ) -> Ratings:
        if ratings.records is None:
            return ratings
        return ratings.model_copy(update={"records": anchored(ratings.records, info)})

    @field_validator("release")
    @classmethod
    def _release_is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not _RELEASE_NAME.fullmatch(name):
            raise ValueError(
                "expected 1 to 64 lower-case letters, digits, dots, dashes and underscores, "
                f"starting with a letter or digit; found {name!r}"
            )
        if name is not None and name.endswith(NOT_PRIVATE_SUFFIX):
            raise ValueError(
                f"expected a name that doesn't end in {NOT_PRIVATE_SUFFIX!r}, which marks releases "
                f"of test mode; found {name!r}"
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
    def _schedule_has_a_name(self) -> Config:
        if self.period is None:
            return self
        if self.release is None:
            # A derived name changes with the number of records, and with it what one period is.
            raise ValueError(
                "period: expected a name in 'release' as well, which the releases of all periods "
                "share; found none"
            )
        if len(self.release) > _LONGEST_SCHEDULED_NAME:
            raise ValueError(
                f"release: expected at most {_LONGEST_SCHEDULED_NAME} characters where a period is "
                f"added to them, found {len(self.release)}"
            )
        return self

    @model_validator(mode="after")
    def _ratings_have_no_key(self) -> Config:
        if self.ratings.by is not None and self.key is not None:
            raise ValueError(
                f"key: a file of ratings holds no arrays, found key {self.key}; name its columns "
                "under ratings"
            )
        return self

    @model_validator(mode="after")
    def _private_is_not_published(self) -> Config:
        kept: dict[str, Place | None] = {
            "private": self.private,
            "gallery": self.gallery,
            "blocks": self.blocks,
            "secret": self.secret.file,
            "ratings.records": self.ratings.records,
            "metrics.textfile": self.metrics.textfile,
            "cluster.tls": self._tls_key,
            "ledger": _sqlite_file(self.ledger.url),
        }
        for key, path in kept.items():
            if path is not None and lies_in(path, self.output):
                raise ValueError(
                    f"{key}: expected a place outside the published folder, found {path} inside "
                    f"output {self.output}; whoever reads releases would reach it"
                )
        return self

    @property
    def _tls_key(self) -> Path | None:
        """The key that opens the cluster, where it has one."""
        cluster = self.cluster
        return cluster.tls.key if isinstance(cluster, AddressCluster | KubernetesCluster) else None

    @model_validator(mode="after")
    def _settings_are_those_of_the_regime(self) -> Config:
        if self.regime == "gram":
            _check_gram_settings(self)
        else:
            _check_scores_settings(self)
        return self

    @model_validator(mode="after")
    def _arrays_exist_for_the_method(self) -> Config:
        if self.projection.method == "none" and "factor" in self.arrays:
            raise ValueError(
                "arrays: projection method 'none' makes no factor; ask for arrays: [gram]"
            )
        return self


def _sqlite_file(url: str) -> Path | None:
    prefix = "sqlite:///"
    return Path(url.removeprefix(prefix)) if url.startswith(prefix) else None


def _check_gram_settings(config: Config) -> None:
    for name in ("queries", "queries_key"):
        found = getattr(config, name)
        if found is not None:
            raise ValueError(
                f"{name}: regime gram compares the records with one another, found {name} {found}; "
                "leave it out, or ask for regime: scores"
            )
    if "scores" in config.arrays:
        raise ValueError(
            "arrays: regime gram publishes factor, gram or both, found scores; ask for "
            "regime: scores"
        )


def _check_scores_settings(config: Config) -> None:
    if config.queries is None:
        raise ValueError(
            "queries: regime scores needs public queries, found none; name a file of unit "
            "embeddings, such as queries: queries.npy"
        )
    if config.queries == config.gallery and config.queries_key == config.key:
        raise ValueError(
            f"queries: expected public embeddings, found the gallery itself ({config.queries}); "
            "to compare records with one another ask for regime: gram"
        )
    if config.arrays != ("scores",):
        raise ValueError(
            f"arrays: regime scores publishes [scores], found {', '.join(config.arrays)}"
        )
    if "projection" in config.model_fields_set:
        raise ValueError(
            "projection: scores are clipped to their range and not projected, found a projection; "
            "leave the section out"
        )
    if config.precision not in ("auto", "float32"):
        raise ValueError(
            f"precision: scores are published as they are stored, in float32, found "
            f"{config.precision}; leave it out"
        )


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


def _check_server_url(url: str) -> None:
    """A PostgreSQL URL names a database; no message shows what may be a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z0-9+]+", scheme):
        scheme = "something else"
    if scheme not in ("postgresql", "postgresql+psycopg"):
        raise ValueError(
            "url: expected sqlite:///PATH or postgresql://USER@HOST/DATABASE, found "
            f"{scheme}{separator and '://'}"
        )
    if not rest.partition("?")[0].partition("/")[2]:
        raise ValueError(f"url: expected {scheme}://USER@HOST/DATABASE, found no database name")
