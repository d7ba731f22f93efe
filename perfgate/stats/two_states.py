"""Two states of a machine: which iterations were taken in the slow one, found without knowing whose they are.

Plain arrays in. A mark is something measured beside an iteration, before it and after it, that tells the state: a
probe's time, or the iteration's own decode steps, early and late. An iteration whose two marks disagree changed its
state and is cut, not averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

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
        labels: A row a trial, :data:`SLOW`, :data:`FAST` or :data:`CUT`; a trial whose state cannot be told is all cut.
        gap: Of the marks, as a natural logarithm: slow over fast.
    """

    labels: tuple[Labels, ...]
    gap: float


def states_by_probe(marks: Sequence[Floats]) -> States | None:
    """States by what no trial's own speed changes: one cut through all readings.

    Args:
        marks: For each trial a positive reading before and after each iteration, shape (iterations, 2).

    Returns:
        ``None`` where the readings are on one level.
    """
    logs = [np.log(trial) for trial in marks]
    levels = _two_levels(np.concatenate([trial.ravel() for trial in logs]), _noise(logs)) if logs else None
    if levels is None:
        return None
    return States(tuple(_on_levels(trial, *levels) for trial in logs), levels[1] - levels[0])


def states_by_steps(marks: Sequence[Floats], pairs: Sequence[int]) -> States | None:
    """States by the iterations' own times: of trials that show two levels, and of others by the level that they share.

    A step time tells the state and the build at once. So a level counts as a state only where one trial, which is of
    one build, has both; or where in some pairs both trials are slow and in others both are fast. A trial that stays on
    one level has the state that jumping trials with that level were in, and none where they disagree: the slow level
    of one build may be the fast one of the other.

    Args:
        marks: For each trial a positive time early and late in each iteration, shape (iterations, 2); sides are not
            told.
        pairs: The pair of each trial.

    Returns:
        ``None`` where there are no two states.
    """
    logs = [np.log(trial) for trial in marks]
    noise = _noise(logs)
    jumps = {n: levels for n, trial in enumerate(logs) if (levels := _two_levels(trial.ravel(), noise))}
    if len(jumps) < LEAST_JUMPS:
        return _sticky(logs, pairs, noise)
    gap = float(np.median([slow - fast for fast, slow in jumps.values()]))
    known = np.array([(level, label) for levels in jumps.values() for label, level in enumerate(levels)])
    labels = []
    for n, trial in enumerate(logs):
        if n in jumps:
            labels.append(_on_levels(trial, *jumps[n]))
            continue
        level = float(np.median(trial))
        near = known[np.abs(known[:, 0] - level) <= NEAR * gap, 1]
        told = int(near[0]) if len(near) and np.ptp(near) == 0 else CUT
        labels.append(np.full(len(trial), told, dtype=np.int8))
    every = np.concatenate(labels)
    shares = [float((every == label).mean()) for label in (SLOW, FAST, CUT)]
    return States(tuple(labels), gap) if min(shares[:2]) >= LEAST_SHARE and shares[2] <= MOST_CUT else None


def _sticky(logs: Sequence[Floats], pairs: Sequence[int], noise: float) -> States | None:
    """States that last as long as an engine does."""
    medians = np.array([np.median(trial) for trial in logs])
    levels = _two_levels(medians, noise, LEAST_PAIRS)
    if levels is None:
        return None
    told = _on_levels(medians[:, None], *levels)
    sides: dict[int, list[int]] = {}
    for label, pair in zip(told.tolist(), pairs, strict=True):
        sides.setdefault(pair, []).append(label)
    for label in (SLOW, FAST):
        if sum(both == [label, label] for both in sides.values()) < LEAST_PAIRS:
            return None
    labels = tuple(np.full(len(trial), label, dtype=np.int8) for trial, label in zip(logs, told.tolist(), strict=True))
    return States(labels, levels[1] - levels[0])


def _noise(logs: Sequence[Floats]) -> float:
    """Standard deviation of an iteration within a level, by those that follow each other, of which few jump."""
    steps = np.concatenate([np.abs(np.diff(trial.mean(axis=1))) for trial in logs] or [np.zeros(0)])
    return NORMAL_MAD * float(np.median(steps)) / math.sqrt(2) if len(steps) else 0.0


def _two_levels(x: Floats, noise: float, least: int = LEAST_MARKS) -> tuple[float, float] | None:
    """The fast and the slow level of logarithms; ``None`` where they are on one.

    The split with the least sum of squares within (Fisher 1958), each level then the median of its side. The spread
    within is that of the median deviation, which the few marks between both levels do not widen.
    """
    y = np.sort(x)
    n = len(y)
    if n < 2 * least:
        return None
    sizes = np.arange(1, n)
    sums = np.cumsum(y - y.mean())
    between = sums[:-1] ** 2 / sizes + (sums[-1] - sums[:-1]) ** 2 / (n - sizes)
    cut = int(np.argmax(between)) + 1
    fast, slow = float(np.median(y[:cut])), float(np.median(y[cut:]))
    away = np.minimum(np.abs(y - fast), np.abs(y - slow))
    near = away <= NEAR * (slow - fast)
    if min(int(near[:cut].sum()), int(near[cut:].sum())) < least:
        return None
    spread = max(noise, NORMAL_MAD * float(np.median(away)))
    return (fast, slow) if slow - fast > GAP_SDS * spread else None


def _on_levels(marks: Floats, fast: float, slow: float) -> Labels:
    """The label of each row: that of all its marks, else :data:`CUT`."""
    position = (marks - fast) / (slow - fast)
    label = np.full(len(marks), CUT, dtype=np.int8)
    label[(position >= 1 - NEAR).all(axis=1) & (position <= 1 + NEAR).all(axis=1)] = SLOW
    label[(np.abs(position) <= NEAR).all(axis=1)] = FAST
    return label


def sign_test(for_it: int, against: int) -> float:
    """One-sided p of H0 "either sign is as likely" from discordant pairs; 1 where there are none.

    Exact where a fair coin of its own drew the order within each pair (McNemar 1947; Fisher 1935).
    """
    trials = for_it + against
    return float(special.bdtrc(for_it - 1, trials, 0.5)) if for_it else 1.0
