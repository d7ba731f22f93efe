"""The decision rule for many simulated runs at once, and the project's own functions for one: they must agree.

:func:`decide_all` is the twin of what ``perfgate run`` does with the pairs of one cell: look, judge all gates together,
stop or go on. :func:`decide_one` does it with :func:`perfgate.judge.rule.decide` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfgate.drill.peer_rules import INCONCLUSIVE, PASS, REGRESSED
from perfgate.drill.replay import Declared, decide_run, run_verdict
from perfgate.gate import parse_gate
from perfgate.judge.rule import Series
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats.estimate import ROUNDING
from perfgate.stats.sequential import DEFAULT_SCHEDULE, Schedule

Floats = NDArray[np.float64]
Verdicts = NDArray[np.int8]

CODES = {"inconclusive": INCONCLUSIVE, "pass": PASS, "improved": PASS, "regressed": REGRESSED}


@dataclass(frozen=True)
class Margins:
    """A gate's margins as ratios minus one."""

    ignorable: float
    must_catch: float

    @property
    def plan(self) -> GatePlan:
        """The same margins as a gate of a lower-is-better metric."""
        return parse_gate(f"itl_median:{self.ignorable * 100:.10g}%:{self.must_catch * 100:.10g}%")


@dataclass(frozen=True)
class Decisions:
    """What simulated runs ended with.

    Args:
        runs: Verdict of each run, (runs,).
        gates: Verdict of each gate when its run ended, (runs, gates).
        pairs: Pairs each run took, (runs,).
    """

    runs: Verdicts
    gates: Verdicts
    pairs: NDArray[np.int64]


def decide_all(
    d: Floats,
    margins: Sequence[Margins],
    schedule: Schedule = DEFAULT_SCHEDULE,
    *,
    resolution: float = 0.0,
    allowed: tuple[Floats, ...] | None = None,
    beta: float = BETA,
) -> Decisions:
    """Decide runs from the log ratios of their pairs, (runs, gates, pairs).

    Args:
        d: Log ratios.
        margins: Of each gate.
        schedule: When to look.
        resolution: The instrument's step as a share of the values.
        allowed: In the place of margins those of every pair, ratios minus one, each (runs, gates, pairs) or, where the
            largest of several counts, (margins, runs, gates, pairs).
        beta: Of a gate.

    Raises:
        ValueError: There are fewer pairs than the last look asks for.
    """
    runs, gates, measured = d.shape
    if measured < schedule.looks[-1]:
        raise ValueError(f"{measured} pairs do not reach the look at {schedule.looks[-1]}")
    sides = allowed or tuple(
        np.array([[[getattr(margin, name)] for margin in margins]]) for name in ("ignorable", "must_catch")
    )
    sides = tuple(side.reshape(-1, *side.shape[-3:]) for side in sides)
    over, under = (d - np.log1p(side) for side in sides)
    p, q = np.ones((runs, gates)), np.ones((runs, gates))
    ends = Decisions(np.zeros(runs, np.int8), np.zeros((runs, gates), np.int8), np.zeros(runs, np.int64))
    going = np.arange(runs)
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        above, below = (
            np.stack([_tail(sign * row[going, :, :pairs], resolution) for row in side])
            for sign, side in ((1, over), (-1, under))
        )
        p[going] = np.minimum(p[going], _weighted(above.max(axis=0), block))
        q[going] = np.minimum(q[going], _weighted(below.min(axis=0) * _binding(under[:, going, :, :pairs]), passing))
        rejected = holm_all(p[going], ALPHA)
        verdicts = np.where(rejected, REGRESSED, np.where(q[going] <= beta, PASS, INCONCLUSIVE)).astype(np.int8)
        ends.gates[going] = verdicts
        ends.pairs[going] = pairs
        ends.runs[going] = np.where(
            rejected.any(axis=1), REGRESSED, np.where((verdicts == PASS).all(axis=1), PASS, INCONCLUSIVE)
        )
        going = going[ends.runs[going] == INCONCLUSIVE]
    return ends


def look_p(d: Floats, margins: Margins, block: float, passing: float) -> tuple[Floats, Floats]:
    """Running p and q at one look: of "slower by at most ignorable", and of "by at least must_catch".

    Args:
        d: Log ratios of the pairs that it has, on the last axis.
        margins: The same for all.
        block: Its weight for p; 0 where it cannot block.
        passing: Its weight for q.
    """
    above, below = (_tail(sign * (d - np.log1p(margin)), 0.0)
                    for sign, margin in ((1, margins.ignorable), (-1, margins.must_catch)))  # fmt: skip
    return _weighted(above, block), _weighted(below, passing)


def _binding(under: Floats) -> NDArray[np.int64]:
    """How many margins bind in each run and gate, from what lies above them, (margins, runs, gates, pairs)."""
    largest = under <= under.min(axis=0)
    found: NDArray[np.int64] = np.where(largest.all(axis=-1).any(axis=0), 1, largest.any(axis=-1).sum(axis=0))
    return found


def holm_all(p: Floats, alpha: float) -> NDArray[np.bool_]:
    """Which hypotheses Holm's step-down rejects, row by row, (runs, gates)."""
    order = np.argsort(p, axis=1, kind="stable")
    levels = alpha / np.arange(p.shape[1], 0, -1)
    in_order = np.logical_and.accumulate(np.take_along_axis(p, order, axis=1) <= levels, axis=1)
    rejected = np.empty_like(in_order)
    np.put_along_axis(rejected, order, in_order, axis=1)
    return rejected


def decide_one(
    d: Floats, margins: Sequence[Margins], schedule: Schedule = DEFAULT_SCHEDULE, resolution: float = 0.0
) -> tuple[int, list[int], int]:
    """Decide one run, (gates, pairs), by the project's own functions: its verdict, its gates' verdicts, its pairs."""
    plans = tuple(margin.plan for margin in margins)
    series = [
        Series(plan, (1.0,) * len(row), tuple(row), schedule, resolution=resolution)
        for plan, row in zip(plans, np.exp(d).tolist(), strict=True)
    ]
    verdicts, pairs = decide_run(Declared("simulated", plans, schedule), series)
    return CODES[run_verdict(verdicts)], [CODES[verdict] for verdict in verdicts], pairs


def disagreements(
    d: Floats, margins: Sequence[Margins], schedule: Schedule = DEFAULT_SCHEDULE, resolution: float = 0.0
) -> int:
    """How many runs the twin ends differently from the project's own functions: run, any gate, or number of pairs."""
    ends = decide_all(d, margins, schedule, resolution=resolution)
    found = 0
    for n, row in enumerate(d):
        twin = (int(ends.runs[n]), ends.gates[n].tolist(), int(ends.pairs[n]))
        found += twin != decide_one(row, margins, schedule, resolution)
    return found


def _tail(x: Floats, resolution: float) -> Floats:
    """One-sided p that the mean over the last axis is above 0, a step of the instrument taken off."""
    pairs = x.shape[-1]
    error = np.maximum(_standard_error(x), resolution / np.sqrt(6 * pairs))
    return _upper_tail(x.mean(axis=-1) - resolution, error, pairs - 1)


def _standard_error(x: Floats) -> Floats:
    """Of the mean over the last axis; 0 where the observations differ by rounding only."""
    rounding = 4 * np.finfo(np.float64).eps * np.maximum(1.0, np.abs(x).max(axis=-1))
    return np.where(np.ptp(x, axis=-1) <= rounding, 0.0, x.std(axis=-1, ddof=1) / np.sqrt(x.shape[-1]))


def _upper_tail(distance: Floats, error: Floats, df: int) -> Floats:
    t = np.divide(-distance, error, out=np.zeros_like(distance), where=error > 0)
    return np.where(error > 0, special.stdtr(df, t), np.where(distance > ROUNDING, 0.0, 1.0))


def _weighted(p: Floats, weight: float) -> Floats:
    return np.minimum(1.0, p / weight) if weight > 0 else np.ones_like(p)
