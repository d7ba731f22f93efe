"""Comparing like with like: a gate in each state of the machine, and how often each side was in the slow one.

The trial stays the unit. Each state that both sides have is a series of its own, of one value a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from perfgate import stats
from perfgate.judge.cell_facts import StatesOutcome
from perfgate.judge.machine_states import STATES, Found, Labeller, Sample, State, follows_states
from perfgate.judge.outcome import GateOutcome, Verdict
from perfgate.judge.rule import Decision, Judged, Series
from perfgate.metrics.trial import SIDES
from perfgate.models import Note
from perfgate.scenario.plan import GatePlan, orders_bound
from perfgate.stats import two_states
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import FURTHER_LOOK_PAIRS

SLOW_SHARE: Final = "slow_state_share"
"""What the gate on the share of the slow state is called; no scenario declares it."""

BOTH: Final = "both"
"""What the mean over the states that both trials of a pair have is called: a state alone has few pairs where machines
jump, and blocks a small slowdown of all of them half as often."""

EPSILON: Final = 1e-9
"""What rounding may add to a number of pairs."""

LEANS = 0.1
"""Where the one-sided p of the discordant pairs is at most this, nothing passes: a head that causes the slow state
would pass in the fast one before enough pairs were taken to block it."""


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
    """

    over: Sample
    under: Sample
    spread: Spread | None = None
    told: bool = True


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
            if not look.under.base or pairs < (1 if look.spread else 2):
                if look is self.compared[-1]:
                    return ()
                continue
            least = (block if pairs >= stats.FIRST_BLOCKING_PAIRS else 0.0,
                     passing if look.told and known >= stats.FIRST_PASSING_PAIRS else 0.0)  # fmt: skip
            own = None if pairs > 1 else look.spread
            above = self.excess(look.over, gate.ignorable, own)
            below = self.excess(look.under, gate.must_catch, look.spread)
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
        return Note(code="too-few-pairs", text=f"{len(self.base)} have {which} on both sides")

    def outcome(self, decision: Decision) -> GateOutcome:
        """See :class:`Series`."""
        return super().outcome(decision).model_copy(update={"state": self.state})


@dataclass(frozen=True)
class SlowShare:
    """Whether the head is in the slow state more often.

    Only the order within a pair is random, and each pair's was drawn on its own; so the sign of the difference between
    both trials' shares is tested, over the pairs in which they differ, and nothing is assumed of how states last.

    Args:
        gate: The first gate that is compared within states.
        shares: For each look, the slow state's share of each pair's base and head.
        schedule: The looks.
        drawn: Whether the order of each pair was drawn on its own; else it may not block.
        unplaced: For each look, the pairs of which a trial is in no known state, and so compared with nothing.
        heads: How many heads the run has, among which orders were drawn.
    """

    gate: GatePlan
    shares: tuple[list[tuple[float, float]], ...]
    schedule: stats.Schedule
    drawn: bool
    unplaced: tuple[int, ...]
    heads: int = 1
    fault: None = None

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look; it "passes" as long as no pair was compared with nothing, and none lean towards the head."""
        seen: list[stats.Look] = []
        looks = zip(self.shares, self.unplaced, self.schedule.looks, self.schedule.block, strict=False)
        for rows, unplaced, pairs, block in looks:
            p = min(1.0, orders_bound(self.heads) * two_states.sign_test(*discordant(rows)))
            weighted = min(1.0, p / block) if block and self.drawn else 1.0
            running = min([weighted, *(look.p_slower for look in seen[-1:])])
            nothing = stats.Estimate(0.0, 0.0, 1.0)
            seen.append(
                stats.Look(pairs, nothing, nothing, nothing, block, 0.0, running, float(p <= LEANS or unplaced > 0))
            )
        return tuple(seen)

    def blocks_from(self, level: float) -> int | None:
        """How many pairs block that all lean to the head; ``None`` where none do.

        At the look still to come that spends most on it, or after the last one at a further look.

        Args:
            level: Of its p value, once weighted.
        """
        schedule, taken = self.schedule, len(self.shares)
        if taken >= len(schedule.looks):
            schedule = schedule.extended(schedule.looks[-1] + FURTHER_LOOK_PAIRS)
        weight = max(schedule.block[taken:])
        if not self.drawn or not level * weight:
            return None
        return math.ceil(math.log2(orders_bound(self.heads) / (level * weight)) - EPSILON)

    def verdict(self, decision: Decision) -> Verdict:
        """Regressed where the head causes the slow state; a pass where nothing speaks for that."""
        if decision.rejected:
            return "regressed"
        return "inconclusive" if decision.looks[-1].p_equivalent else "pass"

    def outcome(self, decision: Decision) -> GateOutcome:
        """Both sides' shares, over all pairs."""
        rows = self.shares[-1]
        more, less = discordant(rows)
        verdict = self.verdict(decision)
        text = f"the head was in the slow state more often in {more} pairs and less often in {less}"
        why = Note(code="slow-state-leans", text=text)
        if self.unplaced[-1]:
            why = Note(
                code="unplaced-trials", text=f"{self.unplaced[-1]} of the pairs have a trial that is in neither state"
            )
        reasons = (why,) if verdict == "inconclusive" else ()
        base, head = (math.fsum(row[n] for row in rows) / len(rows) if rows else None for n in (0, 1))
        return GateOutcome(
            metric=SLOW_SHARE, unit="ratio", better="lower", base=base, head=head, change=None, ignorable=0.0,
            must_catch=0.0, floor=0.0, where=self.gate.where, verdict=verdict, pairs=more + less,
            p=decision.looks[-1].p_slower, block_level=decision.block_level, reasons=reasons,
        )  # fmt: skip


def discordant(shares: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Pairs whose head was in the slow state more often than the base, and less often."""
    return sum(head > base for base, head in shares), sum(head < base for base, head in shares)


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
    every = [(state,) for state in common] + ([(*common,)] if len(common) > 1 else [])
    samples = [_samples(series, labeller, look, nulls, every) for look, nulls in zip(looks, found, strict=True)]
    # What was measured has a ratio, and what of it was measured in one state may have none.
    whole = chain.from_iterable(chain.from_iterable(samples))
    faults = (replace(series, base=sample.base, head=sample.head).fault for sample in whole)
    if (fault := next(filter(None, faults), None)) is not None:
        return (replace(series, missing=fault),)
    compared = [
        _at_look(own, len(common) if nulls else 0, metric.sign) for own, nulls in zip(samples, found, strict=True)
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


def slow_share(gates: Sequence[Series], labeller: Labeller, *, drawn: bool, heads: int = 1) -> tuple[SlowShare, ...]:
    """The share of the slow state, where gates are compared within states.

    Args:
        gates: Those of the cell, split by state.
        labeller: What split them.
        drawn: Whether the order of each pair was drawn on its own.
        heads: How many heads the run has.
    """
    first = next((series for series in gates if isinstance(series, StateSeries)), None)
    if first is None or first.schedule is None:
        return ()
    found = [labeller.at(look, first.gate.gate.ignorable) for look in labeller.reached(first.schedule)]
    shares = tuple(own.shares if own else [] for own in found)
    unplaced = tuple(own.unplaced if own else 0 for own in found)
    return (SlowShare(first.gate, shares, first.schedule, drawn, unplaced, heads),)


def states_outcome(
    family: Sequence[Judged], gates: Sequence[GateOutcome], labeller: Labeller, beta: float
) -> StatesOutcome | None:
    """What was seen of states; ``None`` where no gate was compared within them."""
    used = [series for series in family if isinstance(series, StateSeries)]
    share = next((one for one in family if isinstance(one, SlowShare)), None)
    if share is None:
        return None
    found = labeller.at(labeller.reached(share.schedule)[-1], share.gate.gate.ignorable)
    if found is None:
        return None
    least = min(gate.must_catch for gate in gates if gate.state or gate.metric != SLOW_SHARE)
    common = {state: max((len(one.base) for one in used if one.state == state), default=0) for state in STATES}
    blocks_from = share.blocks_from(next(gate for gate in gates if gate.metric == SLOW_SHARE).block_level or 0.0)
    return describe_states(labeller, found, common, least, beta, blocks_from)


def describe_states(
    labeller: Labeller, found: Found, common: dict[State, int], must_catch: float, beta: float, blocks_from: int | None
) -> StatesOutcome:
    """What was seen of states at a look.

    Args:
        labeller: What told them.
        found: The look's.
        common: Pairs that have a state on both sides.
        must_catch: The least of the gates.
        beta: The chance with which the share of the slow state may cost more than is said.
        blocks_from: See :class:`StatesOutcome`.
    """
    rows = found.shares
    gap = stats.to_ratio(labeller.step_gap(found))
    at_most = rate_bounds(discordant(rows)[0], len(rows), 1 - beta)[1] * gap
    every = np.concatenate([labels for pair in found.labels for labels in pair])
    return StatesOutcome(
        told_by=labeller.source,
        gap=gap,
        trials=dict.fromkeys(SIDES, len(found.labels)),
        slow={side: sum(row[n] > 1 / 2 for row in rows) for n, side in enumerate(SIDES)},
        common=common,
        cut=float((every == two_states.CUT).mean()),
        at_most=at_most,
        everywhere=at_most < must_catch,
        blocks_from=blocks_from,
    )
