"""The ledger: what is spent stays spent, and nobody spends more than there is."""

from __future__ import annotations

import hashlib
import math
import re
import sqlite3
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import (
    BudgetRefused,
    ConfigurationError,
    IntegrityFailure,
    exit_code,
)
from pipeline.ledger import Budget, Entry, Ledger, OverspendRefused, Request, forecast
from pipeline.ledger import sqlite as sqlite_module
from pipeline.storage import filesystem
from scoreshield.errors import ParameterError
from scoreshield.privacy.calibration import noise_multiplier

BUDGET = Budget(20.0, 1e-5)
LINEAGE = "0123456789abcdef0123456789abcdef"
DIGEST = hashlib.sha256(b"gallery").digest()
KEY = hashlib.sha256(b"key").hexdigest()


def request(
    epsilon: float, delta: float = 1e-5, sensitivity: float = 10.0, adjacency: str = "record"
) -> Request:
    """A request calibrated the way the mechanism does it."""
    sigma = noise_multiplier(epsilon, delta) * sensitivity * (1 + 2.0**-50)
    return Request(epsilon, delta, sensitivity, sigma, adjacency)


def exact_delta(spent: Fraction, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(200):
        mu = mpmath.sqrt(mpmath.mpf(spent.numerator) / spent.denominator)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def create(url: str) -> Ledger:
    return Ledger.create(url, private_beside(url))


def reopen(url: str) -> Ledger:
    return Ledger.open(url, private_beside(url))


def private_beside(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).parent / "private"


@pytest.fixture
def ledger(url: str) -> Ledger:
    opened = create(url)
    opened.open_account(LINEAGE, BUDGET, DIGEST)
    return opened


class TestCreateAndOpen:
    def test_readable_by_its_owner_only(self, url: str) -> None:
        assert Path(create(url).name).stat().st_mode & 0o777 == 0o600

    def test_creating_twice_keeps_what_is_there(self, ledger: Ledger, url: str) -> None:
        ledger.reserve(LINEAGE, "first", request(8.0))
        again = create(url)
        assert again.account(LINEAGE) == ledger.account(LINEAGE)
        assert again.lineage_of(DIGEST) == LINEAGE

    def test_a_name_that_looks_like_a_query(self, tmp_path: Path) -> None:
        ledger = create(f"sqlite:///{tmp_path / 'a #1 % é.db'}")
        assert [path.name for path in tmp_path.iterdir()] == [Path(ledger.name).name]

    def test_an_empty_file_becomes_a_ledger(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "ledger.db").touch()
        assert create(url).lineages() == ()

    def test_a_missing_ledger_is_refused_and_not_made(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(BudgetRefused, match=r"no ledger at .*`scoreshield ledger init CONFIG`"):
            reopen(url)
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}"
        with pytest.raises(BudgetRefused, match="no ledger at"):
            reopen(url)
        with pytest.raises(ConfigurationError, match=r"folder .*nowhere does not exist"):
            create(url)

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "ledger.db").write_text("epsilon = 20\n" * 100)
        for attempt in (reopen, create):
            with pytest.raises(BudgetRefused, match="file is not a database"):
                attempt(url)

    def test_a_database_of_something_else_is_refused(self, tmp_path: Path, url: str) -> None:
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            other.execute("CREATE TABLE customers (name TEXT)")
        for attempt in (reopen, create):
            with pytest.raises(BudgetRefused, match=r"not a ScoreShield ledger.*customers.*init"):
                attempt(url)

    def test_an_empty_database_is_refused(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "ledger.db").touch()
        with pytest.raises(BudgetRefused, match="an empty database"):
            reopen(url)

    def test_a_folder_is_refused(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "ledger.db").mkdir()
        for attempt in (reopen, create):
            with pytest.raises(BudgetRefused, match="unable to open database file"):
                attempt(url)

    def test_a_ledger_that_vanished_is_not_made_again(self, ledger: Ledger) -> None:
        Path(ledger.name).unlink()
        with pytest.raises(BudgetRefused, match="unable to open database file"):
            ledger.reserve(LINEAGE, "first", request(1.0))
        assert not Path(ledger.name).exists()

    def test_another_format_is_refused(self, ledger: Ledger, url: str) -> None:
        rewrite(ledger, "UPDATE ledger SET format = 'scoreshield-ledger/9'")
        with pytest.raises(BudgetRefused, match=r"scoreshield-ledger/9.*expected"):
            reopen(url)

    @pytest.mark.parametrize("damage", ["cut", "overwritten"])
    def test_a_damaged_file_is_refused(self, ledger: Ledger, url: str, damage: str) -> None:
        for number in range(20):
            ledger.reserve(LINEAGE, f"release-{number}", request(0.1))
        content = bytearray(Path(ledger.name).read_bytes())
        middle = len(content) // 2
        if damage == "cut":
            del content[middle:]
        else:
            content[middle:] = b"\xa5" * (len(content) - middle)
        Path(ledger.name).write_bytes(content)
        with pytest.raises(BudgetRefused, match=r"is damaged .*[Rr]estore"):
            reopen(url)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("mysql://someone@example.org/ledger", "found a mysql database"),
            ("postgresql+asyncpg://someone@example.org/ledger", "found the driver"),
            ("postgresql://someone:secret@example.org", "without a database"),
            ("postgresql://someone:secret@example.org:port/ledger", "found no database URL"),
            ("ledger.db", "expected sqlite:///"),
            ("sqlite://", "in memory would forget"),
            ("sqlite:///:memory:", "in memory would forget"),
        ],
    )
    def test_a_url_of_another_kind_is_refused(self, bad: str, message: str) -> None:
        for attempt in (Ledger.open, Ledger.create):
            with pytest.raises(ConfigurationError, match=message) as refusal:
                attempt(bad, Path("private"))
            assert "secret" not in str(refusal.value)


def rewrite(ledger: Ledger, statement: str) -> None:
    """Change a ledger's rows as only someone who removes its triggers can."""
    with sqlite3.connect(Path(ledger.name)) as connection:
        for (trigger,) in list(
            connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        ):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(statement)


class TestAccounts:
    def test_opening_again_changes_nothing(self, ledger: Ledger) -> None:
        before = events(ledger)
        assert ledger.open_account(LINEAGE, BUDGET, DIGEST).entries == ()
        assert events(ledger) == before

    @pytest.mark.parametrize("other", [Budget(21.0, 1e-5), Budget(20.0, 1e-6), Budget(19.0, 1e-5)])
    def test_another_budget_is_refused(self, ledger: Ledger, other: Budget) -> None:
        with pytest.raises(BudgetRefused) as refusal:
            ledger.open_account(LINEAGE, other, DIGEST)
        assert str(BUDGET) in str(refusal.value)
        assert str(other) in str(refusal.value)
        assert ledger.account(LINEAGE).budget == BUDGET

    def test_the_same_gallery_under_another_lineage_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(BudgetRefused, match=f"already held.*`--lineage {LINEAGE}`"):
            ledger.open_account("fresh", BUDGET, DIGEST)
        assert ledger.find_account("fresh") is None
        assert ledger.lineages() == (LINEAGE,)

    def test_later_versions_share_the_account(self, ledger: Ledger) -> None:
        ledger.register_version(LINEAGE, b"version 2")
        ledger.open_account(LINEAGE, BUDGET, b"version 3")
        assert ledger.lineage_of(b"version 2") == LINEAGE
        assert ledger.lineage_of(b"version 3") == LINEAGE
        for version in (b"version 2", b"version 3"):
            with pytest.raises(BudgetRefused, match="already held"):
                ledger.open_account("fresh", BUDGET, version)

    def test_a_version_of_nothing_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(BudgetRefused, match="no account for lineage unknown"):
            ledger.register_version("unknown", b"version 2")
        assert ledger.lineage_of(b"version 2") is None

    def test_the_file_is_no_membership_test(self, ledger: Ledger) -> None:
        content = Path(ledger.name).read_bytes()
        assert DIGEST not in content
        assert DIGEST.hex().encode() not in content
        assert hashlib.sha256(DIGEST).hexdigest().encode() not in content

    def test_two_ledgers_store_one_gallery_differently(self, tmp_path: Path) -> None:
        stored = set()
        for name in ("one.db", "two.db"):
            ledger = create(f"sqlite:///{tmp_path / name}")
            ledger.open_account(LINEAGE, BUDGET, DIGEST)
            stored |= {row[3] for row in events(ledger) if row[2] == "version"}
        assert len(stored) == 2

    def test_lineages_have_their_own_budgets(self, ledger: Ledger) -> None:
        ledger.open_account("other", Budget(1.0, 1e-6), b"other gallery")
        ledger.reserve(LINEAGE, "first", request(20.0))
        ledger.reserve("other", "first", request(1.0, 1e-6))
        assert ledger.lineages() == (LINEAGE, "other")
        assert [entry.release_id for entry in ledger.account("other").entries] == ["first"]

    def test_an_unknown_lineage_is_refused(self, ledger: Ledger) -> None:
        assert ledger.find_account("unknown") is None
        with pytest.raises(BudgetRefused, match="no account for lineage unknown"):
            ledger.reserve("unknown", "first", request(1.0))


def events(ledger: Ledger) -> list[tuple[object, ...]]:
    with sqlite3.connect(Path(ledger.name)) as connection:
        return list(connection.execute("SELECT * FROM journal ORDER BY sequence"))


class TestReserve:
    def test_an_exact_fit(self, ledger: Ledger) -> None:
        entry = ledger.reserve(LINEAGE, "all", request(20.0))
        assert entry.state == "reserved"
        account = ledger.account(LINEAGE)
        assert account.spent == entry.spend == entry.request.spend
        assert account.spent_epsilon == pytest.approx(20.0, rel=1e-6)
        assert account.largest_epsilon == 0.0

    def test_a_millionth_more_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "all", request(20.0 * (1 + 1e-6)))
        assert ledger.account(LINEAGE).entries == ()

    def test_four_gaussian_releases(self, tmp_path: Path) -> None:
        """Four of (1, 1e-6) cost 2.122857 at 1e-6: less than 4, and exactly known."""
        ledger = create(f"sqlite:///{tmp_path / 'four.db'}")
        ledger.open_account(LINEAGE, Budget(2.12286, 1e-6), DIGEST)
        for number in range(4):
            ledger.reserve(LINEAGE, f"release-{number}", request(1.0, 1e-6))
        assert ledger.account(LINEAGE).spent_epsilon == pytest.approx(2.1228571, abs=1e-6)
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "fifth", request(0.01, 1e-6))

    def test_repeating_it_is_free(self, ledger: Ledger) -> None:
        first = ledger.reserve(LINEAGE, "first", request(20.0))
        before = events(ledger)
        assert ledger.reserve(LINEAGE, "first", request(20.0)) == first
        ledger.commit(LINEAGE, "first")
        assert ledger.reserve(LINEAGE, "first", request(20.0)).state == "committed"
        assert events(ledger)[: len(before)] == before
        assert ledger.account(LINEAGE).spent == first.spend

    @pytest.mark.parametrize(
        "other",
        [
            request(1.5),
            request(1.0, 1e-6),
            request(1.0, sensitivity=11.0),
            request(1.0, adjacency="shift (radius 0.1)"),
        ],
    )
    def test_one_release_id_is_one_request(self, ledger: Ledger, other: Request) -> None:
        ledger.reserve(LINEAGE, "first", request(1.0))
        with pytest.raises(BudgetRefused, match="choose another release id"):
            ledger.reserve(LINEAGE, "first", other)
        assert ledger.account(LINEAGE).spent == request(1.0).spend

    def test_an_abandoned_id_is_not_used_again(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "first", request(1.0))
        ledger.abandon(LINEAGE, "first")
        with pytest.raises(BudgetRefused, match=r"was abandoned .*stays spent"):
            ledger.reserve(LINEAGE, "first", request(1.0))

    def test_adjacencies_do_not_mix(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "first", request(1.0))
        shifted = request(1.0, adjacency="shift (radius 0.1)")
        for attempt in (
            lambda: ledger.reserve(LINEAGE, "second", shifted),
            lambda: ledger.forecast(LINEAGE, shifted),
        ):
            with pytest.raises(BudgetRefused, match="do not add up to one guarantee"):
                attempt()

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_a_request_without_meaning_is_refused(self, bad: float) -> None:
        with pytest.raises(ParameterError):
            Request(bad, 1e-6, 1.0, 1.0, "record")
        with pytest.raises(ParameterError, match="sensitivity must be"):
            Request(1.0, 1e-6, bad, 1.0, "record")
        with pytest.raises(ParameterError, match="sigma must be"):
            Request(1.0, 1e-6, 1.0, bad, "record")
        with pytest.raises(ParameterError):
            Budget(1.0, bad)

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(
        asked=st.lists(
            st.tuples(
                st.floats(0.01, 15),
                st.sampled_from([1e-9, 1e-6, 1e-5]),
                st.sampled_from(["nothing", "commit", "abandon"]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_no_sequence_exceeds_the_budget(self, asked: list[tuple[float, float, str]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ledger = create(f"sqlite:///{folder}/ledger.db")
            ledger.open_account(LINEAGE, BUDGET, DIGEST)
            granted = Fraction(0)
            for number, (epsilon, delta, ending) in enumerate(asked):
                wanted = request(epsilon, delta)
                outcome = ledger.forecast(LINEAGE, wanted)
                if not outcome.fits:
                    with pytest.raises(OverspendRefused) as refusal:
                        ledger.reserve(LINEAGE, str(number), wanted)
                    assert refusal.value.forecast == outcome
                    continue
                entry = ledger.reserve(LINEAGE, str(number), wanted)
                granted += (Fraction(wanted.sensitivity) / Fraction(wanted.sigma)) ** 2
                assert exact_delta(granted, BUDGET.epsilon) <= BUDGET.delta
                if ending == "commit":
                    ledger.commit(LINEAGE, entry.release_id)
                elif ending == "abandon":
                    ledger.abandon(LINEAGE, entry.release_id)
            assert 0 <= ledger.account(LINEAGE).spent - granted < Fraction(len(asked), 2**128)


class TestRefusal:
    def test_the_four_numbers(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "first", request(12.0))
        ledger.abandon(LINEAGE, "first")
        with pytest.raises(OverspendRefused) as refusal:
            ledger.reserve(LINEAGE, "second", request(19.0, 1e-6))
        numbers = refusal.value.forecast.numbers()
        assert numbers["spent"] == pytest.approx(12.0, rel=1e-6)
        assert numbers["requested"] == 19.0
        assert numbers["remaining"] == pytest.approx(8.0, rel=1e-6)
        assert 8.0 < numbers["largest"] < 19.0
        message = str(refusal.value)
        for shown in (
            "has spent epsilon 12 of its budget of 20.0 at delta 1e-05",
            "requested epsilon 19.0 at delta 1e-06",
            "8 remains",
            f"largest epsilon that still fits at delta 1e-06 is {numbers['largest']:.6g}",
        ):
            assert shown in message
        assert exit_code(refusal.value) == 4

    @pytest.mark.parametrize("spent", [3.0, 12.0, 19.5])
    @pytest.mark.parametrize("delta", [1e-5, 1e-9])
    def test_the_largest_printed_really_fits(
        self, ledger: Ledger, spent: float, delta: float
    ) -> None:
        ledger.reserve(LINEAGE, "first", request(spent))
        with pytest.raises(OverspendRefused) as refusal:
            ledger.reserve(LINEAGE, "second", request(40.0, delta))
        printed = re.search(r"still fits at delta \S+ is (\S+) ", str(refusal.value))
        assert printed is not None
        largest = float(printed[1])
        assert not ledger.forecast(LINEAGE, request(largest * (1 + 2e-5), delta)).fits
        ledger.reserve(LINEAGE, "second", request(largest, delta))

    def test_an_untouched_budget_offers_itself(self, ledger: Ledger) -> None:
        assert ledger.forecast(LINEAGE, request(21.0)).largest_epsilon == 20.0

    def test_an_empty_budget_offers_nothing(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "all", request(20.0))
        with pytest.raises(OverspendRefused, match="still fits at delta 1e-05 is 0 "):
            ledger.reserve(LINEAGE, "more", request(0.1))


class TestForecast:
    def test_before_there_is_an_account(self) -> None:
        outcome = forecast(BUDGET, Fraction(0), request(8.0))
        assert outcome.fits
        assert outcome.spent_epsilon == 0.0
        assert outcome.remaining_epsilon == 20.0
        assert outcome.after_epsilon == pytest.approx(8.0, rel=1e-6)

    def test_it_writes_nothing(self, ledger: Ledger) -> None:
        before = Path(ledger.name).read_bytes()
        assert not ledger.forecast(LINEAGE, request(30.0)).fits
        assert Path(ledger.name).read_bytes() == before

    def test_beyond_what_can_be_said(self) -> None:
        outcome = forecast(BUDGET, Fraction(0), Request(1e6, 1e-5, 1e6, 1.0, "record"))
        assert not outcome.fits
        assert outcome.after_epsilon is None


class TestLifeOfARelease:
    @pytest.fixture(autouse=True)
    def _reserved(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "first", request(8.0))

    def test_reserved_key_committed(self, ledger: Ledger, url: str) -> None:
        assert ledger.key_committed(LINEAGE, "first") is None
        ledger.commit_key(LINEAGE, "first", KEY)
        ledger.commit(LINEAGE, "first")
        (entry,) = reopen(url).account(LINEAGE).entries
        assert (entry.state, entry.key_commitment) == ("committed", KEY)
        assert entry.settled_at is not None
        assert entry.reserved_at <= entry.settled_at
        assert entry.request == request(8.0)

    def test_each_step_may_be_repeated(self, ledger: Ledger) -> None:
        steps: list[Callable[[], Entry]] = [
            lambda: ledger.commit_key(LINEAGE, "first", KEY),
            lambda: ledger.commit(LINEAGE, "first"),
            lambda: ledger.commit_key(LINEAGE, "first", KEY),
        ]
        for step in steps:
            entry, before = step(), events(ledger)
            assert step() == entry
            assert events(ledger) == before

    def test_a_second_key_is_an_integrity_failure(self, ledger: Ledger) -> None:
        ledger.commit_key(LINEAGE, "first", KEY)
        with pytest.raises(IntegrityFailure, match=f"{KEY[:12]}.*two noises"):
            ledger.commit_key(LINEAGE, "first", "0" * 64)
        assert ledger.key_committed(LINEAGE, "first") == KEY

    def test_a_key_itself_is_no_commitment(self, ledger: Ledger) -> None:
        with pytest.raises(ParameterError, match="64 lower-case hexadecimal") as refusal:
            ledger.commit_key(LINEAGE, "first", "very secret")
        assert "very secret" not in str(refusal.value)

    def test_published_is_not_abandoned(self, ledger: Ledger) -> None:
        ledger.commit(LINEAGE, "first")
        with pytest.raises(BudgetRefused, match="is published and cannot be abandoned"):
            ledger.abandon(LINEAGE, "first")

    def test_abandoned_stays_spent_and_unpublished(self, ledger: Ledger) -> None:
        spent = ledger.account(LINEAGE).spent
        ledger.abandon(LINEAGE, "first")
        assert ledger.abandon(LINEAGE, "first").state == "abandoned"
        assert ledger.account(LINEAGE).spent == spent > 0
        with pytest.raises(BudgetRefused, match="was abandoned and cannot be published"):
            ledger.commit(LINEAGE, "first")
        with pytest.raises(BudgetRefused, match="is abandoned; it takes no key"):
            ledger.commit_key(LINEAGE, "first", KEY)

    @pytest.mark.parametrize("step", [Ledger.commit, Ledger.abandon, Ledger.key_committed])
    def test_what_was_never_reserved_has_no_life(
        self, ledger: Ledger, step: Callable[[Ledger, str, str], object]
    ) -> None:
        with pytest.raises(BudgetRefused, match=r"second .*was never reserved"):
            step(ledger, LINEAGE, "second")


class TestNetworkFileSystem:
    @pytest.mark.parametrize(
        ("mounts", "found"),
        [
            ("/dev/sda / ext4 rw 0 0", None),
            ("overlay / overlay rw 0 0", None),
            ("share / 9p rw 0 0", None),
            ("tmpfs / tmpfs rw 0 0", None),
            ("server:/export / nfs rw 0 0", "nfs"),
            ("server:/export / nfs4 rw 0 0", "nfs4"),
            ("//server/export / cifs rw 0 0", "cifs"),
            ("//server/export / smb3 rw 0 0", "smb3"),
            ("someone@server: / fuse.sshfs rw 0 0", "fuse.sshfs"),
            ("server:/volume / fuse.glusterfs rw 0 0", "fuse.glusterfs"),
            ("server:/volume / lustre rw 0 0", "lustre"),
            # The deepest mount decides, and of two on one point the later.
            ("server:/export / nfs rw 0 0\n/dev/sda {folder} ext4 rw 0 0", None),
            ("/dev/sda / ext4 rw 0 0\nserver:/export {folder} nfs rw 0 0", "nfs"),
            ("server:/export {folder} nfs rw 0 0\n/dev/sda / ext4 rw 0 0", "nfs"),
            ("/dev/sda {folder} ext4 rw 0 0\nserver:/export {folder} nfs rw 0 0", "nfs"),
            # A neighbour whose name only begins alike is not above us.
            ("/dev/sda / ext4 rw 0 0\nserver:/export {sibling} nfs rw 0 0", None),
        ],
    )
    def test_the_mount_table_is_read_right(
        self, tmp_path: Path, mounts: str, found: str | None
    ) -> None:
        folder, sibling = tmp_path / "my folder", tmp_path / "my"
        folder.mkdir()
        table = tmp_path / "mounts"
        escaped = [str(path.resolve()).replace(" ", "\\040") for path in (folder, sibling)]
        table.write_text(mounts.format(folder=escaped[0], sibling=escaped[1]) + "\n")
        assert filesystem.network_filesystem(folder, table) == found

    def test_no_mount_table_says_nothing(self, tmp_path: Path) -> None:
        assert filesystem.network_filesystem(tmp_path, tmp_path / "missing") is None

    def test_a_ledger_there_is_refused_with_the_reason(
        self, ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_module, "network_filesystem", lambda folder: "nfs4")
        for attempt in (reopen, create):
            with pytest.raises(BudgetRefused, match=r"network file system \(nfs4\).*locks"):
                attempt(url)
