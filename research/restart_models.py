"""Models of how restarts of one build differ: seeded draws of pair log ratios, pure arrays.

A trial's summary of a gated metric is a common level times exp(effect); a model draws the effects of all trials,
(runs, gates, pairs, 2), the last axis base and head. Gates of one trial are correlated by one half. All figures are
natural logarithms; a model's ``pair_sd`` is the standard deviation of one pair's log ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.plan import head_first
from perfgate.stats.sequential import DEFAULT_SCHEDULE

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

PAIRS = DEFAULT_SCHEDULE.looks[-1]
CORRELATION = 0.5
"""Between two gates of the same trial."""
PAIR_SD = 0.0007
"""Measured on quiet H200 visits (docs/measurements.md); a noisier visit had 0.16 %."""
NOISY_PAIR_SD = 0.0016
ORDERS = 2048
"""Orders drawn as the plan does; a simulated run takes one of them."""


@dataclass(frozen=True)
class Model:
    """How restarts differ.

    Args:
        name: For the tables.
        about: One sentence, with the figures.
        effects: Draws trial effects, (runs, gates, pairs, 2).
        pair_sd: Standard deviation of a pair's log ratio without a slowdown.
        slow_share: Share of head restarts that a slowdown reaches; their slowdown is larger, so that the mean is right.
        claims: Whether the declared error rates are claimed under this model.
    """

    name: str
    about: str
    effects: Callable[[np.random.Generator, int, int], Floats]
    pair_sd: float
    slow_share: float = 1.0
    claims: bool = True

    def pairs(self, rng: np.random.Generator, runs: int, slowdowns: Sequence[float]) -> Floats:
        """Log ratios of simulated runs, (runs, gates, pairs); ``slowdowns`` are the true ones, ratios minus one."""
        effects = self.effects(rng, runs, len(slowdowns))
        d: Floats = effects[..., 1] - effects[..., 0]
        mean: Floats = np.log1p(np.asarray(slowdowns))[None, :, None]
        if self.slow_share == 1:
            return d + mean
        slow = rng.random((runs, 1, PAIRS)) < self.slow_share  # a slow restart is slow in every gate
        d += np.where(slow, mean / self.slow_share, 0.0)
        return d


def correlated_normal(rng: np.random.Generator, runs: int, gates: int) -> Floats:
    """Standard normal trial effects, correlated by one half between gates."""
    common = rng.standard_normal((runs, 1, PAIRS, 2))
    own = rng.standard_normal((runs, gates, PAIRS, 2))
    return math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * own


def correlated(rng: np.random.Generator, runs: int, gates: int, draw: Draw, sides: int = 2) -> Floats:
    """Draws of any kind, correlated by one half: a gate takes its trial's common draw with probability sqrt(1/2)."""
    shape = (runs, gates, PAIRS, sides)
    common = draw(rng, (runs, 1, PAIRS, sides))
    found: Floats = np.where(rng.random(shape) < math.sqrt(CORRELATION), common, draw(rng, shape))
    return found


def normal(pair_sd: float = PAIR_SD) -> Model:
    """Normal effects."""
    scale = pair_sd / math.sqrt(2)
    return Model(
        "normal",
        "Restarts are normal.",
        lambda rng, runs, gates: scale * correlated_normal(rng, runs, gates),
        pair_sd,
    )


def heavy_tailed(pair_sd: float = PAIR_SD) -> Model:
    """Multivariate t with 3 degrees of freedom: all gates of a trial share its scale."""
    scale = pair_sd / math.sqrt(2) / math.sqrt(3)  # t with 3 degrees of freedom has variance 3

    def effects(rng: np.random.Generator, runs: int, gates: int) -> Floats:
        widening = np.sqrt(3 / rng.chisquare(3, (runs, 1, PAIRS, 2)))
        return scale * correlated_normal(rng, runs, gates) * widening

    return Model("heavy-tailed", "Restarts follow a t distribution with 3 degrees of freedom.", effects, pair_sd)


def coin(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """0 or 1, with equal probability."""
    return rng.integers(0, 2, shape).astype(np.float64)


def two_modes(gap: float, within: float, *, shared: bool) -> Model:
    """Restarts fall in a fast or a slow mode with equal probability, ``gap`` apart; pair sd ``within`` in a mode."""
    name = "two modes, shared" if shared else "two modes"
    where = "both sides of a pair in the same one" if shared else "each side of a pair on its own"

    def effects(rng: np.random.Generator, runs: int, gates: int) -> Floats:
        modes = gap * correlated(rng, runs, gates, coin, 1 if shared else 2)
        return modes + within / math.sqrt(2) * correlated_normal(rng, runs, gates)

    return Model(
        name,
        f"Restarts fall in two modes {gap * 100:.2g} % apart, {where}; in a mode the pair sd is {within * 100:.2g} %.",
        effects,
        within if shared else math.hypot(within, gap / math.sqrt(2)),
    )


def spiky(share: float, mean_spike: float, pair_sd: float = PAIR_SD) -> Model:
    """Normal effects, and now and then a trial of either side that is much slower (exponential)."""

    def spikes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        sizes: Floats = np.where(rng.random(shape) < share, rng.exponential(mean_spike, shape), 0.0)
        return sizes

    def effects(rng: np.random.Generator, runs: int, gates: int) -> Floats:
        noise = pair_sd / math.sqrt(2) * correlated_normal(rng, runs, gates)
        return noise + correlated(rng, runs, gates, spikes)

    variance = share * 2 * mean_spike**2 - (share * mean_spike) ** 2
    return Model(
        "spiky",
        f"Normal, and {share * 100:g} % of trials of either side are slower by {mean_spike * 100:g} % on average.",
        effects,
        math.hypot(pair_sd, math.sqrt(2 * variance)),
    )


@cache
def orders(pairs: int = PAIRS) -> NDArray[np.bool_]:
    """Whether the head runs first, (orders, pairs), as :func:`perfgate.scenario.plan.head_first` draws it by seed."""
    return np.array([[head_first(seed, "simulated", pair, "coins") for pair in range(pairs)] for seed in range(ORDERS)])


def drifting(name: str, step: float, pair_sd: float = PAIR_SD) -> Model:
    """Normal effects on a machine that slows down evenly over the visit, ``step`` a trial.

    A pair's log ratio is that of one whose second trial is always slower by ``step``, whatever makes it so.
    """

    def effects(rng: np.random.Generator, runs: int, gates: int) -> Floats:
        head_is_first = orders()[rng.integers(0, ORDERS, runs)]
        second = np.stack([head_is_first, ~head_is_first], axis=-1)  # base is second where the head is first
        slot = 2 * np.arange(PAIRS)[None, :, None] + second
        return pair_sd / math.sqrt(2) * correlated_normal(rng, runs, gates) + step * slot[:, None]

    return Model(
        name,
        f"Normal, and each trial is {step * 100:g} % slower than the one before; orders as the plan draws them.",
        effects,
        math.hypot(pair_sd, step),
    )


def slow_in_some(share: float, pair_sd: float = PAIR_SD) -> Model:
    """Normal effects, but a slowdown reaches only some restarts of the head."""
    return Model(
        "slow in some",
        f"Normal, but only {share * 100:g} % of the head's restarts are slow, so much that the mean is as stated.",
        normal(pair_sd).effects,
        pair_sd,
        share,
        claims=False,
    )


MODELS = (
    normal(),
    normal(NOISY_PAIR_SD),
    heavy_tailed(),
    two_modes(0.002, PAIR_SD, shared=True),
    two_modes(0.00097, 0.00014, shared=False),
    two_modes(0.002, 0.00075, shared=False),
    spiky(0.05, 0.005),
    drifting("drift", 0.0005),
    drifting("steep drift", 0.0014),
    slow_in_some(0.3),
)
"""Two modes come twice: with nearly nothing but modes at a pair sd of 0.07 %, and as one H200 visit showed them."""
