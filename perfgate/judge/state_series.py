"""Comparing like with like: a gate in each state of the machine.

The trial stays the unit. Each state that enough pairs have in common is a series of its own, of one value a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.machine_states import STATES, Found, Labeller, Sample, State, follows_states
from perfgate.judge.outcome import PASSED, GateOutcome
from perfgate.judge.rule import Decision, Judged, Series
from perfgate.metrics.sides import SIDES
from perfgate.models import Note
from perfgate.units import percent, plural

BOTH: Final = "both"
"""What the mean over the states that both trials of a pair have is called: a state alone has few pairs where machines
jump, and blocks a small slowdown of all of them half as often."""

OWN_PAIRS: Final = 3
"""Pairs of its own from which on a state passes or not; with fewer nothing is said of it. They tell how they spread
themselves: the other state may be quieter."""

AT_MOST: Final = 1.1
"""Times the gap between the states as it was measured, in logarithms: what it may be at most."""


@dataclass(frozen=True)
class StateLook:
    """What one look compares in a state.

    Args:
        over: Under the null of ``ignorable``.
        under: Under that of ``must_catch``.
        passes: Whether it may pass. What was measured before states were seen speaks of none of them, and a state of
            few pairs says nothing.
        bounded: What may block in the place of ``over``, as long as that is too little to: its pairs and those that
            have no state in common; see :meth:`Found.bounded`.
        apart: How many these are.
        taken_off: What the states may add to them at most, as a natural logarithm.
        whole: Under the null of ``must_catch`` all pairs, those included; ``None`` where each has a common state.
        unclaimed: Under the null of ``must_catch`` what is there of states of which nothing is said.
    """

    over: Sample
    under: Sample
    passes: bool = False
    bounded: Sample | None = None
    apart: int = 0
    taken_off: float = 0.0
    whole: Sample | None = None
    unclaimed: tuple[tuple[State, Sample], ...] = ()


@dataclass(frozen=True)
class StateSeries(Series):
    """A gated metric in one state: ``base`` and ``head`` are those of the last look that have it in common.

    What is decided rests on the state's own pairs, and how they spread. Only where they are too few to block, those
    without a common state do so beside them, less what the states may add: a slowdown beyond that waits for none.

    Args:
        state: Which, or :data:`BOTH`.
        compared: By look.
    """

    state: str = ""
    compared: tuple[StateLook, ...] = ()

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look that has pairs in this state; none where the last has too few.

        Labels may change from look to look, and what an earlier one had in a state is then not known any longer. A look
        before states were seen may block by all that was measured, and lets no state pass.
        """
        seen: list[stats.Look] = []
        if self.fault or self.schedule is None:
            return ()
        gate = self.gate.gate
        weights = zip(self.schedule.block, self.schedule.pass_, strict=True)
        for look, (block, passing) in zip(self.compared, weights, strict=False):
            blocking = look.over if look.bounded is None else look.bounded
            if len(blocking.base) < 2:  # noqa: PLR2004 (one pair has no spread)
                if look is self.compared[-1]:
                    return ()
                continue
            least = (block if len(blocking.base) >= stats.FIRST_BLOCKING_PAIRS else 0.0,
                     passing if look.passes else 0.0)  # fmt: skip
            # Fewer than two pairs have no spread, and let nothing pass whatever they say.
            under, shown = (own if len(own.base) > 1 else blocking for own in (look.under, look.over))
            above, below = self.excess(blocking, gate.ignorable), self.excess(under, gate.must_catch)
            estimate = stats.mean_estimate(self._log_ratios(shown), self.resolution)
            found = stats.look_at(len(look.over.base), estimate, above, below, least, self.carried)
            seen.append(found.after(seen))
        return tuple(seen)

    def excess(self, sample: Sample, margin: float) -> list[stats.Estimate]:
        """Mean of what the pairs exceed a margin by, one for each that binds."""
        d = self._log_ratios(sample)
        return [stats.mean_estimate(d - slower, self.resolution) for slower in self.slower_by(margin, sample.base)]

    def no_look(self) -> Note:
        """Too few pairs have the state on both sides."""
        if not self.state:
            return Note(code="states-undecided", text="no state was seen on both sides")
        return Note(code="too-few-pairs", text=f"{len(self.base)} have {_words(self.state)} on both sides")

    def verdict(self, decision: Decision) -> Verdict:
        """See :class:`Series`; no head passes by some of its pairs where others say that it is slower.

        That is where all pairs together, or those of a state that has too few, exceed ``must_catch`` in the mean.
        """
        found = super().verdict(decision)
        return "inconclusive" if found in PASSED and self._slower is not None else found

    def outcome(self, decision: Decision) -> GateOutcome:
        """See :class:`Series`; the change and its bounds are those of pairs that have a state in common."""
        last, verdict = self.compared[-1] if self.compared else None, super().verdict(decision)
        if last is None or not decision.looks:
            return super().outcome(decision).model_copy(update={"state": self.state})
        apart = last.bounded is not None and verdict != "regressed"
        shown = replace(decision, looks=(*decision.looks[:-1], self._of_common(decision.looks[-1])))
        found = super().outcome(shown if apart else decision)
        told: dict[str, object] = {"state": self.state}
        if last.bounded is not None:
            told |= {"cautions": (*found.cautions, self._bounded(verdict))}
            # All of them block, and the bound is theirs; a spread of their own says nothing of the builds.
            told |= {"detectable": None, "detectable_at": None} if not apart or len(last.over.base) < 2 else {}  # noqa: PLR2004
            told |= {} if apart else {"pairs": len(last.bounded.base)}
        if verdict == "inconclusive" and not last.passes:
            told |= {"reasons": (self._too_few(),)}
        if (slower := self._slower) and verdict in PASSED:
            told |= {"reasons": (slower,), "passed_at": None, "change_high": None, "q": 1.0}
        return found.model_copy(update=told)

    def _of_common(self, look: stats.Look) -> stats.Look:
        """A look that shows nothing of pairs without a common state: the others alone are too few to block."""
        own = self.compared[-1].over
        above = self.excess(own, self.gate.gate.ignorable) if len(own.base) > 1 else []
        least = [one.carrying(self.carried) for one in above]
        over = max(least, key=lambda one: one.p_above(0.0), default=look.over_ignorable)
        return replace(look, over_ignorable=over, block_weight=0.0)

    def _log_ratios(self, sample: Sample) -> stats.Floats:
        return stats.log_ratios(sample.base, sample.head, self.metric.sign)

    @property
    def _slower(self) -> Note | None:
        """Why nothing passes although the pairs compared would let it; ``None`` where nothing speaks so."""
        last = self.compared[-1] if self.compared else None
        if last is None:
            return None
        excluded = f"pairs with a state in common exclude {percent(self.must_catch)}; "
        if last.whole is not None and self._exceeds(last.whole):
            text = f"with those that have none all {len(last.whole.base)} are slower by {self._mean(last.whole)}"
            return Note(code="slower-apart", text=excluded + text)
        for state, few in last.unclaimed:
            if self._exceeds(few):
                number = len(few.base)
                verb = "is" if number == 1 else "are"
                text = f"the {plural(number, 'pair')} in the {state} state {verb} slower by {self._mean(few)}"
                return Note(code="slower-apart", text=excluded + text)
        return None

    def _exceeds(self, sample: Sample) -> bool:
        """Whether the mean of pairs is more than ``must_catch``, by each margin that binds."""
        d = self._log_ratios(sample)
        return min(float((d - own).mean()) for own in self.slower_by(self.gate.gate.must_catch, sample.base)) > 0

    def _mean(self, sample: Sample) -> str:
        return percent(stats.to_ratio(float(self._log_ratios(sample).mean())))

    def _too_few(self) -> Note:
        """Why no look passes."""
        text = (
            f"{plural(len(self.base), 'pair')} in common in {_words(self.state)}: a pass takes "
            f"{stats.FIRST_PASSING_PAIRS}, of one state {OWN_PAIRS}"
        )
        return Note(code="undecided", text=text)

    def _bounded(self, verdict: Verdict) -> Note:
        """Which pairs the change is of, and what the others do."""
        last = self.compared[-1]
        every = last.apart + len(last.over.base)
        less = f"less {stats.to_ratio(last.taken_off):.2%} where the head was in the slow one"
        does = f"all {every} block, {less}" if verdict == "regressed" else f"they could only block, {less}"
        return Note(code="two-states", text=f"{last.apart} of {every} pairs have no state in common: {does}")


def _words(state: str) -> str:
    return "either state" if state == BOTH else f"the {state} state"


def by_state(series: Series, labeller: Labeller) -> tuple[Series, ...]:
    """A series as it is, or one for each state that enough pairs have, and one for the mean where pairs have two.

    A look at which no states are known compares all that was measured. So does a gate that may ignore as much as the
    states are apart: to it they are noise, and within each there are few pairs.
    """
    metric, schedule = series.metric, series.schedule
    if schedule is None or series.fault or not follows_states(metric):
        return (series,)
    looks = labeller.reached(schedule)
    found = [labeller.used(look, series.gate) for look in looks]
    if not found or found[-1] is None:
        return (series,)
    if max(own.step_gap for own in found[-1]) <= math.log1p(series.ignorable):
        return (series,)
    last = found[-1][0]
    if not any(all(last.trials(side, state) for side in SIDES) for state in STATES):
        return (StateSeries(series.gate, schedule=schedule, resolution=series.resolution),)
    every = [(state,) for state in STATES] + [(*STATES,)]
    samples = [_samples(series, labeller, look, nulls, every) for look, nulls in zip(looks, found, strict=True)]
    # What was measured has a ratio, and what of it was measured in one state may have none.
    whole = chain.from_iterable(chain.from_iterable(samples))
    faults = (replace(series, base=sample.base, head=sample.head).fault for sample in whole)
    if (fault := next(filter(None, faults), None)) is not None:
        return (replace(series, missing=fault),)
    rows = _rows(last)
    compared = [_at_look(own, rows, told=nulls is not None) for own, nulls in zip(samples, found, strict=True)]
    if last.apart:
        compared = [
            [*own[:-1], _with_those_apart(own[-1], series, labeller, nulls)]
            for own, nulls in zip(compared, found, strict=True)
        ]
    split = []
    for n, state in enumerate(rows):
        looked = tuple(own[n] for own in compared)
        own = replace(series, base=looked[-1].over.base, head=looked[-1].over.head)
        split.append(StateSeries(**vars(own), state=state, compared=looked))
    return tuple(split)


def _rows(found: Found) -> list[State | Literal["both"]]:
    """What is compared: each state that enough pairs have in common, and the mean where pairs have either.

    Where one state alone is common it is that one, however few pairs have it: the mean would be the same once more.
    """
    common = [state for state in STATES if found.pairs(state)]
    return [*common] if len(common) == 1 else [*(own for own in common if found.pairs(own) >= OWN_PAIRS), BOTH]


def ignored_states(family: Sequence[Judged], labeller: Labeller) -> Found | None:
    """The states at the last look, where there are some and no gate was split by them: each judged one ignores them."""
    if any(isinstance(series, StateSeries) for series in family):
        return None
    for series in family:
        if not isinstance(series, Series) or series.fault or series.schedule is None:
            continue
        looks = labeller.reached(series.schedule) if follows_states(series.metric) else []
        if looks and (found := labeller.used(looks[-1], series.gate)) is not None:
            return found[0]
    return None


def _samples(
    series: Series, labeller: Labeller, look: int, nulls: tuple[Found, Found] | None, every: Sequence[Sequence[State]]
) -> list[tuple[Sample, Sample]]:
    """What a look compares in these states under either null; all that was measured, where no state was known then."""
    if nulls is None:
        whole = Sample(series.base[:look], series.head[:look])
        return [(whole, whole)] * len(every)
    over, under = nulls
    above = over.samples(series.metric, labeller.pairs, every)
    below = above if under is over else under.samples(series.metric, labeller.pairs, every)
    return [*zip(above, below, strict=True)]


def _at_look(
    samples: Sequence[tuple[Sample, Sample]], rows: Sequence[State | Literal["both"]], *, told: bool
) -> list[StateLook]:
    """A look at each of these, from the samples of all states and of their mean."""
    known = dict(zip((*STATES, BOTH), samples, strict=True))
    own = {state: len(known[state][1].base) for state in STATES}
    enough = told and len(known[BOTH][1].base) >= stats.FIRST_PASSING_PAIRS
    few = tuple((state, known[state][1]) for state, pairs in own.items() if told and pairs > 0 and state not in rows)
    return [
        StateLook(
            *known[row], passes=enough and (max(own.values()) if row == BOTH else own[row]) >= OWN_PAIRS, unclaimed=few
        )
        for row in rows
    ]


def _with_those_apart(
    last: StateLook, series: Series, labeller: Labeller, nulls: tuple[Found, Found] | None
) -> StateLook:
    """The look; as long as its pairs are too few to block, with those that have no state in common beside them."""
    if nulls is None:
        return last
    metric, pairs = series.metric, labeller.pairs
    gap = AT_MOST * max(max(own.widest_gap, own.gap_of(metric, pairs)) for own in nulls)
    last = replace(last, whole=nulls[1].bounded(metric, pairs, gap)[0])
    if len(last.over.base) >= stats.FIRST_BLOCKING_PAIRS:
        return last
    bounded, apart = nulls[0].bounded(metric, pairs, gap)
    return replace(last, bounded=bounded, apart=apart, taken_off=gap) if apart else last
