"""Two states of a machine: which iterations were taken in the slow one, by the two levels of each build.

Plain arrays in. A mark is something measured beside an iteration, before it and after it, that tells the state: a
probe's time, or the iteration's own decode steps, early and late. An iteration whose two marks disagree is between the
levels: it changed its state and is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate import scipy_special as special
from perfgate.stats.estimate import Floats

SLOW, FAST, CUT = 1, 0, -1
"""Labels of an iteration."""
Labels = NDArray[np.int8]

GAP_SDS = 5.0
"""Levels count as states only from so many standard deviations within them apart."""

LEAST_MARKS = 3
"""Marks of a build on a level at least, and half of a trial's: one disturbed iteration has two."""

ALIKE = 0.4
"""By what share of the smaller one the gaps of two builds may differ: with another all-reduce it was 4.0, not 5.5 %."""

NEAR = 0.25
"""An iteration is on a level by the mean of its marks within this share of the gap; between levels it is on none."""

MOST_OFF = 0.25
"""Share of all marks that may be on no level: of what spreads evenly or in tails more are."""

NORMAL_MAD = 1.4826
"""A normal standard deviation in median absolute deviations."""


@dataclass(frozen=True)
class States:
    """Which state each iteration of each trial was in.

    Args:
        labels: :data:`SLOW`, :data:`FAST` or :data:`CUT`, shape (..., trials, iterations); where there are no two
            states all are cut.
        gap: Of the marks, as a natural logarithm: slow over fast, shape (...); not a number where there are no states.
    """

    labels: Labels
    gap: Floats


def states(marks: Floats, least_gap: float = 0.0) -> States:
    """The states of a machine by two levels that each build shows, about equally far apart.

    Each build is told by its levels alone. A step time tells the state and the build at once, and a build can move the
    probe as well: with another attention kernel it took 193 and 229 us in place of 175 and 211 on an H200. So levels
    that are only those of the sides count as no states, nor do those of one build, which may cause them.

    Args:
        marks: Something positive before and after each iteration of each trial, or early and late in it, shape
            (..., trials, iterations, 2); the two trials of a pair follow each other, the base's first. Leading axes are
            runs, each on its own.
        least_gap: Levels nearer than this, a natural logarithm, are one state. A probe repeats so well that what is
            nothing to a step shows: on an H100 its readings had levels 0.35 % apart within either state.
    """
    *runs, trials, iterations, _ = marks.shape
    builds = np.log(marks).reshape(*runs, trials // 2, 2, iterations, 2).swapaxes(-4, -3)
    middles = builds.mean(axis=-1)
    ordered, least = np.sort(builds.reshape(*runs, 2, -1)), max(LEAST_MARKS, iterations)
    fast, slow = _two_levels(ordered, _noise(middles), least, least_gap)
    gaps = slow - fast
    away = np.minimum(*(np.abs(builds - level[..., None, None, None]) for level in (fast, slow)))
    off = (away > NEAR * gaps[..., None, None, None]).mean(axis=(-4, -3, -2, -1))
    valid = (np.abs(gaps[..., 0] - gaps[..., 1]) <= ALIKE * gaps.min(axis=-1)) & (off <= MOST_OFF)
    position = (middles - fast[..., None, None]) / gaps[..., None, None]
    labels = np.where(np.abs(position - 1) <= NEAR, SLOW, np.where(np.abs(position) <= NEAR, FAST, CUT))
    labels = np.where(valid[..., None, None, None], labels, CUT).swapaxes(-3, -2).reshape(*runs, trials, iterations)
    return States(labels.astype(np.int8), np.where(valid, gaps.mean(axis=-1), np.nan))


def levels(marks: Floats, apart: float) -> list[tuple[float, int]]:
    """The levels of one build's readings, the lowest first: the median of each, and how many trials have it.

    Readings of a level leave no gap as large as levels are apart. Some trial has as many on it as one half of it; fewer
    were disturbed, or read while the state changed.

    Args:
        marks: A reading before and after each iteration of each trial, shape (trials, iterations, 2).
        apart: Between neighbouring readings of different levels at least, a natural logarithm.
    """
    readings = np.log(marks).reshape(len(marks), -1)
    ordered = np.sort(readings, axis=None)
    edges = ordered[:-1][np.diff(ordered) >= apart]
    level = np.searchsorted(edges, readings)
    levels = []
    for n in range(len(edges) + 1):
        counts = (level == n).sum(axis=-1)
        if 2 * counts.max() >= readings.shape[-1]:
            levels.append(
                (float(np.exp(np.median(readings[level == n]))), int((2 * counts > readings.shape[-1] / 2).sum()))
            )
    return levels


def _noise(builds: Floats) -> Floats:
    """Standard deviation of an iteration within a level, by those that follow each other, of which few jump.

    Args:
        builds: Of each build, shape (..., 2, trials, iterations).
    """
    steps = np.abs(np.diff(builds, axis=-1))
    steps = steps.reshape(*steps.shape[:-2], -1)
    if not steps.shape[-1]:
        return np.zeros(steps.shape[:-1])
    return NORMAL_MAD / math.sqrt(2) * _median(np.sort(steps))


def _two_levels(y: Floats, noise: Floats, least: int, least_gap: float) -> tuple[Floats, Floats]:
    """The fast and the slow level of sorted logarithms, on the last axis; not a number where they are on one.

    The split with the least sum of squares within (Fisher 1958), each level then the median of its side. On either are
    half of a trial's marks at least: fewer were disturbed, or taken while the state changed. The spread within is that
    of the median deviation, which the few marks between both levels do not widen.
    """
    fast, slow = np.full(noise.shape, np.nan), np.full(noise.shape, np.nan)
    n = y.shape[-1]
    if n < 2 * least:
        return fast, slow
    wide = y[..., -1] - y[..., 0] > GAP_SDS * noise  # the extremes are further apart than any levels
    y, noise = y[wide], noise[wide]
    sizes, place = np.arange(1, n), np.arange(n)
    sums = np.cumsum(y - y.mean(axis=-1, keepdims=True), axis=-1)
    between = sums[:, :-1] ** 2 / sizes + (sums[:, -1:] - sums[:, :-1]) ** 2 / (n - sizes)
    cut = between.argmax(axis=-1) + 1
    low, high = _median(y, cut), _median(y, n - cut, cut)
    away = np.minimum(np.abs(y - low[:, None]), np.abs(y - high[:, None]))
    near, below = away <= NEAR * (high - low)[:, None], place < cut[:, None]
    enough = np.minimum((near & below).sum(axis=-1), (near & ~below).sum(axis=-1)) >= least
    spread = np.maximum(noise, NORMAL_MAD * _median(np.sort(away)))
    apart = enough & (high - low > np.maximum(GAP_SDS * spread, least_gap))
    fast[wide], slow[wide] = np.where(apart, low, np.nan), np.where(apart, high, np.nan)
    return fast, slow


def _median(y: Floats, count: NDArray[np.int64] | None = None, begin: NDArray[np.int64] | None = None) -> Floats:
    """Median of sorted numbers on the last axis: of all, or of so many from a place on; of none the last one."""
    many = np.full(y.shape[:-1], y.shape[-1]) if count is None else count
    first = np.zeros_like(many) if begin is None else begin
    middle = [first + np.maximum(many - 1, 0) // 2, first + many // 2]
    lower, upper = (np.take_along_axis(y, at[..., None], axis=-1)[..., 0] for at in middle)
    return np.asarray((lower + upper) / 2)


def sign_test(for_it: int, against: int, chance: float = 0.5) -> float:
    """One-sided p of H0 "either sign is as likely" from discordant pairs; 1 where there are none.

    Exact where a fair coin of its own drew the order within each pair (McNemar 1947; Fisher 1935). With another
    ``chance``, between 0 and 1, that of H0 "the first sign has this probability at most".
    """
    trials = for_it + against
    return float(special.bdtrc(for_it - 1, trials, chance)) if for_it else 1.0
