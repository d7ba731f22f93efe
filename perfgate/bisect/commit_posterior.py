"""How probable it is of each commit that it lost the difference, given every pair measured so far.

Commits are numbered along one line of history: 0 is the good one, the last is the bad one. The logarithm of what the
build of commit c takes is, relative to that of commit 0, ``W(c) + b(c) + L [c >= t]``: a walk of small changes in both
directions, the offset that each build has of its own (code layout, autotuning), and the loss L > 0 of the one commit t
that is looked for. Walk, offsets and the noise of pairs are normal, so the probability of what was measured has a
closed form for each t. The spreads are not known: the answer is a mean over plausible ones, weighed by how well each
explains the data. Every t is equally probable beforehand. The idea of choosing by a posterior, in the place of plain
halving, is that of noisy binary search (Burnashev and Zigangirov 1974; Karp and Kleinberg 2007; Waeber, Frazier and
Henderson 2013); their noise is a coin, ours are measurements that the build may bias.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfgate import scipy_special as special

Floats = NDArray[np.float64]

# What the offsets of builds may spread by, each with its probability beforehand; about 0.1 % (docs/bisect.md)
BUILD_SDS = ((0.0005, 0.25), (0.001, 0.6), (0.002, 0.15))
STEP_SDS = ((0.0001, 0.5), (0.0003, 0.4), (0.0008, 0.1))  # the same of the small change at each commit
# Of the loss beforehand, around the whole difference, as a share of it: one commit holds most of what was lost
LOSS_SD = 0.5
PAIR_SD_QUANTILES = (0.15, 0.5, 0.85)  # of the spread of a pair given the pairs so far, each as probable as the others
SMALLEST_SD = 1e-6  # of a pair, in place of a spread that is zero
_NODES, _NODE_WEIGHTS = (row for row in np.polynomial.hermite_e.hermegauss(5))
# Where the density of a predicted measurement is taken, in standard deviations from each of its centres
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()
NEGLIGIBLE = 1e-3  # a commit that is less probable than this plays no part in what a measurement is expected to tell


@dataclass(frozen=True)
class Comparison:
    """Pairs of the builds of two commits."""

    base: int  # number of the commit on the base's side
    head: int  # number of the other
    d: tuple[float, ...]  # log ratios of the pairs, positive where the head is worse; at least one


@dataclass(frozen=True)
class Evidence:
    """What is known of a line of commits."""

    last: int  # number of the bad commit, from 1; the good one is 0
    compared: tuple[Comparison, ...]  # what was measured, in any order
    skipped: frozenset[int] = frozenset()  # commits that cannot be measured, neither the first nor the last
    resolution: float = 0.0  # the smallest step by which a value can differ, as a share of it

    @property
    def pairs(self) -> int:
        """How many pairs were measured."""
        return sum(len(comparison.d) for comparison in self.compared)

    @property
    def measurable(self) -> list[int]:
        """Commits that can be measured, the good one left out."""
        return [number for number in range(1, self.last + 1) if number not in self.skipped]

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Commits that no measurement can tell apart, because none between them can be measured; in order."""
        ends = self.measurable
        return [tuple(range(before + 1, end + 1)) for before, end in itertools.pairwise((0, *ends))]


class Posterior:
    """What the evidence says.

    Args:
        evidence: With pairs of the first and the last commit among it.

    Raises:
        ValueError: Those are missing, or fewer than two pairs were measured of anything.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._seen = _pooled(evidence.compared)
        whole = next((mean for base, head, _, mean in self._seen if (base, head) == (0, evidence.last)), None)
        if whole is None:
            raise ValueError("the first and the last commit were not compared")
        self._whole = max(whole, SMALLEST_SD)
        self._kernel = _Kernel([(base, head) for base, head, _, _ in self._seen], evidence.last)
        self._spreads = _spreads(evidence)
        log_weights = self._fit()
        weights = np.exp(log_weights - log_weights.max())
        self._weights: Floats = weights / weights.sum()  # (models, commits)

    @cached_property
    def by_commit(self) -> Floats:
        """The probability of commits 1 to the last, (last,)."""
        total: Floats = self._weights.sum(axis=0)
        return total

    @cached_property
    def by_group(self) -> list[tuple[tuple[int, ...], float]]:
        """The same of commits that cannot be told apart, the most probable first."""
        groups = [(group, float(self.by_commit[[n - 1 for n in group]].sum())) for group in self._evidence.groups]
        return sorted(groups, key=lambda row: -row[1])

    @property
    def pair_sd(self) -> float:
        """Standard deviation of a pair's log ratio, as estimated."""
        return float((self._weights.sum(axis=1) * self._spreads.pair).sum())

    @cached_property
    def loss(self) -> tuple[float, float]:
        """What the commit lost as a log ratio, without the offsets of builds and other commits: mean and sd."""
        mean = float((self._weights * self._loss).sum())
        return mean, math.sqrt(float((self._weights * (self._loss_variance + (self._loss - mean) ** 2)).sum()))

    def expected_to_tell(self, heads: Sequence[int], pairs: int) -> Floats:
        """How much so many pairs of commit 0 and each of these are expected to tell which commit it was.

        Args:
            heads: Numbers of commits.
            pairs: From 1.

        Returns:
            Mutual information in nats, (heads,).
        """
        keep = self.by_commit > NEGLIGIBLE
        weights = self._weights[:, keep]
        of_commit = weights.sum(axis=0)
        share = (weights / of_commit)[:, None, :]  # of each model, given the commit
        means, variances = self._predicted(self._kernel.beside([(0, head) for head in heads]), pairs, keep)
        mean = (share * means).sum(axis=0)
        variance = (share * (variances + (means - mean) ** 2)).sum(axis=0)
        return _information(of_commit / of_commit.sum(), mean, variance)

    def _fit(self) -> Floats:
        """Log probability of the data and each commit at each choice of spreads, up to a constant, (models, commits).

        What predictions need is kept: the root of the covariance, the data made independent by it, and what a loss of 1
        at each commit adds to these; the loss given commit and spreads.
        """
        spreads = self._spreads
        counts = np.array([count for _, _, count, _ in self._seen])
        covariance = spreads.covariance(self._kernel.builds, self._kernel.steps)
        covariance += (spreads.pair**2)[:, None, None] * np.diag(1 / counts)
        self._root: Floats = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        y = np.array([mean for *_, mean in self._seen])
        solved = _solved(self._root, np.column_stack([y, self._kernel.crosses]))
        self._z, self._steps = solved[:, :, 0], solved[:, :, 1:]
        before = 1 / (LOSS_SD * self._whole) ** 2
        precision = before + (self._steps**2).sum(axis=1)
        pull = before * self._whole + np.einsum("mkt,mk->mt", self._steps, self._z)
        self._loss, self._loss_variance, above = _above_zero(pull / precision, 1 / precision)
        volume = np.log(np.diagonal(self._root, axis1=1, axis2=2)).sum(axis=1)
        alike = np.log(spreads.weight) - 0.5 * (self._z**2).sum(axis=1) - volume
        log_weight: Floats = alike[:, None] - 0.5 * np.log(precision) + 0.5 * pull**2 / precision + above
        return log_weight

    def _predicted(self, wanted: _Beside, pairs: int, keep: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Mean and variance of what so many pairs of each wanted difference would show, (models, wanted, commits)."""
        spreads = self._spreads
        across = _solved(self._root, spreads.covariance(wanted.builds, wanted.steps)).transpose(0, 2, 1)
        variance = spreads.covariance(wanted.own_builds, wanted.own_steps)
        lever = wanted.crosses[:, keep] - across @ self._steps[:, :, keep]
        left = np.maximum(variance - (across**2).sum(axis=2), 0.0) + (spreads.pair**2 / pairs)[:, None]
        mean = (across @ self._z[:, :, None]) + lever * self._loss[:, None, keep]
        return mean, left[:, :, None] + lever**2 * self._loss_variance[:, None, keep]


@dataclass(frozen=True)
class _Spreads:
    """Choices of spreads, each with its probability beforehand; all of shape (models,)."""

    build: Floats  # of the offsets of builds
    step: Floats  # of the small change at a commit
    pair: Floats  # of a pair
    weight: Floats  # the probability

    def covariance(self, builds: Floats, steps: Floats) -> Floats:
        """By each choice, of what shares so many builds and steps, (models, *shape)."""
        shape = (-1, *(1,) * builds.ndim)
        total: Floats = (self.build**2).reshape(shape) * builds + (self.step**2).reshape(shape) * steps
        return total


def _spreads(evidence: Evidence) -> _Spreads:
    """Plausible spreads; that of pairs as the pairs show it."""
    freedom = sum(len(comparison.d) - 1 for comparison in evidence.compared)
    if freedom < 1:
        raise ValueError("no two pairs of one comparison were measured, so their spread is not known")
    squares = sum(
        float(((np.array(comparison.d) - np.mean(comparison.d)) ** 2).sum()) for comparison in evidence.compared
    )
    least = max(SMALLEST_SD, evidence.resolution)
    quantiles = special.chdtri(freedom, PAIR_SD_QUANTILES)  # of the upper tail
    pair_sds = [max(least, math.sqrt(squares / float(quantile))) for quantile in quantiles]
    rows = [
        (build, step, pair, build_weight * step_weight / len(pair_sds))
        for (build, build_weight), (step, step_weight) in itertools.product(BUILD_SDS, STEP_SDS)
        for pair in pair_sds
    ]
    return _Spreads(*np.array(rows).T)


def _solved(root: Floats, columns: Floats) -> Floats:
    """Columns, alike for all models or of each its own, made independent by the roots, (models, measured, columns)."""
    each = np.broadcast_to(columns, (len(root), *columns.shape[-2:]))
    return np.asarray(np.linalg.solve(root, each), dtype=np.float64)


@dataclass(frozen=True)
class _Beside:
    """How differences that could be measured vary together with those that were."""

    builds: Floats  # builds that they share, (measured, wanted)
    steps: Floats  # commits that they share
    own_builds: Floats  # builds of each wanted difference, (wanted,)
    own_steps: Floats  # its commits
    crosses: Floats  # see :attr:`_Kernel.crosses`, (wanted, commits)


class _Kernel:
    """What measured differences between builds have in common."""

    def __init__(self, compared: Sequence[tuple[int, int]], last: int) -> None:
        self._compared = compared
        self._commits = np.arange(1, last + 1)
        self.builds, self.steps = _shared(compared, compared)
        self.crosses = self._crossing(compared)
        """How each difference holds the loss of each commit: 1, -1 or 0, (measured, commits)."""

    def beside(self, wanted: Sequence[tuple[int, int]]) -> _Beside:
        """What differences that could be measured, by base and head, have in common with these."""
        builds, steps = _shared(self._compared, wanted)
        base, head = np.array(wanted).T
        own_steps = np.abs(head - base).astype(np.float64)
        return _Beside(builds, steps, 2.0 * (base != head), own_steps, self._crossing(wanted))

    def _crossing(self, compared: Sequence[tuple[int, int]]) -> Floats:
        base, head = np.array(compared).T
        low, high, sign = np.minimum(base, head), np.maximum(base, head), np.where(head >= base, 1.0, -1.0)
        crossing: Floats = sign[:, None] * ((low[:, None] < self._commits) & (self._commits <= high[:, None]))
        return crossing


def _shared(left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
    """What two rows of differences share: builds, and commits between; each with its sign, (left, right)."""
    (base, head), (other_base, other_head) = np.array(left).T[:, :, None], np.array(right).T
    builds = (
        (head == other_head).astype(np.float64) + (base == other_base) - (head == other_base) - (base == other_head)
    )
    overlap = np.minimum(np.maximum(base, head), np.maximum(other_base, other_head)) - np.maximum(
        np.minimum(base, head), np.minimum(other_base, other_head)
    )
    sign = np.where((head >= base) == (other_head >= other_base), 1.0, -1.0)
    return builds, np.maximum(overlap, 0) * sign


def _pooled(compared: Sequence[Comparison]) -> list[tuple[int, int, int, float]]:
    """Base, head, number and mean of the pairs of each two commits."""
    rows: dict[tuple[int, int], list[float]] = {}
    for comparison in compared:
        rows.setdefault((comparison.base, comparison.head), []).extend(comparison.d)
    return [(base, head, len(d), float(np.mean(d))) for (base, head), d in rows.items()]


def _above_zero(mean: Floats, variance: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean and variance of a normal variable known to be positive, and the log of how probable that was."""
    sd = np.sqrt(variance)
    at = mean / sd
    log_probability = special.log_ndtr(at)
    hazard = np.exp(-0.5 * at**2 - 0.5 * math.log(2 * math.pi) - log_probability)
    return mean + sd * hazard, np.maximum(variance * (1 - hazard * (at + hazard)), 0.0), log_probability


def _information(weights: Floats, mean: Floats, variance: Floats) -> Floats:
    """Mutual information in nats of a commit and a measurement that is normal given the commit.

    Args:
        weights: Of the commits, summing to 1, (commits,).
        mean: Of each measurement given each commit, (measurements, commits).
        variance: The same.
    """
    sd = np.sqrt(variance)
    at = mean[:, :, None] + sd[:, :, None] * _NODES  # (measurements, commits, nodes)
    information = np.zeros(len(mean))
    for number, (points, means, sds) in enumerate(zip(at, mean, sd, strict=True)):
        z = (points[:, :, None] - means) / sds
        log_mixture = np.log(np.exp(-0.5 * z**2) @ (weights / sds))
        log_density = -0.5 * _NODES**2 - np.log(sds)[:, None]
        information[number] = float((weights * ((log_density - log_mixture) @ _NODE_WEIGHTS)).sum())
    return np.maximum(information, 0.0)
