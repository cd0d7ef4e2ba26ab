"""A manifest's words: which guarantee it is, with every digit that makes a bound larger."""

from __future__ import annotations

import pytest

from scoreshield.mechanisms.gram import calibrate_gram
from scoreshield.privacy.sensitivity import Adjacency
from tests.harness.manifests import manifest_of


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        (Adjacency("record"), "replaced by any other record"),
        (Adjacency("shift", 0.1), "moved by at most 0.1"),
        (Adjacency("output", 2.0), "changed by at most 2 in Frobenius norm"),
    ],
)
def test_the_statement_says_which_guarantee(adjacency: Adjacency, words: str) -> None:
    mechanism = calibrate_gram(30, 5, 2.0, 1e-6, adjacency)
    privacy = manifest_of(mechanism).privacy
    assert words in privacy.statement
    assert privacy.adjacency == adjacency.kind
    assert privacy.radius == adjacency.radius
    assert privacy.implied_record_replacement.epsilon == mechanism.implied.epsilon
    implied = f"this implies only epsilon = {mechanism.implied.epsilon!r}"
    assert (implied in privacy.statement) == (adjacency.kind != "record")


def test_the_statement_rounds_no_bound_down() -> None:
    mechanism = calibrate_gram(30, 5, 1.00000000049, 1.00000000049e-6, Adjacency("shift", 0.1))
    statement = manifest_of(mechanism).privacy.statement
    assert "at most exp(1.00000000049), apart" in statement
    assert "at most 1.00000000049e-06." in statement
    assert f"epsilon = {mechanism.implied.epsilon!r} at" in statement
    assert "at most exp(2), apart" in manifest_of().privacy.statement


def test_a_test_mode_is_marked() -> None:
    manifest = manifest_of(not_private_reason="fixed seed")
    assert not manifest.private
    assert manifest.privacy.statement.startswith("NOT PRIVATE: fixed seed")
