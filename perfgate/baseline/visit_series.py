"""A gated metric of one visit against those of a baseline's visits, see :mod:`perfgate.baseline.visit_evidence`.

The unit is the visit (:mod:`perfgate.stats.prediction`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.outcome import PASSED, GateOutcome
from perfgate.judge.rule import Decision, Series
from perfgate.models import Note
from perfgate.stats.prediction import PASS_SHARE, RAISED, Prediction, predict
from perfgate.stats.sequential import FIRST_BLOCKING_PAIRS
from perfgate.units import plural

HALFWAY: Final = 0.5
"""How far from ``ignorable`` to ``must_catch`` pairs change from what speaks for a pass to what speaks for a block."""


def agreed(look: stats.Look, off: stats.Floats, low: float, high: float) -> stats.Look:
    """What visits say, where the head's pairs do not speak against it: one of six may to pass, and none to block.

    Args:
        look: By visits alone.
        off: By how much each pair is slower than the baseline, a natural logarithm, shape (..., pairs).
        low: A pair that is slower by at most this speaks against a block.
        high: One that is slower by at least this speaks against a pass.
    """
    sixths = off.shape[-1] // FIRST_BLOCKING_PAIRS
    blocks, passes = (off <= low).sum(axis=-1) <= max(sixths - 1, 0), (off >= high).sum(axis=-1) <= sixths
    p, q = np.where(blocks, look.p_slower, 1.0)[()], np.where(passes, look.p_equivalent, 1.0)[()]
    return replace(look, p_slower=p, p_equivalent=q)


def is_held_back(look: stats.Look, beta: float) -> stats.Bools:
    """Whether only pairs keep a look from saying that the head is slower."""
    held: stats.Bools = (np.asarray(look.p_slower) == 1.0) & (look.over_ignorable.p_above(0.0) <= beta)
    return held


def drawn(variance: float, *, beside_anchor: bool) -> float:
    """The variance between compilations of two builds; beside an anchor those of the anchor, then and now, as well."""
    return 2 * variance if beside_anchor else variance


@dataclass(frozen=True)
class VisitSeries(Series):
    """A gated metric of one visit against those of a baseline's visits: ``base`` holds a mean a visit.

    Args:
        visits: The restarts of each of the baseline's visits that count.
        others: Those of sets of visits that tell of the spread alone.
        beside_anchor: Whether values are ratios to an anchor.
        pairs: Of such ratios each of the head's, whose median ``head`` is, where nothing tells in which state of the
            GPU its trials were; empty else.
    """

    visits: tuple[tuple[float, ...], ...] = ()
    others: tuple[tuple[tuple[float, ...], ...], ...] = ()
    beside_anchor: bool = False
    pairs: tuple[float, ...] = ()

    @property
    def carried(self) -> float:
        """See :class:`Series`; of ratios to an anchor also what it was compiled to, then and now."""
        return drawn(super().carried, beside_anchor=self.beside_anchor)

    def predictions(self, margin: float | None = None, *, to_pass: bool = False) -> list[Prediction]:
        """How far the head is off, or off each margin that binds; none without a spread, or beyond judging."""
        if self.fault or not (self.visits and self.head and any(len(row) > 1 for row in (self.visits, *self.others))):
            return []
        restarts = [value for visit in self.visits for value in visit]
        ends = np.cumsum([len(visit) for visit in self.visits])[:-1]
        rows = np.zeros((1, len(restarts))) if margin is None else self.slower_by(margin, restarts)
        head, sign = stats.logs(self.head), self.metric.sign
        others = [[stats.logs(visit) for visit in visits] for visits in self.others]
        raised = 1.0 if self.beside_anchor and not to_pass else RAISED
        shifted = (np.split(stats.logs(restarts) + sign * row, ends) for row in rows)
        predictions = (predict(logs, head, sign, self.resolution, others=others, raised=raised) for logs in shifted)
        # Visits of one build within two weeks share a fill, and so their spread may lack what the head's draws.
        return [replace(prediction, excess=prediction.excess + self.carried) for prediction in predictions]

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """The one look there is; with one visit that at its restarts."""
        gate = self.gate.gate
        off, over, under = (
            [prediction.estimate() for prediction in self.predictions(margin, to_pass=margin != gate.ignorable)]
            for margin in (None, gate.ignorable, gate.must_catch)
        )
        if off:
            look = stats.look_at(len(self.visits), off[0], over, under, (1.0, PASS_SHARE))
            return (agreed(look, *self._apart) if self.pairs else look,)
        if self.fault or len(self.visits) != 1:
            return ()
        return Series(self.gate, self.visits[0], self.head, resolution=self.resolution).interim_looks()

    @cached_property
    def _apart(self) -> tuple[stats.Floats, float, float]:
        """By how much the head's pairs are slower, and from where on they speak against a block, and against a pass.

        Two trials in different states of the GPU are off by more than any margin, and three such pairs of six move a
        median. So where nothing tells the states a ratio blocks only if every pair is beyond :data:`HALFWAY`, and
        passes only if all but one of six are below it: without that 2 to 18 % of unchanged builds are blocked on
        machines that jump, and as many pass at ``must_catch`` (docs/error-rates.md).
        """
        base = float(stats.logs(self.base).mean())
        off = self.metric.sign * (stats.logs(self.pairs) - base)
        low, high = math.log1p(self.ignorable), math.log1p(self.must_catch)
        declared = math.log1p(self.gate.gate.must_catch) - math.log1p(self.gate.gate.ignorable)
        way = HALFWAY * max(high - low, declared)  # both ends may be one floor, and pairs at it are above it by a coin
        return off, low + way, high - way

    def _refused(self, decision: Decision) -> tuple[str, int] | None:
        """What the median of the head's pairs says, and how many of them do not, where nothing is decided for that."""
        if not self.pairs or not decision.looks:
            return None
        look, (off, low, high) = decision.looks[-1], self._apart
        if is_held_back(look, decision.beta):
            return "is slower", int((off <= low).sum())
        if look.p_equivalent == 1.0 and look.over_must_catch.p_below(0.0) <= decision.beta * look.pass_weight:
            return "passes", int((off >= high).sum())
        return None

    def verdict(self, decision: Decision) -> Verdict:
        """See :class:`Series`; no pass where the median speaks for a slowdown, and pairs keep it from being blocked."""
        verdict = super().verdict(decision)
        return "inconclusive" if verdict in PASSED and self._refused(decision) else verdict

    def outcome(self, decision: Decision) -> GateOutcome:
        """See :class:`Series`; the head's pairs are the reason where their median alone would decide."""
        outcome = super().outcome(decision)
        if outcome.verdict != "inconclusive" or (refused := self._refused(decision)) is None:
            return outcome
        says, against = refused
        text = f"the median of {plural(len(self.pairs), 'pair')} of head and anchor {says}; against it: {against}"
        return outcome.model_copy(update={"reasons": (Note(code="states-undecided", text=text),)})

    def no_look(self) -> Note:
        """Why the values reach no look: of one visit beside an anchor no spread is known, however many pairs it has."""
        if self.beside_anchor and not self.head:
            return Note(code="states-undecided", text="no pair of head and anchor had a state of the GPU in common")
        if len(self.visits) != 1 or len(self.visits[0]) != 1:
            return super().no_look()
        return Note(code="advisory-unpaired", text="one visit beside the anchor, and a spread takes two")

    @property
    def advises(self) -> bool:
        """Whether there are too few visits to say that the head would regress."""
        some = self if self.head else replace(self, head=self.base[:1], pairs=())
        predictions = some.predictions()
        return not (predictions and predictions[0].warns) and not self.fault

    @property
    def may_pass(self) -> bool:
        """Whether there are enough visits for a pass."""
        predictions = self.predictions()
        return bool(predictions) and predictions[0].passes

    @property
    def in_the_family(self) -> Series:
        """As Holm's family counts it: what only advises, without data."""
        missing = self.missing or Note(code="advisory-unpaired", text="it only advises")
        return Series(self.gate, missing=missing) if self.advises else self
