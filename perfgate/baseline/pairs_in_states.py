"""Pairs beside an anchor, like with like: the ratio of each is of the states of the GPU that both of its trials had.

Two trials in different states are off by the distance of the states, 2.5 to 5 %, which is more than any margin, and of
six pairs half may be so (docs/states.md). Only a probe tells states here: few pairs show no levels of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from perfgate.judge.cell_facts import StatesOutcome
from perfgate.judge.machine_states import STATES, Found, Labeller, follows_states, unplaced_note
from perfgate.judge.slow_share import LEANS, describe_states, discordant
from perfgate.metrics.catalogue import Metric
from perfgate.models import Note
from perfgate.record.run_record import Record
from perfgate.scenario.plan import orders_bound
from perfgate.stats import two_states


@dataclass(frozen=True)
class PairsInStates:
    """The valid timed pairs of a record, base and head, and in which state their GPU was.

    Args:
        labeller: What tells the states.
        found: Those of all pairs, where both were seen and told by the probe.
        bound: By what a p value of drawn orders is multiplied; infinite where orders were not drawn for each pair.
    """

    labeller: Labeller
    found: Found
    bound: float

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """``None`` where no probe tells states, or not both were seen."""
        labeller = Labeller.of(record)
        labels = labeller.at(len(labeller.pairs)) if labeller and labeller.source == "probe" else None
        bound = orders_bound(len(record.heads) or 1, record.orders)
        return cls(labeller, labels, bound) if labeller and labels else None

    def ratios(self, metric: Metric, visit: int | None = None) -> tuple[float, ...] | None:
        """Head by base, of each pair of one visit or of all that has a state in common, over the states that it has.

        In the order of pairs; ``None`` for a metric that does not follow the states.
        """
        if not follows_states(metric):
            return None
        rows = [n for n, (base, _) in enumerate(self.labeller.pairs) if visit in (None, base.visit)]
        pairs = [self.labeller.pairs[n] for n in rows]
        (sample,) = replace(self.found, labels=self.found.labels[rows]).samples(metric, pairs, [(*STATES,)])
        return tuple(ratio(head, base) for base, head in zip(sample.base, sample.head, strict=True))

    def outcome(self, must_catch: float, beta: float) -> StatesOutcome:
        """What was seen, for a reader; the anchor is the base, and ``must_catch`` the least of the gates."""
        common = {state: self.found.pairs(state) for state in STATES}
        return describe_states(self.labeller, self.found, common, must_catch, beta, blocks_from=None)

    @property
    def lean(self) -> Note | None:
        """Why nothing passes: the head is slow so often where the anchor is not that chance is a poor explanation.

        Ratios within states show nothing of that. As few pairs as are taken beside an anchor never suffice to block it.
        """
        if self.found.unplaced:
            return unplaced_note(self.found.unplaced)
        more, less = discordant(self.found.shares)
        if self.bound * two_states.sign_test(more, less) > LEANS:
            return None
        text = f"the head was in the slow state more often than its anchor in {more} pairs and less often in {less}"
        return Note(code="states-undecided", text=text)


def ratio(numerator: float, denominator: float) -> float:
    """One value by another; what has no ratio comes back as it is, zero or negative."""
    return numerator / denominator if numerator > 0 < denominator else min(numerator, denominator)
