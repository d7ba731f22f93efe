"""Simulated runs on a machine with two states, each decided by perfgate's own rule within states.

What trials measured is in arrays. Labels of all runs are made at once, by the functions that make those of a run, and
:class:`OneRun` hands a run's part to :mod:`perfgate.judge.state_series` in the place of its trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from many_runs import Margins
from numpy.typing import NDArray
from state_models import ITERATIONS, Bools, Drawn, Floats

from perfgate.drill.replay import run_verdict
from perfgate.errors import Verdict
from perfgate.gate import parse_gate
from perfgate.judge.machine_states import LEAST_GAP, STATES, Found, InStates, Labeller, Source, alike, gap_between
from perfgate.judge.outcome import PASSED
from perfgate.judge.rule import Series, decide
from perfgate.judge.slow_share import SlowShare, discordant, slow_share
from perfgate.judge.state_marks import Pairs
from perfgate.judge.state_series import StateSeries, by_state
from perfgate.metrics.catalogue import Metric
from perfgate.metrics.trial import least_iterations
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats import Schedule, two_states
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED

METRICS = ("itl_median", "e2e_median", "tpot_mean")
"""Of the gates, in order."""
SCHEDULE = DEFAULT_SCHEDULE
LOOKS = SCHEDULE.looks

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """What simulated runs ended with.

    Args:
        runs: Verdict of each run, (runs,).
        first: Verdict of its first gate, the worst of that gate's states, (runs,).
        pairs: Pairs that each run took, (runs,).
        within: Whether it was compared within states, (runs,).
        by_share: Whether the slow state's share blocked it, (runs,).
        more: Pairs whose head was in the slow state more often, of those with a label on both sides, (runs,).
        labelled: How many those are, (runs,).
    """

    runs: NDArray[np.int8]
    first: NDArray[np.int8]
    pairs: Integers
    within: Bools
    by_share: Bools
    more: Integers
    labelled: Integers


@dataclass(frozen=True)
class _States:
    """The states of all runs at a look, and what each trial measured in each.

    Args:
        labels: Shape (runs, pairs, 2, iterations).
        gaps: Of what told them, natural logarithms, (runs,).
        values: Shape (gates, states, runs, pairs, 2); not a number where a trial has too little in a state.
    """

    labels: two_states.Labels
    gaps: Floats
    values: Floats


class Measured:
    """Simulated runs with a slowdown.

    Args:
        drawn: What they measured without one.
        slow: The slowdown of each gate, a ratio minus one; the marks have that of the first.
        margins: Of every gate.
        source: What tells the states.
        carried: Standard deviation of a subject that the error of every mean carries: ``draw_sd`` of the gates.
    """

    def __init__(
        self, drawn: Drawn, slow: Sequence[float], margins: Margins, source: Source, carried: float = 0.0
    ) -> None:
        factors = np.ones((len(slow), 1, 1, 2, 1))
        factors[:, 0, 0, 1, 0] = 1 + np.asarray(slow)
        self.source: Source = source
        self.plans = plans(margins, len(slow), carried)
        self.steps = np.round(drawn.marks * factors[0, ..., None])
        self._probes = drawn.probes
        others = np.round(drawn.values[: len(slow) - 1] * factors[1:])
        self._values = np.concatenate([(self.steps[..., 0] + self.steps[..., 1])[None] / 2, others])
        self.whole = _summaries(self._values)
        self._known: dict[int, _States] = {}

    def states(self, look: int) -> _States:
        """What the first pairs of all runs show."""
        if look not in self._known:
            rows = self._probes[:, : 1 + look] if self.source == "probe" else self.steps[:, :look]
            found = two_states.states(rows.reshape(len(rows), -1, ITERATIONS, 2), LEAST_GAP[self.source])
            labels = found.labels.reshape(len(rows), -1, 2, ITERATIONS)[:, -look:]
            kept = (alike(labels == state) for state in STATES.values())
            values = np.stack([_summaries(self._values[:, :, :look], own) for own in kept], axis=1)
            self._known[look] = _States(labels, found.gap, values)
        return self._known[look]

    def series(self, run: int, look: int, gate: int) -> Series:
        """A gate of a run after so many pairs."""
        base, head = self.whole[gate, run, :look].T.tolist()
        return Series(self.plans[gate], tuple(base), tuple(head), SCHEDULE)


class OneRun(Labeller):
    """What tells the states of a simulated run.

    Args:
        measured: All of them.
        run: Which one.
        taken: Pairs that it has so far.
    """

    def __init__(self, measured: Measured, run: int, taken: int) -> None:
        super().__init__((), ())
        self.source = measured.source
        self._measured, self._run, self._taken = measured, run, taken

    def reached(self, schedule: Schedule) -> list[int]:
        """The looks that there are pairs for."""
        return [look for look in schedule.looks if look <= self._taken]

    def _find(self, look: int) -> Found | None:
        every = self._measured.states(look)
        labels = every.labels[self._run]
        if not all((labels == state).any() for state in STATES.values()):
            return None
        steps = np.log(self._measured.steps[self._run, :look]).mean(axis=-1)
        gaps = (gap_between(steps[:, side], labels[:, side]) for side in range(2))
        gap = next((gap for gap in gaps if gap is not None), float(every.gaps[self._run]))
        return _Found(labels, gap, values=every.values[:, :, self._run])


@dataclass(frozen=True)
class _Found(Found):
    """States whose values are in an array, (gates, states, pairs, 2)."""

    values: Floats | None = None

    def _of_trials(self, metric: Metric, pairs: Pairs) -> Iterator[tuple[InStates, InStates]]:
        del pairs
        for pair in np.asarray(self.values)[METRICS.index(metric.name)].transpose(1, 2, 0).tolist():
            base, head = ({state: value for state, value in zip(STATES, side, strict=True) if not math.isnan(value)}
                          for side in pair)  # fmt: skip
            yield base, head


def _summaries(values: Floats, kept: Bools | None = None) -> Floats:
    """Of each gate and trial over the iterations that are kept, values being (gates, ..., iterations)."""
    kept = np.ones(values.shape[1:], bool) if kept is None else kept
    few = kept.sum(axis=-1) < least_iterations(values.shape[-1])
    known = np.where(few[..., None] | kept, values, np.nan)  # all of what is too little: some number, which is left out
    rows = [
        np.nanmean(own, axis=-1) if metric == "tpot_mean" else np.nanmedian(own, axis=-1)
        for own, metric in zip(known, METRICS, strict=False)
    ]
    return np.where(few, np.nan, np.stack(rows))


@cache
def plans(margins: Margins, gates: int, draw_sd: float = 0.0) -> tuple[GatePlan, ...]:
    """The gates as they are declared."""
    words = f"{margins.ignorable * 100:.10g}%:{margins.must_catch * 100:.10g}%"
    plain = [parse_gate(f"{metric}:{words}") for metric in METRICS[:gates]]
    with_draws = (plan.gate.model_copy(update={"draw_sd": draw_sd}) for plan in plain)
    return tuple(plan.model_copy(update={"gate": gate}) for plan, gate in zip(plain, with_draws, strict=True))


def decide_all(measured: Measured, gates: int) -> Ends:
    """Decide simulated runs look by look, by their first gates."""
    ended = [_decide(measured, run, gates) for run in range(len(measured.steps))]
    kinds = (np.int8, np.int8, np.int64, bool, bool, np.int64, np.int64)
    return Ends(*(np.array(own, kind) for own, kind in zip(zip(*ended, strict=True), kinds, strict=True)))


def _decide(measured: Measured, run: int, gates: int) -> tuple[int, int, int, bool, bool, int, int]:
    """A run's :class:`Ends`."""
    for look in LOOKS:
        labeller = OneRun(measured, run, look)
        by_gate = [by_state(measured.series(run, look, gate), labeller) for gate in range(gates)]
        split = [series for own in by_gate for series in own]
        decisions = decide([*split, *slow_share(split, labeller, SCHEDULE, drawn=True)], ALPHA, BETA)
        verdict = run_verdict([decision.verdict for decision in decisions])
        if verdict != "inconclusive":
            break
    first = run_verdict([decision.verdict for decision in decisions[: len(by_gate[0])]])
    within = any(isinstance(series, StateSeries) for series in split)
    share = decisions[-1]
    more = labelled = 0
    if isinstance(share.series, SlowShare):
        rows = share.series.shares[-1]
        more, labelled = discordant(rows)[0], len(rows)
    by_share = isinstance(share.series, SlowShare) and share.rejected
    return _code(verdict), _code(first), look, within, by_share, more, labelled


def _code(verdict: Verdict) -> int:
    return REGRESSED if verdict == "regressed" else PASS if verdict in PASSED else INCONCLUSIVE
