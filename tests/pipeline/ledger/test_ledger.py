"""The ledger: what is spent stays spent, and nobody spends more than there is."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BudgetRefused, IntegrityFailure, exit_code
from pipeline.ledger import (
    Budget,
    Entry,
    Ledger,
    OverspendRefused,
    SpendForecast,
    SpendRequest,
    forecast_spend,
)
from pipeline.ledger.journal import Event
from scoreshield.errors import ParameterError
from tests.harness.books import BUDGET, DIGEST, KEY, LINEAGE, Books, open_books, request


def exact_delta(spent: Fraction, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(200):
        mu = mpmath.sqrt(mpmath.mpf(spent.numerator) / spent.denominator)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def foretold(ledger: Ledger, wanted: SpendRequest) -> SpendForecast:
    account = ledger.account(LINEAGE)
    return forecast_spend(account.budget, account.spent, wanted)


@pytest.fixture
def books(sqlite_books: Books) -> Books:
    return sqlite_books


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return books.open()


class TestAccounts:
    def test_opening_again_changes_nothing(self, ledger: Ledger, books: Books) -> None:
        before = books.rows()
        assert ledger.open_account(LINEAGE, BUDGET, DIGEST).entries == ()
        assert books.rows() == before

    def test_creating_again_keeps_what_is_there(self, ledger: Ledger, books: Books) -> None:
        ledger.reserve(LINEAGE, "first", request(8.0))
        again = books.create()
        assert again.account(LINEAGE) == ledger.account(LINEAGE)
        assert again.lineage_of(DIGEST) == LINEAGE

    @pytest.mark.parametrize("other", [Budget(21.0, 1e-5), Budget(20.0, 1e-6), Budget(19.0, 1e-5)])
    def test_another_budget_is_refused(self, ledger: Ledger, other: Budget) -> None:
        with pytest.raises(BudgetRefused) as refusal:
            ledger.open_account(LINEAGE, other, DIGEST)
        assert str(BUDGET) in str(refusal.value)
        assert str(other) in str(refusal.value)
        assert ledger.account(LINEAGE).budget == BUDGET

    def test_a_content_has_one_lineage(self, ledger: Ledger) -> None:
        """Its later versions share the account, and none of them opens another."""
        ledger.open_account(LINEAGE, BUDGET, b"version 2")
        for version in (DIGEST, b"version 2"):
            assert ledger.lineage_of(version) == LINEAGE
            with pytest.raises(BudgetRefused, match=f"already held.*`--lineage {LINEAGE}`"):
                ledger.open_account("fresh", BUDGET, version)
        assert ledger.find_account("fresh") is None
        assert ledger.lineages() == (LINEAGE,)
        assert ledger.lineage_of(b"version 3") is None

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


class TestReserve:
    def test_an_exact_fit(self, ledger: Ledger) -> None:
        entry = ledger.reserve(LINEAGE, "all", request(20.0))
        assert entry.state == "reserved"
        account = ledger.account(LINEAGE)
        assert account.spent == entry.spend == entry.request.spend
        assert account.spent_epsilon == pytest.approx(20.0, rel=1e-6)
        assert account.largest_epsilon == 0.0
        with pytest.raises(OverspendRefused, match="still fits at delta 1e-05 is 0 "):
            ledger.reserve(LINEAGE, "more", request(0.1))

    def test_a_millionth_more_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "all", request(20.0 * (1 + 1e-6)))
        assert ledger.account(LINEAGE).entries == ()

    def test_four_gaussian_releases(self, books: Books) -> None:
        """Four of (1, 1e-6) cost 2.122857 at 1e-6: less than 4, and exactly known."""
        ledger = books.open()
        ledger.open_account("four", Budget(2.12286, 1e-6), b"four")
        for number in range(4):
            ledger.reserve("four", f"release-{number}", request(1.0, 1e-6))
        assert ledger.account("four").spent_epsilon == pytest.approx(2.1228571, abs=1e-6)
        with pytest.raises(OverspendRefused):
            ledger.reserve("four", "fifth", request(0.01, 1e-6))

    def test_repeating_it_is_free(self, ledger: Ledger, books: Books) -> None:
        first = ledger.reserve(LINEAGE, "first", request(20.0))
        before = books.rows()
        assert ledger.reserve(LINEAGE, "first", request(20.0)) == first
        ledger.commit(LINEAGE, "first")
        assert ledger.reserve(LINEAGE, "first", request(20.0)).state == "committed"
        assert books.rows()[: len(before)] == before
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
    def test_one_release_id_is_one_request(self, ledger: Ledger, other: SpendRequest) -> None:
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
        with pytest.raises(BudgetRefused, match="do not add up to one guarantee"):
            ledger.reserve(LINEAGE, "second", request(1.0, adjacency="shift (radius 0.1)"))

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(
        asked=st.lists(
            st.tuples(
                st.floats(0.01, 15),
                st.sampled_from([1e-9, 1e-6, 1e-5]),
                st.sampled_from([None, Ledger.commit, Ledger.abandon]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_no_sequence_exceeds_the_budget(
        self, asked: list[tuple[float, float, Callable[[Ledger, str, str], Entry] | None]]
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ledger = open_books(f"sqlite:///{folder}/ledger.db", Path(folder, "private")).open()
            granted = Fraction(0)
            for number, (epsilon, delta, ending) in enumerate(asked):
                wanted = request(epsilon, delta)
                outcome = foretold(ledger, wanted)
                if not outcome.fits:
                    with pytest.raises(OverspendRefused) as refusal:
                        ledger.reserve(LINEAGE, str(number), wanted)
                    assert refusal.value.forecast == outcome
                    continue
                entry = ledger.reserve(LINEAGE, str(number), wanted)
                granted += (Fraction(wanted.sensitivity) / Fraction(wanted.sigma)) ** 2
                assert exact_delta(granted, BUDGET.epsilon) <= BUDGET.delta
                if ending is not None:
                    ending(ledger, LINEAGE, entry.release_id)
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
        assert not foretold(ledger, request(largest * (1 + 2e-5), delta)).fits
        ledger.reserve(LINEAGE, "second", request(largest, delta))


class TestLifeOfARelease:
    @pytest.fixture(autouse=True)
    def _reserved(self, ledger: Ledger) -> None:
        ledger.reserve(LINEAGE, "first", request(8.0))

    def test_reserved_key_committed(self, ledger: Ledger, books: Books) -> None:
        (entry,) = books.open().account(LINEAGE).entries
        assert (entry.state, entry.key_commitment, entry.settled_at) == ("reserved", None, None)
        ledger.commit_key(LINEAGE, "first", KEY)
        ledger.commit(LINEAGE, "first")
        (entry,) = books.open().account(LINEAGE).entries
        assert (entry.state, entry.key_commitment) == ("committed", KEY)
        assert entry.settled_at is not None
        assert entry.reserved_at <= entry.settled_at
        assert entry.request == request(8.0)

    def test_each_step_may_be_repeated(self, ledger: Ledger, books: Books) -> None:
        steps: list[Callable[[], Entry]] = [
            lambda: ledger.commit_key(LINEAGE, "first", KEY),
            lambda: ledger.commit(LINEAGE, "first"),
            lambda: ledger.commit_key(LINEAGE, "first", KEY),
        ]
        for step in steps:
            entry, before = step(), books.rows()
            assert step() == entry
            assert books.rows() == before

    def test_a_second_key_is_an_integrity_failure(self, ledger: Ledger) -> None:
        ledger.commit_key(LINEAGE, "first", KEY)
        with pytest.raises(IntegrityFailure, match=f"{KEY[:12]}.*two noises"):
            ledger.commit_key(LINEAGE, "first", "0" * 64)
        (entry,) = ledger.account(LINEAGE).entries
        assert entry.key_commitment == KEY

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

    def test_what_was_never_reserved_has_no_life(self, ledger: Ledger) -> None:
        for step in (
            lambda: ledger.commit(LINEAGE, "second"),
            lambda: ledger.abandon(LINEAGE, "second"),
            lambda: ledger.commit_key(LINEAGE, "second", KEY),
        ):
            with pytest.raises(BudgetRefused, match=r"second .*was never reserved"):
                step()


class TestVerifiedOnce:
    """An opened ledger remembers what it has verified, and misses nothing that others do."""

    def test_no_row_is_hashed_twice(self, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
        hashed: list[int] = []
        hash_after = Event.hash_after

        def counted(event: Event, previous: str) -> str:
            hashed.append(event.sequence)
            return hash_after(event, previous)

        monkeypatch.setattr(Event, "hash_after", counted)
        ledger = books.open()
        ledger.reserve(LINEAGE, "first", request(2.0))
        ledger.commit_key(LINEAGE, "first", KEY)
        ledger.commit(LINEAGE, "first")
        ledger.account(LINEAGE)
        assert hashed == [1, 2, 3, 4, 5]

    def test_what_others_append_is_verified_and_counts(self, ledger: Ledger, books: Books) -> None:
        other = books.open()
        for name in ("first", "second"):
            other.reserve(LINEAGE, name, request(12.0))
        with pytest.raises(OverspendRefused):
            ledger.reserve(LINEAGE, "third", request(12.0))
        other.abandon(LINEAGE, "first")
        books.rewrite("UPDATE journal SET kind = 'committed' WHERE sequence = 5")
        with pytest.raises(BudgetRefused, match=r"row 5 .*was changed"):
            ledger.account(LINEAGE)

    def test_it_remembers_more_than_a_head_that_fell_behind(
        self, ledger: Ledger, books: Books
    ) -> None:
        """Its own memory refuses a ledger that was set back together with the private folder."""
        behind = books.head_file.read_bytes()
        ledger.reserve(LINEAGE, "first", request(12.0))
        books.head_file.write_bytes(behind)
        books.rewrite("DELETE FROM journal WHERE sequence = 3")
        assert books.open().account(LINEAGE).entries == ()
        with pytest.raises(BudgetRefused, match=r"set back.*row 3 was here before"):
            ledger.account(LINEAGE)

    def test_what_is_rolled_back_is_not_remembered(
        self, ledger: Ledger, books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("pipeline.ledger.ledger._Journal.entry", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.reserve(LINEAGE, "first", request(12.0))
        assert ledger.account(LINEAGE).entries == ()
        assert ledger.reserve(LINEAGE, "second", request(20.0)).state == "reserved"
        assert len(books.rows()) == 3
