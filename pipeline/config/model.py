"""The configuration of a release: strict, frozen, and checked before anything is read or spent.

Relative paths are relative to the configuration's own folder. An unknown key is an error that names
the nearest known one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipeline.config.cluster import AnyCluster, Cluster
from pipeline.config.paths import AnchoredPath, PathOrUrl, anchored
from pipeline.config.period import PeriodKind
from pipeline.config.regimes import check_regime_settings
from pipeline.config.sections import (
    LedgerSettings,
    MetricsSettings,
    PrivacySettings,
    ProjectionSettings,
    RatingsSettings,
    SecretSettings,
)
from pipeline.config.strict_model import CountOrAuto, StrictModel, matching
from pipeline.storage.place import Place, lies_in
from scoreshield.noise.encoding import Precision
from scoreshield.regimes.registry import REGIMES, ArrayName, RegimeName

NOT_PRIVATE_SUFFIX = "-not-private"
"""Ends the name of every release of test mode, and of no other."""
_LONGEST_SCHEDULED_NAME = 64 - len("-2026-11-29")
_RELEASE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEY_NAMES = ("key", "column", "member")


class Config(StrictModel):
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
    ratings: RatingsSettings = RatingsSettings()
    lineage: Annotated[str, matching("[0-9a-f]{32}", "32 hexadecimal digits")] | None = Field(
        default=None,
        description="Lineage to carry on when the source is a new version of an earlier gallery.",
    )
    output: PathOrUrl = Field(
        default=Path("releases"),
        validate_default=True,
        description="Folder of published releases, one folder each; or a URL in an object store.",
    )
    private: AnchoredPath = Field(
        default=Path("private"),
        validate_default=True,
        description="Folder that only the curator can enter: runs, keys, ingested galleries.",
    )
    blocks: PathOrUrl | None = Field(
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
    regime: RegimeName = Field(
        default="gram",
        description="What is released: `gram`, the n × n similarities of the records with one "
        "another, or `scores`, those of m public queries with the n records.",
    )
    queries: AnchoredPath | None = Field(
        default=None,
        description="For `scores`: the public queries, distinct unit embeddings in any source that "
        "`scoreshield ingest` reads. They must not come from the gallery.",
    )
    queries_key: str | None = Field(
        default=None, description="Which array of `queries` to read where it holds several."
    )
    privacy: PrivacySettings
    projection: ProjectionSettings = ProjectionSettings()
    arrays: tuple[ArrayName, ...] = Field(
        default=("factor", "gram"),
        min_length=1,
        description="What to publish: `factor` (n × r, with its diagonal), `gram` (dense n × n); "
        "regime `scores` publishes `[scores]` (m × n).",
    )
    ledger: LedgerSettings
    secret: SecretSettings = SecretSettings()
    cluster: AnyCluster = Cluster()
    metrics: MetricsSettings = MetricsSettings()
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
    def _a_regime_publishes_its_arrays(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and str(settings.get("regime")) in REGIMES:
            return {"arrays": list(REGIMES[settings["regime"]].arrays), **settings}
        return settings

    @field_validator("secret", "metrics", "ratings")
    @classmethod
    def _paths_in_sections_are_relative_too(cls, section: StrictModel, info: ValidationInfo) -> Any:
        return anchored(section, info)

    @field_validator("secret")
    @classmethod
    def _secret_is_somewhere(cls, secret: SecretSettings) -> SecretSettings:
        if not secret.named:
            raise ValueError(
                "expected one of file, environment and command, found none; name where the secret "
                "is, or leave the section out to let each release draw a random key"
            )
        return secret

    @field_validator("metrics")
    @classmethod
    def _metrics_go_somewhere(cls, metrics: MetricsSettings) -> MetricsSettings:
        if metrics.port is None and metrics.textfile is None:
            raise ValueError(
                "expected port, textfile or both, found neither; leave the section out where no "
                "metrics are wanted"
            )
        return metrics

    @field_validator("ledger")
    @classmethod
    def _ledger_outlives_the_run(cls, ledger: LedgerSettings, info: ValidationInfo) -> Any:
        return ledger.checked(info)

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
            "cluster.tls": self.cluster.private_key,
            "ledger": self.ledger.file,
        }
        for key, path in kept.items():
            if path is not None and lies_in(path, self.output):
                raise ValueError(
                    f"{key}: expected a place outside the published folder, found {path} inside "
                    f"output {self.output}; whoever reads releases would reach it"
                )
        return self

    @model_validator(mode="after")
    def _settings_are_those_of_the_regime(self) -> Config:
        check_regime_settings(self)
        return self

    @model_validator(mode="after")
    def _arrays_exist_for_the_method(self) -> Config:
        if "factor" in self.arrays and not self.projection.makes_factor:
            raise ValueError(
                f"arrays: projection method {self.projection.method!r} makes no factor; ask for "
                "arrays: [gram]"
            )
        return self
