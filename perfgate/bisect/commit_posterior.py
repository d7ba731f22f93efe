"""How probable it is of each commit that it lost the difference, given every pair measured so far.

Commits are numbered along one line of history: 0 is the good one, the last is the bad one. The logarithm of what the
build of commit c takes is, relative to that of commit 0, ``W(c) + b(c) + L [c >= t]``: a walk of small changes in both
directions, the offset that each build has of its own (code layout, autotuning), and the loss L > 0 of the one commit t
that is looked for. Walk, offsets and the noise of pairs are normal, so the probability of what was measured has a
closed form for each t. The spreads are not known: the answer is a mean over plausible ones, weighed by how well each
explains the data. Every t is equally probable beforehand. The idea of choosing by a posterior, in the place of plain
halving, is that of noisy binary search (Burnashev and Zigangirov 1974; Karp and Kleinberg 2007; Waeber, Frazier and
Henderson 2013); their noise is a coin that may lie, ours are measurements that may be biased by build.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

BUILD_SDS = ((0.0005, 0.25), (0.001, 0.6), (0.002, 0.15))
"""What the offsets of builds may spread by, each with its probability beforehand; about 0.1 % (docs/bisect.md)."""
STEP_SDS = ((0.0001, 0.5), (0.0003, 0.4), (0.0008, 0.1))
"""The same of the small change at each commit."""
LOSS_SD = 0.5
"""Of the loss beforehand, around the whole difference, as a share of it: one commit holds most of what was lost."""
PAIR_SD_QUANTILES = (0.15, 0.5, 0.85)
"""Of the spread of a pair given the pairs so far, each as probable as the others."""
SMALLEST_SD = 1e-6
"""Of a pair, in place of a spread that is zero."""
_NODES, _NODE_WEIGHTS = (row for row in np.polynomial.hermite_e.hermegauss(5))
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()
"""Where the density of a predicted measurement is taken, in standard deviations from each of its centres."""
NEGLIGIBLE = 1e-3
"""A commit that is less probable than this plays no part in what a measurement is expected to tell."""


@dataclass(frozen=True)
class Comparison:
    """Pairs of the builds of two commits.

    Args:
        base: Number of the commit on the base's side.
        head: Number of the other.
        d: Log ratios of the pairs, positive where the head is worse; at least one.
    """

    base: int
    head: int
    d: tuple[float, ...]


@dataclass(frozen=True)
class Evidence:
    """What is known of a line of commits.

    Args:
        last: Number of the bad commit, from 1; the good one is 0.
        compared: What was measured, in any order.
        skipped: Commits that cannot be measured, neither the first nor the last.
        resolution: The smallest step by which a value can differ, as a share of it.
    """

    last: int
    compared: tuple[Comparison, ...]
    skipped: frozenset[int] = frozenset()
    resolution: float = 0.0

    @property
    def pairs(self) -> int:
        """How many pairs were measured."""
        return sum(len(one.d) for one in self.compared)

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
        self._models = [self._fit(*spreads) for spreads in self._spreads()]
        log_weights = np.array([model.log_weight for model in self._models])
        log_weights -= log_weights.max()
        self._weights: Floats = np.exp(log_weights) / np.exp(log_weights).sum()  # (models, commits)

    @cached_property
    def by_commit(self) -> Floats:
        """The probability of commits 1 to the last, (last,)."""
        total: Floats = self._weights.sum(axis=0)
        return total

    @cached_property
    def by_group(self) -> list[tuple[tuple[int, ...], float]]:
        """The same of commits that cannot be told apart, the most probable first."""
        found = [(group, float(self.by_commit[[n - 1 for n in group]].sum())) for group in self._evidence.groups]
        return sorted(found, key=lambda one: -one[1])

    @property
    def pair_sd(self) -> float:
        """Standard deviation of a pair's log ratio, as estimated."""
        return float(np.sum(self._weights.sum(axis=1) * [model.pair_sd for model in self._models]))

    @cached_property
    def loss(self) -> tuple[float, float]:
        """What the commit lost as a log ratio, without the offsets of builds and other commits: mean and sd."""
        means = np.array([model.loss for model in self._models])
        variances = np.array([model.loss_variance for model in self._models])
        mean = float((self._weights * means).sum())
        return mean, math.sqrt(float((self._weights * (variances + (means - mean) ** 2)).sum()))

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
        chosen = np.flatnonzero(weights.sum(axis=1) > NEGLIGIBLE)
        weights = weights[chosen]
        of_commit = weights.sum(axis=0)
        share = (weights / of_commit)[:, None, :]  # of each model, given the commit
        wanted = self._kernel.beside([(0, head) for head in heads])
        predicted = [self._models[n].predicted(wanted, pairs) for n in chosen]
        means = np.stack([mean[:, keep] for mean, _ in predicted])  # (models, heads, commits)
        variances = np.stack([variance[:, keep] for _, variance in predicted])
        mean = (share * means).sum(axis=0)
        variance = (share * (variances + (means - mean) ** 2)).sum(axis=0)
        return _information(of_commit / of_commit.sum(), mean, variance)

    def _spreads(self) -> list[tuple[float, float, float, float]]:
        """Plausible spreads of builds, of steps and of pairs, with the probability of each beforehand."""
        freedom = sum(len(one.d) - 1 for one in self._evidence.compared)
        if freedom < 1:
            raise ValueError("no two pairs of one comparison were measured, so their spread is not known")
        squares = sum(float(((np.array(one.d) - np.mean(one.d)) ** 2).sum()) for one in self._evidence.compared)
        least = max(SMALLEST_SD, self._evidence.resolution)
        quantiles = special.chdtri(freedom, PAIR_SD_QUANTILES)  # of the upper tail
        pair_sds = [max(least, math.sqrt(squares / float(quantile))) for quantile in quantiles]
        return [
            (build, step, pair, build_weight * step_weight / len(pair_sds))
            for (build, build_weight), (step, step_weight) in itertools.product(BUILD_SDS, STEP_SDS)
            for pair in pair_sds
        ]

    def _fit(self, build_sd: float, step_sd: float, pair_sd: float, weight: float) -> _Fitted:
        noise = pair_sd**2 / np.array([count for _, _, count, _ in self._seen])
        covariance: Floats = self._kernel.covariance(build_sd, step_sd) + np.diag(noise)
        root: Floats = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        y = np.array([mean for *_, mean in self._seen])
        solved = np.linalg.solve(root, np.column_stack([y, self._kernel.crosses]))
        z, steps = solved[:, 0], solved[:, 1:]
        before = 1 / (LOSS_SD * self._whole) ** 2
        precision = before + (steps**2).sum(axis=0)
        pull = before * self._whole + steps.T @ z
        loss, variance, above = _above_zero(pull / precision, 1 / precision)
        log_weight = math.log(weight) - 0.5 * z @ z - np.log(np.diag(root)).sum()
        log_weight = log_weight - 0.5 * np.log(precision) + 0.5 * pull**2 / precision + above
        return _Fitted(build_sd, step_sd, pair_sd, root, z, steps, log_weight, loss, variance)


@dataclass(frozen=True)
class _Fitted:
    """The model at one choice of spreads.

    Args:
        build_sd: Of the offsets of builds.
        step_sd: Of the small change at a commit.
        pair_sd: Of a pair.
        root: Cholesky factor of the covariance of what was measured, (measured, measured).
        z: What was measured, made independent by it, (measured,).
        steps: What a loss of 1 at each commit adds to that, (measured, commits).
        log_weight: Log probability of the data and each commit, up to a constant, (commits,).
        loss: Mean of the loss given the commit, (commits,).
        loss_variance: Its variance.
    """

    build_sd: float
    step_sd: float
    pair_sd: float
    root: Floats
    z: Floats
    steps: Floats
    log_weight: Floats
    loss: Floats
    loss_variance: Floats

    def predicted(self, wanted: _Beside, pairs: int) -> tuple[Floats, Floats]:
        """Mean and variance of what so many pairs of each wanted difference would show, (wanted, commits)."""
        covariance, own = wanted.covariance(self.build_sd, self.step_sd)
        across = np.linalg.solve(self.root, covariance)
        lever = wanted.crosses - across.T @ self.steps
        left = np.maximum(own - (across**2).sum(axis=0), 0.0) + self.pair_sd**2 / pairs
        return (across.T @ self.z)[:, None] + lever * self.loss, left[:, None] + lever**2 * self.loss_variance


@dataclass(frozen=True)
class _Beside:
    """How differences that could be measured vary together with those that were.

    Args:
        builds: By the offsets of builds, (measured, wanted).
        steps: By the small changes.
        own: The same two of each wanted difference with itself, (wanted,).
        crosses: See :attr:`_Kernel.crosses`, (wanted, commits).
    """

    builds: Floats
    steps: Floats
    own: tuple[Floats, Floats]
    crosses: Floats

    def covariance(self, build_sd: float, step_sd: float) -> tuple[Floats, Floats]:
        """Between measured and wanted differences, (measured, wanted), and of each wanted one, (wanted,)."""
        builds, steps = self.own
        return build_sd**2 * self.builds + step_sd**2 * self.steps, build_sd**2 * builds + step_sd**2 * steps


class _Kernel:
    """How measured differences between builds vary together, before anything is known of the spreads.

    Args:
        compared: Base and head of each difference, (measured,).
        last: Number of the last commit.
    """

    def __init__(self, compared: Sequence[tuple[int, int]], last: int) -> None:
        self._compared = compared
        self._commits = np.arange(1, last + 1)
        self._builds, self._steps = _shared(compared, compared)
        self.crosses = self._crossing(compared)
        """How each difference holds the loss of each commit: 1, -1 or 0, (measured, commits)."""

    def covariance(self, build_sd: float, step_sd: float) -> Floats:
        """Of the differences, without any loss, (measured, measured)."""
        total: Floats = build_sd**2 * self._builds + step_sd**2 * self._steps
        return total

    def beside(self, wanted: Sequence[tuple[int, int]]) -> _Beside:
        """What differences that could be measured, by base and head, have in common with these."""
        builds, steps = _shared(self._compared, wanted)
        base, head = np.array(wanted).T
        own = (2.0 * (base != head), np.abs(head - base).astype(np.float64))
        return _Beside(builds, steps, own, self._crossing(wanted))

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
    for one in compared:
        rows.setdefault((one.base, one.head), []).extend(one.d)
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
    told = np.zeros(len(mean))
    for number, (points, means, sds) in enumerate(zip(at, mean, sd, strict=True)):
        z = (points[:, :, None] - means) / sds
        log_mixture = np.log(np.exp(-0.5 * z**2) @ (weights / sds))
        own = -0.5 * _NODES**2 - np.log(sds)[:, None]
        told[number] = float((weights * ((own - log_mixture) @ _NODE_WEIGHTS)).sum())
    return np.maximum(told, 0.0)
