"""What measuring a cell costs and what it can show, said before anything runs.

Durations and spreads come from the newest record of the cell with pairs of their kind, else from the scenario's
``measure.expect``, which knows no duration of traced trials, else they are unknown. A figure from few pairs is itself
uncertain; it is meant for planning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfgate.metrics.catalogue import Metric
from perfgate.metrics.kinds import of_kinds
from perfgate.metrics.trial import Kind
from perfgate.record.cost import Earlier, KindCost, kind_cost
from perfgate.record.iteration_choice import IterationChoice, choose_iterations
from perfgate.scenario.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.stats.estimate import ROUNDING, Estimate, detectable, log_ratios, mean_estimate, power_at
from perfgate.stats.sequential import Schedule
from perfgate.units import bounded_percent, percent

USUALLY = 0.9  # a plan under which an unchanged build passes less often than this is warned of


@dataclass(frozen=True)
class GatePower:
    """What a gate can show."""

    metric: str  # the gated metric, with its role
    pair_sd: float | None  # spread of the pairs' log ratios; `None` where it is unknown
    source: str  # where that comes from, in words; empty where it is unknown
    # At each look, the slowdown blocked with probability 1 - beta; `None` where the look cannot block or the spread is
    # unknown
    detectable: tuple[float | None, ...]
    # At each look, the probability that a build exactly as fast as the base passes there; `None` where the spread is
    # unknown
    passes: tuple[float | None, ...]
    problem: str  # why the looks declared cannot decide this gate; empty where they can


@dataclass(frozen=True)
class CellPower:
    """What a cell costs."""

    kinds: tuple[KindCost, ...]  # in the order they are taken; a kind of which nothing is taken is left out
    gates: tuple[GatePower, ...]  # in the cell's order
    # How many iterations a run would choose now; `None` where it would not, or its warm-up trials decide
    chosen: IterationChoice | None = None


def cell_power(cell: Cell, history: Mapping[Kind, Earlier], gates_in_run: int, heads: int = 1) -> CellPower:
    """What a run of ``cell`` with a base and heads costs beside ``gates_in_run`` gates in all, which share alpha.

    Args:
        cell: The cell.
        history: Records of the same cell by the kind of pairs that they tell of, see :func:`newest_records`.
        gates_in_run: Gates of the whole run, at least those of the cell, counted for each head.
        heads: In one run, beside one base.
    """
    costs = (kind_cost(cell, kind, history.get(kind), heads) for kind in cell.kinds)
    newest, priced = history.get("timed"), of_kinds("priced")
    return CellPower(
        tuple(priced[cost.kind](cell, cost, history) if cost.kind in priced else cost for cost in costs),
        tuple(_gate_price(cell, gate, history.get(gate.gate.measured.kind), gates_in_run) for gate in cell.gates),
        choose_iterations(cell, (), newest.record.pairs(), newest.source, gates_in_run, heads) if newest else None,
    )


def _gate_price(cell: Cell, plan: GatePlan, history: Earlier | None, gates_in_run: int) -> GatePower:
    gate, metric = plan.gate, plan.gate.measured
    schedule = cell.schedule(metric.kind)
    sd, sd_df, resolution, source = pair_spread(cell, metric, history)
    effects: list[float | None] = []
    passes: list[float | None] = []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        usual = Estimate(0.0, (sd or 0.0) / math.sqrt(pairs), pairs - 1, resolution).carrying(gate.drawn)
        effect = detectable(usual, ALPHA * block / gates_in_run, gate.ignorable, 1 - BETA, sd_df)
        effects.append(effect if sd is not None else None)
        passes.append(_pass_probability(usual, BETA * passing, gate.must_catch) if sd is not None else None)
    problem = _problem(plan, schedule.block, effects, passes)
    return GatePower(metric.name, sd, source, tuple(effects), tuple(passes), problem)


def _pass_probability(usual: Estimate, level: float, must_catch: float) -> float:
    below = math.log1p(must_catch) - usual.resolution
    if level == 0 or below <= 0:
        return 0.0
    if usual.standard_error == 0:
        return 1.0
    return power_at(below / float(usual.standard_error), level, float(usual.df))


def pair_spread(cell: Cell, metric: Metric, history: Earlier | None) -> tuple[float | None, float, float, str]:
    """The pairs' spread, its degrees of freedom, their resolution, and who says so: as measured, else as expected.

    The spread is ``None`` where neither tells. What is expected is taken as known, with an instrument that is fine
    enough for it.
    """
    if history is not None:
        pairs = history.record.pairs(metric.kind)
        pair_values = metric.known_pairs(pairs)
        if len(pair_values) > 1:
            d = log_ratios([base for _, base, _ in pair_values], [head for *_, head in pair_values], metric.sign)
            resolution = max(metric.resolution(trial) for pair in pairs for trial in pair)
            spread = float(mean_estimate(d, resolution).standard_error) * math.sqrt(len(pair_values))
            return spread, len(pair_values) - 1, resolution, history.source
    expected = cell.measure.expect.sd_of(metric) if cell.measure.expect else None
    return expected, math.inf, 0.0, "" if expected is None else "measure.expect"


def _problem(plan: GatePlan, block: tuple[float, ...], effects: list[float | None], passes: list[float | None]) -> str:
    """What the looks cannot do, whatever the builds are like."""

    def said() -> Iterator[str]:
        if not any(block):
            yield "no look of this plan may block: a regression can at best end inconclusive"
        likely = max((chance for chance in passes if chance is not None), default=1.0)
        if likely < USUALLY:
            yield f"an unchanged build would pass in only {likely * 100:.0f} % of runs"
        limits = [effect for effect in effects if effect is not None]
        if limits and min(limits) > plan.gate.must_catch:
            must_catch, least = plan.gate.must_catch, bounded_percent(min(limits), plan.gate.must_catch)
            yield (f"a slowdown of {percent(must_catch)}, which must be caught, would often not be blocked: the least "
                   f"that these looks block as often as promised is {least}; measure on a quieter machine, with more "
                   "iterations or pairs (measure.iterations, measure.looks), or raise must_catch")  # fmt: skip

    return "; ".join(said())


def promised_block(  # noqa: PLR0913 (all but the first four by name)
    schedule: Schedule,
    margins: tuple[float, float],
    pair_sd: float,
    slowdown: float,
    *,
    alpha: float,
    beta: float = BETA,
    resolution: float = 0.0,
    draw_sd: float = 0.0,
) -> float:
    """How often a slowdown is blocked at least, where pairs are normal and spread as given.

    A look blocks with the power of its t test, unless the run has passed before: of any look that is at least its
    power less the chances to pass at earlier ones (Bonferroni), and the best of them counts.

    Args:
        schedule: When to look.
        margins: ``ignorable`` and ``must_catch`` of the gate.
        pair_sd: Standard deviation of the pairs' log ratios.
        slowdown: The true one, a ratio minus one.
        alpha: The gate's share of alpha: the whole by the number of gates in the run.
        beta: Probability of passing a slowdown of ``must_catch``.
        resolution: See :func:`perfgate.stats.mean_estimate`.
        draw_sd: Of the gate; the builds are taken to have drawn alike.
    """
    above, below = (math.log1p(slowdown) - math.log1p(margin) for margin in margins)
    best = passed = 0.0
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        spread = max(pair_sd, resolution / math.sqrt(6), ROUNDING)
        error = math.sqrt(spread**2 / pairs + 2 * draw_sd**2)
        if block > 0:
            best = max(best, _power((above - 2 * resolution) / error, alpha * block, pairs) - passed)
        if passing > 0:
            passed += _power(-below / error, beta * passing, pairs)
    return best


def _power(shift: float, level: float, pairs: int) -> float:
    """Beyond these shifts it is 0 or 1, and the noncentral t no number."""
    return power_at(min(max(shift, -10.0), 30.0), level, pairs - 1)
