"""What measuring a cell costs and what it can show, said before anything runs.

Durations and spreads come from the newest record of the cell, else from the scenario's ``measure.expect``, else they
are unknown. A figure from few pairs is itself uncertain; it is meant for planning.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import RecordError
from perfgate.metrics import Metric
from perfgate.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.record import Record, read_record
from perfgate.stats import Estimate, detectable, log_ratios, mean_estimate, power_at

USUALLY = 0.9
"""A plan under which an unchanged build passes less often than this is warned of."""
CONDITIONING_TRIALS = 2
"""One a subject before the first pair."""


@dataclass(frozen=True)
class GatePrice:
    """What a gate can show.

    Args:
        metric: The gated metric, with its role.
        pair_sd: Spread of the pairs' log ratios; ``None`` where it is unknown.
        detectable: At each look, the slowdown blocked with probability 1 - beta; ``None`` where the look cannot block
            or the spread is unknown.
        passes: At each look, the probability that a build exactly as fast as the base passes there; ``None`` where
            the spread is unknown.
        problem: Why the looks declared cannot decide this gate; empty where they can.
    """

    metric: str
    pair_sd: float | None
    detectable: tuple[float | None, ...]
    passes: tuple[float | None, ...]
    problem: str


@dataclass(frozen=True)
class Price:
    """What a cell costs.

    Args:
        source: Where the figures come from, in words.
        minutes: Wall time of the timed trials until each look; ``None`` where the duration of a trial is unknown.
        gpus: GPUs that a trial takes; 0 where it is not known to run on one.
        gates: In the cell's order.
    """

    source: str
    minutes: tuple[float, ...] | None
    gpus: int
    gates: tuple[GatePrice, ...]


def price(cell: Cell, history: Record | None, gates_in_run: int) -> Price:
    """What a run of ``cell`` costs beside ``gates_in_run`` gates in all, which share alpha.

    Args:
        cell: The cell.
        history: A record of the same cell, see :func:`newest_record`.
        gates_in_run: Gates of the whole run, at least those of the cell.
    """
    looks = cell.measure.looks
    expect = cell.measure.expect
    gates = tuple(_gate_price(cell, gate, history, gates_in_run) for gate in cell.gates)
    if history is not None:
        timed = [trial for trial in history.trials if trial.kind == "timed" and not trial.failure]
        judged = [trial.duration_ns / 60e9 for trial in timed if trial.pair is not None]
        first = [trial.duration_ns / 60e9 for trial in timed if trial.pair is None]
        conditioning = statistics.median(first or judged) * CONDITIONING_TRIALS
        minutes = tuple(conditioning + 2 * pairs * statistics.median(judged) for pairs in looks)
        return Price(f"the record of {history.visits[-1].t0_utc}", minutes, len(history.trials[-1].gpus), gates)
    if expect is not None:
        trial_min = expect.trial_s / 60
        minutes = tuple((2 * pairs + CONDITIONING_TRIALS) * trial_min for pairs in looks)
        return Price("measure.expect", minutes, 0, gates)
    return Price("unknown: no record of this cell and no measure.expect", None, 0, gates)


def newest_record(runs: Path, cell: Cell) -> Record | None:
    """The newest record of this cell below a folder of run folders, with at least two pairs: one has no spread.

    Records that cannot be read are passed over: they are no reason not to plan.
    """
    found: Record | None = None
    for file in sorted(runs.glob(f"*/records/*-{cell.cell_id[:8]}.json")):
        try:
            record = read_record(file)
        except RecordError:
            continue
        newer = found is None or record.visits[-1].t0_utc > found.visits[-1].t0_utc
        if record.cell.cell_id == cell.cell_id and len(record.pairs()) > 1 and newer:
            found = record
    return found


def _gate_price(cell: Cell, plan: GatePlan, history: Record | None, gates_in_run: int) -> GatePrice:
    gate, metric = plan.gate, plan.gate.measured
    schedule = cell.schedule(metric.kind)
    sd = _pair_sd(cell, metric, history)
    effects: list[float | None] = []
    passes: list[float | None] = []
    for pairs, block, passing in zip(schedule.looks, schedule.block, schedule.pass_, strict=True):
        usual = Estimate(0.0, (sd or 0.0) / math.sqrt(pairs), pairs - 1)
        effect = detectable(usual, ALPHA * block / gates_in_run, gate.ignorable, 1 - BETA)
        effects.append(effect if sd is not None else None)
        passes.append(_pass_probability(usual, BETA * passing, gate.must_catch) if sd is not None else None)
    return GatePrice(metric.name, sd, tuple(effects), tuple(passes), _problem(plan, schedule.block, effects, passes))


def _pass_probability(usual: Estimate, level: float, must_catch: float) -> float:
    if level == 0:
        return 0.0
    if usual.standard_error == 0:
        return 1.0
    return power_at(math.log1p(must_catch) / usual.standard_error, level, usual.df)


def _pair_sd(cell: Cell, metric: Metric, history: Record | None) -> float | None:
    if history is not None:
        pairs = [(metric.summarise(base), metric.summarise(head)) for base, head in history.pairs(metric.kind)]
        known = [(base, head) for base, head in pairs if base and head and min(base, head) > 0]
        if len(known) > 1:
            d = log_ratios([base for base, _ in known], [head for _, head in known], metric.sign)
            return mean_estimate(d).standard_error * math.sqrt(len(known))
    return cell.measure.expect.sd_of(metric.name) if cell.measure.expect else None


def _problem(plan: GatePlan, block: tuple[float, ...], effects: list[float | None], passes: list[float | None]) -> str:
    """What the looks cannot do, whatever the builds are like."""

    def said() -> Iterator[str]:
        if not any(block):
            yield "no look of this plan may block: a regression can at best end inconclusive"
        likely = max((chance for chance in passes if chance is not None), default=1.0)
        if likely < USUALLY:
            yield f"an unchanged build would pass in only {likely * 100:.0f} % of runs"
        known = [effect for effect in effects if effect is not None]
        if known and min(known) > plan.gate.must_catch:
            yield f"a slowdown of must_catch would often not be blocked: at best {min(known) * 100:.3g} % is"

    return "; ".join(said())
