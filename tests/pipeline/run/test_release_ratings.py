"""Whole releases of ratings: one command each, and in words whose privacy they protect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.config.model import Config
from pipeline.config.yaml import load_config
from pipeline.errors import ConfigurationError
from pipeline.forecast.preview import preview
from pipeline.gallery.open import content_digest, open_gallery
from pipeline.gallery.sparse import column_of_feature, read_sparse
from pipeline.gallery.store import Gallery
from pipeline.ingest.sources import latest_gallery, prepare_gallery
from pipeline.perturb.keyfile import bound_message
from pipeline.perturb.secret import unsafe_key
from pipeline.progress import Tee
from pipeline.reader.open import open_release
from pipeline.reader.verify import verify_release
from pipeline.run.prepare import prepare_run
from pipeline.run.release import release
from pipeline.run.unsafe_seed import UnsafeSeed
from scoreshield.arithmetic.fixedpoint import to_fixed
from scoreshield.errors import InputRejected
from scoreshield.inmemory import perturb_gram
from scoreshield.mechanisms.gaussian import noisy_block
from tests.harness.cluster import THREADS

MOVIELENS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "ml-latest-small"
ITEMS, USERS = 30, 50
PRIVACY = {"epsilon": 8.0, "delta": 1e-6, "adjacency": "record", "score_range": [0, 1]}
pytestmark = pytest.mark.filterwarnings("ignore:.* is NOT PRIVATE")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(6)
    pairs = {(int(user), item) for item in range(ITEMS) for user in random.integers(USERS, size=8)}
    lines = "".join(f"{user},{item},{random.integers(1, 6)}\n" for user, item in sorted(pairs))
    (tmp_path / "ratings.csv").write_text(f"user,item,rating\n{lines}")
    return tmp_path


def configured(folder: Path, **changes: Any) -> Config:
    settings = {
        "gallery": "ratings.csv",
        "ratings": {"by": "item"},
        "release": "r",
        "privacy": PRIVACY,
        "projection": {"method": "none"},
        "arrays": ["gram"],
        "ledger": {"url": "sqlite:///ledger.db", "epsilon": 90.0, "delta": 1e-5, "create": True},
        "cluster": {"workers": 1, "memory_limit": "1GiB"},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in settings.items() if value}))
    return load_config(path)


def silently(config: Config, unsafe_seed: int | None = None) -> Path:
    with THREADS.instead_of_processes():
        return release(config, Tee(), unsafe_seed).path


def test_ratings_are_released_in_one_command_with_the_bits_of_the_dense_path(folder: Path) -> None:
    config = configured(folder)
    size = preview(config)
    assert (size.plan.mechanism.n, size.record_kind) == (ITEMS, "item")
    assert not config.private.exists()
    path = silently(config, unsafe_seed=7)
    found = open_release(path)
    gallery = latest_gallery(config)
    assert gallery is not None
    rows = read_sparse(gallery.path, 0, gallery.n).dense()

    run = prepare_run(config, gallery, UnsafeSeed(7))
    bound = bound_message(content_digest(gallery), run.release_id, run.mechanism)
    expected = perturb_gram(rows, run.mechanism, unsafe_key(7, bound), run.release_id)
    assert (found.block(slice(0, ITEMS), slice(0, ITEMS)) == np.clip(expected, -1, 1)).all()


@pytest.mark.parametrize(
    ("by", "words"),
    [("item", "so a user is NOT protected as a unit"), ("user", "protected as a unit")],
)
def test_plan_and_manifest_say_whom_a_release_protects(folder: Path, by: str, words: str) -> None:
    config = configured(folder, ratings={"by": by})
    assert words in preview(config).to_text()
    assert words in preview(config).to_json()["protects"]
    path = silently(config)
    privacy = open_release(path).manifest.privacy
    assert privacy.record_kind == by
    assert words in privacy.statement
    assert words in privacy.privacy_unit
    assert f"records are {by}s" in privacy.unprotected_quantities
    assert all(check.ok for check in verify_release(path).checks)
    # The same file under another name of release: what was spent is spent.
    more = configured(
        folder, ratings={"by": by}, release="more", privacy=PRIVACY | {"epsilon": 100.0}
    )
    assert "it does not fit the budget" in preview(more).to_text()


def test_ratings_by_item_and_by_user_have_a_budget_each(folder: Path) -> None:
    by_item, by_user = (prepared(configured(folder, ratings={"by": by})) for by in ("item", "user"))
    assert by_item.lineage != by_user.lineage
    assert prepared(configured(folder, release="again")).lineage == by_item.lineage


def prepared(config: Config) -> Gallery:
    return prepare_gallery(config, Tee())


def test_public_queries_are_scored_against_sparse_records(folder: Path) -> None:
    queries = np.zeros((2, ITEMS))
    queries[0, :3] = queries[1, 5] = 1.0
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.save(folder / "queries.npy", queries)
    config = configured(
        folder,
        ratings={"by": "user"},
        regime="scores",
        queries="queries.npy",
        projection=None,
        arrays=None,
    )
    path = silently(config, unsafe_seed=3)

    gallery = latest_gallery(config)
    assert gallery is not None
    run = prepare_run(config, gallery, UnsafeSeed(3))
    content = run.bound_content(content_digest(gallery))
    key = unsafe_key(3, bound_message(content, run.release_id, run.mechanism))
    rows = read_sparse(gallery.path, 0, gallery.n).dense()[:, column_of_feature(gallery.path)]
    noisy = noisy_block(run.mechanism, to_fixed(queries), rows, 0, 0, key, run.release_id)
    whole = open_release(path).block(slice(0, 2), slice(0, gallery.n))
    assert (whole == np.clip(noisy, 0, 1)).all()


def test_ids_are_public_where_the_operator_says_so(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="the ids of items can be public, found 'user'"):
        silently(configured(folder, public_ids="user"))
    path = silently(configured(folder, public_ids="item"))
    assert list(open_release(path).ids) == [str(item) for item in range(ITEMS)]


def test_the_command_ingests_ratings_and_says_what_is_missing(folder: Path) -> None:
    run = CliRunner().invoke
    source, target = str(folder / "ratings.csv"), str(folder / "gallery.zarr")
    assert "--by item or --by user" in run(cli, ["ingest", source, target, "--ratings"]).output
    assert "belong(s) to --ratings" in run(cli, ["ingest", source, target, "--by", "item"]).output
    done = run(
        cli,
        ["ingest", source, target, "--ratings", "--by", "user", "--columns", "1,2,3", "--json"],
    )
    assert done.exit_code == 0, done.output
    assert open_gallery(target).record_kind == "user"
    config = configured(folder, gallery="gallery.zarr", ratings=None)
    assert preview(config).record_kind == "user"
    with pytest.raises(ConfigurationError, match=r"ratings.by: the gallery .* user"):
        preview(configured(folder, gallery="gallery.zarr"))


def test_a_changed_file_or_list_is_ingested_again(folder: Path) -> None:
    config = configured(folder)
    first = prepared(config)
    with (folder / "ratings.csv").open("a") as file:
        file.write("1,31,4\n")
    (folder / "items.txt").write_text("".join(f"{one}\n" for one in range(ITEMS)))
    listed = configured(folder, ratings={"by": "item", "records": "items.txt"})
    with pytest.raises(InputRejected, match="1 of its items are not listed"):
        prepared(listed)
    second = prepared(configured(folder, release="second"))
    assert (second.n, second.lineage) == (ITEMS + 1, first.lineage)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratings": {"columns": [1, 2, 3]}}, "by: expected 'item' or 'user', found nothing"),
        ({"ratings": {"by": "house"}}, "ratings.by"),
        ({"ratings": {"by": "item", "column": 3}}, "did you mean 'columns'"),
        ({"key": "a"}, "holds no arrays"),
    ],
)
def test_configurations_that_say_too_little_or_too_much(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        configured(folder, **changes)


def test_a_file_of_ratings_without_the_section_is_no_gallery(folder: Path) -> None:
    with pytest.raises(InputRejected, match=r"ratings\.csv"):
        preview(configured(folder, ratings=None))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_movielens_is_released_in_one_command(tmp_path: Path) -> None:
    if not MOVIELENS.exists():
        pytest.skip("MovieLens latest small is not beside the repository")
    config = configured(
        tmp_path,
        gallery=str(MOVIELENS / "ratings.csv"),
        ratings={"by": "item", "records": str(MOVIELENS / "movies.csv")},
        zero_rows="substitute",
        privacy={"epsilon": 8.0, "delta": 1e-6, "adjacency": "shift", "radius": 0.05},
        projection={"method": "shrink"},
        arrays=["factor"],
        cluster={"workers": 2, "memory_limit": "2GiB"},
    )
    path = silently(config)
    manifest = open_release(path).manifest
    assert (manifest.shape.n, manifest.shape.d) == (9742, 610)
    assert all(check.ok for check in verify_release(path).checks)
    log = (config.private / "runs" / "r" / "log.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in log)
