"""Comparing like with like: a gate in each state of the machine.

The trial stays the unit. Each state that both sides have is a series of its own, of one value a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from perfgate import stats
from perfgate.judge.machine_states import STATES, Found, Labeller, Sample, State, follows_states
from perfgate.judge.outcome import PASSED, GateOutcome, Verdict
from perfgate.judge.rule import Decision, Judged, Series
from perfgate.metrics.trial import SIDES
from perfgate.models import Note
from perfgate.units import percent

BOTH: Final = "both"
"""What the mean over the states that both trials of a pair have is called: a state alone has few pairs where machines
jump, and blocks a small slowdown of all of them half as often. Where those pairs are too few to block, the ones without
a common state count there, too, less what the states may add: a slowdown beyond that waits for none."""

AT_MOST: Final = 1.1
"""Times the gap between the states as it was measured, in logarithms: what it may be at most."""

OF_THE_MEAN: Final = ("slower-than-ignorable", "below-floor")
"""Cautions that do not speak of how pairs spread."""


@dataclass(frozen=True)
class Spread:
    """How the pairs of a look differ within states.

    Args:
        variance: Of a pair's log ratio, pooled over the states.
        df: Its degrees of freedom: pairs, less one for each state.
    """

    variance: float
    df: int


@dataclass(frozen=True)
class StateLook:
    """What one look compares in a state.

    Args:
        over: Under the null of ``ignorable``.
        under: Under that of ``must_catch``.
        spread: Of the pairs of all states under that null; ``None`` where no state was known then, or for too few.
        told: Whether states were known then. What was measured before they were seen speaks of none of them.
        apart: Pairs without a common state that ``over`` has beside the others; see :meth:`Found.bounded`.
        taken_off: What the states may add at most, as a natural logarithm.
        whole: Under the null of ``must_catch`` all pairs, those included; ``None`` where each has a common state.
    """

    over: Sample
    under: Sample
    spread: Spread | None = None
    told: bool = True
    apart: int = 0
    taken_off: float = 0.0
    whole: Sample | None = None


@dataclass(frozen=True)
class StateSeries(Series):
    """A gated metric in one state: ``base`` and ``head`` are those of the last look.

    What blocks rests on the state's own pairs alone. To pass, a rarer state borrows the spread of the other one: the
    pairs differ there as they do here, and the fewest pairs that may pass count over both.

    Args:
        state: Which, or :data:`BOTH`.
        compared: By look.
    """

    state: str = ""
    compared: tuple[StateLook, ...] = ()

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look that has pairs in this state and a spread; none where the last has not.

        Labels may change from look to look, and what an earlier one had in a state is then not known any longer. A look
        before states were seen may block by all that was measured, and lets no state pass.
        """
        seen: list[stats.Look] = []
        if self.fault or self.schedule is None:
            return ()
        gate = self.gate.gate
        weights = zip(self.schedule.block, self.schedule.pass_, strict=True)
        for look, (block, passing) in zip(self.compared, weights, strict=False):
            pairs, known = len(look.over.base), look.spread.df + 1 if look.spread else len(look.under.base)
            if not (look.under.base or look.apart) or pairs < (1 if look.spread else 2):
                if look is self.compared[-1]:
                    return ()
                continue
            least = (block if pairs >= stats.FIRST_BLOCKING_PAIRS else 0.0,
                     passing if look.told and known >= stats.FIRST_PASSING_PAIRS else 0.0)  # fmt: skip
            own = None if pairs > 1 else look.spread
            # Fewer than two pairs have no spread of their own, and let nothing pass whatever they say.
            under = look.under if look.spread or len(look.under.base) > 1 else look.over
            above = self.excess(look.over, gate.ignorable, own)
            below = self.excess(under, gate.must_catch, look.spread)
            d = stats.log_ratios(look.over.base, look.over.head, self.metric.sign)
            estimate = _mean(d, self.resolution, own)
            seen.append(stats.look_at(pairs, estimate, above, below, least, seen[-1:], self.carried))
        return tuple(seen)

    def excess(self, sample: Sample, margin: float, spread: Spread | None) -> list[stats.Estimate]:
        """Mean of what the pairs exceed a margin by, one for each that binds."""
        d = stats.log_ratios(sample.base, sample.head, self.metric.sign)
        return [_mean(d - slower, self.resolution, spread) for slower in self.slower_by(margin, sample.base)]

    def no_look(self) -> Note:
        """Too few pairs have the state on both sides."""
        if not self.state:
            text = "no state was seen on both sides"
            return Note(code="no-common-state", text=text)
        which = "a state" if self.state == BOTH else f"the {self.state} state"
        common = len(self.base) - (self.compared[-1].apart if self.compared else 0)
        return Note(code="too-few-pairs", text=f"{common} have {which} on both sides")

    def verdict(self, decision: Decision) -> Verdict:
        """See :class:`Series`; what was taken off pairs without a common state makes no head faster, nor does one pair.

        A single pair has a borrowed spread: enough to see that it is not slower. Nor does a head pass by some of the
        pairs that all of them together say is slower by more than ``must_catch``.
        """
        found = super().verdict(decision)
        if found in PASSED and self._slower_in_all is not None:
            return "inconclusive"
        return "pass" if found == "improved" and (self._is_bounded or _of_one_pair(decision)) else found

    def outcome(self, decision: Decision) -> GateOutcome:
        """See :class:`Series`; how pairs without a common state spread says nothing of the builds."""
        found = super().outcome(decision).model_copy(update={"state": self.state})
        told: dict[str, object] = {}
        if self._is_bounded:
            of_the_mean = (note for note in found.cautions if note.code in OF_THE_MEAN)
            told |= {"cautions": (*of_the_mean, self._bounded()), "pair_sd": None, "detectable": None,
                     "detectable_at": None}  # fmt: skip
        elif _of_one_pair(decision) and super().verdict(decision) == "improved":
            told |= {"cautions": (*found.cautions, self._faster_once())}
        if (slower := self._slower_in_all) and super().verdict(decision) in PASSED:
            # The bounds are of the pairs that have a state in common, and the change that is shown of all.
            told |= {"reasons": (slower,), "passed_at": None, "change_high": None, "q": 1.0}
        return found.model_copy(update=told)

    @property
    def _is_bounded(self) -> bool:
        return bool(self.compared and self.compared[-1].apart)

    @property
    def _slower_in_all(self) -> Note | None:
        """Why nothing passes although the pairs with a common state would let it; ``None`` where nothing speaks so."""
        whole = self.compared[-1].whole if self.compared else None
        if whole is None or min(own.mean for own in self.excess(whole, self.gate.gate.must_catch, None)) <= 0:
            return None
        mean = float(stats.log_ratios(whole.base, whole.head, self.metric.sign).mean())
        text = (
            f"pairs with a state in common exclude {percent(self.must_catch)}; with those that have none all "
            f"{len(whole.base)} are slower by {percent(stats.to_ratio(mean))}"
        )
        return Note(code="slower-apart", text=text)

    def _faster_once(self) -> Note:
        mean = float(stats.log_ratios(self.base, self.head, self.metric.sign).mean())
        text = f"only one pair has the {self.state} state in common, faster by {percent(-stats.to_ratio(mean))}"
        return Note(code="one-pair", text=text)

    def _bounded(self) -> Note:
        last = self.compared[-1]
        text = (
            f"{last.apart} of {len(last.over.base)} pairs have no state in common; "
            f"{stats.to_ratio(last.taken_off):.2%} is taken off those whose head was in the slow one"
        )
        return Note(code="bounded-pairs", text=text)


def _of_one_pair(decision: Decision) -> bool:
    return bool(decision.looks) and decision.looks[-1].pairs == 1


def by_state(series: Series, labeller: Labeller) -> tuple[Series, ...]:
    """A series as it is, or one for each state that both sides have, and one for their mean where they have two.

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
    if max(map(labeller.step_gap, found[-1])) <= math.log1p(series.ignorable):
        return (series,)
    last = found[-1][0]
    common = [state for state in STATES if all(last.trials(side, state) for side in SIDES)]
    bounded = bool(common) and last.apart > 0
    mean = [(*common,)] if len(common) > 1 or bounded else []
    every = [*((state,) for state in common), *mean]
    samples = [_samples(series, labeller, look, nulls, every) for look, nulls in zip(looks, found, strict=True)]
    # What was measured has a ratio, and what of it was measured in one state may have none.
    whole = chain.from_iterable(chain.from_iterable(samples))
    faults = (replace(series, base=sample.base, head=sample.head).fault for sample in whole)
    if (fault := next(filter(None, faults), None)) is not None:
        return (replace(series, missing=fault),)
    compared = [
        _at_look(own, len(common) if nulls else 0, metric.sign) for own, nulls in zip(samples, found, strict=True)
    ]
    if bounded:
        compared = [
            [*own[:-1], _with_those_apart(own[-1], series, labeller, nulls)]
            for own, nulls in zip(compared, found, strict=True)
        ]
    rows = []
    for n, state in enumerate([*common, BOTH][: len(every)]):
        looked = tuple(states[n] for states in compared)
        own = replace(series, base=looked[-1].over.base, head=looked[-1].over.head)
        rows.append(StateSeries(**vars(own), state=state, compared=looked))
    if rows:
        return tuple(rows)
    return (StateSeries(series.gate, schedule=schedule, resolution=series.resolution),)


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


def _at_look(samples: Sequence[tuple[Sample, Sample]], states: int, sign: int) -> list[StateLook]:
    """A look; the first samples are of so many states, which tell the spread of one another."""
    spread = _pooled([stats.log_ratios(under.base, under.head, sign) for _, under in samples[:states]])
    return [StateLook(*own, spread if n < states else None, told=states > 0) for n, own in enumerate(samples)]


def _with_those_apart(
    both: StateLook, series: Series, labeller: Labeller, nulls: tuple[Found, Found] | None
) -> StateLook:
    """The look at the mean over the states; as long as its pairs are too few to block, with those that have none."""
    if nulls is None:
        return both
    metric, pairs = series.metric, labeller.pairs
    gap = AT_MOST * max(max(labeller.widest_gap(found), found.gap_of(metric, pairs)) for found in nulls)
    both = replace(both, whole=nulls[1].bounded(metric, pairs, gap)[0])
    if len(both.over.base) >= stats.FIRST_BLOCKING_PAIRS:
        return both
    over, apart = nulls[0].bounded(metric, pairs, gap)
    return replace(both, over=over, apart=apart, taken_off=gap)


def _pooled(states: Sequence[stats.Floats]) -> Spread | None:
    """The spread within states of log ratios; ``None`` where no state has two."""
    squares = [float(((d - d.mean()) ** 2).sum()) for d in states if len(d) > 1]
    df = sum(len(d) - 1 for d in states if len(d) > 1)
    return Spread(math.fsum(squares) / df, df) if df else None


def _mean(d: stats.Floats, resolution: float, spread: Spread | None) -> stats.Estimate:
    """The mean of log ratios with a spread that others tell; their own where none is given."""
    if spread is None:
        return stats.mean_estimate(d, resolution)
    return stats.pooled_estimate(d, spread.variance, spread.df, resolution)
