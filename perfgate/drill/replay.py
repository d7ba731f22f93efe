"""The rule on recorded trials: how often it blocks, passes or leaves undecided a build that is slower by a known size.

Runs are drawn from recordings (:mod:`perfgate.drill.resampling`), the head is made slower, and
:func:`perfgate.judge.rule.decide` decides look by look, as it does in a run. So a change of the rule, or of what
it is made of, is seen here on real restarts without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from perfgate import stats
from perfgate.drill.recordings import Recording
from perfgate.drill.resampling import Drawn, Pool
from perfgate.errors import RecordError, Verdict
from perfgate.judge.outcome import worst
from perfgate.judge.power import promised_block
from perfgate.judge.rule import Series, decide
from perfgate.models import Frozen, Note
from perfgate.scenario.declaration import LoadedScenario
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats.rates import rate_bounds

SIZES = (0.0005, 0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.01)  # slowdowns of a detection curve
DRAWS = 2000
PASSES = ("pass", "improved")
NOT_REPLAYED = Note(code="metric-missing", text="not in every recording")

ErrorKind = Literal["", "false-blocks", "false-passes"]


@dataclass(frozen=True)
class Declared:
    """What a run of one scenario declares."""

    name: str
    gates: tuple[GatePlan, ...]
    schedule: stats.Schedule  # when timed pairs are looked at
    alpha: float = ALPHA  # probability of any false block
    beta: float = BETA  # probability of passing a gate slower by `must_catch`

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
        known = self.pool.metrics
        return tuple(plan for plan in self.declared.gates if plan.gate.measured.name in known)

    def margins(self, plan: GatePlan) -> tuple[float, float]:
        """``ignorable`` and ``must_catch`` as they count, with the gate's floor as a share of the recorded base."""
        base, _ = self.pool.sides(plan.gate.measured.name, self.drawn)
        series = Series(plan, tuple(np.unique(base).tolist()))
        return series.ignorable, series.must_catch

    def truths(self, metric: str = "", sizes: Sequence[float] = SIZES) -> tuple[Truth, ...]:
        """Nothing slower, every gate at its ``ignorable``, each at its ``must_catch``, and a curve of one metric."""
        names = {plan.gate.measured.name: self.margins(plan) for plan in self.gates}
        curve = [(metric, size) for size in sizes] if metric else []
        caught = [(name, must_catch) for name, (_, must_catch) in names.items()]
        return (
            Truth("nothing slower"),
            Truth("every gate at its ignorable", {name: ignorable for name, (ignorable, _) in names.items()}),
            *(
                Truth(f"{name} slower by {size * 100:.3g} %", {name: size}, name)
                for name, size in dict.fromkeys([*caught, *curve])
            ),
        )

    def row(self, truth: Truth) -> ReplayRow:
        """Decide every draw with the head slower by a truth."""
        ends = [decide_run(self.declared, series) for series in self._runs(truth)]
        verdicts = [run_verdict(gates) for gates, _ in ends]
        names, count = [plan.gate.measured.name for plan in self.declared.gates], len(ends)
        regressed, passed = (sum(v in of for v in verdicts) for of in (("regressed",), PASSES))
        slowed = names.index(truth.slowed) if truth.slowed else None
        missed = sum(gates[slowed] in PASSES for gates, _ in ends) if slowed is not None else None
        error, declared = self._error(truth)
        return ReplayRow(
            truth=truth.name,
            slowed=truth.slowed,
            size=truth.sizes[truth.slowed] if truth.slowed else None if truth.sizes else 0.0,
            regressed=Share.counted(regressed, count),
            passed=Share.counted(passed, count),
            inconclusive=Share.counted(count - regressed - passed, count),
            missed=None if missed is None else Share.counted(missed, count),
            pairs=math.fsum(pairs for _, pairs in ends) / count,
            error=error,
            declared=declared,
            promised=self._promised(truth) if truth.slowed else None,
        )

    def rows(self, metric: str = "", sizes: Sequence[float] = SIZES) -> tuple[ReplayRow, ...]:
        """Every truth of :meth:`truths`."""
        return tuple(self.row(truth) for truth in self.truths(metric, sizes))

    def _error(self, truth: Truth) -> tuple[ErrorKind, float | None]:
        margins = {plan.gate.measured.name: self.margins(plan) for plan in self.gates}
        if all(size <= margins[name][0] for name, size in truth.sizes.items()):
            return "false-blocks", self.declared.alpha
        if truth.slowed and truth.sizes[truth.slowed] >= margins[truth.slowed][1]:
            return "false-passes", self.declared.beta
        return "", None

    def _promised(self, truth: Truth) -> float:
        plan = next(plan for plan in self.gates if plan.gate.measured.name == truth.slowed)
        declared = self.declared
        return promised_block(
            declared.schedule, self.margins(plan), self.pool.pair_sd(truth.slowed), truth.sizes[truth.slowed],
            alpha=declared.alpha / len(declared.gates), beta=declared.beta,
            resolution=self.pool.resolution(truth.slowed), draw_sd=plan.gate.draw_sd,
        )  # fmt: skip

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


def decide_run(declared: Declared, run: Sequence[Series]) -> tuple[tuple[Verdict, ...], int]:
    """Verdicts of the gates, and pairs, once a run has ended: look by look, as pairs are taken.

    Gates without data keep nothing going.

    Args:
        declared: Looks and error rates.
        run: A series a gate with all pairs that there are, at least up to the last look.
    """
    for pairs in declared.schedule.looks:
        seen = [replace(series, base=series.base[:pairs], head=series.head[:pairs]) for series in run]
        verdicts = tuple(outcome.verdict for outcome in decide(seen, declared.alpha, declared.beta))
        if run_verdict(verdicts) != "inconclusive":
            break
    return verdicts, pairs


def run_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of the gates that have data."""
    return worst(verdict for verdict in verdicts if verdict != "not-measured")
