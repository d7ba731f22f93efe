"""When a server has warmed up: two stretches of its requests, one after the other, took as long.

Means of consecutive batches of five are compared and not single requests, which are correlated: they queue behind each
other (batch means, Law, Simulation Modeling and Analysis, chapter 9). Two stretches agree where their means differ by
at most three standard errors (Welch). Of series of independent log-normal times that do not change, 1 to 2 % are called
changing from 40 requests a pair of stretches on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

BATCH: Final = 5
LEAST_BATCHES: Final = 4
"""Of a stretch; with fewer nothing can be told."""
STANDARD_ERRORS: Final = 3.0


def agree(before: Sequence[float], after: Sequence[float]) -> bool | None:
    """Whether two stretches of requests took as long; ``None`` where they are too short to tell.

    Args:
        before: A time of each request, in the order in which they were due; what does not fill a batch is left out.
        after: The same of the requests that came next.
    """
    means = [np.array(one[: len(one) // BATCH * BATCH], dtype=float).reshape(-1, BATCH).mean(axis=1)
             for one in (before, after)]  # fmt: skip
    if min(map(len, means)) < LEAST_BATCHES:
        return None
    error = math.sqrt(sum(float(one.var(ddof=1)) / len(one) for one in means))
    return abs(float(means[0].mean() - means[1].mean())) <= STANDARD_ERRORS * error


def is_steady(windows: Sequence[Sequence[float]]) -> bool | None:
    """Whether warm-up has come to rest: the last two windows agree, or the halves of the only one.

    Args:
        windows: A time of each request, window by window; ``None`` is returned where they are too short to tell.
    """
    if not windows:
        return None
    if len(windows) == 1:
        half = len(windows[0]) // 2
        return agree(windows[0][:half], windows[0][half:])
    return agree(windows[-2], windows[-1])
