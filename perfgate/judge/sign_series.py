"""Gates on values that can be zero: zero has no ratio, so where one is, pairs are counted in place of their ratios.

A scheduler that takes no request back, a cache that finds nothing, a server of whose requests none meets its objective:
these are measured, and are the largest changes there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.outcome import GateOutcome
from perfgate.judge.rule import Decision, Series, zeros_among
from perfgate.models import Note
from perfgate.stats.two_states import sign_test


@dataclass(frozen=True)
class SignSeries(Series):
    """A gated metric taken in pairs of one run, some of whose values are zero.

    "Slower by at most ``ignorable``" is tested by the number of pairs that are slower by more: while it holds, each is
    with a chance of a half at most, so the sign test is exact. To pass, not one pair may be slower by ``must_catch``,
    as each is with a chance of a half at least if the head is: that is the sign test with every pair on one side.
    Margins are compared without a division, so a base of zero needs none.
    """

    @property
    def fault(self) -> Note | None:
        """Nothing: :func:`by_sign` makes one of values that can be judged alone."""
        return None

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look that the pairs reach."""
        return tuple(self._looks())

    def _looks(self) -> Iterator[stats.Look]:
        schedule, gate, nothing = self.schedule or stats.DEFAULT_SCHEDULE, self.gate.gate, stats.Estimate(0.0, 0.0, 1.0)
        p_slower = p_equivalent = 1.0
        for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
            if pairs > min(len(self.base), len(self.head)):
                return
            slower = self.slower(gate.ignorable, pairs)
            p_slower = min(p_slower, sign_test(slower, pairs - slower) / block if block else 1.0)
            within = pairs == self.within(gate.must_catch, pairs)
            # A pair that is far slower undoes what earlier looks would have let pass.
            p_equivalent = min(p_equivalent, sign_test(pairs, 0) / passing if passing else 1.0) if within else 1.0
            yield stats.Look(pairs, nothing, nothing, nothing, block, passing, p_slower, p_equivalent)

    def slower(self, margin: float, pairs: int) -> int:
        """Of the first pairs those whose head is slower by more than a margin and the floor."""
        return sum(self._room(*both, margin) < 0 for both in self._pairs(pairs))

    def within(self, margin: float, pairs: int) -> int:
        """Of the first pairs those whose head is slower by less than a margin or the floor.

        Where neither side has anything that could be lost, nothing shows that it was not.
        """
        lost = self.metric.better == "higher"
        return sum(
            (base == head and not lost) or self._room(base, head, margin) > 0 for base, head in self._pairs(pairs)
        )

    def _pairs(self, pairs: int) -> Iterator[tuple[float, float]]:
        return zip(self.base[:pairs], self.head[:pairs], strict=True)

    def _room(self, base: float, head: float, margin: float) -> float:
        """How far the head is from being slower by a margin or the floor, whichever is more; in the metric's unit."""
        floor = self.gate.gate.floor_value
        if self.metric.better == "lower":
            return max(base * (1 + margin), base + floor) - head
        return head - min(base / (1 + margin), base - floor)

    def _of_the_mean(self, margin: float) -> float:
        return margin  # what share a floor is, zero does not say

    def verdict(self, decision: Decision) -> Verdict:
        """The rule, by counts."""
        verdict = super().verdict(decision)
        if verdict != "pass":
            return verdict
        turned = replace(self, base=self.head, head=self.base)
        pairs = decision.looks[-1].pairs
        return "improved" if turned.slower(self.gate.gate.ignorable, pairs) == pairs else "pass"

    def outcome(self, decision: Decision) -> GateOutcome:
        """What was counted, in words: there are no ratios to show."""
        blank = self.blank(decision)
        if not decision.looks:
            return blank.model_copy(update={"reasons": (self.no_look(),)})
        look, gate = decision.looks[-1], self.gate.gate
        slower, within = self.slower(gate.ignorable, look.pairs), self.within(gate.must_catch, look.pairs)
        text = (
            f"{self.zeros_told}; the head is slower by more than ignorable in {slower} of {look.pairs} pairs (p = "
            f"{look.p_slower:.2g}, blocks at {decision.block_level:.2g}) and within must_catch in {within} "
            f"(q = {look.p_equivalent:.2g}, passes at {decision.beta:.2g})"
        )
        note = Note(code="counted-by-sign", text=text)
        notes = {"reasons": (note,)} if decision.verdict == "inconclusive" else {"cautions": (note,)}
        figures = {"pairs": look.pairs, "p": look.p_slower, "q": look.p_equivalent}
        return blank.model_copy(update={**figures, **notes})


def by_sign(series: Series) -> Series:
    """A series as it is, or by the signs of its pairs where values of it are zero and that is a measurement.

    Not where a build's draw shifts all pairs alike, which no number of them averages out, nor where there is nothing on
    either side that could be lost.
    """
    values = (*series.base, *series.head)
    nothing = series.metric.better == "higher" and not any(values)
    paired = series.schedule is not None and series.missing is None and type(series) is Series
    if not paired or nothing or series.carried or not zeros_among(series.metric, values):
        return series
    return SignSeries(**vars(series))
