"""The decision rule's arithmetic: plain arrays in, frozen results out.

Everything here speaks of slowdowns: an observation ``d`` is a natural logarithm of a ratio, oriented by the caller so
that positive is worse. Margins are given as ratios minus one. Nothing here knows metrics, records or gates.

The procedure (docs/design.md): a one-sided paired t test at each of a few looks, against two shifted nulls, with each
error rate spread over the looks by weights that sum to at most one (Bonferroni over looks; no distribution theory
beyond Student's is needed), and Holm's step-down over the gates of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]

FURTHER_LOOK_PAIRS = 4
"""A look beyond the declared ones comes after at least this many further pairs."""

FIRST_BLOCKING_PAIRS = 6
"""No look blocks below this many pairs: with fewer, restarts that split in two modes easily fake a tiny variance."""


@dataclass(frozen=True)
class Schedule:
    """When a sequence is looked at, and the share of each error rate that a look may use.

    Args:
        looks: Numbers of pairs, increasing, each at least 2.
        block: Weights for blocking, one a look, each in [0, 1], summing to at most 1.
        pass_: Weights for passing, likewise.

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

    @property
    def first_blocking(self) -> tuple[int, float] | None:
        """Pairs and weight of the first look that may block; ``None`` where none may."""
        return next(((look, weight) for look, weight in zip(self.looks, self.block, strict=True) if weight > 0), None)

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


DEFAULT_SCHEDULE = Schedule((4, 6, 8, 12), (0.0, 0.16, 0.24, 0.40), (0.16, 0.16, 0.16, 0.32))
"""The looks of a scenario that names none; a fifth of either error rate is kept for further looks."""


def one_look(pairs: int) -> Schedule:
    """A single look that spends both error rates whole: for data whose size was fixed before it was seen."""
    return Schedule((pairs,), (1.0 if pairs >= FIRST_BLOCKING_PAIRS else 0.0,), (1.0,))


@dataclass(frozen=True)
class Estimate:
    """A mean with what is needed to test it.

    Args:
        mean: Mean of the observations (or difference of two means).
        standard_error: Of ``mean``; 0 where all observations are equal.
        df: Degrees of freedom of its t distribution, positive.
    """

    mean: float
    standard_error: float
    df: float

    def p_above(self, bound: float) -> float:
        """One-sided p of H0 "the true mean is at most ``bound``": small where the mean lies clearly above.

        Student 1908; exact for normal observations at any n >= 2, conservative or mildly liberal otherwise (figures in
        docs/error-rates.md). With a standard error of 0 it is 0 above the bound and 1 at or below it.
        """
        return _upper_tail(self.mean - bound, self.standard_error, self.df)

    def p_below(self, bound: float) -> float:
        """One-sided p of H0 "the true mean is at least ``bound``": small where the mean lies clearly below."""
        return _upper_tail(bound - self.mean, self.standard_error, self.df)

    def lower(self, level: float) -> float:
        """One-sided lower confidence bound: above it the mean lies with probability 1 - ``level``; -inf at level 0."""
        return self.mean - _t_quantile(level, self.df) * self.standard_error if level > 0 else -math.inf

    def upper(self, level: float) -> float:
        """One-sided upper confidence bound, likewise; +inf at level 0."""
        return self.mean + _t_quantile(level, self.df) * self.standard_error if level > 0 else math.inf

    def with_pairs(self, before: int, pairs: int) -> Estimate:
        """What the same spread would be worth at another number of pairs; ``before`` is the number behind this one."""
        return Estimate(self.mean, self.standard_error * math.sqrt(before / pairs), pairs - 1)


def adjusted_difference(
    base: Sequence[float], head: Sequence[float], base_covariate: Sequence[float], head_covariate: Sequence[float]
) -> Estimate:
    """Head minus base at one value of a covariate that both sides share the slope of.

    Analysis of covariance by ordinary least squares (Fisher 1932): y = a + d head + b z, df = n - 3; without spread in
    the covariate the difference of means with pooled variance, df = n - 2.

    Args:
        base: Shape (n_b,), at least 2.
        head: Shape (n_h,), at least 2.
        base_covariate: Shape (n_b,); something that the sides' difference does not change.
        head_covariate: Shape (n_h,).
    """
    y = np.array([*base, *head], float)
    side = np.array([0.0] * len(base) + [1.0] * len(head))
    z = np.array([*base_covariate, *head_covariate], float)
    columns = [np.ones_like(y), side]
    within = z - np.where(side > 0, np.mean(head_covariate), np.mean(base_covariate))
    if np.ptp(within) > 1e-9 * np.abs(z).max():  # less is rounding, and has no slope
        columns.append(z - z.mean())
    design = np.stack(columns, axis=1)
    inverse = np.linalg.inv(design.T @ design)
    slopes = inverse @ design.T @ y
    df = len(y) - design.shape[1]
    variance = float(np.sum((y - design @ slopes) ** 2)) / df
    return Estimate(float(slopes[1]), math.sqrt(max(variance * float(inverse[1, 1]), 0.0)), df)


def _upper_tail(distance: float, standard_error: float, df: float) -> float:
    if standard_error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(df, -distance / standard_error))


def _t_quantile(level: float, df: float) -> float:
    return -float(special.stdtrit(df, level))


def log_ratios(base: ArrayLike, head: ArrayLike, sign: int) -> Floats:
    """``sign * ln(head / base)`` elementwise: positive is worse when ``sign`` is +1 for lower-is-better metrics.

    Args:
        base: One value a pair, positive and finite, shape (n,).
        head: Likewise, in the same order.
        sign: +1 where larger is worse, -1 where larger is better.

    Raises:
        ValueError: A value is not positive and finite, or the lengths differ.
    """
    b, h = np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64)
    if b.shape != h.shape or b.ndim != 1:
        raise ValueError(f"expected one value a pair on both sides, got shapes {b.shape} and {h.shape}")
    return sign * (logs(h) - logs(b))


def logs(values: ArrayLike) -> Floats:
    """Natural logarithms, shape (n,).

    Raises:
        ValueError: A value is not positive and finite: it has no ratio to anything.
    """
    array = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError("expected positive finite values")
    return np.log(array)


def to_ratio(log_ratio: float) -> float:
    """A log ratio as a ratio minus one; infinite from e^700 on, which is no measurement but must not stop a report."""
    return math.expm1(log_ratio) if log_ratio < 700 else math.inf  # noqa: PLR2004 (a float ends at e^709)


def mean_estimate(d: ArrayLike) -> Estimate:
    """The mean of paired log ratios, df = n - 1.

    Raises:
        ValueError: Fewer than two observations, or one is not finite.
    """
    x = floats(d)
    if len(x) < 2:  # noqa: PLR2004 (one observation has no spread)
        raise ValueError("expected at least two observations")
    sd = 0.0 if _equal(x) else float(x.std(ddof=1))
    return Estimate(float(x.mean()), sd / math.sqrt(len(x)), len(x) - 1)


def difference_estimate(base_logs: ArrayLike, head_logs: ArrayLike, sign: int) -> Estimate:
    """Head minus base for unpaired trials: Welch 1947, df by Satterthwaite 1946.

    Drift between the two sets counts as a difference here; that is why such a comparison is only advisory.

    Raises:
        ValueError: Fewer than two observations on a side, or one is not finite.
    """
    b, h = mean_estimate(base_logs), mean_estimate(head_logs)
    variance = b.standard_error**2 + h.standard_error**2
    if variance == 0:
        return Estimate(sign * (h.mean - b.mean), 0.0, b.df + h.df)
    df = variance**2 / (b.standard_error**4 / b.df + h.standard_error**4 / h.df)
    return Estimate(sign * (h.mean - b.mean), math.sqrt(variance), df)


@dataclass(frozen=True)
class Look:
    """What one look at a sequence showed.

    Args:
        pairs: Pairs used.
        estimate: Mean of their log ratios.
        block_weight: Share of alpha this look may use.
        pass_weight: Share of beta this look may use.
        p: Smallest weighted p over this and earlier looks, for H0 "slowdown at most ignorable"; in [0, 1].
        q: The same for H0 "slowdown at least must_catch".
    """

    pairs: int
    estimate: Estimate
    block_weight: float
    pass_weight: float
    p: float
    q: float


def looks(d: ArrayLike, schedule: Schedule, ignorable: float, must_catch: float) -> tuple[Look, ...]:
    """Every look that ``d`` reaches, in order; empty below the first one.

    The running ``p = min p_k / w_k`` is a valid p value whenever one stops, because the weights sum to at most one
    (Bonferroni over the looks; alpha spending in the sense of Lan and DeMets 1983). A weight of 0 leaves it at 1.

    Args:
        d: Paired log ratios in the order they were measured, shape (n,), positive is worse.
        schedule: When to look.
        ignorable: Margin as a ratio minus one, at least 0.
        must_catch: Margin as a ratio minus one, above ``ignorable``.
    """
    x = floats(d)
    p = q = 1.0
    found = []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        if pairs > len(x):
            break
        estimate = mean_estimate(x[:pairs])
        p = min(p, _weighted(estimate.p_above(math.log1p(ignorable)), block))
        q = min(q, _weighted(estimate.p_below(math.log1p(must_catch)), passing))
        found.append(Look(pairs, estimate, block, passing, p, q))
    return tuple(found)


def unpaired_look(estimate: Estimate, observations: int, ignorable: float, must_catch: float) -> Look:
    """The one look at an unpaired difference; ``observations`` is the smaller side's number of trials."""
    schedule = one_look(observations)
    return Look(
        observations,
        estimate,
        schedule.block[0],
        schedule.pass_[0],
        _weighted(estimate.p_above(math.log1p(ignorable)), schedule.block[0]),
        _weighted(estimate.p_below(math.log1p(must_catch)), schedule.pass_[0]),
    )


def _weighted(p: float, weight: float) -> float:
    return min(1.0, p / weight) if weight > 0 else 1.0


def holm(p: Sequence[float], alpha: float) -> tuple[bool, ...]:
    """Which hypotheses Holm's step-down rejects (Holm 1979): any false rejection has probability at most ``alpha``.

    Valid under any dependence between the tests, at any number of them; no p at all rejects nothing.
    """
    rejected = [False] * len(p)
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[index] > alpha / (len(p) - rank):
            break
        rejected[index] = True
    return tuple(rejected)


def holm_level(p: Sequence[float], index: int, alpha: float) -> float:
    """The threshold for ``p[index]`` given the others: Holm rejects it exactly when it does not exceed this.

    It is alpha / (m - r), where r of the other hypotheses are rejected when this one is not.
    """
    others = holm([math.inf if i == index else value for i, value in enumerate(p)], alpha)
    return alpha / (len(p) - sum(others))


def hodges_lehmann(d: ArrayLike) -> float:
    """Median of all pairwise averages (Hodges and Lehmann 1963): an estimate of the centre that outliers hardly move.

    Raises:
        ValueError: No observation, or one is not finite.
    """
    x = floats(d)
    if len(x) == 0:
        raise ValueError("expected at least one observation")
    i, j = np.triu_indices(len(x))
    return float(np.median((x[i] + x[j]) / 2))


def detectable(estimate: Estimate, level: float, margin: float, power: float) -> float | None:
    """The smallest true slowdown (ratio minus one) that a look with this spread blocks with probability ``power``.

    Noncentral t (Johnson and Welch 1940) around the null ``1 + margin`` at one-sided ``level``; the spread is the
    estimate's own, so at few pairs the figure is itself uncertain. ``None`` where the level is 0.

    Args:
        estimate: Gives standard error and degrees of freedom.
        level: Blocking level, in [0, 1).
        margin: The ignorable margin as a ratio minus one.
        power: In (0, 1).
    """
    if level <= 0:
        return None
    low, high = 0.0, 2 * _t_quantile(level, estimate.df) + 20.0
    for _ in range(60):  # bisection on a monotone function: 60 halvings reach double precision
        middle = (low + high) / 2
        if power_at(middle, level, estimate.df) < power:
            low = middle
        else:
            high = middle
    return to_ratio(math.log1p(margin) + high * estimate.standard_error)


def power_at(shift: float, level: float, df: float) -> float:
    """The probability that a one-sided t test rejects when the truth lies ``shift`` standard errors beyond its null."""
    return 1.0 - float(special.nctdtr(df, shift, _t_quantile(level, df)))


def floats(values: ArrayLike) -> Floats:
    """Observations as a row, shape (n,).

    Raises:
        ValueError: They are no row, or one is not finite.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError("expected a row of finite observations")
    return x


def _equal(x: Floats) -> bool:
    """Whether observations differ by no more than the rounding of the logarithms they come from: that is no spread."""
    return bool(np.ptp(x) <= 4 * np.finfo(np.float64).eps * max(1.0, float(np.abs(x).max())))


def two_modes(values: ArrayLike) -> tuple[int, float] | None:
    """Whether observations fall in two groups: (size of the upper group, distance of the group means), else ``None``.

    The largest ratio of total to within-group sum of squares over all splits of the sorted values with at least two
    on each side (Engelman and Hartigan 1969), against its 99 % point for one normal population, so that one in a
    hundred sets of unsplit restarts is called split. Below six and above 24 observations nothing is said: ``None``.
    """
    x = np.sort(floats(values))
    if len(x) not in MODE_SPLIT_99 or _equal(x):
        return None
    ratio, cut = max((split_ratio(x, cut), cut) for cut in range(2, len(x) - 1))
    if ratio <= MODE_SPLIT_99[len(x)]:
        return None
    return len(x) - cut, float(x[cut:].mean() - x[:cut].mean())


def split_ratio(x: Floats, cut: int) -> float:
    """Total over within-group sum of squares when sorted ``x`` is split before ``cut``; inf for two tight points."""
    within = float(((x[:cut] - x[:cut].mean()) ** 2).sum() + ((x[cut:] - x[cut:].mean()) ** 2).sum())
    total = float(((x - x.mean()) ** 2).sum())
    if total == 0:
        return 1.0
    return total / within if within > 0 else math.inf


MODE_SPLIT_99: dict[int, float] = {
    6: 31.04, 7: 20.78, 8: 15.66, 9: 12.80, 10: 10.91, 11: 9.66, 12: 8.79, 13: 8.13, 14: 7.60, 15: 7.17, 16: 6.84,
    17: 6.50, 18: 6.30, 19: 6.08, 20: 5.91, 21: 5.76, 22: 5.59, 23: 5.46, 24: 5.38,
}  # fmt: skip
"""99 % points of the largest split ratio for normal samples by size; written by benchmarks/mode_table.py."""
