"""Whether rows of readings keep growing: how many of them are higher than all before, against what chance allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np


def new_highs(row: Sequence[float]) -> int:
    """How many readings are higher than every one before them; the first is none."""
    return sum(later > earlier for earlier, later in pairwise(accumulate(row, max)))


def p_grows(rows: Sequence[Sequence[float]]) -> float:
    """One-sided p of H0 "no row grows": small where too many readings are new highs.

    Where the order of a row's readings means nothing, its nth reading is the highest so far with probability 1 / n,
    each independently of the others, whatever their distribution (Renyi 1962). That holds for the readings themselves
    and for their running maximum: memory that an allocator never gives back does not count as growth. Ties make new
    highs rarer, and the test conservative.

    Args:
        rows: Readings in order of time, one row a fresh engine; rows of one reading say nothing.

    Returns:
        The exact probability of at least so many new highs in all rows together; 1 without readings.
    """
    chance = np.ones(1)
    for row in rows:
        for place in range(2, len(row) + 1):
            chance = np.convolve(chance, [1 - 1 / place, 1 / place])
    return float(chance[sum(map(new_highs, rows)) :].sum())
