"""Comparing like with like: a gate in each state of the machine.

The trial stays the unit. Each state that enough pairs have in common is a series of its own, of one value a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.machine_states import STATES, Found, Labeller, Sample, State, follows_states
from perfgate.judge.outcome import PASSED, GateOutcome
from perfgate.judge.rule import Decision, Judged, Series
from perfgate.models import Note
from perfgate.units import percent, plural

BOTH: Final = "both"
"""What the mean over the states that both trials of a pair have is called: a state alone has few pairs where machines
jump, and blocks a small slowdown of all of them half as often."""

EVERY: Final = "every"
"""All pairs, those among them whose trials were in different states."""

OWN_PAIRS: Final = 3
"""Pairs of its own from which on a state passes or not; with fewer nothing is said of it. They tell how they spread
themselves: the other state may be quieter."""


@dataclass(frozen=True)
class StateLook:
    """What one look compares in a state.

    Args:
        common: Of the pairs that have it on both sides.
        passes: Whether it may pass. What was measured before states were seen speaks of none of them, and a state of
            few pairs says nothing.
        whole: All pairs as they were measured, which block in the place of the common ones as long as these are too few
            to; ``None`` where each pair is common.
        beside: What is there of states of which nothing is said, and of all pairs where some have none in common, by
            words.
    """

    common: Sample
    passes: bool = False
    whole: Sample | None = None
    beside: tuple[tuple[str, Sample], ...] = ()


@dataclass(frozen=True)
class StateSeries(Series):
    """A gated metric in one state: ``base`` and ``head`` are those of the last look that have it in common.

    What is decided rests on the state's own pairs, and how they spread. Only where they are too few to block, all pairs
    do so as they were measured: a slowdown beyond the gap of the states waits for none.

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
        weights = zip(self.schedule.block, self.schedule.pass_, strict=True)
        for look, (block, passing) in zip(self.compared, weights, strict=False):
            samples = [sample for sample in (look.common, look.whole) if sample and len(sample.base) > 1]
            if not samples:  # one pair has no spread
                if look is self.compared[-1]:
                    return ()
                continue
            first, *whole = (self._look(sample, block, passing if look.passes else 0.0) for sample in samples)
            if whole:
                first = replace(first, p_slower=whole[0].p_slower)
            seen.append(first.after(seen))
        return tuple(seen)

    def _look(self, sample: Sample, block: float, passing: float = 0.0) -> stats.Look:
        """What a sample shows at a look, by the shares of both error rates that it may use."""
        pairs, gate = len(sample.base), self.gate.gate
        above, below = (self.excess(sample, margin) for margin in (gate.ignorable, gate.must_catch))
        estimate = stats.mean_estimate(self._log_ratios(sample), self.resolution)
        weights = (block if pairs >= stats.FIRST_BLOCKING_PAIRS else 0.0, passing)
        return stats.look_at(pairs, estimate, above, below, weights, self.carried)

    def excess(self, sample: Sample, margin: float) -> list[stats.Estimate]:
        """Mean of what the pairs exceed a margin by, one for each that binds."""
        d = self._log_ratios(sample)
        return [stats.mean_estimate(d - slower, self.resolution) for slower in self.slower_by(margin, sample.base)]

    def no_look(self) -> Note:
        """Too few pairs have the state on both sides."""
        return Note(code="too-few-pairs", text=f"{len(self.base)} have {_words(self.state)} on both sides")

    def verdict(self, decision: Decision) -> Verdict:
        """See :class:`Series`; no head passes by some of its pairs where others say that it is slower.

        That is where those of a state that has too few, or all with those that have none in common, exceed
        ``must_catch`` in the mean.
        """
        verdict = super().verdict(decision)
        return "inconclusive" if verdict in PASSED and self._slower is not None else verdict

    def outcome(self, decision: Decision) -> GateOutcome:
        """See :class:`Series`; the change and its bounds are those of pairs that have a state in common.

        Where all pairs block, or fewer than two have one, they are those of all pairs.
        """
        last, verdict = self.compared[-1] if self.compared else None, super().verdict(decision)
        if last is None or not decision.looks:
            return super().outcome(decision).model_copy(update={"state": self.state})
        changes: dict[str, object] = {"state": self.state}
        if last.whole is not None and (verdict == "regressed" or len(last.common.base) < 2):  # noqa: PLR2004
            block = self.schedule.block[len(self.compared) - 1] if self.schedule else 0.0
            look = replace(self._look(last.whole, block), p_slower=decision.looks[-1].p_slower)
            shown = replace(self, base=last.whole.base, head=last.whole.head)
            outcome = Series.outcome(shown, replace(decision, looks=(*decision.looks[:-1], look)))
            changes["state"] = ""
        else:
            outcome = super().outcome(decision)
        if last.whole is not None:
            changes |= {"cautions": (*outcome.cautions, self._as_measured(verdict))}
        if verdict == "inconclusive" and not last.passes:
            changes |= {"reasons": (self._too_few(),)}
        if (slower := self._slower) and verdict in PASSED:
            changes |= {"reasons": (slower,), "passed_at": None, "change_high": None, "q": 1.0}
        return outcome.model_copy(update=changes)

    def _log_ratios(self, sample: Sample) -> stats.Floats:
        return stats.log_ratios(sample.base, sample.head, self.metric.sign)

    @property
    def _slower(self) -> Note | None:
        """Why nothing passes although the pairs compared would let it; ``None`` where nothing speaks so."""
        for where, sample in self.compared[-1].beside if self.compared else ():
            d = self._log_ratios(sample)
            if min(float((d - margin).mean()) for margin in self.slower_by(self.gate.gate.must_catch, sample.base)) > 0:
                text = f"{where} {'is' if len(d) == 1 else 'are'} slower by {percent(stats.to_ratio(float(d.mean())))}"
                excluded = f"pairs with a state in common exclude {percent(self.must_catch)}"
                return Note(code="slower-apart", text=f"{excluded}; {text}")
        return None

    def _too_few(self) -> Note:
        """Why no look passes."""
        text = (
            f"{plural(len(self.base), 'pair')} in common in {_words(self.state)}: a pass takes "
            f"{stats.FIRST_PASSING_PAIRS}, of one state {OWN_PAIRS}"
        )
        return Note(code="undecided", text=text)

    def _as_measured(self, verdict: Verdict) -> Note:
        """What the pairs without a common state do."""
        last = self.compared[-1]
        every = len(last.whole.base) if last.whole else 0
        does = f"all {every} {'block' if verdict == 'regressed' else 'could only block'}, as they were measured"
        text = f"{every - len(last.common.base)} of {every} pairs have no state in common: {does}"
        return Note(code="two-states", text=text)


def _words(state: str) -> str:
    return "either state" if state == BOTH else f"the {state} state"


def by_state(series: Series, labeller: Labeller) -> tuple[Series, ...]:
    """A series as it is, or one for each state that enough pairs have, and one for the mean where pairs have two.

    A look at which no states are known compares all that was measured. So does a gate that may ignore as much as the
    states are apart: to it they are noise, and within each there are few pairs.
    """
    if series.schedule is None or series.fault or not follows_states(series.metric):
        return (series,)
    looks = labeller.reached(series.schedule)
    by_look = [labeller.at(look) for look in looks]
    if not by_look or by_look[-1] is None or by_look[-1].gap <= math.log1p(series.ignorable):
        return (series,)
    samples = [_samples(series, labeller, look, states) for look, states in zip(looks, by_look, strict=True)]
    # What was measured has a ratio, and what of it was measured in one state may have none.
    every = (sample for look_samples in samples for sample in look_samples.values())
    faults = (replace(series, base=sample.base, head=sample.head).fault for sample in every)
    if (fault := next(filter(None, faults), None)) is not None:
        return (replace(series, missing=fault),)
    rows = _rows(by_look[-1])
    split = []
    for row in rows:
        compared = [
            _at_look(row, rows, look_samples, Sample(series.base[:look], series.head[:look]), told=seen is not None)
            for look, look_samples, seen in zip(looks, samples, by_look, strict=True)
        ]
        common = compared[-1].common
        fields = vars(replace(series, base=common.base, head=common.head))
        split.append(StateSeries(**fields, state=row, compared=tuple(compared)))
    return tuple(split)


def _rows(states: Found) -> list[State | Literal["both"]]:
    """What is compared: each state that enough pairs have in common, and the mean where pairs have either.

    Where one state alone is common it is that one, however few pairs have it: the mean would be the same once more.
    """
    common = [state for state in STATES if states.pairs(state)]
    return [*common] if len(common) == 1 else [*(state for state in common if states.pairs(state) >= OWN_PAIRS), BOTH]


def ignored_states(family: Sequence[Judged], labeller: Labeller) -> Found | None:
    """The states at the last look, where there are some and no gate was split by them: each judged one ignores them."""
    if any(isinstance(series, StateSeries) for series in family):
        return None
    for series in family:
        if not isinstance(series, Series) or series.fault or series.schedule is None:
            continue
        looks = labeller.reached(series.schedule) if follows_states(series.metric) else []
        if looks and (states := labeller.at(looks[-1])) is not None:
            return states
    return None


def _samples(series: Series, labeller: Labeller, look: int, states: Found | None) -> dict[str, Sample]:
    """What a look has of each state, of their mean, and of all pairs with those that have none in common.

    All that was measured, where no state was known then.
    """
    if states is None:
        whole = Sample(series.base[:look], series.head[:look])
        return dict.fromkeys((*STATES, BOTH), whole)
    every = states.samples(series.metric, labeller.pairs, [*((state,) for state in STATES), (*STATES,)])
    apart = states.with_those_apart(series.metric, labeller.pairs)
    return {**dict(zip((*STATES, BOTH), every, strict=True)), EVERY: apart}


def _at_look(row: str, rows: Sequence[str], samples: dict[str, Sample], whole: Sample, *, told: bool) -> StateLook:
    """A row's look, from the samples of all states and of their mean."""
    if not told:
        return StateLook(samples[row])
    counts: dict[str, int] = {state: len(samples[state].base) for state in STATES}
    enough = len(samples[BOTH].base) >= stats.FIRST_PASSING_PAIRS
    passes = enough and (max(counts.values()) if row == BOTH else counts[row]) >= OWN_PAIRS
    few_of = [state for state in STATES if counts[state] and state not in rows]
    beside = [(f"the {plural(counts[state], 'pair')} in the {state} state", samples[state]) for state in few_of]
    if (every := len(samples[EVERY].base)) > len(samples[BOTH].base):
        beside.append((f"with those that have none all {every}", samples[EVERY]))
    pairs = len(samples[row].base)
    few = row == rows[-1] and pairs < min(stats.FIRST_BLOCKING_PAIRS, len(whole.base))
    return StateLook(samples[row], passes, whole if few else None, tuple(beside))
