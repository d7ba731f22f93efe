"""One visit more against a baseline's visits: the arithmetic of the stored-baseline rule, on top of :mod:`stats`.

What visits do not share (machine, placement, neighbours, the day) is in the spread of their means, so the visit is the
unit of replication: a drift between visits counts as chance here, where pairs would have cancelled it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfgate import scipy_special as special
from perfgate import stats

FIRST_WARNING_VISITS = 4
"""From this many visits on a stored baseline says that a head would regress; visits alone never block it."""

FIRST_PASSING_VISITS = 8
"""A head passes a stored baseline from this many visits on; with fewer that is advice.

Where visits lie on two levels, all of n on one and the head on the other has a chance of n^n / (n + 1)^(n + 1) at most,
whatever the shares of the levels: 8.2 % for four visits, which no rule could tell, and 4.3 % for eight.
"""

MANY_VISITS = 1000
"""Nobody waits for more visits than this."""

RAISED = 2.0
"""What the variance of visits is multiplied with: for a pass always, and where their times are compared.

Nights that follow each other are alike, so they spread less than the next one may be off. At worst they are a random
walk: the square of the next night's distance from their mean is then up to twice what independent ones of that spread
would have (1.8 times at four, 2 in the limit). Visits in clusters are alike, too, and few visits of a skewed law, or of
one with outliers, seldom show how far it reaches (docs/error-rates.md). A regression is decided by pairs.
"""

PASS_SHARE = 0.5
"""The part of beta that a pass uses. With all of it 5.9 % of heads at ``must_catch`` pass eight visits of a law that is
skewed towards fast ones."""

PAIRS_SHARE = 0.25
"""The part of beta for pairs that are taken where visits say that a head would regress. With all of it 5.8 % of heads
at ``must_catch`` pass by either where visits lie on two levels or are one cluster, and pairs spread by 0.5 %."""


@dataclass(frozen=True)
class Prediction:
    """How far the mean of one visit more is from those of earlier visits, and how far chance alone takes it.

    As in :mod:`perfgate.stats.estimate` figures are arrays where there are many runs.

    Args:
        mean: New visit minus mean of the earlier ones, natural logarithms, positive is worse.
        visit_sd: Standard deviation of the earlier visits' means; 0 where they are equal.
        visits: Earlier visits behind the mean, at least 1.
        df: Degrees of freedom of ``visit_sd``, at least 1; one fewer than visits, unless others tell of it too.
        excess: What the new visit's mean varies more than theirs, as one that rests on fewer restarts does; a variance.
        resolution: How far rounding may have moved ``mean`` at most, see :class:`perfgate.stats.estimate.Estimate`.
        raised: What the variance of visits is multiplied with, see :data:`RAISED`.
    """

    mean: stats.Figure
    visit_sd: stats.Figure
    visits: int
    df: int
    excess: stats.Figure = 0.0
    resolution: float = 0.0
    raised: float = 1.0

    @property
    def warns(self) -> bool:
        """Whether enough visits tell of the spread to say that a head would regress."""
        return self.df >= FIRST_WARNING_VISITS - 1

    @property
    def passes(self) -> bool:
        """Whether they are enough for a pass."""
        return self.df >= FIRST_PASSING_VISITS - 1

    def estimate(self, more: int = 0) -> stats.Estimate:
        """As a mean to be tested: the t prediction interval for one further observation.

        Hahn and Meeker 1991, chapter 4. Exact where visits are normal and independent, none was chosen by its value and
        nothing is raised.

        Args:
            more: What the same spread would be worth with so many visits more.
        """
        variance = self.raised * self.visit_sd**2 * (1 + 1 / (self.visits + more)) + self.excess
        return stats.Estimate(self.mean, np.sqrt(variance), self.df + more, self.resolution)

    def detectable(self, level: float, margin: float, power: float, more: int = 0) -> float | None:
        """As :func:`perfgate.stats.estimate.detectable`, with these or more visits."""
        return stats.detectable(self.estimate(more), level, margin, power)

    def least_detectable(self, level: float, margin: float, power: float) -> float:
        """What could be detected if the spread were known; no number of visits goes below it. A ratio minus one."""
        shift = float(special.ndtri(power)) - float(special.ndtri(level))
        reach = 2 * self.resolution + shift * math.sqrt(float(self.raised * self.visit_sd**2 + self.excess))
        return stats.to_ratio(math.log1p(margin) + reach)

    def visits_to_halve(self, level: float, margin: float, power: float) -> int | None:
        """How many visits more halve what is detectable; ``None`` where :data:`MANY_VISITS` would not."""
        now = self.detectable(level, margin, power)

        def halves(more: int) -> bool:
            then = self.detectable(level, margin, power, more)
            return now is not None and then is not None and then <= now / 2

        enough = bisect.bisect_left(range(MANY_VISITS + 1), x=True, lo=1, key=halves)
        return enough if enough <= MANY_VISITS else None


def predict(
    visits: Sequence[ArrayLike],
    head: ArrayLike,
    sign: int,
    resolution: float = 0.0,
    *,
    others: Sequence[Sequence[ArrayLike]] = (),
    raised: float = 1.0,
) -> Prediction:
    """Hold one visit's restarts against those of earlier visits.

    Restarts sharpen a visit's mean and enter on their own only where the new visit has fewer than the others had.

    Args:
        visits: For each earlier visit the logarithms of its restarts, at least one, on the last axis; at least two
            visits, or one beside others of which there are two.
        head: Those of the new visit.
        sign: +1 where larger is worse, -1 where larger is better.
        resolution: The instrument's step as a share of the values.
        others: Further sets of visits, each about a mean of its own, like ratios to another anchor: they spread alike
            and tell nothing of the mean. A spread pooled over several sets has the degrees of freedom of the largest
            alone, because visits of two sets may be of one occupation.
        raised: See :data:`RAISED`.

    Raises:
        ValueError: No spread, a visit without restarts, or a value that is not finite.
    """
    sets = [[stats.floats(row) for row in rows] for rows in (visits, *others) if len(rows)]
    new = stats.floats(head)
    if not all(row.shape[-1] for row in [new, *(row for rows in sets for row in rows)]) or not len(visits):
        raise ValueError("expected a restart in every visit")
    means = [np.stack([row.mean(axis=-1) for row in rows], axis=-1) for rows in sets]
    numbers = [row.shape[-1] for row in means]
    df = max(numbers) - 1
    if df < 1:
        raise ValueError("expected at least two visits")
    squares = sum(np.where(stats.all_equal(row), 0.0, row.var(axis=-1) * row.shape[-1]) for row in means)
    spread = np.maximum(np.sqrt(squares / (sum(numbers) - len(numbers))), resolution / math.sqrt(12))
    rows = sets[0]
    restarts = [row.shape[-1] for row in rows]
    within = sum(row.var(axis=-1) * row.shape[-1] for row in rows) / max(sum(restarts) - len(rows), 1)
    fewer = max(0.0, 1 / new.shape[-1] - math.fsum(1 / number for number in restarts) / len(rows))
    mean = sign * (new.mean(axis=-1) - means[0].mean(axis=-1))
    return Prediction(mean, spread, len(rows), df, within * fewer, resolution, raised)
