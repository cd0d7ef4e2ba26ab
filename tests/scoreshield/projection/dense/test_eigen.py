"""Dense eigenpairs and the positive part."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from scoreshield.errors import InputRejected, ParameterError
from scoreshield.projection.dense.eigen import (
    LARGEST_FULL_SPECTRUM,
    full_spectrum,
    positive_part_of,
    refuse_oversized,
    top_eigenpairs,
    uniform_dual_shift,
)


@pytest.mark.parametrize("shift", [-1e3, -2.0, 0.0, 2.0, 1e3])
def test_positive_part_is_the_projection_onto_the_psd_cone(noisy_gram, shift):
    # The shifts make the positive side empty, small, large and all of the spectrum.
    A = noisy_gram(30, 1.0) + shift * np.eye(30)
    before = A.copy()
    P = positive_part_of(A, full_spectrum(A))
    np.testing.assert_array_equal(A, before)
    scale = abs(shift) + 10
    assert np.linalg.eigvalsh(P)[0] >= -1e-13 * scale
    assert np.linalg.eigvalsh(P - A)[0] >= -1e-13 * scale
    assert abs(np.sum(P * (P - A))) <= 1e-12 * scale**2


def test_top_eigenpairs_are_the_end_of_the_full_spectrum(noisy_gram):
    A = noisy_gram(40, 0.3)
    top, full = top_eigenpairs(A, 5), full_spectrum(A)
    np.testing.assert_allclose(top.values, full.values[-5:], rtol=1e-12)
    np.testing.assert_allclose(
        np.abs(np.sum(top.vectors * full.vectors[:, -5:], axis=0)), 1.0, rtol=1e-10
    )
    assert top_eigenpairs(A, 400).values.size == 40


def test_falls_back_to_the_other_driver(noisy_gram, monkeypatch):
    A = noisy_gram(20, 0.3)
    real = scipy.linalg.eigh
    tried = []

    def failing_first(*args, driver, **kwargs):
        tried.append(driver)
        if len(tried) == 1:
            raise scipy.linalg.LinAlgError("internal error")
        return real(*args, driver=driver, **kwargs)

    monkeypatch.setattr(scipy.linalg, "eigh", failing_first)
    spectrum = full_spectrum(A)
    assert tried == ["evd", "evr"]
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(A), atol=1e-12)


def test_says_so_when_every_driver_fails(noisy_gram, monkeypatch):
    def failing(*args, **kwargs):
        raise scipy.linalg.LinAlgError("internal error")

    monkeypatch.setattr(scipy.linalg, "eigh", failing)
    with pytest.raises(InputRejected, match=r"20 × 20.*evd: internal error; evr"):
        full_spectrum(noisy_gram(20, 0.3))


def test_refuses_sizes_whose_workspace_overflows():
    refuse_oversized(LARGEST_FULL_SPECTRUM)
    n = LARGEST_FULL_SPECTRUM + 1
    assert 1 + 6 * n + 2 * n * n > 2**31 - 1
    assert 1 + 6 * (n - 1) + 2 * (n - 1) ** 2 <= 2**31 - 1
    with pytest.raises(ParameterError, match=r"32767.*32766"):
        refuse_oversized(n)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30),
    st.floats(0.5, 100.0),
)
def test_the_uniform_shift_gives_the_trace(values, trace):
    eigenvalues = np.array(values)
    shift = uniform_dual_shift(eigenvalues, trace)
    assert np.sum(np.maximum(eigenvalues + shift, 0.0)) == pytest.approx(trace, abs=1e-8)
