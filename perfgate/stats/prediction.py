"""One visit more against a baseline's visits: the arithmetic of the stored-baseline rule, on top of :mod:`stats`.

What visits do not share (machine, placement, neighbours, the day) is in the spread of their means, so the visit is the
unit of replication: a drift between visits counts as chance here, where pairs would have cancelled it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy import special

from perfgate import stats

FIRST_BLOCKING_VISITS = 4
"""A stored baseline blocks from this many visits on; with fewer its verdict is advice (docs/design.md)."""

MANY_VISITS = 1000
"""Nobody waits for more visits than this."""


@dataclass(frozen=True)
class Prediction:
    """How far the mean of one visit more is from those of earlier visits, and how far chance alone takes it.

    Args:
        mean: New visit minus mean of the earlier ones, natural logarithms, positive is worse.
        visit_sd: Standard deviation of the earlier visits' means; 0 where they are equal.
        visits: Earlier visits, at least 2.
        excess: What the new visit's mean varies more than theirs, because it rests on fewer restarts; a variance.
        resolution: How far rounding may have moved ``mean`` at most, see :class:`perfgate.stats.estimate.Estimate`.
    """

    mean: float
    visit_sd: float
    visits: int
    excess: float = 0.0
    resolution: float = 0.0

    def estimate(self, visits: int | None = None) -> stats.Estimate:
        """As a mean to be tested: the t prediction interval for one further observation, df = visits - 1.

        Hahn and Meeker 1991, chapter 4. Exact where visits are normal and none was chosen by its value.

        Args:
            visits: What the same spread would be worth over another number of earlier visits.
        """
        count = visits or self.visits
        variance = self.visit_sd**2 * (1 + 1 / count) + self.excess
        return stats.Estimate(self.mean, math.sqrt(variance), count - 1, self.resolution)

    def detectable(self, level: float, margin: float, power: float, visits: int | None = None) -> float | None:
        """As :func:`perfgate.stats.estimate.detectable`, at this or another number of visits."""
        return stats.detectable(self.estimate(visits), level, margin, power)

    def least_detectable(self, level: float, margin: float, power: float) -> float:
        """What could be detected if the spread were known; no number of visits goes below it. A ratio minus one."""
        shift = float(special.ndtri(power)) - float(special.ndtri(level))
        reach = 2 * self.resolution + shift * math.sqrt(self.visit_sd**2 + self.excess)
        return stats.to_ratio(math.log1p(margin) + reach)

    def visits_to_halve(self, level: float, margin: float, power: float) -> int | None:
        """How many visits more halve what is detectable; ``None`` where :data:`MANY_VISITS` would not."""
        now = self.detectable(level, margin, power)

        def halves(visits: int) -> bool:
            found = self.detectable(level, margin, power, visits)
            return now is not None and found is not None and found <= now / 2

        enough = bisect.bisect_left(range(MANY_VISITS + 1), x=True, lo=self.visits + 1, key=halves)
        return enough - self.visits if enough <= MANY_VISITS else None


def predict(visits: Sequence[ArrayLike], head: ArrayLike, sign: int, resolution: float = 0.0) -> Prediction:
    """Hold one visit's restarts against those of earlier visits.

    Restarts sharpen a visit's mean and enter on their own only where the new visit has fewer than the others had.

    Args:
        visits: For each earlier visit the logarithms of its restarts, at least one; at least two visits.
        head: Those of the new visit.
        sign: +1 where larger is worse, -1 where larger is better.
        resolution: The instrument's step as a share of the values.

    Raises:
        ValueError: Fewer than two visits, a visit without restarts, or a value that is not finite.
    """
    rows, new = [stats.floats(row) for row in visits], stats.floats(head)
    if not all(map(len, [*rows, new])):
        raise ValueError("expected a restart in every visit")
    means = stats.side_estimate([row.mean() for row in rows], resolution)
    freedom = sum(len(row) - 1 for row in rows)
    within = math.fsum(float(((row - row.mean()) ** 2).sum()) for row in rows) / max(freedom, 1)
    fewer = max(0.0, 1 / len(new) - math.fsum(1 / len(row) for row in rows) / len(rows))
    spread = means.standard_error * math.sqrt(len(rows))
    return Prediction(sign * (float(new.mean()) - means.mean), spread, len(rows), within * fewer, resolution)
