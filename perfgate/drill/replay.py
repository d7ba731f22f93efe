"""The rule on recorded trials: how often it blocks, passes or leaves undecided a build that is slower by a known size.

Runs are drawn from recordings, the head is made slower, and :func:`perfgate.judge.rule.decide` decides look by look, as
it does in a run. So a change of the rule, or of what it is made of, is seen here on real restarts without a GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfgate import stats
from perfgate.drill.recordings import STEP, Recording
from perfgate.errors import RecordError, Verdict
from perfgate.judge.outcome import worst
from perfgate.judge.power import promised_block
from perfgate.judge.rule import Series, decide
from perfgate.metrics.catalogue import METRICS
from perfgate.models import Frozen, Note
from perfgate.record.csv_table import Values
from perfgate.scenario.declaration import LoadedScenario
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats.rates import rate_bounds

SIZES = (0.0005, 0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.01)  # slowdowns of a detection curve
DRAWS = 2000
PASSES = ("pass", "improved")
NOT_REPLAYED = Note(code="metric-missing", text="not in every recording")

ErrorKind = Literal["", "false-blocks", "false-passes"]
Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Drawn:
    """Pairs of resampled runs."""

    pairs: Numbers  # which of the pool's pairs, shape (draws, pairs)
    swapped: NDArray[np.bool_]  # whether its base is the head, of the same shape
    levelled: bool = True  # whether later visits are brought to the level of a draw's first


@dataclass(frozen=True)
class Pool:
    """The pairs of several recordings, one after another, without what their builds differed by.

    Pairs are resampled whole, over all metrics together, and never single iterations: a trial is what repeats. A draw
    begins with the pairs of one visit, in random order and each once; where they do not suffice it goes on with those
    of another visit to the same kind of machine. These are brought to the level of the first, metric by metric: between
    visits absolute times move by a percent and ratios within a pair do not, so rules that do not pair would see a step.
    The sides of each pair are swapped with probability one half, so nothing that was on one side alone can be left:
    under such draws no build is slower, whatever its restarts are like.

    A recording of different builds has its head divided by the median of its pairs' ratios first, metric by metric. The
    median, because restarts that jump between two levels leave no mean that six pairs could tell. So that of n pairs is
    taken for the truth, which makes their spread smaller than it was: by 6 % for six normal pairs, 3 % for twelve.
    """

    recordings: tuple[Recording, ...]  # those whose pairs are drawn
    left_out: tuple[str, ...]  # those that are too few of their kind, and why, in words
    least: int  # pairs that a draw has

    @classmethod
    def of(cls, recordings: Sequence[Recording], least: int) -> Pool:
        """A pool whose every draw has so many pairs.

        Raises:
            RecordError: No kind of recording has enough.
        """
        counts: Counter[str] = Counter()
        for recording in recordings:
            counts[recording.kind] += recording.pairs
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
        firsts = visit[drawn.pairs[:, 0]]
        may = (visit[None, :] != firsts[:, None]) & (kinds[visit][None, :] == kinds[firsts][:, None])
        if not may.any(axis=1).all():
            return None
        order = np.argsort(np.where(may, rng.random(may.shape), np.inf), axis=1)
        taken = (rng.random((len(firsts), count)) * may.sum(axis=1)[:, None]).astype(np.intp)
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


@dataclass(frozen=True)
class Declared:
    """What a run of one scenario declares."""

    name: str
    gates: tuple[GatePlan, ...]
    schedule: stats.Schedule  # when timed pairs are looked at

    @classmethod
    def of(cls, loaded: LoadedScenario) -> Declared:
        """Of a scenario as a run would have it."""
        scenario = loaded.scenario
        gates = tuple(GatePlan(gate=gate, where=loaded.where("gates", n)) for n, gate in enumerate(scenario.gates))
        return cls(scenario.name, gates, scenario.measure.schedule)


@dataclass(frozen=True)
class Truth:
    """How much slower the head is."""

    name: str
    sizes: Mapping[str, float] = field(default_factory=dict)  # slowdowns as ratios minus one, by gate; 0 for others
    slowed: str = ""  # the gate whose curve this is a point of, empty for none or for all of them


class Share(Frozen):
    """A counted rate."""

    events: int
    trials: int  # of how many draws
    at_least: float  # exact lower bound of the rate, one-sided at 95 %
    at_most: float  # exact upper bound

    @classmethod
    def counted(cls, events: int, trials: int) -> Share:
        """With its bounds; they are of the draws alone, not of other recordings."""
        low, high = rate_bounds(events, trials)
        return cls(events=events, trials=trials, at_least=low, at_most=high)

    @property
    def value(self) -> float:
        """The rate itself."""
        return self.events / self.trials


class ReplayRow(Frozen):
    """What the rule made of one truth."""

    truth: str
    slowed: str = ""  # the gate that is slower; empty where none or all are
    size: float | None = 0.0  # by how much, a ratio minus one; `None` where every gate has its own
    regressed: Share  # draws that were blocked
    passed: Share  # draws that passed
    inconclusive: Share
    missed: Share | None = None  # draws in which the slowed gate had passed when they ended
    pairs: float  # taken on average
    error: ErrorKind = ""  # the error whose rate is declared for this truth
    declared: float | None = None  # that rate
    # Share that is blocked at least if pairs were normal and spread like these; `None` without a size
    promised: float | None = None

    @property
    def wrong(self) -> Share | None:
        """The observed rate of the error that is declared."""
        return {"": None, "false-blocks": self.regressed, "false-passes": self.missed}[self.error]

    @property
    def broken(self) -> str:
        """What was declared and is not kept, in words; empty where the draws do not refute it."""
        if self.wrong is None or self.declared is None or self.wrong.at_least <= self.declared:
            return ""
        rates = (self.wrong.value, self.wrong.at_least, self.declared)
        value, least, declared = (f"{rate * 100:.2g} %" for rate in rates)
        return f"broken: {self.error} {value} (at least {least}) against {declared} declared"


@dataclass(frozen=True)
class Replay:
    """Runs of a scenario's gates, resampled from recordings; the same seed gives the same draws."""

    declared: Declared  # gates, looks and error rates
    pool: Pool  # the recorded pairs
    drawn: Drawn  # which of them each run has

    @classmethod
    def of(cls, recordings: Sequence[Recording], declared: Declared, draws: int = DRAWS, seed: int = 0) -> Replay:
        """Draw runs that reach the last look.

        Raises:
            RecordError: Too few pairs of any kind, or no gate's metric is in all recordings.
        """
        pool = Pool.of(recordings, declared.schedule.looks[-1])
        replay = cls(declared, pool, pool.draw(np.random.default_rng(seed), draws))
        if not replay.gates:
            wanted = ", ".join(plan.gate.measured.name for plan in declared.gates)
            raise RecordError(f"no gate of {declared.name} has its metric in every recording: {wanted}",
                              remedy="Leave out recordings that lack it.")  # fmt: skip
        return replay

    @property
    def gates(self) -> tuple[GatePlan, ...]:
        """Those that can be replayed; the others stay in Holm's family, as gates without data do in a run."""
        metrics = self.pool.metrics
        return tuple(plan for plan in self.declared.gates if plan.gate.measured.name in metrics)

    @cached_property
    def margins(self) -> dict[str, tuple[float, float]]:
        """``ignorable`` and ``must_catch`` of each gate that can be replayed, with its floor as a share of the base."""
        margins = {}
        for plan in self.gates:
            base, _ = self.pool.sides(plan.gate.measured.name, self.drawn)
            series = Series(plan, tuple(np.unique(base).tolist()))
            margins[plan.gate.measured.name] = series.ignorable, series.must_catch
        return margins

    def truths(self, metric: str = "") -> tuple[Truth, ...]:
        """Nothing slower, every gate at its ``ignorable``, each at its ``must_catch``, and a curve of one metric."""
        caught = [(name, must_catch) for name, (_, must_catch) in self.margins.items()]
        curve = [(metric, size) for size in SIZES] if metric else []
        ignorable = {name: margin for name, (margin, _) in self.margins.items()}
        slower = dict.fromkeys([*caught, *curve])
        return (
            Truth("nothing slower"),
            Truth("every gate at its ignorable", ignorable),
            *(Truth(f"{name} slower by {size * 100:.3g} %", {name: size}, name) for name, size in slower),
        )

    def row(self, truth: Truth) -> ReplayRow:
        """Decide every draw with the head slower by a truth."""
        ends = [_decided(self.declared, series) for series in self._runs(truth)]
        verdicts = [run_verdict(gates) for gates, _ in ends]
        count = len(ends)
        regressed, passed = (sum(verdict in of for verdict in verdicts) for of in (("regressed",), PASSES))
        size, missed, promised = None if truth.sizes else 0.0, None, None
        error, declared = self._error(truth)
        if truth.slowed:
            size = truth.sizes[truth.slowed]
            names = [plan.gate.measured.name for plan in self.declared.gates]
            slowed = names.index(truth.slowed)
            missed = Share.counted(sum(gates[slowed] in PASSES for gates, _ in ends), count)
            promised = promised_block(
                self.declared.schedule, self.margins[truth.slowed], self.pool.pair_sd(truth.slowed), size,
                alpha=ALPHA / len(names), beta=BETA, resolution=self.pool.resolution(truth.slowed),
                draw_sd=self.declared.gates[slowed].gate.draw_sd,
            )  # fmt: skip
        return ReplayRow(
            truth=truth.name, slowed=truth.slowed, size=size, regressed=Share.counted(regressed, count),
            passed=Share.counted(passed, count), inconclusive=Share.counted(count - regressed - passed, count),
            missed=missed, pairs=math.fsum(pairs for _, pairs in ends) / count, error=error, declared=declared,
            promised=promised,
        )  # fmt: skip

    def _error(self, truth: Truth) -> tuple[ErrorKind, float | None]:
        if all(size <= self.margins[name][0] for name, size in truth.sizes.items()):
            return "false-blocks", ALPHA
        if truth.slowed and truth.sizes[truth.slowed] >= self.margins[truth.slowed][1]:
            return "false-passes", BETA
        return "", None

    def _runs(self, truth: Truth) -> list[list[Series]]:
        """All pairs of every draw, a series a gate in the scenario's order."""
        columns = []
        for plan in self.declared.gates:
            metric, schedule = plan.gate.measured, self.declared.schedule
            if metric.name not in self.pool.metrics:
                columns.append([Series(plan, schedule=schedule, missing=NOT_REPLAYED)] * len(self.drawn.pairs))
                continue
            base, head = self.pool.sides(metric.name, self.drawn)
            head = head * (1 + truth.sizes.get(metric.name, 0.0)) ** metric.sign
            resolution = self.pool.resolution(metric.name)
            columns.append([
                Series(plan, tuple(base_values), tuple(head_values), schedule, resolution=resolution)
                for base_values, head_values in zip(base.tolist(), head.tolist(), strict=True)
            ])  # fmt: skip
        return [list(series) for series in zip(*columns, strict=True)]


def _decided(declared: Declared, run: Sequence[Series]) -> tuple[tuple[Verdict, ...], int]:
    """Verdicts of the gates, and pairs, once a run has ended: look by look, as pairs are taken.

    Gates without data keep nothing going.
    """
    for pairs in declared.schedule.looks:
        seen = [replace(series, base=series.base[:pairs], head=series.head[:pairs]) for series in run]
        verdicts = tuple(outcome.verdict for outcome in decide(seen, ALPHA, BETA))
        if run_verdict(verdicts) != "inconclusive":
            break
    return verdicts, pairs


def run_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of the gates that have data."""
    return worst(verdict for verdict in verdicts if verdict != "not-measured")
