"""How far a level moved over many nights: what no single comparison sees."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfgate.stats.estimate import Estimate

MOST_NIGHTS = 7
"""Nights at either end of a window whose means are compared."""
FEWEST_NIGHTS = 4


def moved(nights: Sequence[tuple[float, float]], days: float, error: float = 0.0) -> Estimate | None:
    """The newest nights of a window against its oldest, as a mean to be tested.

    What happened in between does not count, so a step does so once, wherever it was. The spread is that from one night
    to the next, which a drift does not widen (see :func:`night_sd`).

    Args:
        nights: Day and log ratio of each, in order of time, positive is worse.
        days: Length of the window that ends with the newest night.
        error: Standard error that the oldest nights have in common, like that of a link to another anchor.

    Returns:
        ``None`` with fewer than four nights at either end.
    """
    window = [level for day, level in nights if day >= nights[-1][0] - days]
    count = min(MOST_NIGHTS, len(window) // 2)
    if count < FEWEST_NIGHTS:
        return None
    mean = math.fsum(window[-count:]) / count - math.fsum(window[:count]) / count
    # Squared differences of neighbours are worth two thirds of as many independent observations (von Neumann 1941).
    return Estimate(mean, math.hypot(night_sd(window) * math.sqrt(2 / count), error), (len(window) - 1) * 2 / 3)


def night_sd(levels: Sequence[float]) -> float:
    """Standard deviation of nights, by the squared differences of neighbours (von Neumann 1941); 0 for one night."""
    steps = np.diff(levels)
    return math.sqrt(float((steps**2).mean()) / 2) if len(steps) else 0.0
