"""The decision rule's arithmetic: plain arrays in, frozen results out.

Everything here speaks of slowdowns: an observation ``d`` is a natural logarithm of a ratio, oriented by the caller so
that positive is worse. Margins are given as ratios minus one. Nothing here knows metrics, records or gates.

Observations are on the last axis. Axes before it are runs, each on its own: what is then said of each has their shape,
and of a single row it is a number.

The procedure (docs/design.md): a one-sided paired t test at each of a few looks, against two shifted nulls, with each
error rate spread over the looks by weights that sum to at most one (Bonferroni over looks; no distribution theory
beyond Student's is needed), and Holm's step-down over the gates of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfgate import scipy_special as special

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Figure = float | Floats
"""Of one run a number, of many an array."""

ROUNDING = 1e-13
"""Logarithms of equal ratios differ by less: they are at most a few hundred, and a float keeps 16 digits."""

EPSILON = float(np.finfo(np.float64).eps)

QUADRATURE_NODES = 48
"""Of each of the two integrals behind :func:`detectable`; from three degrees of freedom on its power is then right to
four digits."""


@dataclass(frozen=True)
class Estimate:
    """A mean with what is needed to test it; of many runs an array of means.

    A mean of rounded values may be off by a whole step of the instrument, and more values do not average that out
    where they all fall on one step. So every bound is a step further out than Student's, and every p is that of a
    mean one step nearer to its null.

    Args:
        mean: Mean of the observations (or difference of two means).
        standard_error: Of ``mean``; 0 where all observations are equal and exact.
        df: Degrees of freedom of its t distribution, positive.
        resolution: How far rounding may have moved ``mean`` at most, either way; 0 for exact counts.
        carried: The part of the error's variance that more observations do not lessen.
    """

    mean: Figure
    standard_error: Figure
    df: Figure
    resolution: float = 0.0
    carried: float = 0.0

    def p_above(self, bound: float) -> Figure:
        """One-sided p of H0 "the true mean is at most ``bound``": small where the mean is clearly above.

        Student 1908; exact for normal observations at any n >= 2, conservative or mildly liberal otherwise (figures in
        docs/error-rates.md). With a standard error of 0 it is 0 above the bound and 1 at or below it: only equal exact
        counts have none, and they are taken as they are.
        """
        return _upper_tail(self.mean - self.resolution - bound, self.standard_error, self.df)

    def p_below(self, bound: float) -> Figure:
        """One-sided p of H0 "the true mean is at least ``bound``": small where the mean is clearly below."""
        return _upper_tail(bound - self.mean - self.resolution, self.standard_error, self.df)

    def lower(self, level: Figure) -> float:
        """One run's lower confidence bound: above it the mean is with probability 1 - ``level``; -inf at level 0."""
        return float(self.mean - self._reach(level)) if level > 0 else -math.inf

    def upper(self, level: Figure) -> float:
        """One run's upper confidence bound: below it the mean is with probability 1 - ``level``; +inf at level 0."""
        return float(self.mean + self._reach(level)) if level > 0 else math.inf

    def with_pairs(self, before: int, pairs: int) -> Estimate:
        """What the same spread would be worth at another number of pairs; ``before`` is the number behind this one."""
        variance = np.maximum(self.standard_error**2 - self.carried, 0.0) * before / pairs
        return replace(self, standard_error=np.sqrt(variance + self.carried), df=pairs - 1)

    def times_detectable(self, level: float) -> float:  # noqa: ARG002 (for those of which it depends)
        """By how much what else must agree raises what is detectable at a level; 1 where nothing must."""
        return 1.0

    def carrying(self, variance: float) -> Estimate:
        """With a variance in its error that all observations share, and so tell nothing of.

        The degrees of freedom stay those of the observations, fewer than Satterthwaite 1946 gives a sum with a known
        part: too wide rather than too narrow, if it is known.
        """
        if variance == 0:
            return self
        return replace(self, standard_error=np.hypot(self.standard_error, math.sqrt(variance)), carried=variance)

    def _reach(self, level: Figure) -> Figure:
        return self.resolution + _t_quantile(level, self.df) * self.standard_error


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


def _upper_tail(distance: Figure, standard_error: Figure, df: Figure) -> Figure:
    spread = np.asarray(standard_error) > 0
    of_t = special.stdtr(df, -distance / np.where(spread, standard_error, 1.0))
    p: Figure = np.where(spread, of_t, np.where(np.asarray(distance) > ROUNDING, 0.0, 1.0))[()]
    return p


def _t_quantile(level: Figure, df: Figure) -> Figure:
    quantile: Figure = -special.stdtrit(df, level)
    return quantile


def log_ratios(base: ArrayLike, head: ArrayLike, sign: int) -> Floats:
    """``sign * ln(head / base)`` elementwise: positive is worse when ``sign`` is +1 for lower-is-better metrics.

    Args:
        base: One value a pair, positive and finite, shape (n,).
        head: One value a pair, in the same order.
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


def to_ratio(log_ratio: Figure) -> float:
    """A log ratio as a ratio minus one; infinite from e^700 on, which was not measured but must not stop a report."""
    return math.expm1(float(log_ratio)) if log_ratio < 700 else math.inf  # noqa: PLR2004 (a float ends at e^709)


def mean_estimate(d: ArrayLike, resolution: float = 0.0) -> Estimate:
    """The mean of paired log ratios, df = n - 1.

    Args:
        d: Log ratios of two rounded values each, shape (..., n), at least two.
        resolution: The instrument's step as a share of the values. A spread below that of rounding alone, step^2 / 6
            for a difference of two values (Widrow and Kollar 2008), is taken as that.

    Raises:
        ValueError: Fewer than two observations, or one is not finite.
    """
    return replace(_mean(floats(d), resolution / math.sqrt(6)), resolution=resolution)


def order_adjusted(d: ArrayLike, head_first: Sequence[bool], resolution: float = 0.0) -> Estimate:
    """The mean of paired log ratios with the place in the pair as a covariate, df = n - 2.

    What the second place of a pair costs, by a drift or by itself, is added to the log ratios of pairs with the base
    first and taken from those with the head first. So it is half of what the means of both differ by, and the estimate
    is the mean of these means (the period effect of a crossover trial, Hills and Armitage 1979).

    Args:
        d: Shape (n,), at least three.
        head_first: Shape (n,), with both orders in it.
        resolution: See :func:`mean_estimate`.
    """
    x, second = floats(d), np.asarray(head_first, dtype=bool)
    groups = [x[~second], x[second]]
    squares = math.fsum(0.0 if all_equal(group) else float(group.var()) * len(group) for group in groups)
    sd = max(resolution / math.sqrt(6), math.sqrt(squares / (len(x) - 2)))
    error = sd / 2 * math.sqrt(sum(1 / len(group) for group in groups))
    return Estimate(float(sum(group.mean() for group in groups)) / 2, error, len(x) - 2, resolution)


def side_estimate(values: ArrayLike, resolution: float = 0.0) -> Estimate:
    """The mean of one side's logarithms: rounding one value has the variance step^2 / 12 and is off by half a step.

    Raises:
        ValueError: Fewer than two observations, or one is not finite.
    """
    return replace(_mean(floats(values), resolution / math.sqrt(12)), resolution=resolution / 2)


def _mean(x: Floats, least_sd: float) -> Estimate:
    number = x.shape[-1]
    if number < 2:  # noqa: PLR2004 (one observation has no spread)
        raise ValueError("expected at least two observations")
    sd = np.maximum(least_sd, np.where(all_equal(x), 0.0, x.std(axis=-1, ddof=1)))
    return Estimate(x.mean(axis=-1), sd / math.sqrt(number), number - 1)


def difference_estimate(base_logs: ArrayLike, head_logs: ArrayLike, sign: int, resolution: float = 0.0) -> Estimate:
    """Head minus base for unpaired trials: Welch 1947, df by Satterthwaite 1946.

    Drift between the two sets counts as a difference here; that is why such a comparison is only advisory.

    Raises:
        ValueError: Fewer than two observations on a side, or one is not finite.
    """
    b, h = side_estimate(base_logs, resolution), side_estimate(head_logs, resolution)
    variance = b.standard_error**2 + h.standard_error**2
    if variance == 0:
        return Estimate(sign * (h.mean - b.mean), 0.0, b.df + h.df)
    df = variance**2 / (b.standard_error**4 / b.df + h.standard_error**4 / h.df)
    return Estimate(sign * (h.mean - b.mean), math.sqrt(variance), df, b.resolution + h.resolution)


def detectable(
    estimate: Estimate, level: Figure, margin: float, power: float, spread_df: Figure | None = None
) -> float | None:
    """The smallest true slowdown (ratio minus one) that a look like this blocks with probability ``power``.

    The spread is known only from these pairs, so the probability is over both: this run's spread and the pairs of the
    look that blocks. With S1 and S2 two independent roots of chi-square over its degrees of freedom, and Z normal, the
    look blocks where Z + k S1 > t S2, and k is found by integrating over S1 and S2. A known spread has S1 = 1, which is
    the noncentral t (Johnson and Welch 1940). ``None`` where the level is 0.

    Args:
        estimate: Gives standard error, degrees of freedom of the look's t, and resolution.
        level: Blocking level, in [0, 1).
        margin: The ignorable margin as a ratio minus one.
        power: In (0, 1).
        spread_df: Degrees of freedom of the spread where it was not taken from that look; infinite where it is known.
    """
    if level <= 0:
        return None
    df = float(estimate.df)
    shift = _shift(float(level), power, df if spread_df is None else float(spread_df), df)
    shift *= estimate.times_detectable(float(level))
    # Rounding may hide one step of the slowdown, and the bound is another step below the mean.
    return to_ratio(math.log1p(margin) + 2 * estimate.resolution + shift * estimate.standard_error)


@cache
def _shift(level: float, power: float, spread_df: float, df: float) -> float:
    """By how many standard errors as seen the truth must lie beyond the null, see :func:`detectable`."""
    low, high = 0.0, 1.0

    def blocks(shift: float) -> float:
        if math.isinf(spread_df):
            return power_at(shift, level, df)
        seen, at_look = _root_chi_square(spread_df), _root_chi_square(df)
        reached = special.ndtr(shift * seen[0][:, None] - _t_quantile(level, df) * at_look[0][None, :])
        # No BLAS: on a host with many cores its threads would spin beside whatever is being measured there.
        return float(np.einsum("i,ij,j", seen[1], reached, at_look[1], optimize=False))

    while blocks(high) < power:
        low, high = high, 2 * high
    for _ in range(24):  # bisection on a monotone function: seven digits, more than anybody reads
        middle = (low + high) / 2
        low, high = (middle, high) if blocks(middle) < power else (low, middle)
    return high


@cache
def _root_chi_square(df: float) -> tuple[Floats, Floats]:
    """Nodes and weights for the root of chi-square over its degrees of freedom: Gauss-Legendre, on its quantiles."""
    x, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    return np.sqrt(special.chdtri(df, (1 - x) / 2) / df), weights / 2


def power_at(shift: float, level: float, df: float) -> float:
    """The probability that a one-sided t test rejects when the truth is ``shift`` standard errors beyond its null."""
    return 1.0 - float(special.nctdtr(df, shift, _t_quantile(level, df)))


def floats(values: ArrayLike) -> Floats:
    """Observations as a row, shape (n,), or a row for each of many runs, shape (..., n).

    Raises:
        ValueError: They have no values, or a value is not finite.
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.ndim or not np.isfinite(x).all():
        raise ValueError("expected a row of finite observations")
    return x


def all_equal(x: Floats) -> Bools:
    """Whether observations differ by no more than the rounding of their logarithms: then there is no spread."""
    high, low = x.max(axis=-1), x.min(axis=-1)
    equal: Bools = high - low <= 4 * EPSILON * np.maximum(1.0, np.maximum(high, -low))
    return equal
