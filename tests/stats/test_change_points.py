"""Changes of a level are found where they are, drifts as drifts, and nights without a change say nothing."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ruptures", reason="the extra history is not installed")

from perfgate.stats.change_points import FEWEST_AFTER, YEARLY, course

rates: Any = importlib.import_module("change_rates")
SD = 0.0007


def nights(rng: np.random.Generator, *parts: tuple[int, float]) -> np.ndarray:
    """So many nights at each level."""
    levels = np.concatenate([np.full(count, level) for count, level in parts])
    return levels + SD * rng.standard_normal(len(levels))


def test_changes_are_told_with_their_size() -> None:
    """Two changes of a third of a percent, in either direction, at their nights and within their intervals."""
    found = course(nights(np.random.default_rng(1), (100, 0.0), (80, 0.003), (90, -0.001)))

    assert [abs(change.first - at) <= 2 for change, at in zip(found.changes, (100, 180), strict=True)] == [True, True]
    assert not any(change.drifts for change in found.changes)
    for change, size in zip(found.changes, (0.003, -0.004), strict=True):
        low, high = change.interval()
        assert low < size < high
    assert found.night_sd == pytest.approx(SD, rel=0.15)
    assert found.fitted[0] == pytest.approx(0.0, abs=0.0003)
    assert found.fitted[-1] == pytest.approx(-0.001, abs=0.0003)


def test_a_drift_is_one_change() -> None:
    """A level that moves for a hundred nights is told once, from about its begin to about its end."""
    ramp = 0.006 * np.clip((np.arange(300) - 80) / 100, 0, 1)

    (change,) = course(ramp + SD * np.random.default_rng(2).standard_normal(300)).changes

    assert change.drifts
    assert (abs(change.first - 80) < 20, abs(change.last - 180) < 20) == (True, True)
    assert change.size == pytest.approx(0.006, abs=0.0005)


def test_one_bad_night_is_no_change() -> None:
    """Nor are two: a large change is told with the fourth night at the latest."""
    rng = np.random.default_rng(3)
    quiet = nights(rng, (120, 0.0))
    bad = quiet.copy()
    bad[60] += 0.05
    after = nights(rng, (120, 0.0), (2, 0.01))

    assert course(bad).changes == ()
    assert course(after).changes == ()
    assert len(course(np.append(after, [0.01] * (FEWEST_AFTER - 2))).changes) == 1


@pytest.mark.parametrize("count", [0, 1, 7])
def test_few_nights_are_not_looked_at(count: int) -> None:
    """Below eight nights nothing is sought."""
    found = course([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0][:count])

    assert (found.looked, found.changes, len(found.fitted)) == (False, (), count)


def test_equal_nights_are_no_change() -> None:
    """What never varies has no noise and no change; a step of it is one."""
    assert course([0.001] * 40).changes == ()
    assert [change.first for change in course([0.001] * 20 + [0.002] * 20).changes] == [20]


@pytest.mark.slow
@pytest.mark.parametrize("name", [model.name for model in rates.MODELS if model.claims])
def test_quiet_nights_say_nothing(name: str) -> None:
    """Years in which nothing changed tell of no change, on every tenth night of four of them."""
    (model,) = (model for model in rates.MODELS if model.name == name)

    assert rates.false_alarms(model, 4, 10).wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [model.name for model in rates.MODELS if model.claims])
def test_years_of_nights_keep_the_declared_rate(name: str) -> None:
    """The claim of docs/error-rates.md is not refuted by two hundred years looked at on every night."""
    (model,) = (model for model in rates.MODELS if model.name == name)

    assert rates.false_alarms(model, 200).least <= YEARLY


@pytest.mark.slow
@pytest.mark.parametrize("sd", rates.ENOUGH)
def test_a_third_of_a_percent_is_found(sd: float) -> None:
    """After as many nights as the page claims, at most so many are missed; and hardly any a month later."""
    before, after = rates.ENOUGH[sd]

    assert rates.found(rates.MODELS[0], sd, before, after, 30).least <= rates.BETA
    assert rates.found(rates.MODELS[0], sd, before, 30, 30).wrong == 0
