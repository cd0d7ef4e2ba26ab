"""Writes noise_multipliers.csv: σ/Δ of the analytic Gaussian mechanism, by integration.

The privacy loss of a Gaussian mechanism with μ = Δ/σ is N(μ²/2, μ²), and δ(ε) = E (1 − e^(ε−L))₊
over it (Dwork & Rothblum 2016; Balle & Wang 2018, theorem 5). The integral is evaluated as it
stands with 60 digits, so none of the product's own formulas, which are in closed form, takes part.
σ/Δ is found by the secant method and written with 30 digits.

    python tests/known_answers/noise_multipliers.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from mpmath import exp, findroot, linspace, log, mp, mpf, nstr, pi, quad, sqrt

TABLE = Path(__file__).with_suffix(".csv")
EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0, 700.0, 1000.0)
DELTA_EXPONENTS = (2, 5, 6, 9, 12, 20, 50)
DIGITS, SHOWN = 60, 30
# e^(−u²/2) and e^(−u·start) fall below 10^-70 within these.
REACH, LOG_REACH = 18, 162


def delta_of(mu: mpf, epsilon: mpf) -> mpf:
    """δ(ε), the integral over z = (L − μ²/2)/μ from where L exceeds ε.

    The density is taken relative to its largest value there, since ``quad`` bounds absolute errors.
    """
    start = (epsilon - mu**2 / 2) / mu
    mode = max(start, mpf(0))

    def excess(z: mpf) -> mpf:
        return (1 - exp(-mu * (z - start))) * exp((mode**2 - z**2) / 2)

    end = mode + min(mpf(REACH), LOG_REACH / max(mode, mpf(1)))
    return quad(excess, linspace(start, end, 5)) * exp(-(mode**2) / 2) / sqrt(2 * pi)


def multiplier(epsilon: mpf, delta: mpf) -> mpf:
    """σ/Δ at which δ(ε) = δ."""

    def gap(log_mu: mpf) -> mpf:
        return log(delta_of(exp(log_mu), epsilon)) - log(delta)

    low, high = mpf(-12), mpf(6)
    with mp.workdps(15):
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if gap(middle) < 0 else (low, middle)
    return exp(-findroot(gap, (low, high), solver="secant", tol=mpf(10) ** -80))


def main() -> None:
    """Compute the table anew."""
    mp.dps = DIGITS
    with TABLE.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["epsilon", "delta", "noise_multiplier"])
        for epsilon in EPSILONS:
            for exponent in DELTA_EXPONENTS:
                found = multiplier(mpf(str(epsilon)), mpf(10) ** -exponent)
                shown = nstr(found, SHOWN, strip_zeros=False)
                lines.writerow([epsilon, f"1e-{exponent}", shown])


if __name__ == "__main__":
    main()
