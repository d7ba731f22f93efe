"""Pairs of a table, which perfgate did not take: who ran first in them is known, was drawn, or nobody knows.

In a run the order of each pair is drawn, so neither a drift nor the place in a pair can look like a difference of
builds (docs/decisions.md, "Each pair has a coin of its own"). Where a base always ran first, both can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from perfgate import stats
from perfgate.judge.outcome import PASSED, GateOutcome, Verdict
from perfgate.judge.rule import Decision, Series
from perfgate.judge.ungated import Shown
from perfgate.metrics.catalogue import Metric
from perfgate.models import Note
from perfgate.record.csv_table import ORDER, Values
from perfgate.scenario.plan import GatePlan
from perfgate.stats.drift import night_sd
from perfgate.units import signed_percent

CODE = "order-unknown"
FEWEST_FLIPPED = 8
"""Fewer pairs have too few signs to prove anything at 1 %: six have 64 ways. There the t test keeps its level alone, as
long as not all orders came out alike (docs/error-rates.md)."""
LEAN = 2.0
"""By how many standard deviations of fair coins the orders of a table may be uneven anywhere between its ends."""


def of_table(gate: GatePlan, values: Values, *, drawn: bool) -> Series:
    """The series of a gate whose values come from a paired table, judged at one look.

    Args:
        gate: Margins and their place.
        values: Of at least two pairs.
        drawn: Whether somebody says that a coin decided each pair's order.
    """
    once = stats.one_look(len(values.base))
    series = Series(gate, values.base, values.head, once, resolution=values.resolution)
    why = why_unknown(values.head_first, drawn=drawn)
    if why:
        return Unordered(**vars(series), why=why)
    return Ordered(**vars(series), head_first=values.head_first) if values.head_first else Drawn(**vars(series))


def shown_of_table(metric: Metric, values: Values, *, drawn: bool, paired: bool) -> Shown:
    """The values of a metric that no gate judges: in an unknown order nothing is said of their difference."""
    known = paired and len(values.base) >= stats.FIRST_PASSING_PAIRS and not why_unknown(values.head_first, drawn=drawn)
    return Shown(metric, values.base, values.head, int(known), values.resolution)


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
class _OfTable(Series):
    """The values of a gated metric in pairs of a table."""

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """The one look that there is."""
        if self.schedule is None or self.fault or not self.base:
            return ()
        margins = (self.gate.gate.ignorable, self.gate.gate.must_catch)
        d = stats.log_ratios(self.base, self.head, self.metric.sign)
        over, under = (
            [d - np.log1p(row) for row in stats.binding(self.allowed(margin, self.base))] for margin in margins
        )
        weights = (self.schedule.block[0], self.schedule.pass_[0])
        above = [estimate for row in over for estimate in self.above(row)]
        below = [self.below(row) for row in under]
        estimate = stats.mean_estimate(d, self.resolution)
        return (stats.look_at(len(d), estimate, above, below, weights, carried=self.carried),)

    def above(self, d: stats.Floats) -> Iterator[stats.Estimate]:
        """All of what must be above zero to block."""
        yield stats.mean_estimate(d, self.resolution)

    def below(self, d: stats.Floats) -> stats.Estimate:
        """What must be below zero to pass."""
        return stats.mean_estimate(d, self.resolution)


@dataclass(frozen=True)
class Ordered(_OfTable):
    """Pairs whose order is known: a block needs the estimate with the place in the pair as a covariate, too.

    Both p values hold, so the larger one does: the paired test with whatever the place adds to the spread, and the test
    that takes the place out. With both orders as often, the mean is the same to within one pair.

    Args:
        head_first: Of each pair whether the head ran first.
    """

    head_first: tuple[bool, ...] = ()

    def above(self, d: stats.Floats) -> Iterator[stats.Estimate]:
        """The mean, and the mean with the order as a covariate."""
        yield from super().above(d)
        if len(d) >= stats.FIRST_BLOCKING_PAIRS:
            yield stats.order_adjusted(d, self.head_first, self.resolution)


@dataclass(frozen=True)
class Drawn(_OfTable):
    """Pairs of which somebody says that coins decided the orders: a block needs the test that rests on coins, too.

    With free coins a large drift makes two groups of pairs, one each side of the truth, and the t test of a dozen pairs
    then blocks 1.8 % in place of 1 %.
    """

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """The one look that there is."""
        looks = super().interim_looks()
        return tuple(replace(look, p_slower=max(look.p_slower, self._by_coins(look))) for look in looks)

    def _by_coins(self, look: stats.Look) -> float:
        if look.pairs < FEWEST_FLIPPED:
            return 0.0
        d = stats.log_ratios(self.base, self.head, self.metric.sign) - self.resolution
        margins = stats.binding(self.allowed(self.gate.gate.ignorable, self.base))
        return max(stats.sign_flips(d - np.log1p(row)) for row in margins)

    def outcome(self, decision: Decision) -> GateOutcome:
        """What was decided in figures and words, also where coins alone can explain what the t test rejects."""
        found = super().outcome(decision)
        (look,) = decision.looks or (None,)
        if look is None or found.verdict != "inconclusive" or self._by_coins(look) <= decision.block_level:
            return found
        if look.over_ignorable.lower(decision.block_level * look.block_weight) <= 0:
            return found
        text = (
            f"other orders of the same pairs have as slow a mean with probability {found.p:.2g}, so it does not block"
        )
        return found.model_copy(update={"reasons": (Note(code="undecided", text=text),)})


@dataclass(frozen=True)
class Unordered(_OfTable):
    """Pairs of which nobody knows who ran first: they block nothing, and pass if the drift seen cannot change that.

    Were one side always first, a drift would add what both sides move from one trial to the next. The first pair and
    the last tell that, so it is counted against the head. What the place itself costs, nothing here can tell.

    Args:
        why: What is not known, in words.
    """

    why: str = ""

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
        found = super().outcome(decision)
        if not decision.looks:
            return found
        found = found.model_copy(update={"detectable": None, "detectable_at": None})
        if found.verdict in PASSED:
            text = f"{self.why}; what the place in a pair costs would not be seen"
            return found.model_copy(update={"cautions": (*found.cautions, Note(code=CODE, text=text))})
        if would_be := self._would_be(decision):
            note = Note(code=CODE, text=f"would {would_be}, but {self.why}, and {self._drift_told()}")
            return found.model_copy(update={"reasons": (note,)})
        return found

    def _would_be(self, decision: Decision) -> str:
        """What the same values would be, were the order of each pair drawn."""
        (look,) = Series.interim_looks(self)
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
        own = stats.mean_estimate(d, self.resolution)
        return replace(own, mean=own.mean + way * float(moved), standard_error=math.hypot(own.standard_error, error))

    def _drift_told(self) -> str:
        levels = self._levels()
        moved = float(levels[-1] - levels[0])
        whole, step = (signed_percent(stats.to_ratio(part)) for part in (moved, moved / (2 * (len(levels) - 1))))
        return f"both sides moved by {whole} from the first pair to the last, {step} from one trial to the next"
