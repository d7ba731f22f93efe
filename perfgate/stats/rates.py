"""What a count of events says about their rate."""

from __future__ import annotations

from perfgate import scipy_special as special


def rate_bounds(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact bounds of a rate, each one-sided at ``confidence`` (Clopper and Pearson 1934); 0 and 1 without trials.

    Args:
        events: How often it happened, from 0 to ``trials``.
        trials: Independent trials.
        confidence: Probability with which either bound holds, in (0, 1).
    """
    low = float(special.betaincinv(events, trials - events + 1, 1 - confidence)) if events > 0 else 0.0
    high = float(special.betaincinv(events + 1, trials - events, confidence)) if events < trials else 1.0
    return low, high
