"""The record of a regime: public facts that hold for each of its releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scoreshield.mechanisms.gaussian import Mechanism
from scoreshield.privacy.sensitivity import Adjacency
from scoreshield.utility.forecast import Forecast

UNPROTECTED = "the number of records n and the number of features d are public"


@dataclass(frozen=True)
class Regime:
    """One regime.

    Attributes
    ----------
    name : as configurations and manifests give it
    arrays : what can be published, and is where a configuration does not say
    published : the same in words
    asks_queries : whether public queries are asked, which the manifest then tells of
    projected : whether the noisy matrix is projected; otherwise it is published clipped, as stored
    audited : whether the audit knows the worst case
    states_forecast : whether the manifest holds the forecast
    noise, unprotected : what a manifest says of the draws, and of what no noise hides
    reading : code that reads a release, line by line
    forecast : what a release can carry
    holds : what a release holds, in words
    shapes : of the arrays by name, from n, m and the columns of a factor
    sensitivity_bounds : the least and the largest Δ that a mechanism of these sizes can have under
        an adjacency, with a grid that rounds by so much; equal where sizes alone decide
    """

    name: str
    arrays: tuple[str, ...]
    published: str
    asks_queries: bool
    projected: bool
    audited: bool
    states_forecast: bool
    noise: str
    unprotected: str
    reading: tuple[str, ...]
    forecast: Callable[[Mechanism], Forecast]
    holds: Callable[[Mechanism], str]
    shapes: Callable[[int, int | None, int], Mapping[str, tuple[int | None, ...]]]
    sensitivity_bounds: Callable[[Mechanism, Adjacency, float], tuple[float, float]]
