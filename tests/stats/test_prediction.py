"""The t prediction interval over a baseline's visits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from perfgate.stats.prediction import RAISED, Prediction, predict

VALUES = st.floats(-1, 1).map(lambda value: round(value, 6))
VISITS = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=2, max_size=6)


def test_the_interval_is_the_textbooks() -> None:
    """Bounds are mean +- t sd sqrt(1 + 1/k), with k - 1 degrees of freedom, over the means of the visits."""
    means = [0.01, 0.02, 0.04, 0.03]
    estimate = predict([[mean - 0.001, mean + 0.001] for mean in means], [0.05, 0.05], 1).estimate()

    half = float(scipy_stats.t.ppf(0.99, 3)) * float(np.std(means, ddof=1)) * math.sqrt(1 + 1 / 4)
    assert estimate.mean == pytest.approx(0.025)
    assert estimate.lower(0.01) == pytest.approx(0.025 - half)
    assert estimate.upper(0.01) == pytest.approx(0.025 + half)


@pytest.mark.parametrize(("visits", "spreads"), [(4, 15.9), (8, 6.9)])
def test_what_four_and_eight_visits_detect(visits: int, spreads: float) -> None:
    """With alpha 1 % and power 95 % a slowdown is told from 16 spreads on at four visits, from 7 at eight."""
    found = Prediction(0.0, 0.0001, visits, visits - 1).detectable(0.01, 0.0, 0.95)

    assert found is not None
    assert found / 0.0001 == pytest.approx(spreads, abs=0.1)


@given(visits=VISITS, head=st.lists(VALUES, min_size=1, max_size=4), shift=VALUES)
def test_only_differences_count(visits: list[list[float]], head: list[float], shift: float) -> None:
    """Neither the order of visits nor a shift of everything changes the prediction; a larger head is worse."""
    one = predict(visits, head, 1)
    moved = predict([[v + shift for v in row] for row in reversed(visits)], [v + shift for v in head], 1)
    slower = predict(visits, [v + 1 for v in head], 1)

    assert (moved.mean, moved.visit_sd, moved.excess) == pytest.approx((one.mean, one.visit_sd, one.excess), abs=1e-9)
    assert slower.mean == pytest.approx(one.mean + 1)
    assert slower.estimate().p_above(0.1) <= one.estimate().p_above(0.1)
    assert slower.estimate().p_below(0.5) >= one.estimate().p_below(0.5)


def test_a_head_of_fewer_restarts_is_worth_less() -> None:
    """Its mean varies by what its restarts do more; as many or more change nothing."""
    visits = [[0.0, 0.2], [0.1, 0.3], [0.0, 0.2]]

    assert predict(visits, [0.1], 1).excess == pytest.approx(0.02 * (1 - 1 / 2))
    assert predict(visits, [0.1, 0.1], 1).excess == 0
    assert predict(visits, [0.1] * 5, 1).excess == 0


def test_other_sets_tell_of_the_spread_alone() -> None:
    """Ratios to another anchor move no mean; a spread pooled with theirs has the degrees of freedom of the largest."""
    far = [[5.0], [5.1], [5.2], [5.1]]

    alone, beside = predict([[0.0], [0.2]], [0.3], 1), predict([[0.0], [0.2]], [0.3], 1, others=[far])

    assert beside.mean == pytest.approx(alone.mean)
    assert (alone.df, alone.warns, beside.df, beside.warns, beside.passes) == (1, False, 3, True, False)
    assert beside.visit_sd == pytest.approx(math.sqrt((0.02 + 0.02) / 4))
    assert predict([[0.0]], [0.3], 1, others=[far]).estimate().standard_error > beside.estimate().standard_error * 0.9


def test_a_raised_variance_counts_so_many_times() -> None:
    """Nights in a row are alike, so that the next one is taken to vary more than they do."""
    visits = [[0.0], [0.1], [0.2], [0.1]]

    once, twice = (predict(visits, [0.1], 1, raised=by).estimate() for by in (1.0, RAISED))

    assert twice.standard_error == pytest.approx(once.standard_error * math.sqrt(2))


@pytest.mark.parametrize(("visits", "head"), [([[1.0]], [1.0]), ([[1.0], []], [1.0]), ([[1.0], [2.0]], [])])
def test_too_little(visits: list[list[float]], head: list[float]) -> None:
    """One visit has no spread, and a visit without restarts no mean."""
    with pytest.raises(ValueError, match="expected"):
        predict(visits, head, 1)


@given(visits=st.integers(2, 40), sd=st.floats(1e-5, 0.1), margin=st.floats(0, 0.05))
def test_visits_to_halve(visits: int, sd: float, margin: float) -> None:
    """So many visits more halve what is detectable, one fewer do not; else even the best lies above the half."""
    rates = (0.01, margin, 0.95)
    prediction = Prediction(0.0, sd, visits, visits - 1)
    now, more = prediction.detectable(*rates), prediction.visits_to_halve(*rates)

    assert now is not None
    if more is None:
        assert prediction.least_detectable(*rates) > now / 2 * 0.99
        return
    then, before = prediction.detectable(*rates, more), prediction.detectable(*rates, more - 1)
    assert then is not None
    assert before is not None
    assert then <= now / 2 < before or more == 1
