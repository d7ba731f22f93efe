"""What observations look like beside their mean: a centre that outliers hardly move, and whether they split in two.

Plain arrays in, as in :mod:`perfgate.stats.estimate`; nothing here decides a gate, it feeds the cautions beside one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from perfgate.stats.estimate import Floats, all_equal, floats

MOST_AVERAGED = 1000
"""Observations whose pairwise averages are written out: four megabytes."""


def hodges_lehmann(d: ArrayLike) -> float:
    """Median of all pairwise averages (Hodges and Lehmann 1963): an estimate of the centre that outliers hardly move.

    Of more than :data:`MOST_AVERAGED` observations only evenly spaced ones enter, in order of size.

    Raises:
        ValueError: No observation, or one is not finite.
    """
    x = np.sort(floats(d))
    if len(x) == 0:
        raise ValueError("expected at least one observation")
    every = -(-len(x) // MOST_AVERAGED)
    x = x[(len(x) - 1) % every // 2 :: every]
    first, second = np.triu_indices(len(x))
    return float(np.median(x[first] + x[second])) / 2


def two_modes(values: ArrayLike) -> tuple[int, float] | None:
    """Whether observations fall in two groups: (size of the upper group, distance of the group means), else ``None``.

    The largest ratio of total to within-group sum of squares over all splits of the sorted values with at least two
    on each side (Engelman and Hartigan 1969), against its 99 % point for one normal population, so that one in a
    hundred sets of unsplit restarts is called split. With four, only groups that are 17 times as far apart as they are
    wide differ enough; with twelve, 3 times. Below four and above 24 observations nothing is said: ``None``.
    """
    x = np.sort(floats(values))
    if len(x) not in MODE_SPLIT_99 or all_equal(x):
        return None
    ratio, cut = max((split_ratio(x, cut), cut) for cut in range(2, len(x) - 1))
    if ratio <= MODE_SPLIT_99[len(x)]:
        return None
    return len(x) - cut, float(x[cut:].mean() - x[:cut].mean())


def split_ratio(x: Floats, cut: int) -> float:
    """Total over within-group sum of squares when sorted ``x`` is split before ``cut``; inf for two tight points."""
    within = float(((x[:cut] - x[:cut].mean()) ** 2).sum() + ((x[cut:] - x[cut:].mean()) ** 2).sum())
    total = float(((x - x.mean()) ** 2).sum())
    if total == 0:
        return 1.0
    return total / within if within > 0 else math.inf


MODE_SPLIT_99: dict[int, float] = {
    4: 145.56, 5: 56.46, 6: 31.40, 7: 20.55, 8: 15.77, 9: 12.73, 10: 10.98, 11: 9.71, 12: 8.80, 13: 8.10, 14: 7.60,
    15: 7.19, 16: 6.81, 17: 6.54, 18: 6.29, 19: 6.07, 20: 5.91, 21: 5.75, 22: 5.59, 23: 5.45, 24: 5.38,
}  # fmt: skip
"""99 % points of the largest split ratio for normal samples by size; written by research/mode_table.py."""
