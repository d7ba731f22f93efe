"""How often each side was in the slow state of the machine, as a gate of its own, and what is said of the states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.cell_facts import StatesOutcome
from perfgate.judge.machine_states import STATES, Found, Labeller, State, unplaced_note
from perfgate.judge.outcome import GateOutcome
from perfgate.judge.rule import Decision, Judged, Series
from perfgate.judge.state_series import StateSeries
from perfgate.metrics.sides import SIDES
from perfgate.models import Note
from perfgate.scenario.plan import GatePlan, orders_bound
from perfgate.stats import two_states
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import FURTHER_LOOK_PAIRS

SLOW_SHARE: Final = "slow_state_share"
"""What the gate on the share of the slow state is called; no scenario declares it."""

EPSILON: Final = 1e-9  # what rounding may add to a number of pairs

LEANS = 0.1
"""Where the one-sided p of the discordant pairs is at most this, nothing passes: a head that causes the slow state
would pass in the fast one before enough pairs were taken to block it."""


@dataclass(frozen=True)
class SlowShare:
    """Whether the head is in the slow state more often.

    Only the order within a pair is random, and each pair's was drawn on its own; so the sign of the difference between
    both trials' shares is tested, over the pairs in which they differ, and nothing is assumed of how states last.
    """

    gate: GatePlan  # the first gate that is compared within states
    shares: tuple[list[tuple[float, float]], ...]  # for each look, the slow state's share of each pair's base and head
    schedule: stats.Schedule  # the looks
    declared: stats.Schedule  # those of them that its cell declares; the others were added
    drawn: bool  # whether the order of each pair was drawn on its own; else it may not block
    # For each look, the pairs of which a trial is in no known state, and so compared with nothing
    unplaced: tuple[int, ...]
    heads: int = 1  # how many heads the run has, among which orders were drawn
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

        At the look still to come that spends most on it, or after the last one at the first place of a further look.

        Args:
            level: Of its p value, once weighted.
        """
        schedule, taken = self.schedule, len(self.shares)
        if taken >= len(schedule.looks):
            added = tuple(look for look in schedule.looks if look > self.declared.looks[-1])
            place = self.declared.place(schedule.looks[-1] + FURTHER_LOOK_PAIRS)
            schedule = self.declared.further((*added, place))
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
        why = Note(code="states-undecided", text=text)
        if self.unplaced[-1]:
            why = unplaced_note(self.unplaced[-1])
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


def slow_share(
    gates: Sequence[Series], labeller: Labeller, declared: stats.Schedule, *, drawn: bool, heads: int = 1
) -> tuple[SlowShare, ...]:
    """The share of the slow state, where gates are compared within states.

    Args:
        gates: Those of the cell, split by state.
        labeller: What split them.
        declared: The looks at timed pairs that the cell declares.
        drawn: Whether the order of each pair was drawn on its own.
        heads: How many heads the run has.
    """
    first = next((series for series in gates if isinstance(series, StateSeries)), None)
    if first is None or first.schedule is None:
        return ()
    by_look = [labeller.at(look) for look in labeller.reached(first.schedule)]
    shares = tuple(states.shares if states else [] for states in by_look)
    unplaced = tuple(states.unplaced if states else 0 for states in by_look)
    return (SlowShare(first.gate, shares, first.schedule, declared, drawn, unplaced, heads),)


def states_outcome(
    family: Sequence[Judged], gates: Sequence[GateOutcome], labeller: Labeller, beta: float
) -> StatesOutcome | None:
    """What was seen of states; ``None`` where no gate was compared within them."""
    share = next((judged for judged in family if isinstance(judged, SlowShare)), None)
    if share is None:
        return None
    states = labeller.at(labeller.reached(share.schedule)[-1])
    if states is None:
        return None
    least = min(gate.must_catch for gate in gates if gate.state or gate.metric != SLOW_SHARE)
    common = {state: states.pairs(state) for state in STATES}
    blocks_from = share.blocks_from(next(gate for gate in gates if gate.metric == SLOW_SHARE).block_level or 0.0)
    return describe_states(labeller, states, common, least, beta, blocks_from)


def describe_states(
    labeller: Labeller, states: Found, common: dict[State, int], must_catch: float, beta: float, blocks_from: int | None
) -> StatesOutcome:
    """What was seen of states at a look.

    Args:
        labeller: What told them.
        states: The look's.
        common: Pairs that have a state on both sides.
        must_catch: The least of the gates.
        beta: The chance with which the share of the slow state may cost more than is said.
        blocks_from: See :class:`StatesOutcome`.
    """
    rows = states.shares
    gap = stats.to_ratio(states.gap)
    at_most = rate_bounds(discordant(rows)[0], len(rows), 1 - beta)[1] * gap
    every = np.concatenate([labels for pair in states.labels for labels in pair])
    return StatesOutcome(
        told_by=labeller.source,
        gap=gap,
        trials=dict.fromkeys(SIDES, len(states.labels)),
        slow={side: sum(row[n] > 1 / 2 for row in rows) for n, side in enumerate(SIDES)},
        common=common,
        cut=float((every == two_states.CUT).mean()),
        at_most=at_most,
        everywhere=at_most < must_catch,
        blocks_from=blocks_from,
    )
