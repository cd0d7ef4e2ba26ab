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
    # place, value, what the message must say besides the place
    ("galery", "x", "unknown key; did you mean 'gallery'?"),
    ("quux", 3, "unknown key; known keys: gallery"),
    ("privacy.epsilom", 3, "did you mean 'epsilon'?"),
    ("cluster.worker", 3, "did you mean 'workers'?"),
    ("privacy.epsilon", True, "expected a number, found true"),
    ("privacy.epsilon", "abc", "found 'abc'"),
    ("privacy.epsilon", None, "expected a number, found nothing"),
    ("privacy.epsilon", 10**400, "found 1000"),
    ("privacy.adjacency", "neighbour", "'record', 'shift' or 'output', found 'neighbour'"),
    ("privacy.score_range", 3, "found 3"),
    ("projection.method", "app", "expected one of aap, nearest"),
    ("projection.rank", 0, "expected at least 1 or 'auto', found 0"),
    ("projection.rank", "all", "expected a whole number or 'auto', found 'all'"),
    ("projection.rank", 1.5, "expected a whole number or 'auto', found 1.5"),
    ("projection.tolerance", 0, "greater than 0, found 0"),
    ("projection.max_iterations", 2.5, "found 2.5"),
    ("block_side", True, "expected a whole number or 'auto', found true"),
    ("block_side", 3, "expected 16 to 16384 or 'auto', found 3"),
    ("cluster.workers", 0, "at least 1, found 0"),
    ("cluster.kind", "pbs", "found 'pbs'"),
    ("cluster.memory_limit", "lots", "found 'lots'"),
    ("cluster.memory_limit", True, "expected a number, found true"),
    ("cluster.memory_limit", "1KiB", "at least 268435456, found '1KiB'"),
    ("arrays", [], "1 or more entries, found []"),
    ("arrays", ["gram", "gram"], "expected each array once, found gram, gram"),
    ("regime", "cosines", "'gram' or 'scores', found 'cosines'"),
    ("queries", "queries.npy", "found queries /"),
    ("queries_key", "q", "leave it out, or ask for regime: scores"),
    ("arrays", ["gram", "scores"], "regime gram publishes factor, gram or both, found scores"),
    ("release", "../elsewhere", "expected 1 to 64 lower-case letters"),
    ("release", 5, "found 5"),
    ("lineage", "abc", "found 'abc'"),
    ("gallery", "", "expected a path, found nothing"),
    ("gallery", ["a"], "found ['a']"),
    ("gallery", "~no-such-user/x", "expected a path, found '~no-such-user/x'"),
    ("gallery", "a\0b", "null byte"),
    ("ledger", 3, "found 3"),
    ("ledger.create", "perhaps", "found 'perhaps'"),
    ("ledger.url", "postgresql://u:secret@x", "found no database name"),
    ("ledger.url", "mysql://u:secret@x/y", "or postgresql://USER@HOST/DATABASE, found mysql://"),
    ("ledger.url", "host=x password=secret", "DATABASE, found something else"),
    ("ledger.url", "sqlite:///", "expected a file after sqlite:///"),
    ("ledger.url", "sqlite:///:memory:", "expected a file after sqlite:///"),
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": float("nan")}, "epsilon must lie in"),
        ({"epsilon": float("inf")}, "found inf"),
        ({"epsilon": -1.0}, "found -1.0"),
        ({"delta": 1.5}, "delta"),
        ({"adjacency": "shift"}, "needs a positive radius, found none"),
        ({"radius": 1.0}, "'record' takes no radius"),
        ({"score_range": [1, 0]}, "found [1.0, 0.0]"),
    ],
)
def test_the_mechanisms_own_limits_hold_in_the_configuration(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    text = yaml.safe_dump({**BASE, "privacy": {**BASE["privacy"], **changes}})
    with pytest.raises(ConfigurationError, match=r"release\.yaml: privacy: ") as caught:
        load(tmp_path, text)
    assert said in str(caught.value)
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


def test_method_none_makes_no_factor(tmp_path: Path) -> None:
    text = with_setting("projection.method", "none")
    with pytest.raises(ConfigurationError, match=r"ask for arrays: \[gram\]"):
        load(tmp_path, text)
    assert load(tmp_path, text + "arrays: [gram]\n").arrays == ("gram",)


def test_precision_is_one_of_four_and_not_for_scores(tmp_path: Path) -> None:
    assert load(tmp_path, TEXT).precision == "auto"
    assert load(tmp_path, TEXT + "precision: int16\n").precision == "int16"
    with pytest.raises(ConfigurationError, match=r"precision: .*'int4'"):
        load(tmp_path, TEXT + "precision: int4\n")
    scores = TEXT.split("projection")[0] + "regime: scores\nqueries: queries.npy\n"
    with pytest.raises(ConfigurationError, match="precision: scores are published as they are"):
        load(tmp_path, scores + "precision: int8\n")


@pytest.mark.parametrize("private", ["out", "out/inside"])
def test_private_things_never_lie_among_the_published(tmp_path: Path, private: str) -> None:
    with pytest.raises(ConfigurationError, match="private: expected a place outside"):
        load(tmp_path, TEXT + f"output: out\nprivate: {private}\n")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ratings.records", "ratings: {by: item, records: out/items.csv}"),
        ("metrics.textfile", "metrics: {textfile: out/release.prom}"),
        (
            "cluster.tls",
            "cluster: {kind: address, address: 'tls://localhost:8786', "
            "tls: {ca: ca.pem, certificate: a.pem, key: out/a.key}}",
        ),
    ],
)
def test_nor_do_ids_running_times_and_the_clusters_key(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: expected a place outside"):
        load(tmp_path, TEXT + f"output: out\n{text}\n")
    load(tmp_path, TEXT + f"output: elsewhere\n{text}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT + "gallery: other.npy\n", "the key 'gallery' is given twice"),
        (TEXT.replace("epsilon: 1.0", "epsilon: 1.0\n  epsilon: 9.0"), "'epsilon' is given twice"),
        ("", "expected a mapping"),
        ("# nothing\n", "expected a mapping"),
        ("- a\n- b\n", "found a list"),
        ("gallery: [", "not valid YAML"),
        (TEXT + "---\nsecond: document\n", "not valid YAML"),
        ("!!python/object/apply:os.abort []\n", "found a tag, expected plain values"),
        ("gallery: !!python/name:os.abort\n", "found a tag, expected plain values"),
        (TEXT + "release: 2024-13-45\n", "looks like a number or a date and is none"),
        (TEXT.replace("epsilon: 1.0", f"epsilon: {'9' * 5000}"), "not valid YAML"),
        ("[" * 5000, "levels deep"),
        (TEXT + "? [a]\n: 1\n", "expected text as key, found a list"),
        (TEXT + "5: 1\n", "5: expected text as key"),
        ("a" * 2**19, "at most"),
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
    with pytest.raises(ConfigurationError, match="aliases"):
        load(tmp_path, "&a [*a]")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't read this configuration"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigurationError, match="can't read this configuration"):
        load_config(tmp_path)
    binary = tmp_path / "faces.npy"
    binary.write_bytes(b"\x93NUMPY\x01\x00\xff\xfe")
    with pytest.raises(ConfigurationError, match="can't read this configuration"):
        load_config(binary)


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queries": None}, "queries: regime scores needs public queries, found none"),
        ({"queries": BASE["gallery"]}, "queries: expected public embeddings, found the gal"),
        ({"arrays": ["gram"]}, "arrays: regime scores publishes [scores], found gram"),
        ({"arrays": ["scores", "factor"]}, "[scores], found factor; ask for regime: gram"),
        ({"projection": {"method": "nearest"}}, "projection: scores are clipped to their range"),
        ({"queries": ["a"]}, "queries: "),
    ],
)
def test_what_scores_can_not_have_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, scores_settings(**changes))
    (line,) = str(caught.value).splitlines()
    assert said in line


@pytest.mark.parametrize("written", ["1:30", "010", "0x10"])
def test_numbers_to_another_base_are_refused(tmp_path: Path, written: str) -> None:
    """YAML reads them as 90, 8 and 16."""
    with pytest.raises(ConfigurationError, match=f"base ten, found '{written}'"):
        load(tmp_path, TEXT.replace("epsilon: 1.0", f"epsilon: {written}"))


def test_the_text_of_a_file_that_is_no_configuration_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not valid YAML: line 3") as refused:
        load(tmp_path, "records:\n  - [0.123456, secret\n: x")
    assert "0.123456" not in str(refused.value)


@pytest.mark.parametrize("name", ["key", "column", "member"])
def test_the_key_has_the_names_that_tables_and_archives_use(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, f"{TEXT}{name}: embedding\n").key == "embedding"


def test_the_key_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="column: is another name for key"):
        load(tmp_path, f"{TEXT}key: a\ncolumn: a\n")
