"""Group-sequential looks: how both error rates are spent over a schedule of pairs, and Holm's procedure over gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from perfgate.stats.estimate import Estimate, Floats, floats, mean_estimate

FURTHER_LOOK_PAIRS = 4
"""A look beyond the declared ones comes after at least this many further pairs."""

FIRST_PASSING_PAIRS = 4
"""No look may be declared to pass below this many pairs: two easily come from one mode, even where both sides jump."""

FIRST_BLOCKING_PAIRS = 6
"""No look may be declared to block below this many pairs: with fewer, two modes easily fake a tiny variance."""


@dataclass(frozen=True)
class Schedule:
    """When a sequence is looked at, and the share of each error rate that a look may use.

    Args:
        looks: Numbers of pairs, increasing, each at least 2.
        block: Weights for blocking, one a look, each in [0, 1], summing to at most 1.
        pass_: Weights for passing, as for blocking; 0 below :data:`FIRST_PASSING_PAIRS`.

    Raises:
        ValueError: The lists do not fit together.
    """

    looks: tuple[int, ...]
    block: tuple[float, ...]
    pass_: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that looks increase and weights can be spent."""
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 2:  # noqa: PLR2004 (a t test needs two)
            raise ValueError(f"looks must increase from at least 2 pairs: {self.looks}")
        for weights in (self.block, self.pass_):
            if len(weights) != len(self.looks) or min(weights) < 0 or sum(weights) > 1 + 1e-9:
                raise ValueError(f"weights must be one a look and sum to at most 1: {weights}")
        if any(weight for look, weight in zip(self.looks, self.pass_, strict=True) if look < FIRST_PASSING_PAIRS):
            raise ValueError(f"no look passes below {FIRST_PASSING_PAIRS} pairs: {self.looks}")

    @property
    def first_blocking(self) -> tuple[int, float] | None:
        """Pairs and weight of the first look that may block; ``None`` where none may."""
        return self._first(self.block)

    @property
    def first_passing(self) -> tuple[int, float] | None:
        """Pairs and weight of the first look that may pass; ``None`` where none may."""
        return self._first(self.pass_)

    def _first(self, weights: Sequence[float]) -> tuple[int, float] | None:
        return next(((look, weight) for look, weight in zip(self.looks, weights, strict=True) if weight > 0), None)

    def extended(self, pairs: int) -> Schedule:
        """With one further look at ``pairs``, which takes half of what either error rate has left.

        Raises:
            ValueError: ``pairs`` is less than four pairs after the last look.
        """
        if pairs < self.looks[-1] + FURTHER_LOOK_PAIRS:
            raise ValueError(f"a further look needs at least {FURTHER_LOOK_PAIRS} pairs after {self.looks[-1]}")
        return Schedule(
            (*self.looks, pairs),
            (*self.block, (1 - sum(self.block)) / 2),
            (*self.pass_, (1 - sum(self.pass_)) / 2),
        )

    def further(self, looks: Sequence[int]) -> Schedule:
        """With looks that were added one after another, each when the ones before it had been seen.

        Their places are fixed beforehand, and each has a weight of its own: an eighth of what either error rate has
        left, a sixteenth, and so on. So a place that is chosen by what a look showed spends no more than the total
        (Bonferroni over all places). Three quarters of it stay unspent: of pairs on two levels Student's t errs more
        often than it says. Looks elsewhere, which earlier versions added, take half of what is left one by one.

        Args:
            looks: Numbers of pairs.
        """
        places = [self.place(pairs) for pairs in looks]
        if places != [*looks]:
            return reduce(Schedule.extended, looks, self)
        steps = [(place - self.looks[-1]) // FURTHER_LOOK_PAIRS + 1 for place in places]  # 2, 4, 8, ...
        block, passing = (1 - sum(self.block)) / 4, (1 - sum(self.pass_)) / 4
        return Schedule(
            (*self.looks, *looks),
            (*self.block, *(block / step for step in steps)),
            (*self.pass_, *(passing / step for step in steps)),
        )

    def place(self, pairs: int) -> int:
        """The first place of a further look at so many pairs or more: 4, 12, 28, 60 ... after the last declared one."""
        step = FURTHER_LOOK_PAIRS
        while self.looks[-1] + step < pairs:
            step = 2 * step + FURTHER_LOOK_PAIRS
        return self.looks[-1] + step


DEFAULT_SCHEDULE = Schedule((6, 8, 12), (0.0, 0.3, 0.3), (0.32, 0.16, 0.32))
"""The looks of a scenario that names none. Pairs of a head whose restarts lie on two levels may all be on one of them,
of four pairs in 1/8 of runs, of six in 1/32, and nothing in the run tells of the other. With these looks such pairs
keep both error rates (``benchmarks/state_rates.py``), further looks included: on them Student's t blocks half again as
often as its level says."""

EARLY_SCHEDULE = Schedule((4, 6, 8, 12), (0.0, 0.16, 0.24, 0.40), (0.16, 0.16, 0.16, 0.32))
"""The looks of scenarios that say 4, 6, 8, 12, the usual ones of earlier versions: two pairs sooner on a quiet machine,
for rates that hold only where both sides spread alike."""


def one_look(pairs: int) -> Schedule:
    """A single look that spends both error rates whole: of trials that were not taken in pairs, hence advisory."""
    return Schedule((pairs,), (float(pairs >= FIRST_BLOCKING_PAIRS),), (float(pairs >= FIRST_PASSING_PAIRS),))


@dataclass(frozen=True)
class Look:
    """What one look at a sequence showed.

    Args:
        pairs: Pairs used.
        estimate: Mean of their log ratios.
        over_ignorable: Mean of what they exceed ``ignorable`` by, each above its own where it differs by pair.
        over_must_catch: Mean of what they exceed ``must_catch`` by.
        block_weight: Share of alpha this look may use.
        pass_weight: Share of beta this look may use; of two margins that bind each has half of it.
        p_slower: Smallest weighted p over this and earlier looks, for H0 "slowdown at most ignorable"; in [0, 1].
        p_equivalent: The same for H0 "slowdown at least must_catch".
    """

    pairs: int
    estimate: Estimate
    over_ignorable: Estimate
    over_must_catch: Estimate
    block_weight: float
    pass_weight: float
    p_slower: float
    p_equivalent: float


def interim_looks(
    d: ArrayLike,
    schedule: Schedule,
    ignorable: ArrayLike,
    must_catch: ArrayLike,
    resolution: float = 0.0,
    carried: float = 0.0,
) -> tuple[Look, ...]:
    """Every look that ``d`` reaches, in order; empty below the first one.

    The running ``p = min p_k / w_k`` is a valid p value whenever one stops, because the weights sum to at most one
    (Bonferroni over the looks; alpha spending in the sense of Lan and DeMets 1983). A weight of 0 leaves it at 1.

    Where the largest of several margins counts, a slowdown is above it when it is above each, so p is the largest of
    theirs (Berger 1982), and below it when it is below one, for which each has its part of the pass weight. Taking
    the largest margin pair by pair would average to more than the margin: of a floor at must_catch, on a machine whose
    speed wanders by 2 %, 23 % passed.

    Args:
        d: Paired log ratios in the order they were measured, shape (n,), positive is worse.
        schedule: When to look.
        ignorable: Margin as a ratio minus one, at least 0; shape (n,) where it differs by pair, (k, n) where the
            largest of several counts.
        must_catch: Margin as a ratio minus one, above ``ignorable``; of the same shapes.
        resolution: See :func:`mean_estimate`.
        carried: See :meth:`perfgate.stats.estimate.Estimate.carrying`.
    """
    x = floats(d)
    both = (np.atleast_2d(np.asarray(margins, dtype=np.float64)) for margins in (ignorable, must_catch))
    sides = [np.broadcast_to(rows, (len(rows), len(x))) for rows in both]
    seen: list[Look] = []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        if pairs > len(x):
            break
        over, under = (
            [mean_estimate(x[:pairs] - np.log1p(row), resolution) for row in binding(side[:, :pairs])] for side in sides
        )
        estimate = mean_estimate(x[:pairs], resolution)
        seen.append(look_at(pairs, estimate, over, under, (block, passing), seen[-1:], carried))
    return tuple(seen)


def binding(margins: ArrayLike) -> Floats:
    """Those of several margins that are the largest for some observation; one alone where it is for all.

    Args:
        margins: Shape (k, n).
    """
    rows = np.asarray(margins, dtype=np.float64)
    largest = rows >= rows.max(axis=0)
    whole = np.flatnonzero(largest.all(axis=1))
    return rows[whole[:1]] if len(whole) else rows[largest.any(axis=1)]


def look_at(
    observations: int,
    estimate: Estimate,
    over: Sequence[Estimate],
    under: Sequence[Estimate],
    weights: tuple[float, float] = (1.0, 1.0),
    earlier: Sequence[Look] = (),
    carried: float = 0.0,
) -> Look:
    """A look, with the margin that is hardest to exceed and the one that is easiest to stay below.

    Args:
        observations: Pairs; of what was not taken in pairs those of the smaller side, or visits.
        estimate: Of the difference.
        over: Of what is above ``ignorable``, one for each margin that binds.
        under: Of what is above ``must_catch``, one for each margin that binds.
        weights: Shares of alpha and beta that it may use; of a look that is the only one all of them.
        earlier: The look before it, whose p values hold where its own are larger.
        carried: Added to the variance of every estimate's error, see :meth:`~Estimate.carrying`.
    """
    estimate, *both = (one.carrying(carried) for one in (estimate, *over, *under))
    over, under = both[: len(over)], both[len(over) :]
    above = max(over, key=lambda excess: (excess.p_above(0.0), -excess.mean))
    below = min(under, key=lambda excess: (excess.p_below(0.0), excess.mean))
    block, passing = weights[0], weights[1] / len(under)
    p_slower = min([_weighted(above.p_above(0.0), block), *(look.p_slower for look in earlier)])
    p_equivalent = min([_weighted(below.p_below(0.0), passing), *(look.p_equivalent for look in earlier)])
    return Look(observations, estimate, above, below, block, passing, p_slower, p_equivalent)


def _weighted(p: float, weight: float) -> float:
    return min(1.0, p / weight) if weight > 0 else 1.0


def holm(p: Sequence[float], alpha: float, weights: Sequence[Fraction] | None = None) -> tuple[bool, ...]:
    """Which hypotheses Holm's step-down rejects (Holm 1979): any false rejection has probability at most ``alpha``.

    Valid under any dependence between the tests, at any number of them; no p at all rejects nothing.

    Args:
        p: One for each hypothesis.
        alpha: The level of all together.
        weights: Shares of alpha, each above 0, one for each hypothesis: the same article's weighted procedure.
            Without them all are alike.
    """
    shares: Sequence[Fraction | int] = weights or [1] * len(p)
    rejected = [False] * len(p)
    left = sum(shares)
    for index in sorted(range(len(p)), key=lambda i: p[i] / shares[i]):
        if p[index] > alpha / (left / shares[index]):
            break
        rejected[index] = True
        left -= shares[index]
    return tuple(rejected)


def holm_level(p: Sequence[float], index: int, alpha: float, weights: Sequence[Fraction] | None = None) -> float:
    """The threshold for ``p[index]`` given the others: Holm rejects it exactly when it does not exceed this.

    It is alpha / (m - r), where r of the other hypotheses are rejected when this one is not; with weights its own over
    the sum of those that are left, in the place of 1 / (m - r).
    """
    shares: Sequence[Fraction | int] = weights or [1] * len(p)
    others = holm([math.inf if i == index else value for i, value in enumerate(p)], alpha, weights)
    left = sum(share for share, rejected in zip(shares, others, strict=True) if not rejected)
    return alpha / (left / shares[index])
