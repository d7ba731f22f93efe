"""Bounds of counted rates are scipy's exact ones."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from perfgate.stats.rates import rate_bounds


@pytest.mark.parametrize(("events", "trials"), [(0, 8), (1, 50), (7, 2000), (8, 8)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_bounds_against_scipy(events: int, trials: int, confidence: float) -> None:
    """Each bound is that of an exact one-sided test."""
    low, high = (
        binomtest(events, trials, alternative=side).proportion_ci(confidence, "exact") for side in ("greater", "less")
    )

    assert rate_bounds(events, trials, confidence) == pytest.approx((low.low, high.high))


def test_nothing_known() -> None:
    """Eight runs without an event leave 31 %, and none leaves everything open."""
    assert rate_bounds(0, 8) == pytest.approx((0.0, 0.312), abs=0.001)
    assert rate_bounds(0, 0) == (0.0, 1.0)
