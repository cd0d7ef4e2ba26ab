"""Ratings in text files: what is read, what it becomes, and what is refused with which words."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError
from pipeline.gallery.open import content_digest
from pipeline.gallery.sparse import column_of_feature, read_sparse, row_pointers, source_ids
from pipeline.gallery.store import Gallery
from pipeline.ingest.ratings import RatingsOptions, count_ratings, ingest_ratings, spool, table
from pipeline.ingest.ratings.spool import bucket_starts
from scoreshield.arithmetic.fixedpoint import substitute_row, to_fixed
from scoreshield.errors import InputRejected

MOVIELENS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "ml-latest-small"
RATINGS = [("u1", "b", 4.0), ("u10", "a", 2.5), ("u1", "a", 1.0), ("u2", "c", 5.0)]
ITEMS = RatingsOptions("item")
Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        path = tmp_path / "ratings.csv"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write


def made(source: Path, options: RatingsOptions = ITEMS, zero_rows: str = "refuse") -> Gallery:
    return ingest_ratings(
        source,
        source.with_suffix(".zarr"),
        options,
        zero_rows=zero_rows,  # type: ignore[arg-type]
        overwrite=True,
    )


def by_feature(gallery: Gallery) -> NDArray[np.float32]:
    """All rows (n, d) written out, columns in the order of the features' ids."""
    return read_sparse(gallery.path, 0, gallery.n).dense()[:, column_of_feature(gallery.path)]


EXPECTED = to_fixed(np.array([[1.0, 2.5, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 5.0]]))
"""Items a, b, c by users u1, u10, u2, which are in the order of text."""


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("userId,movieId,rating,timestamp\nu1,b,4,9\nu10,a,2.5,9\nu1,a,1,9\nu2,c,5,9\n", None),
        ("u1,b,4,9\nu10,a,2.5,9\nu1,a,1,9\nu2,c,5,9\n", None),
        ("u1::b::4::9\nu10::a::2.5::9\nu1::a::1::9\nu2::c::5::9\n", None),
        ("u1\tb\t4\t9\r\nu10\ta\t2.5\t9\r\nu1\ta\t1\t9\r\nu2\tc\t5\t9\r\n", None),
        ("Rating;Item_ID;x;USER ID\n4;b;;u1\n2.5;a;;u10\n1;a;;u1\n5;c;;u2", None),
        ("s,i,who\n4,b,u1\n2.5,a,u10\n1,a,u1\n5,c,u2\n", ("who", "i", "s")),
        ("s,i,who\n4,b,u1\n2.5,a,u10\n1,a,u1\n5,c,u2\n", ("3", "2", "1")),
        ("4,b,u1\n2.5,a,u10\n1,a,u1\n5,c,u2\n", ("3", "2", "1")),
        ('\ufeffuser,item,value\n"u1",b, 4 \n u10 ,a,2.5\n\nu1,"a",1\nu2,c,5e0\n\n', None),
        ("u2,c,5\nu1,a,1\nu10,a,2.5\nu1,b,4\nu2,a,0\n", None),
    ],
)
def test_any_layout_gives_the_same_gallery(
    written: Written, text: str, columns: tuple[str, ...] | None
) -> None:
    gallery = made(written(text), RatingsOptions("item", columns))
    assert (by_feature(gallery) == EXPECTED).all()
    assert source_ids(gallery.path, "record_ids") == ["a", "b", "c"]
    assert source_ids(gallery.path, "feature_ids") == ["u1", "u10", "u2"]
    assert gallery.record_kind == "item"


def test_by_user_is_the_other_way_round(written: Written) -> None:
    gallery = made(
        written("".join(f"{u},{i},{v}\n" for u, i, v in RATINGS)), RatingsOptions("user")
    )
    assert (by_feature(gallery) == to_fixed(np.array([[1.0, 4, 0], [2.5, 0, 0], [0, 0, 5]]))).all()
    assert gallery.record_kind == "user"


def test_without_a_value_every_interaction_counts_one(written: Written) -> None:
    found = made(written("user,item\n1,a\n2,a\n1,b\n"))
    assert (by_feature(found) == to_fixed(np.array([[1.0, 1.0], [1.0, 0.0]]))).all()
    assert content_digest(made(written("1,a\n2,a\n1,b\n"))) == content_digest(found)
    columns = RatingsOptions("item", ("1", "3"))
    assert content_digest(made(written("1,x,a\n2,y,a\n1,z,b\n"), columns)) == content_digest(found)


def test_ids_that_are_whole_numbers_are_in_the_order_of_numbers(written: Written) -> None:
    gallery = made(written("10,2,1\n9,30,1\n-1,100000000000000000000,1\n"))
    assert source_ids(gallery.path, "record_ids") == ["2", "30", "100000000000000000000"]
    assert source_ids(gallery.path, "feature_ids") == ["-1", "9", "10"]
    gallery = made(written("10,02,1\n9,30,1\n9,2,1\n"))
    assert source_ids(gallery.path, "record_ids") == ["02", "2", "30"]
    longest = "9" * 5000
    gallery = made(written(f"10,{longest},1\n9,30,1\n9,4,1\n"))
    assert source_ids(gallery.path, "record_ids") == ["30", "4", longest]


def test_columns_are_stored_most_used_first(written: Written) -> None:
    gallery = made(written("1,a,1\n2,a,1\n2,b,1\n3,a,1\n3,b,1\n3,c,1\n"))
    assert column_of_feature(gallery.path).tolist() == [2, 1, 0]
    rows = read_sparse(gallery.path, 0, 3)
    assert rows.columns.tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(("rule", "value"), [("last", 2.0), ("sum", 5.0)])
def test_pairs_that_come_twice(written: Written, rule: str, value: float) -> None:
    source = written("1,a,3\n1,b,1\n2,a,4\n1,a,2\n")
    options = RatingsOptions("item", duplicates=rule)  # type: ignore[arg-type]
    assert (by_feature(made(source, options)) == to_fixed(np.array([[value, 4], [1, 0]]))).all()
    with pytest.raises(InputRejected, match=r"1 interactions .*--duplicates last"):
        made(source)


def test_records_without_ratings_are_zero_rows(written: Written, tmp_path: Path) -> None:
    source, listed = written("1,a,3\n2,b,1\n2,c,0\n"), tmp_path / "items.csv"
    listed.write_bytes('itemId,title\nd,"One, two"\na,\xfc\nc,\nb,x\n'.encode("latin-1"))
    options = RatingsOptions("item", records=listed)
    with pytest.raises(InputRejected, match=r"only zeros in 2 rows \(counted from 0: 2, 3\) of 4"):
        made(source, options)
    gallery = made(source, options, "substitute")
    assert (by_feature(gallery)[2:] == substitute_row(2)).all()
    assert source_ids(gallery.path, "record_ids") == ["a", "b", "c", "d"]
    listed.write_text("a\nc\n")
    with pytest.raises(InputRejected, match=r"1 of its items are not listed in .*items.csv"):
        made(source, options, "substitute")


@pytest.mark.parametrize(
    ("by", "first", "header"),
    [
        ("item", "movieId", True),
        ("item", "Item ID", True),
        ("item", "productid", True),
        ("item", "PIN_ID", True),
        ("item", "id", True),
        ("user", "User", True),
        ("item", "david", False),
        ("item", "MADRID", False),
        ("item", "lineitem", False),
        ("user", "superuser", False),
    ],
)
def test_the_first_record_of_a_list_is_no_header(
    written: Written, tmp_path: Path, by: str, first: str, header: bool
) -> None:
    listed = tmp_path / "records.txt"
    listed.write_text(f"{first}\na\nb\n")
    options = RatingsOptions(by, records=listed)  # type: ignore[arg-type]
    gallery = made(written("a,a,3\nb,b,1\n"), options, "substitute")
    assert sorted(source_ids(gallery.path, "record_ids")) == sorted(
        ["a", "b", *([] if header else [first])]
    )


def test_a_file_larger_than_its_blocks_and_buckets_is_the_same_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    pairs = random.permutation(60 * 90)[:3000]
    lines = [f"{p % 60},{p // 60},{random.integers(1, 11) / 2}" for p in pairs]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (tmp_path / "b.csv").write_text("\n".join(lines[::-1]) + "\n")
    whole = made(tmp_path / "a.csv")
    monkeypatch.setattr(spool, "BUCKET_INTERACTIONS", 170)
    monkeypatch.setattr(spool, "_PART", 256)
    monkeypatch.setattr(table, "BLOCK_BYTES", 1000)
    assert content_digest(made(tmp_path / "b.csv")) == content_digest(whole)
    dense = np.zeros((90, 60))
    for user, item, value in csv.reader(lines):
        dense[int(item), int(user)] = float(value)
    assert (by_feature(whole) == to_fixed(dense)).all()


def test_buckets_hold_no_more_than_their_limit_unless_one_record_does() -> None:
    counts = np.array([3, 3, 3, 20, 0, 1, 5, 5, 0])
    assert bucket_starts(counts, 6).tolist() == [0, 2, 3, 4, 7]
    assert bucket_starts(counts, 100).tolist() == [0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,a,3\n1,b\n2,a,4\n2\n", r"2 with another number of columns \(lines 2, 4\)"),
        ("1,a,3\n1,b,x\n2,a,nan\n", r"no finite number \(lines 2, 3\)"),
        ("1,a,3\n,b,1\n2, ,4\n", r"2 with no id \(lines 2, 3\)"),
        ("1,a,3\n1,b,1e999\n", r"no finite number \(lines 2\)"),
        ("1,a,3\n\n1,b,\n2,c,1\n", r"no finite number \(lines 3\)"),
        ("1,a,3\n1,\udcff,4\n2,c,1\n", r"bytes that are not UTF-8 \(lines 2\)"),
        ("user,item,rating\n", "found 0 records, expected at least 2"),
        ("1,a,3\n2,a,3\n", "found 1 records, expected at least 2"),
        ("1,a,0\n2,b,0\n", "only zeros in 2 rows"),
        ("", r"found 0 column\(s\) in the first line"),
        ("x,y,z\n1,a,3\n", "can't tell which are user, item and value"),
        ("x" * 70000, "first line of more than 65536 bytes"),
    ],
)
def test_what_is_no_rating_is_refused_by_its_line(written: Written, text: str, words: str) -> None:
    source = written(text)
    with pytest.raises(InputRejected, match=words):
        made(source)
    assert [path.name for path in source.parent.iterdir()] == [source.name]


def test_messages_hold_no_value_of_the_file(written: Written) -> None:
    with pytest.raises(InputRejected) as refusal:
        made(written("1,a,3\nsecret-user,secret-item,secret-rating\n"))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (("1",), ConfigurationError, "expected user, item and value"),
        (("1", "2", "9"), InputRejected, "positions from 1 to 3"),
        (("who", "b", "c"), InputRejected, "has no column who"),
        (("1", "1", "2"), ConfigurationError, "expected user, item and value"),
    ],
)
def test_columns_that_are_not_there(
    written: Written, columns: tuple[str, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        made(written("a,b,c\n1,2,3\n"), RatingsOptions("item", columns))


def test_counting_says_what_ingest_makes(written: Written) -> None:
    source = written("1,a,3\n1,b,1\n2,a,4\n3,c,1\n")
    counts = count_ratings(source, ITEMS)
    assert (counts.n, counts.d, counts.entries.tolist()) == (3, 3, [2, 1, 1])
    assert np.diff(row_pointers(made(source).path)).tolist() == [2, 1, 1]


def test_movielens_items_are_the_integers_of_the_dense_path() -> None:
    if not MOVIELENS.exists():
        pytest.skip("MovieLens latest small is not beside the repository")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        gallery = ingest_ratings(
            MOVIELENS / "ratings.csv",
            Path(folder) / "gallery.zarr",
            RatingsOptions("item", records=MOVIELENS / "movies.csv"),
            zero_rows="substitute",
        )
        with (MOVIELENS / "ratings.csv").open() as file:
            lines = list(csv.reader(file))[1:]
        records = {one: place for place, one in enumerate(source_ids(gallery.path, "record_ids"))}
        features = {one: place for place, one in enumerate(source_ids(gallery.path, "feature_ids"))}
        dense = np.zeros((gallery.n, gallery.d))
        for user, movie, rating, _ in lines:
            dense[records[movie], features[user]] = float(rating)
        rated = dense.any(axis=1)
        found = by_feature(gallery)
        assert (gallery.n, gallery.d, int((~rated).sum())) == (9742, 610, 18)
        assert (found[rated] == to_fixed(dense[rated])).all()
        assert (found[~rated] == substitute_row(610)).all()
