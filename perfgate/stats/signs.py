"""Means that are proved twice: by Student's t, and by the signs of the observations alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from perfgate.stats.estimate import ROUNDING, Bools, Estimate, Figure, Floats, floats, mean_estimate

MOST_FLIPPED = 16
"""Observations whose signs are flipped in all ways; of more, as many ways are drawn."""

MOST_DRAWN = 64
"""Observations whose signs are flipped alone; more are flipped in so many groups of neighbours."""

COST_OF_SIGNS = 0.4
"""What the signs add to a detectable slowdown, as a share of it, by the root of the ways that may reject: with it 95 to
99 of 100 normal samples of 7 to 24 observations reject, at the levels of one to twenty gates."""


@dataclass(frozen=True)
class FlippedEstimate(Estimate):
    """A mean that is proved twice: by Student's t, and by the signs of the observations alone.

    Where a head's restarts lie on two levels, t errs up to twice as often as it says, and all of a few observations may
    be on one level. Flipped signs are exact there, as for all observations that lie alike above and below their mean
    (Fisher 1935): a bound counts means of subsets (Hartigan 1969), of which each of 2^n - 1 is as likely above the true
    mean as below. Of n observations no p is below 2^-n.

    Args:
        d: The observations, shape (n,).
    """

    d: tuple[float, ...] = ()

    def p_above(self, bound: float) -> Figure:
        """The larger p of both tests."""
        below = np.searchsorted(self._means, bound + self.resolution + ROUNDING, side="right")
        return np.maximum(super().p_above(bound), float(below + 1) / (len(self._means) + 1))

    def p_below(self, bound: float) -> Figure:
        """The larger p of both tests."""
        above = len(self._means) - np.searchsorted(self._means, bound - self.resolution - ROUNDING)
        return np.maximum(super().p_below(bound), float(above + 1) / (len(self._means) + 1))

    def lower(self, level: Figure) -> float:
        """The lower bound of both tests; -inf where so few observations prove nothing at this level."""
        ways = math.floor(float(level) * (len(self._means) + 1))
        return min(super().lower(level), self._means[ways - 1] - self.resolution) if ways else -math.inf

    def upper(self, level: Figure) -> float:
        """The upper bound of both tests; +inf where so few observations prove nothing at this level."""
        ways = math.floor(float(level) * (len(self._means) + 1))
        return max(super().upper(level), self._means[-ways] + self.resolution) if ways else math.inf

    def with_pairs(self, before: int, pairs: int) -> FlippedEstimate:
        """As if the observations went on as they are."""
        more = super().with_pairs(before, pairs)
        return replace(self, standard_error=more.standard_error, df=self.df + pairs - before,
                       d=tuple(np.resize(self.d, pairs).tolist()))  # fmt: skip

    def times_detectable(self, level: float) -> float:
        """By how much the signs raise what is detectable; :data:`COST_OF_SIGNS`."""
        return 1 + COST_OF_SIGNS / math.sqrt(level * 2.0 ** len(self.d))

    @property
    def _means(self) -> Floats:
        return subset_means(self.d)


def flipped_estimate(d: ArrayLike, resolution: float = 0.0) -> FlippedEstimate:
    """The mean of paired log ratios as :func:`mean_estimate` has it, proved by their signs, too."""
    estimate = mean_estimate(d, resolution)
    return FlippedEstimate(**vars(estimate), d=tuple(floats(d).tolist()))


@lru_cache(maxsize=64)
def subset_means(d: tuple[float, ...]) -> Floats:
    """Means of subsets of some observations that are not empty, sorted: all 2^n - 1, or 65,535 that are drawn.

    Drawn ways are as valid as all (Hemerik and Goeman 2018), and so are groups of neighbours, whose sums lie alike
    about the mean as observations do.

    Args:
        d: Shape (n,), at least one.
    """
    ways = _ways(len(d))
    sums, sizes = np.zeros(ways.shape[1]), np.zeros(ways.shape[1])
    for taken, group in zip(ways, np.array_split(d, len(ways)), strict=True):
        sums += taken * group.sum()
        sizes += taken * len(group)
    return np.sort(sums[sizes > 0] / sizes[sizes > 0])


@lru_cache(maxsize=4)
def _ways(observations: int) -> Bools:
    """Which groups of so many observations each subset holds, shape (groups, subsets)."""
    groups, subsets = min(observations, MOST_DRAWN), np.arange(1, 2 ** min(observations, MOST_FLIPPED))
    if observations <= MOST_FLIPPED:
        return np.stack([(subsets >> place) % 2 == 1 for place in range(groups)])
    drawn = np.random.default_rng(groups)
    return np.stack([drawn.integers(0, 2, len(subsets)) == 1 for _ in range(groups)])
