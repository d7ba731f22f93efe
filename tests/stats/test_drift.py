"""Many small losses add up to one that is seen; nights without a drift say nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfgate.stats.drift import moved

YEAR, NIGHT_SD, LOSS = 365, 0.0005, 0.0003
"""Nights, spread of a ratio to an anchor from night to night, and what a change loses."""
ALPHA = 0.01


def speaks(levels: np.ndarray, most: float, days: int) -> bool:
    """Whether any night of a year is over a budget."""
    nights = list(enumerate(levels.tolist()))
    found = (moved(nights[max(0, night - days) : night + 1], days) for night in range(7, YEAR))
    return any(change.p_above(math.log1p(most)) <= ALPHA for change in found if change is not None)


def year(rng: np.random.Generator, changes: int) -> np.ndarray:
    """A year of nights in which so many changes lose a little each."""
    lost = np.zeros(YEAR)
    lost[rng.choice(np.arange(1, YEAR - 30), changes, replace=False)] = LOSS
    return np.cumsum(lost) + NIGHT_SD * rng.standard_normal(YEAR)


@pytest.mark.parametrize(("most", "days"), [(0.01, 365), (0.005, 180)])
def test_forty_changes_of_three_hundredths_of_a_percent(most: float, days: int) -> None:
    """None of them could be seen alone; their 1.2 % in a year overdraws 1 % a year, and 0.5 % in half of one."""
    rng = np.random.default_rng(40)

    assert all(speaks(year(rng, 40), most, days) for _ in range(10))


@pytest.mark.slow
@pytest.mark.parametrize(("most", "days"), [(0.01, 365), (0.005, 180), (0.001, 30)])
def test_years_without_drift_are_silent(most: float, days: int) -> None:
    """In 99 of 100 years nothing is said, on any night, even of a budget of two nights' spread."""
    rng = np.random.default_rng(99)

    assert sum(speaks(year(rng, 0), most, days) for _ in range(200)) <= 2


def test_a_year_without_drift_is_silent() -> None:
    """As above, for a few years of every change."""
    rng = np.random.default_rng(9)

    assert not any(speaks(year(rng, 0), 0.001, 30) for _ in range(5))


def test_a_step_counts_once_wherever_it_was() -> None:
    """What happened in between moves nothing, and what was before the window neither."""
    early, late = ([(n, 0.01 * (n >= at)) for n in range(60)] for at in (20, 45))

    assert [one.mean for one in (moved(early, 50), moved(late, 50)) if one] == pytest.approx([0.01, 0.01])
    before = moved(early, 30)
    assert before is not None
    assert before.mean == 0


def test_too_few_nights() -> None:
    """Fewer than four nights at either end tell nothing."""
    nights = [(float(n), 0.0) for n in range(7)]

    assert moved(nights, 30) is None
    assert moved([*nights, (7.0, 0.0)], 30) is not None
    assert moved([*nights, (7.0, 0.0)], 3) is None


def test_the_error_of_a_link_is_added() -> None:
    """What all of the oldest nights have in common is not averaged out by their number."""
    nights = [(float(n), 0.001 * (n % 3)) for n in range(14)]
    plain, linked = moved(nights, 30), moved(nights, 30, 0.01)

    assert plain is not None
    assert linked is not None
    assert linked.standard_error == pytest.approx(math.hypot(plain.standard_error, 0.01))
