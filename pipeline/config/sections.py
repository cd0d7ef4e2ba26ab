"""The sections of a configuration that are models of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.config.paths import anchored
from pipeline.config.strict_model import Count, CountOrAuto, Number, StrictModel
from scoreshield.faults import shown
from scoreshield.privacy.calibration import check_privacy
from scoreshield.privacy.sensitivity import FULL_RANGE, Adjacency, AdjacencyKind, ScoreRange

_SQLITE = "sqlite:///"


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


class PrivacySettings(StrictModel):
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
    def _checked_by_the_mechanism(self) -> PrivacySettings:
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


class ProjectionSettings(StrictModel):
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

    @property
    def makes_factor(self) -> bool:
        """Whether the method makes a factor, or releases what is noisy but for its range."""
        from scoreshield.projection import METHODS

        return METHODS[self.method].makes_factor

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
    def _form_exists_for_the_method(self) -> ProjectionSettings:
        from scoreshield.projection import METHODS

        if self.form != "blockwise":
            return self
        form = METHODS[self.method].blockwise
        if form is None:
            lacking = "has no such form" if self.makes_factor else "projects nothing"
            raise ValueError(
                f"form: method {self.method!r} {lacking}, found 'blockwise'; leave it out"
            )
        if self.rank != "auto" and not form.takes_rank:
            raise ValueError(
                f"rank: the blockwise form of method {self.method!r} finds its own rank, found "
                f"{self.rank}; leave rank out, or use method 'aap' for a truncated step"
            )
        return self


class LedgerSettings(StrictModel):
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
    def _budget_in_domain(self) -> LedgerSettings:
        check_privacy(self.epsilon, self.delta)
        return self

    @property
    def file(self) -> Path | None:
        """The file of an SQLite ledger; None on a server."""
        return Path(self.url.removeprefix(_SQLITE)) if self.url.startswith(_SQLITE) else None

    def checked(self, info: ValidationInfo) -> LedgerSettings:
        """The same with an absolute path; refuses a URL that names no lasting ledger."""
        if self.file is None:
            _check_server_url(self.url)
            return self
        named = self.url.removeprefix(_SQLITE)
        if named in ("", ":memory:") or "?" in named:
            raise ValueError(
                f"url: expected a file after sqlite:///, found {self.url!r}; a ledger must "
                "outlive the run"
            )
        return self.model_copy(update={"url": f"{_SQLITE}{anchored(self.file, info)}"})


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


class SecretSettings(StrictModel):
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
    def _one_place(self) -> SecretSettings:
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


class MetricsSettings(StrictModel):
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


class RatingsSettings(StrictModel):
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
    def _says_what_a_record_is(self) -> RatingsSettings:
        if self.by is None and self.model_fields_set:
            raise ValueError("by: expected 'item' or 'user', found nothing")
        return self
