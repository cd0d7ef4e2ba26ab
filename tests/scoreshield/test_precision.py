"""Multiple precision: one thread at a time, and out of the reach of other users of mpmath."""

from __future__ import annotations

import threading

import mpmath

from scoreshield.precision import working_precision


def test_the_working_precision_is_the_one_asked_for() -> None:
    with working_precision(300) as context:
        assert context.prec == 300
        error = abs(3 * (context.mpf(1) / 3) - 1)
        root_error = abs(context.sqrt(2) ** 2 - 2)
        assert error <= 2.0**-299
        assert 0 < root_error <= 2.0**-297


def test_the_global_context_is_neither_used_nor_changed() -> None:
    before = mpmath.mp.prec
    with working_precision(500) as context:
        assert context is not mpmath.mp
        with mpmath.workprec(20):
            assert context.prec == 500
    assert mpmath.mp.prec == before


def test_a_second_thread_waits() -> None:
    entered = threading.Event()
    seen: list[int] = []

    def other() -> None:
        with working_precision(80) as context:
            seen.append(context.prec)
            entered.set()

    thread = threading.Thread(target=other)
    with working_precision(300) as context:
        thread.start()
        assert not entered.wait(0.05)
        assert context.prec == 300
    thread.join(5)
    assert seen == [80]


def test_the_lock_is_released_after_an_error() -> None:
    for _ in range(2):
        try:
            with working_precision(64):
                raise ArithmeticError
        except ArithmeticError:
            pass
