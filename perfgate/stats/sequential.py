"""Group-sequential looks: how both error rates are spent over a schedule of pairs, and Holm's procedure over gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfgate.stats.estimate import Bools, Estimate, Figure, Floats, floats, mean_estimate

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
keep both error rates (``research/state_rates.py``), further looks included: on them Student's t blocks half again as
often as its level says."""

EARLY_SCHEDULE = Schedule((4, 6, 8, 12), (0.0, 0.16, 0.24, 0.40), (0.16, 0.16, 0.16, 0.32))
"""The looks of scenarios that say 4, 6, 8, 12, the usual ones of earlier versions: two pairs sooner on a quiet machine,
for rates that hold only where both sides spread alike."""


INCONCLUSIVE, PASS, REGRESSED = 0, 1, 2
"""What :func:`decided` says."""


def one_look(pairs: int) -> Schedule:
    """A single look that spends both error rates whole: of trials that were not taken in pairs, hence advisory."""
    return Schedule((pairs,), (float(pairs >= FIRST_BLOCKING_PAIRS),), (float(pairs >= FIRST_PASSING_PAIRS),))


@dataclass(frozen=True)
class Look:
    """What one look at a sequence showed, or at many at once: figures are then arrays.

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
    block_weight: Figure
    pass_weight: Figure
    p_slower: Figure
    p_equivalent: Figure

    def after(self, earlier: Sequence[Look]) -> Look:
        """With the smaller p values of an earlier look, which hold on."""
        if not earlier:
            return self
        p, q = np.minimum(self.p_slower, earlier[-1].p_slower), np.minimum(self.p_equivalent, earlier[-1].p_equivalent)
        return replace(self, p_slower=p, p_equivalent=q)


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
        d: Paired log ratios in the order they were measured, shape (..., n), positive is worse.
        schedule: When to look.
        ignorable: Margin as a ratio minus one, at least 0; shape (n,) where it differs by pair, (k, ..., n) where the
            largest of several counts, or it differs by run.
        must_catch: Margin as a ratio minus one, above ``ignorable``; of the same shapes.
        resolution: See :func:`mean_estimate`.
        carried: See :meth:`perfgate.stats.estimate.Estimate.carrying`.
    """
    x = floats(d)
    both = (np.atleast_2d(np.asarray(margins, dtype=np.float64)) for margins in (ignorable, must_catch))
    sides = [np.broadcast_to(rows, (len(rows), *x.shape)) for rows in both]
    excess = [x - np.log1p(side) for side in sides]
    seen: list[Look] = []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        if pairs > x.shape[-1]:
            break
        over, under = ([mean_estimate(row[..., :pairs], resolution) for row in side] for side in excess)
        binds = [binding(side[..., :pairs]) for side in sides]
        estimate = mean_estimate(x[..., :pairs], resolution)
        look = look_at(pairs, estimate, over, under, (block, passing), carried, (binds[0], binds[1]))
        seen.append(look.after(seen))
    return tuple(seen)


def binding(margins: ArrayLike) -> Bools:
    """Which of several margins are the largest for some observation; one alone where it is for all.

    Args:
        margins: Shape (k, ..., n).

    Returns:
        Shape (k, ...).
    """
    rows = np.asarray(margins, dtype=np.float64)
    if len(rows) == 1:
        return np.ones(rows.shape[:-1], bool)
    largest = rows >= rows.max(axis=0)
    whole = largest.all(axis=-1)
    first = whole & (whole.cumsum(axis=0) == 1)
    binds: Bools = np.where(whole.any(axis=0), first, largest.any(axis=-1))
    return binds


def look_at(
    observations: int,
    estimate: Estimate,
    over: Sequence[Estimate],
    under: Sequence[Estimate],
    weights: tuple[Figure, Figure] = (1.0, 1.0),
    carried: float = 0.0,
    binds: tuple[Bools, Bools] | None = None,
) -> Look:
    """A look, with the margin that is hardest to exceed and the one that is easiest to stay below.

    Args:
        observations: Pairs; of what was not taken in pairs those of the smaller side, or visits.
        estimate: Of the difference.
        over: Of what is above ``ignorable``, one for each margin.
        under: Of what is above ``must_catch``, one for each margin.
        weights: Shares of alpha and beta that it may use; of a look that is the only one all of them.
        carried: Added to the variance of every estimate's error, see :meth:`~Estimate.carrying`.
        binds: Which margins of either list bind, shape (k, ...); without it all do.
    """
    estimate, *both = (raw.carrying(carried) for raw in (estimate, *over, *under))
    over, under = both[: len(over)], both[len(over) :]
    hard, easy = binds or (np.ones(len(over), bool), np.ones(len(under), bool))
    exceeds, above = _smallest(over, [-np.asarray(excess.p_above(0.0)) for excess in over], hard)
    stays, below = _smallest(under, [excess.p_below(0.0) for excess in under], easy)
    block, passing = weights[0], (weights[1] / easy.sum(axis=0))[()]
    return Look(
        observations, estimate, above, below, block, passing, _weighted(-exceeds, block), _weighted(stays, passing)
    )


def _smallest(estimates: Sequence[Estimate], p: Sequence[Figure], binds: Bools) -> tuple[Figure, Estimate]:
    """The smallest p of those that bind, and its estimate; of equal ones that of the smallest mean."""
    if len(estimates) == 1:
        return p[0], estimates[0]
    ordered = np.where(binds, np.stack(p), np.inf)
    which = np.lexsort((np.stack([estimate.mean for estimate in estimates]), ordered), axis=0)[0]
    least = ordered.min(axis=0)
    if not which.ndim:
        return least, estimates[which]
    figures = ([getattr(estimate, part.name) for estimate in estimates] for part in fields(Estimate))
    return least, Estimate(*(np.choose(which, np.broadcast_arrays(which, *column)[1:]) for column in figures))


def _weighted(p: Figure, weight: Figure) -> Figure:
    spends = np.asarray(weight) > 0
    weighted: Figure = np.where(spends, np.minimum(1.0, p / np.where(spends, weight, 1.0)), 1.0)[()]
    return weighted


def decided(rejected: ArrayLike, p_equivalent: Figure, beta: float) -> NDArray[np.int8]:
    """What is said of a gate: regressed is tested before pass, and neither is inconclusive.

    Args:
        rejected: Whether Holm's procedure rejects "slower by at most ``ignorable``".
        p_equivalent: Of the last look, 1 where there is none.
        beta: Probability of passing a slowdown of ``must_catch``.

    Returns:
        :data:`REGRESSED`, :data:`PASS` or :data:`INCONCLUSIVE`, of the shape of both.
    """
    passes = np.where(np.asarray(p_equivalent) <= beta, PASS, INCONCLUSIVE)
    return np.where(rejected, REGRESSED, passes).astype(np.int8)


def holm(p: Sequence[Figure] | Floats, alpha: float, weights: Sequence[Fraction] | None = None) -> Bools:
    """Which hypotheses Holm's step-down rejects (Holm 1979): any false rejection has probability at most ``alpha``.

    Valid under any dependence between the tests, at any number of them; no p at all rejects nothing.

    Args:
        p: One for each hypothesis, shape (m,), or (m, ...) for many families at once.
        alpha: The level of all together.
        weights: Shares of alpha, each above 0, one for each hypothesis: the same article's weighted procedure.
            Without them all are alike.
    """
    every = np.asarray(p, dtype=np.float64)
    shares = _shares(every, weights)
    order = np.argsort(every / shares, axis=0, kind="stable")
    in_order = np.take_along_axis(shares, order, axis=0)
    left = in_order[::-1].cumsum(axis=0)[::-1]
    low = np.take_along_axis(every, order, axis=0) <= alpha / (left / in_order)
    rejected = np.empty_like(low)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(low, axis=0), axis=0)
    return rejected


def holm_level(
    p: Sequence[Figure] | Floats, index: int, alpha: float, weights: Sequence[Fraction] | None = None
) -> Figure:
    """The threshold for ``p[index]`` given the others: Holm rejects it exactly when it does not exceed this.

    It is alpha / (m - r), where r of the other hypotheses are rejected when this one is not; with weights its own over
    the sum of those that are left, in the place of 1 / (m - r).
    """
    others = np.array(p, dtype=np.float64)
    others[index] = math.inf
    shares = _shares(others, weights)
    left = np.where(holm(others, alpha, weights), 0.0, shares).sum(axis=0)
    level: Figure = alpha / (left / shares[index])
    return level


def _shares(p: Floats, weights: Sequence[Fraction] | None) -> Floats:
    """Weights as whole numbers, so that their sums are exact; of the shape of p."""
    whole = math.lcm(*(weight.denominator for weight in weights)) if weights else 1
    shares = np.array([float(weight * whole) for weight in weights] if weights else [1.0] * len(p))
    return np.broadcast_to(shares.reshape(-1, *[1] * (p.ndim - 1)), p.shape)
