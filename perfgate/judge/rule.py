"""The decision rule over one gated metric and over all gates of a run: values in, verdicts out.

What the values are, pairs of one run or trials of different ones, is said by the :class:`Series`; the arithmetic is
that of :mod:`perfgate.stats.estimate`, the rule that of docs/design.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import geometric_mean
from typing import Protocol

import numpy as np

from perfgate import stats
from perfgate.errors import Verdict
from perfgate.judge.outcome import GateOutcome, MetricOutcome
from perfgate.metrics.catalogue import Metric
from perfgate.models import Note
from perfgate.scenario.plan import GatePlan
from perfgate.stats import modes

LEAST_REMAINDER = 1e-6
"""What a throughput floor leaves of the base at least: a floor beyond the base is a huge slowdown, no infinity."""


@dataclass(frozen=True)
class Series:
    """The values of one gated metric, in base units.

    Args:
        gate: Margins and their place.
        base: A value a trial.
        head: The same for the head; in a paired series entry i of both belongs to pair i.
        schedule: The looks of a paired series; ``None`` for an unpaired one.
        missing: Why there are no values, where there are none.
        resolution: The smallest step that the instrument lets a value move by, as a share of it; 0 for exact counts.
        one_draw: Whether both sides ran what was compiled and tuned once, together.
    """

    gate: GatePlan
    base: tuple[float, ...] = ()
    head: tuple[float, ...] = ()
    schedule: stats.Schedule | None = None
    missing: Note | None = None
    resolution: float = 0.0
    one_draw: bool = False

    @property
    def carried(self) -> float:
        """The variance of log ratios that restarts do not repeat: one compilation of each side."""
        return 0.0 if self.one_draw else self.gate.gate.drawn

    @property
    def metric(self) -> Metric:
        """The gated metric."""
        return self.gate.gate.measured

    @property
    def fault(self) -> Note | None:
        """Why these values cannot be judged; a value that is zero, negative or not finite has no ratio."""
        if self.missing is None and zeros_among(self.metric, (*self.base, *self.head)):
            return Note(code="metric-unusable", text=f"{self.zeros_told}, and zero has no ratio")
        sides = (("base", self.base), ("head", self.head))
        wrong = (f"{side} has the value {value}" for side, values in sides for value in values if not _positive(value))
        return self.missing or next((Note(code="metric-unusable", text=text) for text in wrong), None)

    @property
    def zeros_told(self) -> str:
        """On which side how many values are zero."""
        counts = (f"{side.count(0)} of {len(side)} trials of the" for side in (self.base, self.head))
        base, head = counts
        return f"{self.metric.name} is 0 in {base} base and in {head} head"

    @property
    def ignorable(self) -> float:
        """The gate's margin, or its floor where that is the larger slowdown: up to a floor nothing is a regression.

        For reading: of the base's mean. What is tested is :meth:`allowed`.
        """
        return self._of_the_mean(self.gate.gate.ignorable)

    @property
    def must_catch(self) -> float:
        """The gate's margin, or its floor where that is the larger slowdown: below a floor nothing need be caught."""
        return self._of_the_mean(self.gate.gate.must_catch)

    def allowed(self, margin: float, base: Sequence[float]) -> stats.Floats:
        """The margins of which the larger slowdown counts beside each value of the base, as ratios minus one.

        A floor is an absolute change, so what share it is depends on the base, which is measured: by its own base in
        every pair, so that the error of the base is in the spread of what is tested.

        Returns:
            Shape (1 or 2, n): the margin, and the floor where there is one.
        """
        values, floor = np.asarray(base, dtype=np.float64), self.gate.gate.floor_value
        rows = [np.full(len(values), margin)]
        if floor is not None:
            slower = self.metric.better == "lower"
            rest = values if slower else np.maximum(values - floor, values * LEAST_REMAINDER)
            rows.append(floor / values if slower else values / rest - 1)
        return np.stack(rows)

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look that the values reach; none where they cannot be judged."""
        if self.fault or not (self.base and self.head):
            return ()
        margins = (self.gate.gate.ignorable, self.gate.gate.must_catch)
        if self.schedule is not None:
            d = stats.log_ratios(self.base, self.head, self.metric.sign)
            ignorable, must_catch = (self.allowed(margin, self.base) for margin in margins)
            return stats.interim_looks(d, self.schedule, ignorable, must_catch, self.resolution, self.carried)
        fewer = min(len(self.base), len(self.head))
        if fewer < 2:  # noqa: PLR2004 (one trial has no spread)
            return ()
        base, head, sign = stats.logs(self.base), stats.logs(self.head), self.metric.sign
        over, under = (
            [
                stats.difference_estimate(base + sign * slower, head, sign, self.resolution)
                for slower in self.slower_by(margin, self.base)
            ]
            for margin in margins
        )
        once = stats.one_look(fewer)
        estimate = stats.difference_estimate(base, head, sign, self.resolution)
        weights = (once.block[0], once.pass_[0])
        return (stats.look_at(fewer, estimate, over, under, weights, carried=self.carried),)

    def slower_by(self, margin: float, base: Sequence[float]) -> stats.Floats:
        """What each value of the base would be slower by at a margin, as logarithms; a row for each that binds."""
        margins = self.allowed(margin, base)
        rows: stats.Floats = np.log1p(margins[stats.binding(margins)])
        return rows

    def _of_the_mean(self, margin: float) -> float:
        if self.fault or not self.base:
            return margin
        return float(self.allowed(margin, [geometric_mean(self.base)]).max())

    def verdict(self, decision: Decision) -> Verdict:
        """The rule itself: regressed is tested before pass, and neither is inconclusive."""
        if self.fault is not None:
            return "not-measured"
        look = decision.looks[-1] if decision.looks else None
        code = stats.decided(decision.rejected, look.p_equivalent if look else 1.0, decision.beta)
        if look is None or code != stats.PASS:
            return "regressed" if code == stats.REGRESSED else "inconclusive"
        fastest = look.estimate.upper(decision.beta * look.pass_weight)
        return "improved" if stats.to_ratio(fastest) < -self.ignorable else "pass"

    def outcome(self, decision: Decision) -> GateOutcome:
        """What was decided in figures and words."""
        blank = self.blank(decision)
        if self.fault is not None:
            return blank.model_copy(update={"reasons": (self.fault,)})
        if not decision.looks:
            return blank.model_copy(update={"reasons": (self.no_look(),)})
        return _with_figures(blank, self, decision)

    def blank(self, decision: Decision) -> GateOutcome:
        """The verdict and both sides, without what a look found."""
        used = decision.looks[-1].pairs if decision.looks and self.schedule else None
        return GateOutcome(
            **both_sides(self.metric, self.base[:used], self.head[:used]).model_dump(),
            ignorable=self.ignorable,
            must_catch=self.must_catch,
            floor=self.gate.gate.floor_value,
            where=self.gate.where,
            kind=self.metric.kind,
            verdict=decision.verdict,
            block_level=decision.block_level,
        )

    def no_look(self) -> Note:
        """Why the values reach no look."""
        first = self.schedule.looks[0] if self.schedule else 2
        text = f"{min(len(self.base), len(self.head))} measured, the first look comes at {first}"
        return Note(code="too-few-pairs", text=text)


class Judged(Protocol):
    """A member of Holm's family: what can block a run."""

    @property
    def fault(self) -> Note | None:
        """Why it cannot be judged."""

    def interim_looks(self) -> tuple[stats.Look, ...]:
        """Every look that was reached."""

    def verdict(self, decision: Decision) -> Verdict:
        """What is decided, given all others."""

    def outcome(self, decision: Decision) -> GateOutcome:
        """The same in figures and words."""


def judge_series(
    series: Sequence[Judged], alpha: float, beta: float, weights: Sequence[Fraction] | None = None
) -> tuple[GateOutcome, ...]:
    """Judge all gates of a run together, see :func:`decide`, and put each into figures and words."""
    return tuple(decision.series.outcome(decision) for decision in decide(series, alpha, beta, weights))


@dataclass(frozen=True)
class Decision:
    """What the rule says of one gate given all others.

    Args:
        series: Its values.
        looks: Every look that they reach.
        rejected: Whether Holm's procedure rejects "slower by at most ``ignorable``".
        block_level: The level at which it would.
        beta: Probability of passing a slowdown of ``must_catch``.
    """

    series: Judged
    looks: tuple[stats.Look, ...]
    rejected: bool
    block_level: float
    beta: float

    @property
    def verdict(self) -> Verdict:
        """What is decided."""
        return self.series.verdict(self)


def decide(
    series: Sequence[Judged], alpha: float, beta: float, weights: Sequence[Fraction] | None = None
) -> tuple[Decision, ...]:
    """Decide all gates of a run together: Holm's family is everything that can block it.

    Gates without data stay in the family with p = 1, so that losing a measurement never loosens another gate.

    Args:
        series: Of every gate.
        alpha: Of all together.
        beta: Of each.
        weights: See :func:`perfgate.stats.sequential.holm`.
    """
    looks = [gated.interim_looks() for gated in series]
    p = [gate_looks[-1].p_slower if gate_looks else 1.0 for gate_looks in looks]
    rejected = stats.holm(p, alpha, weights)
    return tuple(
        Decision(gated, gate_looks, bool(rejected[n]), float(stats.holm_level(p, n, alpha, weights)), beta)
        for n, (gated, gate_looks) in enumerate(zip(series, looks, strict=True))
    )


def _with_figures(blank: GateOutcome, series: Series, decision: Decision) -> GateOutcome:
    looks, beta, verdict = decision.looks, decision.beta, decision.verdict
    look, metric = looks[-1], series.metric
    # Bounds of what is tested, put beside the margins shown: with a floor each pair has its own.
    low = math.log1p(series.ignorable) + look.over_ignorable.lower(decision.block_level * look.block_weight)
    high = math.log1p(series.must_catch) + look.over_must_catch.upper(beta * look.pass_weight)
    own_low, own_high = sorted((metric.sign * low, metric.sign * high))
    d = _pairs(series, look)
    return blank.model_copy(
        update={
            "pairs": look.pairs,
            "passed_at": next((earlier.pairs for earlier in looks if earlier.p_equivalent <= beta), None),
            "change_low": _ratio_or_none(own_low),
            "change_high": _ratio_or_none(own_high),
            "p": float(look.p_slower),
            "q": float(look.p_equivalent),
            **_detectable(series, decision, look),
            "pair_sd": float(d.std(ddof=1)) if d is not None else None,
            "carried_sd": math.sqrt(series.carried),
            "reasons": (_undecided(series, low, high),) if verdict == "inconclusive" else (),
            "cautions": tuple(_gate_cautions(series, look, verdict, d)),
        }
    )


def _pairs(series: Series, look: stats.Look) -> stats.Floats | None:
    """The log ratios of the pairs that a look used; ``None`` where trials were not taken in pairs, or there is one."""
    if series.schedule is None or look.pairs < 2:  # noqa: PLR2004 (one pair has no spread)
        return None
    return stats.log_ratios(series.base, series.head, series.metric.sign)[: look.pairs]


def _detectable(series: Series, decision: Decision, look: stats.Look) -> dict[str, object]:
    """At this look or, where it cannot block, at the first one that can, with the spread seen so far.

    Fewer than four pairs hardly tell how pairs spread.
    """
    if series.schedule is not None and look.pairs < stats.FIRST_PASSING_PAIRS:
        return {}
    estimate, weight, other = look.over_ignorable, look.block_weight, None
    if weight == 0 and series.schedule is not None and series.schedule.first_blocking:
        other, weight = series.schedule.first_blocking
        estimate = estimate.with_pairs(look.pairs, other)
    level = decision.block_level * weight
    effect = stats.detectable(estimate, level, series.ignorable, 1 - decision.beta, look.over_ignorable.df)
    return {"detectable": effect, "detectable_at": other}


def _undecided(series: Series, low: float, high: float) -> Note:
    schedule = series.schedule
    blocks, passes = (schedule.first_blocking, schedule.first_passing) if schedule is not None else (None, None)
    blocking = (
        f"its lower bound {_percent(low)} is not above {series.ignorable * 100:.4g} %, so it does not block"
        if math.isfinite(low)
        else f"no look blocks before {blocks[0] if blocks else stats.FIRST_BLOCKING_PAIRS} pairs"
    )
    passing = (
        f"the slowdown's upper bound {_percent(high)} is not below {series.must_catch * 100:.4g} %, so it does not pass"
        if math.isfinite(high)
        else f"no look passes before {passes[0] if passes else stats.FIRST_PASSING_PAIRS} pairs"
    )
    return Note(code="undecided", text=f"{passing}; {blocking}")


def _gate_cautions(series: Series, look: stats.Look, verdict: Verdict, d: stats.Floats | None) -> Iterator[Note]:
    gate, mean = series.gate.gate, float(look.estimate.mean)
    if verdict == "pass" and look.over_ignorable.mean > 0:
        text = f"worse by {_percent(mean)}: less than must_catch, more than ignorable"
        yield Note(code="near-margins", text=text)
    elif verdict == "pass" and mean > math.log1p(gate.ignorable):
        yield Note(code="near-margins", text=f"worse by {_percent(mean)}, less than the floor of {gate.floor}")
    if d is None:
        return
    spread = float(d.std(ddof=1))
    if spread < series.resolution:
        step = f"one step of the instrument is {series.resolution * 100:.3g} %"
        text = f"the pairs spread by {spread * 100:.3g} %, {step}"
        yield Note(code="near-margins", text=text)
    centre = modes.hodges_lehmann(d)
    if abs(stats.to_ratio(centre) - stats.to_ratio(mean)) > (gate.must_catch - gate.ignorable) / 2:
        text = (
            f"by their mean the pairs are {_percent(mean)} worse, by their Hodges-Lehmann estimate {_percent(centre)}"
        )
        yield Note(code="times-uneven", text=text)
    for side, values in (("base", series.base), ("head", series.head)):
        split = modes.two_modes(stats.logs(values[: look.pairs]))
        # Modes closer than this cannot hide a mean at must_catch among restarts that are as fast as the base.
        if split is not None and split[1] >= math.log1p(gate.must_catch) - math.log1p(gate.ignorable):
            size, distance = split
            text = f"{size} of {look.pairs} restarts of {side} lie {_percent(distance)} above the others"
            yield Note(code="times-uneven", text=text)


def both_sides(metric: Metric, base: Sequence[float], head: Sequence[float]) -> MetricOutcome:
    """Geometric means, so that the change of the means is the mean of the pairs' log ratios; else there is none."""
    b, h = (geometric_mean(side) if side and all(map(_positive, side)) else None for side in (base, head))
    change = h / b - 1 if b and h else None
    if change is None and (metric.signed or zeros_among(metric, (*base, *head))):
        b, h = (math.fsum(side) / len(side) if side else None for side in (base, head))
    return MetricOutcome(metric=metric.name, unit=metric.unit, better=metric.better, base=b, head=h, change=change)


def zeros_among(metric: Metric, values: Sequence[float]) -> bool:
    """Whether some of a metric's values are zero where that is a measurement, and the others have a ratio."""
    return metric.zeros and 0 in values and all(value == 0 or _positive(value) for value in values)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _ratio_or_none(log_ratio: float) -> float | None:
    value = stats.to_ratio(log_ratio)
    return value if math.isfinite(log_ratio) and math.isfinite(value) else None


def _percent(log_ratio: float) -> str:
    return f"{stats.to_ratio(log_ratio) * 100:+.3g} %"
