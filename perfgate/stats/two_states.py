"""Two states of a machine: which iterations were taken in the slow one, found without knowing whose they are.

Plain arrays in. A mark is something measured beside an iteration, before it and after it, that tells the state: a
probe's time, or the iteration's own decode steps, early and late. An iteration whose two marks disagree changed its
state and is cut, not averaged.
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

GAP_SDS = 6.0
"""Levels count as states only from so many standard deviations within them apart."""

LEAST_MARKS = 3
"""Marks on either level that a trial needs to show both: more than one iteration has."""

LEAST_JUMPS = 2
"""Trials that show both levels; one alone may have been disturbed."""

LEAST_PAIRS = 2
"""Pairs that must be slow on both sides, and fast on both, where no trial shows both levels: levels of which every
pair has one on either side are a difference of the sides."""

LEAST_SHARE, MOST_CUT = 0.05, 0.25
"""Share of all iterations that either state has at least, and that may be without one."""

NEAR = 0.25
"""A mark within this share of the gap from a level is on it; what is between levels is on none."""

NORMAL_MAD = 1.4826
"""A normal standard deviation in median absolute deviations."""


@dataclass(frozen=True)
class States:
    """Which state each iteration of each trial was in.

    Args:
        labels: :data:`SLOW`, :data:`FAST` or :data:`CUT`, shape (..., trials, iterations); a trial whose state cannot
            be told is all cut, and where there are no two states all are.
        gap: Of the marks, as a natural logarithm: slow over fast, shape (...); not a number where there are no states.
    """

    labels: Labels
    gap: Floats


def states_by_probe(marks: Floats, least_gap: float = 0.0) -> States:
    """States by a probe's readings, see :func:`states_by_steps`; one trial that shows both levels is enough.

    So is, as the probe tells nothing of the step, that either build has trials on both levels, equally far apart. In a
    trial that stays on one level too, an iteration with a reading off the trial's median by more than :data:`NEAR` of
    the gap is cut: the GPU may have jumped in it. A build can move the probe as well: with another attention kernel it
    took 193 and 229 us in place of 175 and 211 on an H200. So levels that are only those of the sides count as states
    no more than those of step times do.

    Args:
        marks: A positive reading before and after each iteration of each trial, shape (..., trials, iterations, 2);
            trials alternate between the builds, and may begin with those before the first pair.
        least_gap: Levels nearer than this, a natural logarithm, are one state. A probe repeats so well that what is
            nothing to a step shows: on an H100 its readings had levels 0.35 % apart within either state.
    """
    return _states(marks, 1, 1, least_gap, by_build=True)


def states_by_steps(marks: Floats) -> States:
    """States by the iterations' own times: of trials that show two levels, and of others by the level that they share.

    A step time tells the state and the build at once. So a level counts as a state only where one trial, which is of
    one build, has both; or where in some pairs both trials are slow and in others both are fast. A trial that stays on
    one level has the state that jumping trials with that level were in, and none where they disagree: the slow level
    of one build may be the fast one of the other.

    Args:
        marks: A positive time early and late in each iteration of each trial, shape (..., trials, iterations, 2); the
            two trials of a pair follow each other, sides are not told. Leading axes are runs, each on its own.
    """
    return _states(marks, LEAST_JUMPS, LEAST_PAIRS)


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
    found = []
    for n in range(len(edges) + 1):
        counts = (level == n).sum(axis=-1)
        if 2 * counts.max() >= readings.shape[-1]:
            found.append(
                (float(np.exp(np.median(readings[level == n]))), int((2 * counts > readings.shape[-1] / 2).sum()))
            )
    return found


def _states(
    marks: Floats, least_jumps: int, least_pairs: int, least_gap: float = 0.0, *, by_build: bool = False
) -> States:
    logs = np.log(marks)
    ordered = np.sort(logs.reshape(*logs.shape[:-2], -1))
    noise, middle = _noise(logs), _median(ordered)
    fast, slow = _two_levels(ordered, np.broadcast_to(noise[..., None], middle.shape), least_gap=least_gap)
    jumps = ~np.isnan(fast)
    builds = _levels_of_builds(logs, noise, least_gap) if by_build else np.full((*fast.shape[:-1], 2, 2), np.nan)
    shown = ~np.isnan(builds[..., 0, 0])
    fast, slow = (np.concatenate([own, builds[..., n]], axis=-1) for n, own in enumerate((fast, slow)))
    gap = _median(np.sort(slow - fast), (~np.isnan(fast)).sum(axis=-1))
    reach = NEAR * gap[..., None, None]
    near_fast, near_slow = (
        (np.abs(middle[..., None] - level[..., None, :]) <= reach).any(axis=-1) for level in (fast, slow)
    )
    stays = np.where(near_slow & ~near_fast, SLOW, np.where(near_fast & ~near_slow, FAST, CUT)).astype(np.int8)
    own = _on_levels(logs, fast[..., :-2, None, None], slow[..., :-2, None, None])
    labels = np.where(jumps[..., None], own, stays[..., None])
    slow_share, fast_share, cut = ((labels == label).mean(axis=(-2, -1)) for label in (SLOW, FAST, CUT))
    common = np.minimum(slow_share, fast_share) >= LEAST_SHARE
    many = (jumps.sum(axis=-1) >= least_jumps) | shown
    told = many & (common | shown) & (cut <= MOST_CUT)
    lasting = _sticky(middle, noise, least_pairs, least_gap)
    labels = np.where(many[..., None, None], labels, lasting.labels[..., None])
    gap = np.where(many, np.where(told, gap, np.nan), lasting.gap)
    if by_build:  # a probe tells the state of one iteration, too; a step time there may as well be a disturbance
        # Only now: what is cut for one jump says nothing against the states, and short trials would lose them by it.
        away = (np.abs(logs - middle[..., None, None]) > NEAR * gap[..., None, None, None]).any(axis=-1)
        labels = np.where(away & ~jumps[..., None], CUT, labels)
    return States(np.where(np.isnan(gap)[..., None, None], CUT, labels).astype(np.int8), gap)


def _levels_of_builds(logs: Floats, noise: Floats, least_gap: float) -> Floats:
    """The fast and the slow level of either build, shape (..., 2, 2); not a number unless both have two.

    Each has as many marks on either level as half a trial, and both are equally far apart: it is the machine's gap.
    """
    trials, iterations = logs.shape[-3:-1]
    rows = np.moveaxis(logs.reshape(*logs.shape[:-3], trials // 2, 2, -1), -2, -3)
    rows = np.sort(rows.reshape(*rows.shape[:-2], -1))
    noise = np.broadcast_to(noise[..., None], rows.shape[:-1])
    levels = np.stack(_two_levels(rows, noise, iterations, least_gap), axis=-1)
    gaps = levels[..., 1] - levels[..., 0]
    alike = np.abs(gaps[..., 0] - gaps[..., 1]) <= NEAR * gaps.min(axis=-1)
    return np.where(alike[..., None, None], levels, np.nan)


def _sticky(medians: Floats, noise: Floats, least_pairs: int, least_gap: float) -> States:
    """States that last as long as an engine does: a label a trial, shape (..., trials)."""
    fast, slow = _two_levels(np.sort(medians), noise, least_pairs, least_gap)
    labels = _on_levels(medians[..., None], fast[..., None, None], slow[..., None, None])
    pairs = labels.reshape(*labels.shape[:-1], -1, 2)
    both = [(pairs == label).all(axis=-1).sum(axis=-1) >= least_pairs for label in (SLOW, FAST)]
    return States(labels, np.where(both[0] & both[1], slow - fast, np.nan))


def _noise(logs: Floats) -> Floats:
    """Standard deviation of an iteration within a level, by those that follow each other, of which few jump."""
    steps = np.abs(np.diff((logs[..., 0] + logs[..., 1]) / 2, axis=-1))
    steps = steps.reshape(*steps.shape[:-2], -1)
    if not steps.shape[-1]:
        return np.zeros(steps.shape[:-1])
    return NORMAL_MAD / math.sqrt(2) * _median(np.sort(steps))


def _two_levels(y: Floats, noise: Floats, least: int = LEAST_MARKS, least_gap: float = 0.0) -> tuple[Floats, Floats]:
    """The fast and the slow level of sorted logarithms, on the last axis; not a number where they are on one.

    The split with the least sum of squares within (Fisher 1958), each level then the median of its side. The spread
    within is that of the median deviation, which the few marks between both levels do not widen.
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
    told = enough & (high - low > np.maximum(GAP_SDS * spread, least_gap))
    fast[wide], slow[wide] = np.where(told, low, np.nan), np.where(told, high, np.nan)
    return fast, slow


def _median(y: Floats, count: NDArray[np.int64] | None = None, begin: NDArray[np.int64] | None = None) -> Floats:
    """Median of sorted numbers on the last axis: of all, or of so many from a place on; of none the last one."""
    many = np.full(y.shape[:-1], y.shape[-1]) if count is None else count
    first = np.zeros_like(many) if begin is None else begin
    middle = [first + np.maximum(many - 1, 0) // 2, first + many // 2]
    lower, upper = (np.take_along_axis(y, at[..., None], axis=-1)[..., 0] for at in middle)
    return np.asarray((lower + upper) / 2)


def _on_levels(marks: Floats, fast: Floats, slow: Floats) -> Labels:
    """The label of each row: that of all its marks, else :data:`CUT`."""
    position = (marks - fast) / (slow - fast)
    is_slow, is_fast = (np.abs(position - at) <= NEAR for at in (1, 0))
    # The first and the last mark of a row are all there are, and quicker to join than by a reduction.
    labels = np.where(is_slow[..., 0] & is_slow[..., -1], SLOW, CUT).astype(np.int8)
    labels[is_fast[..., 0] & is_fast[..., -1]] = FAST
    return labels


def sign_test(for_it: int, against: int) -> float:
    """One-sided p of H0 "either sign is as likely" from discordant pairs; 1 where there are none.

    Exact where a fair coin of its own drew the order within each pair (McNemar 1947; Fisher 1935).
    """
    trials = for_it + against
    return float(special.bdtrc(for_it - 1, trials, 0.5)) if for_it else 1.0
