"""Simulate the 99 % points of the largest split ratio, the table ``MODE_SPLIT_99`` of :mod:`perfgate.stats.modes`.

Seeded: prints the same table every time, ready to paste. ``python research/mode_table.py`` takes about a minute.
"""

from __future__ import annotations

import numpy as np

SAMPLES = 200_000
SEED = 20261120


def percentile_99(n: int, rng: np.random.Generator) -> float:
    """The 99 % point for samples of ``n`` normal observations."""
    x = np.sort(rng.standard_normal((SAMPLES, n)), axis=1)
    total = ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    least = np.full(SAMPLES, np.inf)
    for cut in range(2, n - 1):
        within = sum(((part - part.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for part in (x[:, :cut], x[:, cut:]))
        least = np.minimum(least, within)
    return float(np.percentile(total / least, 99))


if __name__ == "__main__":
    generator = np.random.default_rng(SEED)
    print("    " + " ".join(f"{n}: {percentile_99(n, generator):.2f}," for n in range(4, 25)))
