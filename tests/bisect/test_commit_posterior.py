"""The probability of each commit: held against the densities of its model, and against what cannot be told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import multivariate_normal, norm

from perfgate.bisect import commit_posterior
from perfgate.bisect.commit_posterior import LOSS_SD, Comparison, Evidence, Posterior

PAIR = (-0.0007, 0.0007)
"""Two pairs around their mean, with a standard deviation of 0.1 %."""


def pairs(base: int, head: int, mean: float, count: int = 4) -> Comparison:
    """Pairs around a mean."""
    return Comparison(base, head, tuple(mean + each for each in PAIR * (count // 2)))


def stepped(last: int, lost_at: int, heads: tuple[int, ...], loss: float = 0.005) -> Evidence:
    """What would be measured if nothing but the loss and the noise of pairs were there."""
    return Evidence(last, tuple(pairs(0, head, loss * (head >= lost_at)) for head in (last, *heads)))


def test_it_is_the_density_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one choice of spreads the probabilities are those of the normal densities, integrated over the loss."""
    build, step, pair, last = 0.001, 0.0004, 0.0009, 4
    monkeypatch.setattr(commit_posterior, "BUILD_SDS", ((build, 1.0),))
    monkeypatch.setattr(commit_posterior, "STEP_SDS", ((step, 1.0),))
    monkeypatch.setattr(
        commit_posterior, "_spreads", lambda _: commit_posterior._Spreads(*np.array([[build, step, pair, 1.0]]).T)
    )
    compared = [(0, 4, 0.0052), (0, 2, 0.0013), (0, 3, 0.0037), (2, 3, 0.0031)]
    evidence = Evidence(last, tuple(pairs(*one) for one in compared))

    def covariance(left: tuple[int, int], right: tuple[int, int]) -> float:
        offsets = {n: (left[1] == n) - (left[0] == n) for n in range(5)}
        others = {n: (right[1] == n) - (right[0] == n) for n in range(5)}
        walks = [set(range(low + 1, high + 1)) for low, high in (left, right)]
        shared = sum(offsets[n] * others[n] for n in range(5))
        return build**2 * shared + step**2 * len(walks[0] & walks[1])

    places = [(base, head) for base, head, _ in compared]
    spread = np.array([[covariance(a, b) for b in places] for a in places]) + np.eye(4) * pair**2 / 4
    means, whole = np.array([mean for *_, mean in compared]), 0.0052

    def density(commit: int) -> float:
        crossing = np.array([float(base < commit <= head) for base, head in places])

        def at(loss: float) -> float:
            data = multivariate_normal.pdf(means, crossing * loss, spread)
            return float(data * norm.pdf(loss, whole, LOSS_SD * whole))

        return float(integrate.quad(at, 0, 0.02, points=[0.003, 0.005])[0])

    expected = np.array([density(commit) for commit in range(1, last + 1)])
    assert Posterior(evidence).by_commit == pytest.approx(expected / expected.sum(), rel=1e-4)


@given(st.integers(2, 12), st.data())
def test_it_is_a_probability(last: int, data: st.DataObject) -> None:
    """Whatever was measured of whichever commits, the probabilities are finite and sum to one."""
    number = st.integers(0, last)
    value = st.floats(-0.5, 0.5)
    row = st.tuples(number, number, st.lists(value, min_size=1, max_size=6)).filter(lambda one: one[0] != one[1])
    more = [Comparison(base, head, tuple(d)) for base, head, d in data.draw(st.lists(row, max_size=5))]
    posterior = Posterior(Evidence(last, (Comparison(0, last, tuple(data.draw(st.lists(value, min_size=2)))), *more)))

    assert np.isfinite(posterior.by_commit).all()
    assert posterior.by_commit.sum() == pytest.approx(1)
    assert np.isfinite(posterior.expected_to_tell([*range(1, last + 1)], 4)).all()
    assert math.isfinite(posterior.loss[0])
    assert posterior.loss[1] >= 0


def test_a_step_is_found() -> None:
    """Between a commit that is as fast as the good one and its child that is as slow as the bad one it is the child."""
    posterior = Posterior(stepped(64, 23, (22, 23, 21, 24)))

    assert posterior.by_group[0][0] == (23,)
    assert posterior.by_group[0][1] > 0.95
    assert posterior.loss[0] == pytest.approx(0.005, abs=0.0005)
    assert posterior.pair_sd == pytest.approx(0.0008, abs=0.0003)


def test_commits_that_no_measurement_tells_apart_are_one_group() -> None:
    """They are as probable as each other, and nothing that can be measured says anything about which of them it is."""
    evidence = Evidence(8, stepped(8, 4, (2, 5)).compared, frozenset({3, 4}))
    posterior = Posterior(evidence)

    assert evidence.groups == [(1,), (2,), (3, 4, 5), (6,), (7,), (8,)]
    assert np.ptp(posterior.by_commit[2:5]) < 1e-12
    assert posterior.expected_to_tell([5], 1000)[0] < 0.2


def test_an_offset_of_a_build_is_not_taken_for_the_loss() -> None:
    """One commit that is slow alone, with fast ones after it, is not where the loss came; more pairs change nothing."""
    slow_alone = pairs(0, 30, 0.0025, 400)
    posterior = Posterior(Evidence(64, (*stepped(64, 50, (20, 40, 49, 50)).compared, slow_alone)))

    assert posterior.by_group[0][0] == (50,)
    assert posterior.by_commit[29] < 0.01


def test_what_is_known_tells_nothing_more() -> None:
    """A commit far from all that is probable tells less than the one that halves what is left."""
    told = Posterior(stepped(64, 40, (32,))).expected_to_tell([8, 48, 64], 4)

    assert told[1] > 5 * max(told[0], told[2])


def test_changes_in_the_good_direction_are_walked_over() -> None:
    """A commit that is faster than the good one does not hide a loss after it."""
    faster = (pairs(0, 16, -0.002), pairs(0, 31, -0.002), pairs(0, 32, 0.003), pairs(0, 48, 0.003))
    assert Posterior(Evidence(64, (pairs(0, 64, 0.003), *faster))).by_group[0][0] == (32,)


def test_without_a_spread_or_a_difference_there_is_no_answer() -> None:
    """One pair has no spread, and the difference of the ends is what all is measured by."""
    with pytest.raises(ValueError, match="spread"):
        Posterior(Evidence(4, (Comparison(0, 4, (0.01,)),)))
    with pytest.raises(ValueError, match="not compared"):
        Posterior(Evidence(4, (pairs(0, 2, 0.01),)))
