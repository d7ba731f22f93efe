"""Pairs of a table, which perfgate did not take: who ran first in them is known, was drawn, or nobody knows.

In a run the order of each pair is drawn, so neither a drift nor the place in a pair can look like a difference of
builds (docs/decisions.md, "Each pair has a coin of its own"). Where a base always ran first, both can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.outcome import PASSED, GateOutcome
from perfgate.judge.rule import Decision, Series
from perfgate.judge.ungated import Shown
from perfgate.metrics.catalogue import Metric
from perfgate.models import Note
from perfgate.record.csv_table import ORDER, Values
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats.drift import night_sd
from perfgate.units import signed_percent

CODE = "advisory-unpaired"
ONE_LOOK = 0.8
"""The share of either error rate that a table's one look spends. Some of the rest covers what Student's t errs by."""
MOST_GATES = int(ALPHA * ONE_LOOK * 2**stats.MOST_FLIPPED)
"""Gates of a table: at the level of each of more, no number of pairs blocks."""
LEAN = 2.0
"""By how many standard deviations of fair coins the orders of a table may be uneven anywhere between its ends."""


def of_table(gate: GatePlan, values: Values, *, drawn: bool, gates: int = 1) -> Series:
    """The series of a gate whose values come from a paired table, judged at one look.

    Args:
        gate: Margins and their place.
        values: Of at least two pairs.
        drawn: Whether somebody says that a coin decided each pair's order.
        gates: Of the table, all of which share alpha.
    """
    series = OfTable(gate, values.base, values.head, resolution=values.resolution)
    margins = 1 if series.fault else len(series.slower_by(gate.gate.must_catch, values.base))
    series = replace(series, schedule=looks_of_table(len(values.base), gates, margins))
    why = why_unknown(values.head_first, drawn=drawn)
    if why:
        return Unordered(**vars(series), why=why)
    return Ordered(**vars(series), head_first=values.head_first) if values.head_first else series


def looks_of_table(pairs: int, gates: int = 1, margins: int = 1) -> stats.Schedule:
    """The look of a table, and where it has too few pairs to pass or block, the number that could.

    All pairs of a head whose restarts lie on two levels, on each as often, are on the slower one in one table of
    2^pairs, and nothing in them tells of the other. So that must be rarer than the level at which they block, or pass:
    of one gate seven pairs block and five pass, of eight gates ten block.

    Args:
        pairs: Of the table.
        gates: Of the table, which share alpha.
        margins: Of the gate, one or two that bind, which share its beta.
    """
    rates = (ALPHA / gates, BETA / margins)
    blocking, passing = (max(pairs, math.ceil(-math.log2(rate * ONE_LOOK))) for rate in rates)
    looks = sorted({pairs, passing, blocking})
    block, pass_ = (tuple(ONE_LOOK * (look == first) for look in looks) for first in (blocking, passing))
    return stats.Schedule(tuple(looks), block, pass_)


def shown_of_table(metric: Metric, values: Values, *, drawn: bool, paired: bool) -> Shown:
    """The values of a metric that no gate judges: in an unknown order nothing is said of their difference."""
    ordered = paired and len(values.base) > 1 and not why_unknown(values.head_first, drawn=drawn)
    return Shown(metric, values.base, values.head, int(ordered), values.resolution, by_signs=True)


def why_unknown(head_first: Sequence[bool], *, drawn: bool) -> str:
    """Why nobody can tell a drift, or the place in a pair, from a difference of the sides; empty where it is told.

    Args:
        head_first: Of each pair; empty where that is not known.
        drawn: Whether somebody says that a coin decided it.
    """
    pairs, base_first = len(head_first), len(head_first) - sum(head_first)
    if not pairs:
        return "" if drawn else f"no column {ORDER!r} says which side of a pair ran first"
    if base_first in (0, pairs):
        return f"the {'base' if base_first else 'head'} ran first in all {pairs} pairs"
    if drawn:
        return ""
    if abs(pairs - 2 * base_first) > 1:
        return f"the base ran first in {base_first} of {pairs} pairs, not in half of them"
    leads = [*accumulate(-1 if head else 1 for head in head_first)][:-1]
    for count, lead in enumerate(leads, 1):
        if abs(lead) > LEAN * math.sqrt(min(count, pairs - count)):
            return f"the base ran first in {(count + lead) // 2} of the first {count} pairs, and in {base_first} of all"
    return ""


@dataclass(frozen=True)
class OfTable(Series):
    """The values of a gated metric in pairs of a table.

    What is decided at one look must be right of a head whose restarts lie on two levels, so both decisions need the
    signs of the pairs, too. Where coins decided the orders, those are what signs a drift and the place in a pair.
    """

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """The one look that there is."""
        if self.schedule is None or self.fault or not self.base:
            return ()
        margins = (self.gate.gate.ignorable, self.gate.gate.must_catch)
        d = stats.log_ratios(self.base, self.head, self.metric.sign)
        over, under = ([d - slower for slower in self.slower_by(margin, self.base)] for margin in margins)
        weights = (self.schedule.block[0], self.schedule.pass_[0])
        above = [estimate for row in over for estimate in self.above(row)]
        below = [self.below(row) for row in under]
        estimate = stats.flipped_estimate(d, self.resolution)
        return (stats.look_at(len(d), estimate, above, below, weights, carried=self.carried),)

    def above(self, d: stats.Floats) -> Iterator[stats.Estimate]:
        """All of what must be above zero to block."""
        yield stats.flipped_estimate(d, self.resolution)

    def below(self, d: stats.Floats) -> stats.Estimate:
        """What must be below zero to pass."""
        return stats.flipped_estimate(d, self.resolution)


@dataclass(frozen=True)
class Ordered(OfTable):
    """Pairs whose order is known: a block needs the estimate with the place in the pair as a covariate, too.

    Both p values hold, so the larger one does: the paired test with whatever the place adds to the spread, and the test
    that takes the place out. With both orders as often, the mean is the same to within one pair.
    """

    head_first: tuple[bool, ...] = ()  # of each pair whether the head ran first

    def above(self, d: stats.Floats) -> Iterator[stats.Estimate]:
        """The mean, and the mean with the order as a covariate."""
        yield from super().above(d)
        if len(d) >= stats.FIRST_BLOCKING_PAIRS:
            adjusted = stats.order_adjusted(d, self.head_first, self.resolution)
            yield stats.FlippedEstimate(**vars(adjusted), d=tuple(d.tolist()))


@dataclass(frozen=True)
class Unordered(OfTable):
    """Pairs of which nobody knows who ran first: they block nothing, and pass if the drift seen cannot change that.

    Were one side always first, a drift would add what both sides move from one trial to the next. The first pair and
    the last tell that, so it is counted against the head. What the place itself costs, nothing here can tell.
    """

    why: str = ""  # what is not known, in words

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """The one look that there is: no p value holds for a block."""
        return tuple(replace(look, p_slower=1.0) for look in super().interim_looks())

    def above(self, d: stats.Floats) -> Iterator[stats.Estimate]:
        """The mean without what the drift may have added."""
        yield self._shifted(d, -1)

    def below(self, d: stats.Floats) -> stats.Estimate:
        """The mean with what the drift may have taken away."""
        return self._shifted(d, 1)

    def verdict(self, decision: Decision) -> Verdict:
        """Never better than pass: what is faster may have run at a faster place."""
        verdict = super().verdict(decision)
        return "pass" if verdict == "improved" else verdict

    def outcome(self, decision: Decision) -> GateOutcome:
        """What was decided in figures and words, and what it would be in a known order."""
        outcome = super().outcome(decision)
        if not decision.looks:
            return outcome
        outcome = outcome.model_copy(update={"detectable": None, "detectable_at": None})
        if outcome.verdict in PASSED:
            text = f"{self.why}; what the place in a pair costs would not be seen"
            return outcome.model_copy(update={"cautions": (*outcome.cautions, Note(code=CODE, text=text))})
        if would_be := self._would_be(decision):
            note = Note(code=CODE, text=f"would {would_be}, but {self.why}, and {self._drift_told()}")
            return outcome.model_copy(update={"reasons": (note,)})
        note = Note(code=CODE, text=f"{self.why}, so no number of pairs blocks")
        return outcome.model_copy(update={"reasons": (*outcome.reasons, note)})

    def _would_be(self, decision: Decision) -> str:
        """What the same values would be, were the order of each pair drawn."""
        (look,) = OfTable(**{name: vars(self)[name] for name in Series.__dataclass_fields__}).interim_looks()
        if look.p_slower <= decision.block_level:
            return "be regressed"
        return "pass" if look.p_equivalent <= decision.beta else ""

    def _levels(self) -> stats.Floats:
        """What both sides of a pair have in common, as logarithms."""
        levels: stats.Floats = (stats.logs(self.base) + stats.logs(self.head)) / 2
        return levels

    def _shifted(self, d: stats.Floats, way: int) -> stats.Estimate:
        """The mean, moved by what both sides moved from one trial to the next, and known as badly as that is."""
        levels, steps = self._levels(), len(d) - 1
        moved, error = abs(levels[-1] - levels[0]) / (2 * steps), night_sd(levels.tolist()) / (math.sqrt(2) * steps)
        estimate = stats.flipped_estimate(d + way * float(moved), self.resolution)
        return replace(estimate, standard_error=math.hypot(estimate.standard_error, error))

    def _drift_told(self) -> str:
        levels = self._levels()
        moved = float(levels[-1] - levels[0])
        whole, step = (signed_percent(stats.to_ratio(part)) for part in (moved, moved / (2 * (len(levels) - 1))))
        return f"both sides moved by {whole} from the first pair to the last, {step} from one trial to the next"
