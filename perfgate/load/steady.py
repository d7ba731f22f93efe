"""When a server has warmed up: the truncation rule MSER-5, on the times of requests in the order they were due.

White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997); batches of
five after White, Cobb and Spratt, Winter Simulation Conference 2000. Of all places at which a series can be cut, it
takes the one that leaves the smallest standard error of the mean of the rest. One in the second half means that the
series is too short to tell, so it has not settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

BATCH: Final = 5
LEAST_BATCHES: Final = 4
"""Below so many nothing can be told."""


def truncation(values: Sequence[float]) -> int | None:
    """How many values MSER-5 cuts off at the beginning of a series; ``None`` where there are too few to tell.

    Args:
        values: In order of time; what does not fill a batch of five at the end is left out.
    """
    batches = np.array(values[: len(values) // BATCH * BATCH], dtype=float).reshape(-1, BATCH).mean(axis=1)
    if len(batches) < LEAST_BATCHES:
        return None
    rests = [batches[cut:] for cut in range(len(batches) - 1)]
    errors = [float(np.sum((rest - rest.mean()) ** 2)) / len(rest) ** 2 for rest in rests]
    return BATCH * int(np.argmin(errors))


def is_steady(values: Sequence[float]) -> bool | None:
    """Whether a series has settled: what MSER-5 cuts off is at most its first half; ``None`` where nobody can tell."""
    cut = truncation(values)
    return None if cut is None else 2 * cut <= len(values)
