"""Runs that might have been: recorded pairs of trials in another order, with the sides of each drawn anew.

Pairs are resampled whole, over all metrics together, and never single iterations: a trial is what repeats. A draw
begins with the pairs of one visit, in random order and each once; where they do not suffice it goes on with those of
another visit to the same kind of machine. These are brought to the level of the first, metric by metric: between visits
absolute times move by a percent and ratios within a pair do not, so rules that do not pair would see a step. The sides
of each pair are swapped with probability one half, so nothing that was on one side alone can be left: under such draws
no build is slower, whatever its restarts are like.

A recording of different builds has its head divided by the median of its pairs' ratios first, metric by metric. The
median, because restarts that jump between two levels leave no mean that six pairs could tell. So that of n pairs is
taken for the truth, which makes their spread smaller than it was: by 6 % for six normal pairs, 3 % for twelve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate import stats
from perfgate.drill.recordings import STEP, Recording
from perfgate.errors import RecordError
from perfgate.metrics.catalogue import METRICS
from perfgate.record.csv_table import Values

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Drawn:
    """Pairs of resampled runs."""

    pairs: Numbers  # which of the pool's pairs, shape (draws, pairs)
    swapped: NDArray[np.bool_]  # whether its base is the head, of the same shape
    levelled: bool = True  # whether later visits are brought to the level of a draw's first


@dataclass(frozen=True)
class Pool:
    """The pairs of several recordings, one after another, without what their builds differed by."""

    recordings: tuple[Recording, ...]  # those whose pairs are drawn
    left_out: tuple[str, ...]  # those that are too few of their kind, and why, in words
    least: int  # pairs that a draw has

    @classmethod
    def of(cls, recordings: Sequence[Recording], least: int) -> Pool:
        """A pool whose every draw has so many pairs.

        Raises:
            RecordError: No kind of recording has enough.
        """
        counts = {
            kind: sum(recording.pairs for recording in recordings if recording.kind == kind)
            for kind in {r.kind for r in recordings}
        }
        left_out = tuple(
            f"{recording.name}: {counts[recording.kind]} pairs of {recording.kind}, and the last look is at {least}"
            for recording in recordings
            if counts[recording.kind] < least
        )
        if len(left_out) == len(recordings):
            raise RecordError(
                f"too few pairs to replay: {'; '.join(left_out)}",
                remedy="Give more recordings of one scenario and kind of machine.",
            )
        return cls(tuple(recording for recording in recordings if counts[recording.kind] >= least), left_out, least)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that every recording has."""
        return tuple(name for name in METRICS if all(name in recording.metrics for recording in self.recordings))

    def draw(self, rng: np.random.Generator, draws: int) -> Drawn:
        """Pairs of so many runs; a visit is the first of a run as often as its share of the pairs is."""
        visit, kinds = self._visits()
        first = visit[rng.integers(0, len(visit), draws)]
        chance = rng.random((draws, len(kinds)))
        chance[np.arange(draws), first] = -1.0
        rank = np.argsort(np.argsort(chance, axis=1), axis=1)
        order = rank[:, visit] + rng.random((draws, len(visit)))
        order[kinds[visit][None, :] != kinds[first][:, None]] = np.inf
        return Drawn(np.argsort(order, axis=1)[:, : self.least], rng.random((draws, self.least)) < 0.5)  # noqa: PLR2004 (a coin)

    def sides(self, metric: str, drawn: Drawn) -> tuple[stats.Floats, stats.Floats]:
        """Values of base and head in drawn pairs, shape (draws, pairs) each."""
        base, head = _swapped(*self._values(metric), drawn)
        factor = self._factor(metric, drawn)
        return base * factor, head * factor

    def iterations(self, drawn: Drawn) -> tuple[stats.Floats, stats.Floats] | None:
        """Decode steps of their iterations, (draws, pairs, iterations); ``None`` where a recording kept none.

        Every trial has as many as the shortest.
        """
        kept = [recording.iterations for recording in self.recordings if recording.iterations is not None]
        if len(kept) < len(self.recordings):
            return None
        shortest = min(base.shape[1] for base, _ in kept)
        base = np.concatenate([base[:, :shortest] for base, _ in kept])
        heads = zip(self.recordings, kept, strict=True)
        head = np.concatenate([head[:, :shortest] / effect(recording, STEP) for recording, (_, head) in heads])
        base, head = _swapped(base, head, drawn)
        factor = self._factor(STEP, drawn)[..., None]
        return base * factor, head * factor

    def elsewhere(self, rng: np.random.Generator, drawn: Drawn, count: int) -> Drawn | None:
        """So many pairs of visits other than each draw's first, with replacement; ``None`` where one has no other."""
        visit, kinds = self._visits()
        own = visit[drawn.pairs[:, 0]]
        may = (visit[None, :] != own[:, None]) & (kinds[visit][None, :] == kinds[own][:, None])
        if not may.any(axis=1).all():
            return None
        order = np.argsort(np.where(may, rng.random(may.shape), np.inf), axis=1)
        taken = (rng.random((len(own), count)) * may.sum(axis=1)[:, None]).astype(np.intp)
        swapped = rng.random(taken.shape) < 0.5  # noqa: PLR2004 (a coin)
        return Drawn(np.take_along_axis(order, taken, axis=1), swapped, levelled=False)

    def pair_sd(self, metric: str) -> float:
        """Root mean square of the pairs' log ratios, whose mean is 0 once sides are swapped."""
        base, head = self._values(metric)
        return float(np.sqrt(np.mean(np.square(np.log(head) - np.log(base)))))

    def resolution(self, metric: str) -> float:
        """The coarsest of the recordings."""
        return max(recording.metrics[metric].resolution for recording in self.recordings)

    def _values(self, metric: str) -> tuple[stats.Floats, stats.Floats]:
        base = np.concatenate([recording.metrics[metric].base for recording in self.recordings])
        head = np.concatenate(
            [np.array(recording.metrics[metric].head) / effect(recording, metric) for recording in self.recordings]
        )
        return base, head

    def _factor(self, metric: str, drawn: Drawn) -> stats.Floats:
        """Level of a draw's first visit over that of each pair's own, shape (draws, pairs)."""
        if not drawn.levelled:
            return np.ones(drawn.pairs.shape)
        both, (visit, kinds) = np.stack(self._values(metric)), self._visits()
        levels = np.array([np.median(both[:, visit == n]) for n in range(len(kinds))])[visit[drawn.pairs]]
        factor: stats.Floats = levels[:, :1] / levels
        return factor

    def _visits(self) -> tuple[Numbers, Numbers]:
        """The visit of each pair, numbered over all recordings, and the kind of each visit."""
        keys = [(n, visit) for n, recording in enumerate(self.recordings) for visit in recording.visits]
        numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        names = [recording.kind for recording in self.recordings]
        return np.array([numbers[key] for key in keys]), np.array([names.index(names[n]) for n, _ in numbers])


def effect(recording: Recording, metric: str) -> float:
    """What its builds differed by, head over base: the median of the pairs; 1 for one build."""
    values: Values = recording.metrics[metric]
    if recording.same_build:
        return 1.0
    return float(np.exp(np.median(np.log(values.head) - np.log(values.base))))


def _swapped(base: stats.Floats, head: stats.Floats, drawn: Drawn) -> tuple[stats.Floats, stats.Floats]:
    base, head = base[drawn.pairs], head[drawn.pairs]
    swapped = drawn.swapped.reshape(drawn.swapped.shape + (1,) * (base.ndim - 2))
    return np.where(swapped, head, base), np.where(swapped, base, head)
