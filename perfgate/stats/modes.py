"""What observations look like beside their mean: a centre that outliers hardly move, and whether they split in two.

Plain arrays in, as in :mod:`perfgate.stats.estimate`; nothing here decides a gate, it feeds the cautions beside one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfgate.stats.estimate import Floats, all_equal, floats

Indices = NDArray[np.intp]

ENUMERATED = 100_000
"""Sums that are written out at once to find the one of a rank: less than a megabyte."""


def hodges_lehmann(d: ArrayLike) -> float:
    """Median of all pairwise averages (Hodges and Lehmann 1963): an estimate of the centre that outliers hardly move.

    Exact in memory proportional to the observations and in time proportional to n log^2 n: the averages are the sorted
    rows of a matrix that is never written out (Johnson and Mizoguchi 1978).

    Raises:
        ValueError: No observation, or one is not finite.
    """
    x = np.sort(floats(d))
    if len(x) == 0:
        raise ValueError("expected at least one observation")
    averages = len(x) * (len(x) + 1) // 2
    low = _sum_of_rank(x, (averages - 1) // 2)
    high = low if averages % 2 else _sum_of_rank(x, averages // 2)
    return (low + high) / 4


def _sum_of_rank(x: Floats, rank: int) -> float:
    """The sum x[i] + x[j], i <= j, that has ``rank`` smaller ones or equals before it, from 0; ``x`` is sorted.

    Row i holds the sums of x[i] with itself and all later ones, which ascend. Of each row a span of candidates is kept.
    The weighted median of the spans' middles splits them so that at least a quarter of the candidates fall away.
    """
    rows = np.arange(len(x))
    first, last = rows.copy(), np.full(len(x), len(x))
    while int((last - first).sum()) > ENUMERATED:
        kept = np.flatnonzero(last > first)
        middles = x[kept] + x[(first[kept] + last[kept]) // 2]
        order = np.argsort(middles)
        weights = np.cumsum((last - first)[kept][order])
        pivot = float(middles[order][np.searchsorted(weights, weights[-1] / 2)])
        below, through = _first_column(x, pivot, beyond=False), _first_column(x, pivot, beyond=True)
        if rank < int((below - rows).sum()):
            last = np.minimum(last, below)
        elif rank >= int((through - rows).sum()):
            first = np.maximum(first, through)
        else:
            return pivot
    spans = last - first
    columns = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans - first, spans)
    candidates = x[np.repeat(rows, spans)] + x[columns]
    place = rank - int((first - rows).sum())
    return float(np.partition(candidates, place)[place])


def _first_column(x: Floats, pivot: float, *, beyond: bool) -> Indices:
    """For each row the first column whose sum reaches ``pivot``, or is beyond it; n where none does."""
    low, high = np.arange(len(x)), np.full(len(x), len(x))
    while (low < high).any():  # a binary search in all rows at once, on the very sums: no rounding can disagree
        middle = np.minimum((low + high) // 2, len(x) - 1)
        sums = x + x[middle]
        right = (sums <= pivot if beyond else sums < pivot) & (low < high)
        low, high = np.where(right, middle + 1, low), np.where(right | (low >= high), high, middle)
    return low


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
"""99 % points of the largest split ratio for normal samples by size; written by benchmarks/mode_table.py."""
