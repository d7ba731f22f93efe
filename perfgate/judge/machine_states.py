"""Which state of the machine each iteration of a cell was taken in, told of each side by itself (docs/states.md).

Labels are made of what was measured until the look at hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from perfgate import stats
from perfgate.judge.state_marks import (
    Pairs,
    around_the_jump,
    as_on_one_card,
    marks_of,
    probe_marks,
    step_marks,
    window_marks,
)
from perfgate.metrics.catalogue import Metric
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import PROBED_GPUS, SLOWER, Trial, least_iterations, tells_states
from perfgate.models import Note
from perfgate.record.run_record import Record
from perfgate.stats import two_states

Source = Literal["probe", "steps"]
State = Literal["slow", "fast"]
STATES: Final[dict[State, int]] = {"slow": two_states.SLOW, "fast": two_states.FAST}

CARDS_APART: Final[dict[Source, float]] = {"probe": SLOWER, "steps": 1.02}
"""So much more one card of a kind may show than another in the same state: on H200s the probe 1 % and steps 1.6 %, and
between two states a fifth and 3 % (docs/states.md)."""

LEAST_GAP: Final[dict[Source, float]] = {"probe": math.log(SLOWER), "steps": 0.0}
"""Levels nearer than this, a natural logarithm, are one state."""

LEVELS_APART: Final = 1.03
"""From how much more on a reading of the probe is on another level; within a state readings are 1 % apart at most."""

AT_MOST: Final = 1.1
"""Times the gap between the states as it was measured, in logarithms: what it may be at most."""

ONE_WAY: Final = 1 / 4
"""Share of pairs whose head alone is slow, at most, where states come by chance: p (1 - p) of a machine slow for p."""
ONE_WAY_LEVEL: Final = 0.01
"""Levels of step times do not count as states where chance alone gives so many such pairs less often."""

InStates = dict[State, float]


@dataclass(frozen=True)
class Sample:
    """What one look compares in a state: a value a pair, of the pairs that have it on both sides."""

    base: tuple[float, ...] = ()
    head: tuple[float, ...] = ()


@dataclass(frozen=True)
class Found:
    """The states at one look.

    Args:
        labels: Of the iterations of each pair's base and head, shape (pairs, 2, iterations).
        gap: Slow over fast decode steps, as a natural logarithm: the base's, as steps of a head that waits for its host
            differ by more than the machine's states. Where steps cannot be told, it is the gap of what told the
            states: a probe is little else than what the states differ in, so that steps are less far apart.
        windows: Whether they are windows of load, which differ from one another and are the same on both sides.
    """

    labels: two_states.Labels
    gap: float
    windows: bool = False
    _read: dict[Metric, list[tuple[InStates, InStates]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def compared(self) -> two_states.Labels:
        """The labels of what is compared: of a window only where both trials of its pair were in one state in it."""
        if not self.windows:
            return self.labels
        agree = self.labels == self.labels[:, ::-1]
        return np.where(agree, self.labels, np.int8(two_states.CUT))

    def pairs(self, state: State) -> int:
        """Pairs that are compared in a state."""
        return int(self._placed(state).all(axis=-1).sum())

    def samples(self, metric: Metric, pairs: Pairs, chosen: Sequence[Sequence[State]]) -> list[Sample]:
        """The values of a metric for each choice of states: of each pair the mean over those that both trials have."""
        common = [_common(pair) for pair in self._values(metric, pairs)]
        return [_sample([[values.get(state) for state in states] for values in common]) for states in chosen]

    def with_those_apart(self, metric: Metric, pairs: Pairs) -> Sample:
        """The values over all states, with the pairs that have none in common: a slow head as if it had been fast."""
        rows = []
        for base, head in self._values(metric, pairs):
            shared = [*_common((base, head)).values()]
            if not shared and base and head and min(*base.values(), *head.values()) > 0:  # zero has no ratio
                (was,), (now,) = base.values(), head.values()
                taken_off = AT_MOST * self.gap if "slow" in head else 0.0
                shared = [(was, now * math.exp(-metric.sign * taken_off))]
            rows.append(shared)
        return _sample(rows)

    def _values(self, metric: Metric, pairs: Pairs) -> list[tuple[InStates, InStates]]:
        """Of each labelled pair's base and head the value in each state of which it has enough; read once."""
        if metric not in self._read:
            self._read[metric] = [*self._of_trials(metric, pairs)]
        return self._read[metric]

    def _of_trials(self, metric: Metric, pairs: Pairs) -> Iterator[tuple[InStates, InStates]]:
        for pair, labels in zip(pairs, self.compared, strict=False):
            kept = {state: alike(labels == label) for state, label in STATES.items()}
            base, head = (_in_states(metric, trial, {state: masks[n] for state, masks in kept.items()})
                          for n, trial in enumerate(pair))  # fmt: skip
            yield base, head

    @property
    def unplaced(self) -> int:
        """Pairs of which a trial has too few iterations for a value in any state, so that nobody compared it."""
        placed = np.any([self._placed(state) for state in STATES], axis=0)
        return int((~placed).any(axis=-1).sum())

    def _placed(self, state: State) -> NDArray[np.bool_]:
        """Of each pair's base and head, whether enough of it is compared in a state."""
        counts: NDArray[np.int_] = (self.compared == STATES[state]).sum(axis=-1)
        return counts >= least_iterations(self.labels.shape[-1])

    @property
    def shares(self) -> list[tuple[float, float]]:
        """The slow state's share of each pair's base and head; pairs without a label on either side are left out."""
        rows = [[_slow_share(labels) for labels in pair] for pair in self.labels]
        return [(base, head) for base, head in rows if base is not None and head is not None]


def unplaced_note(pairs: int) -> Note:
    """What is told of pairs that :attr:`Found.unplaced` counts."""
    text = f"{pairs} of the pairs have a trial with too little in either state to be compared"
    return Note(code="states-undecided", text=text)


def follows_states(metric: Metric) -> bool:
    """Whether a metric is of what takes longer in the slow state: the decode steps of timed trials."""
    return metric.kind == "timed" and metric.decode != "none"


def _slow_share(labels: two_states.Labels) -> float | None:
    placed = labels[labels != two_states.CUT]
    return float((placed == two_states.SLOW).mean()) if len(placed) else None


def _sample(pairs: Iterable[Sequence[tuple[float, float] | None]]) -> Sample:
    """The geometric mean of what each pair has, of those that have something."""
    whole = [values for values in (list(filter(None, pair)) for pair in pairs) if values]
    base, head = (tuple(_geometric_mean([values[n] for values in pair]) for pair in whole) for n in range(2))
    return Sample(base, head)


def _geometric_mean(values: Sequence[float]) -> float:
    # A value of 0 stays one: the series is refused for it, where statistics.geometric_mean would end the judge.
    return float(math.prod(values) ** (1 / len(values)))


def _common(pair: tuple[InStates, InStates]) -> dict[State, tuple[float, float]]:
    """The values of a pair's base and head in each state that both have."""
    base, head = pair
    return {state: (value, head[state]) for state, value in base.items() if state in head}


def alike(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which iterations of two trials are compared: where enough of them are in question on both sides, those alone.

    The same iteration has the same prompts on both sides and another one has others, which may take longer: experts are
    chosen by the tokens. So a trial that was slow in its first two iterations is compared with these two of the other.

    Args:
        mask: Which are in question, of the base and of the head, shape (..., 2, iterations).
    """
    both = mask.all(axis=-2, keepdims=True)
    enough = both.sum(axis=-1, keepdims=True) >= least_iterations(mask.shape[-1])
    return np.where(enough, both, mask)


def _in_states(metric: Metric, trial: Trial, in_state: dict[State, NDArray[np.bool_]]) -> InStates:
    """The value of a trial in each state of which it has enough iterations."""
    values: InStates = {}
    for state, mask in in_state.items():
        kept = tuple(itertools.compress(trial.iterations, mask.tolist()))
        if len(kept) >= least_iterations(len(trial.iterations)):
            value = metric.summarise(trial.model_copy(update={"iterations": kept}))
            if value is not None:
                values[state] = value
    return values


class Labeller:
    """Tells the states of a cell's pairs.

    Args:
        pairs: Valid timed pairs in the order they were taken.
        gpus: Names of the GPUs that they ran on.
        qualified: Names of GPUs on which the probe tells the states.
        before: The warm-up trials of each visit, base and head: by the probe they show levels, too.
    """

    def __init__(
        self, pairs: Pairs, gpus: Sequence[str], qualified: tuple[str, ...] = PROBED_GPUS, before: Pairs = ()
    ) -> None:
        self.pairs = pairs
        rows = marks_of(pairs, probe_marks) if tells_states(gpus, qualified) else None
        self.source: Source = "probe" if rows is not None else "steps"
        self._marks = rows if rows is not None else marks_of(pairs, step_marks)
        self._before = before if rows is not None else ()
        self._known: dict[int, Found | None] = {}

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Of a record's timed pairs; ``None`` where it has none."""
        pairs = record.pairs("timed")
        gpus = [gpu.name for visit in record.visits for gpu in visit.machine.gpus]
        return cls(pairs, gpus, before=record.warmed_up()) if pairs else None

    @property
    def one_state(self) -> bool:
        """Whether the probe tells states, and read about the same throughout: no trial was in another one."""
        if self.source != "probe" or self._marks is None:
            return False
        return float(self._marks.max()) <= SLOWER * float(self._marks.min())

    @property
    def levels(self) -> dict[Side, list[tuple[float, int]]]:
        """Of each side the levels of the probe, in nanoseconds as on the fastest card, and how many trials have each.

        None where no probe tells the states.
        """
        if self.source != "probe" or self._marks is None:
            return {}
        trials = as_on_one_card(self._marks, [base.gpus for base, _ in self.pairs], CARDS_APART["probe"])
        return {side: two_states.levels(trials[:, n], math.log(LEVELS_APART)) for n, side in enumerate(SIDES)}

    def reached(self, schedule: stats.Schedule) -> list[int]:
        """The looks that there are pairs for."""
        return [look for look in schedule.looks if look <= len(self.pairs)]

    def at(self, look: int) -> Found | None:
        """The states of the first so many pairs; ``None`` where there are none."""
        if look not in self._known:
            self._known[look] = self._find(look)
        return self._known[look]

    def _find(self, look: int) -> Found | None:
        if self._marks is None:
            return None
        visits = {trial.visit for pair in self.pairs[:look] for trial in pair}
        number = self._marks.shape[2]
        enough = [pair for pair in self._before if min(len(trial.iterations) for trial in pair) >= number]
        earlier = [pair for pair in enough if pair[0].visit in visits]
        parts = [(around_the_jump(base, number), around_the_jump(head, number)) for base, head in earlier]
        before = marks_of(parts, probe_marks)
        if before is None or before.shape[2:] != self._marks.shape[2:]:
            earlier, before = [], self._marks[:0]
        cards = [base.gpus for base, _ in (*earlier, *self.pairs[:look])]
        trials = as_on_one_card(np.concatenate([before, self._marks[:look]]), cards, CARDS_APART[self.source])
        marks = trials.reshape(2 * len(trials), *trials.shape[2:])
        states = two_states.states(marks, LEAST_GAP[self.source])
        labels = states.labels.reshape(len(trials), 2, -1)[len(earlier) :]
        if not all((labels == state).any() for state in STATES.values()):
            return None  # none were seen, or the pairs are all in one
        if self.source == "steps" and _apart_one_way(labels):
            return None
        windows = any(iteration.lengths for iteration in self.pairs[0][0].iterations)
        gap = next(self._step_gaps(labels, windows=windows), float(states.gap))
        return Found(labels, gap, windows)

    def _step_gaps(self, labels: two_states.Labels, *, windows: bool) -> Iterator[float]:
        """The gap by decode steps of each side that has both states, the base first; none where steps are unknown."""
        marks = marks_of(self.pairs, window_marks if windows else step_marks)
        if marks is None:
            return
        logs = np.log(marks[: len(labels)]).mean(axis=-1)
        # Iterations are alike; windows have other loads, so that each is held against the same one of other trials.
        rows = [slice(n, n + 1) for n in range(logs.shape[-1])] if windows else [slice(None)]
        for n in range(len(SIDES)):
            gaps = [gap_between(logs[:, n, row], labels[:, n, row]) for row in rows]
            if measured := [gap for gap in gaps if gap is not None]:
                yield float(np.median(measured))


def _apart_one_way(labels: two_states.Labels) -> bool:
    """Whether more pairs have one side slow and the other fast, always the same way, than states leave to chance.

    A machine has them one way in about a quarter of the pairs, however often it is slow. Where a few disturbed trials
    have spread the step times, what most trials of one build show is taken for its fast level, and what most of the
    other show for its slow one.

    Args:
        labels: Of each pair's base and head, shape (pairs, 2, iterations).
    """
    slow, fast = ((labels == label).any(axis=-1) for label in (two_states.SLOW, two_states.FAST))
    only_slow, only_fast = slow & ~fast, fast & ~slow
    most = int((only_slow & only_fast[:, ::-1]).sum(axis=0).max())
    return two_states.sign_test(most, len(labels) - most, ONE_WAY) <= ONE_WAY_LEVEL


def gap_between(logs: stats.Floats, labels: two_states.Labels) -> float | None:
    """Slow over fast, as the difference of the medians of logarithms; ``None`` where one state is lacking."""
    slow, fast = (logs[labels == label] for label in (two_states.SLOW, two_states.FAST))
    return float(np.median(slow) - np.median(fast)) if len(slow) and len(fast) else None
