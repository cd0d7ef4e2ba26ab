"""The configuration: every fault is named with its place, and nothing but a configuration loads."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError

BASE: dict[str, Any] = {
    "gallery": "faces.npy",
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "record"},
    "ledger": {"url": "sqlite:///ledger.db", "epsilon": 2.0, "delta": 1e-5},
}
TEXT = yaml.safe_dump(BASE)


def load(folder: Path, text: str) -> Config:
    path = folder / "release.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def with_setting(place: str, value: Any) -> str:
    """The base configuration with one setting changed; a dot goes one level down."""
    content = yaml.safe_load(TEXT)
    *sections, key = place.split(".")
    inner = content
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    return yaml.safe_dump(content)


def test_paths_are_relative_to_the_configurations_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load(tmp_path, TEXT + "output: ../out\nprivate: /private/place\n")
    assert config.gallery == tmp_path / "faces.npy"
    assert config.output == tmp_path.parent / "out"
    assert config.private == Path("/private/place")
    assert config.ledger.url == f"sqlite:///{tmp_path}/ledger.db"


def test_exponents_without_a_dot_are_numbers(tmp_path: Path) -> None:
    # YAML 1.1 reads 1e-6 as text.
    assert load(tmp_path, TEXT.replace("1.0e-06", "1e-6")).privacy.delta == 1e-6


def test_defaults_and_what_the_mechanism_gets(tmp_path: Path) -> None:
    config = load(tmp_path, with_setting("privacy.score_range", [0, 1]))
    assert config.privacy.to_adjacency().kind == "record"
    assert (config.privacy.to_score_range().low, config.privacy.to_score_range().high) == (0, 1)
    assert (config.projection.method, config.arrays) == ("aap", ("factor", "gram"))
    assert int(config.cluster.memory_limit) == 4 * 2**30
    assert config.ledger.create is False


FAULTS = [
    # place, value, what the message must say besides the place; tests/pipeline/corpus holds more
    ("quux", 3, "unknown key; known keys: gallery"),
    ("privacy.epsilon", None, "expected a number, found nothing"),
    ("privacy.epsilon", 10**400, "found 1000"),
    ("projection.rank", "all", "expected a whole number or 'auto', found 'all'"),
    ("projection.rank", 1.5, "expected a whole number or 'auto', found 1.5"),
    ("projection.max_iterations", 2.5, "found 2.5"),
    ("block_side", True, "expected a whole number or 'auto', found true"),
    ("cluster.workers", 0, "at least 1, found 0"),
    ("cluster.memory_limit", True, "expected a number, found true"),
    ("arrays", ["gram", "gram"], "expected each array once, found gram, gram"),
    ("queries", ["a"], "expected a path, found ['a']"),
    ("queries_key", "q", "leave it out, or ask for regime: scores"),
    ("arrays", ["gram", "scores"], "regime gram publishes factor, gram or both, found scores"),
    ("gallery", "", "expected a path, found nothing"),
    ("ledger", 3, "found 3"),
]


@pytest.mark.parametrize(("place", "value", "said"), FAULTS)
def test_a_fault_names_file_place_and_what_was_found(
    tmp_path: Path, place: str, value: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, with_setting(place, value))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{tmp_path / 'release.yaml'}: {place.split('.')[0]}")
    assert place.split(".")[-1] in lines[0]
    assert said in lines[0]
    assert len(lines[0]) < len(str(tmp_path)) + 400


def test_a_fault_of_a_section_does_not_quote_all_of_it(tmp_path: Path) -> None:
    text = with_setting("privacy.radius", 1.0)
    with pytest.raises(ConfigurationError, match=r"release\.yaml: privacy: ") as caught:
        load(tmp_path, text)
    assert "'record' takes no radius" in str(caught.value)
    # The whole section would only bury what is wrong in it.
    assert "'adjacency':" not in str(caught.value)


def test_several_faults_are_all_listed(tmp_path: Path) -> None:
    text = TEXT.replace("gallery", "galery").replace("epsilon: 2.0", "epsilon: two")
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text + "cluster: {workers: 0}\n")
    said = str(caught.value)
    for part in ("gallery: this key is required", "galery: unknown", "ledger.epsilon", "workers"):
        assert part in said
    assert all(line.startswith(str(tmp_path)) for line in said.splitlines())


def test_what_a_setting_excludes_is_fine_without_it(tmp_path: Path) -> None:
    without_factor = with_setting("projection.method", "none") + "arrays: [gram]\n"
    assert load(tmp_path, without_factor).arrays == ("gram",)
    assert load(tmp_path, TEXT).precision == "auto"
    assert load(tmp_path, TEXT + "precision: int16\n").precision == "int16"
    scores = TEXT + "regime: scores\nqueries: queries.npy\n"
    with pytest.raises(ConfigurationError, match="precision: scores are published as they are"):
        load(tmp_path, scores + "precision: int8\n")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("private", "private: out/inside"),
        ("ratings.records", "ratings: {by: item, records: out/items.csv}"),
        ("metrics.textfile", "metrics: {textfile: out/release.prom}"),
        (
            "cluster.tls",
            "cluster: {kind: address, address: 'tls://localhost:8786', "
            "tls: {ca: ca.pem, certificate: a.pem, key: out/a.key}}",
        ),
    ],
)
def test_private_things_never_lie_among_the_published(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: expected a place outside"):
        load(tmp_path, TEXT + f"output: out\n{text}\n")
    load(tmp_path, TEXT + f"output: elsewhere\n{text}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT + "gallery: other.npy\n", "the key 'gallery' is given twice"),
        (TEXT.replace("epsilon: 1.0", "epsilon: 1.0\n  epsilon: 9.0"), "'epsilon' is given twice"),
        ("gallery: [", "not valid YAML"),
        (TEXT + "---\nsecond: document\n", "not valid YAML"),
        ("!!python/object/apply:os.abort []\n", "found a tag, expected plain values"),
        ("gallery: !!python/name:os.abort\n", "found a tag, expected plain values"),
        (TEXT + "release: 2024-13-45\n", "looks like a number or a date and is none"),
        (TEXT + "? [a]\n: 1\n", "expected text as key, found a list"),
        # YAML reads them as 90, 8 and 16
        *(
            (TEXT.replace("epsilon: 1.0", f"epsilon: {written}"), f"base ten, found '{written}'")
            for written in ("1:30", "010", "0x10")
        ),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "release.yaml"))


def test_aliases_are_refused_before_they_multiply(tmp_path: Path) -> None:
    levels = "\n".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ConfigurationError, match="aliases are not supported") as caught:
        load(tmp_path, f"a: &a [x]\n{levels}\ngallery: *i\n")
    assert len(str(caught.value)) < 1000


def test_a_configuration_does_not_change(tmp_path: Path) -> None:
    config = load(tmp_path, TEXT)
    with pytest.raises(ValueError, match="frozen"):
        config.privacy.epsilon = 9.0  # type: ignore[misc]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
keys = st.sampled_from([*Config.model_fields, "galery", ""])


@settings(max_examples=150, deadline=None)
@given(changes=st.dictionaries(keys, values, max_size=4))
def test_any_settings_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    with contextlib.suppress(ConfigurationError):
        assert isinstance(load(folder, yaml.safe_dump({**BASE, **changes})), Config)


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@example("gallery: \x00")
@example("%YAML 9.9\n---\na: 1")
@example("a: 0b")
@example("a: 1:99:99")
@example("a: !!float x")
@example("a: !!int ''")
@example("a: !!timestamp x")
@example("<<: [a]")
def test_any_text_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with pytest.raises(ConfigurationError):
        load(tmp_path_factory.mktemp("fuzz"), text)


def scores_settings(**changes: Any) -> str:
    return yaml.safe_dump({**BASE, "regime": "scores", "queries": "queries.npy", **changes})


def test_scores_name_queries_and_publish_scores(tmp_path: Path) -> None:
    config = load(tmp_path, scores_settings())
    assert config.queries == tmp_path / "queries.npy"
    assert config.arrays == ("scores",)
    assert load(tmp_path, scores_settings(arrays=["scores"])).arrays == ("scores",)


def test_the_text_of_a_file_that_is_no_configuration_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not valid YAML: line 3") as refused:
        load(tmp_path, "records:\n  - [0.123456, secret\n: x")
    assert "0.123456" not in str(refused.value)


@pytest.mark.parametrize("name", ["key", "column", "member"])
def test_the_key_has_the_names_that_tables_and_archives_use(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, f"{TEXT}{name}: embedding\n").key == "embedding"
