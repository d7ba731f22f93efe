"""What holding a head against a stored baseline would cost and could show, said before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfgate import stats
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.occupations import held_against
from perfgate.baseline.store import find
from perfgate.baseline.stored_visit import Build
from perfgate.baseline.visit_series import drawn
from perfgate.judge.power import CellPower
from perfgate.record.identity import Measured
from perfgate.scenario.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.stats.prediction import RAISED, Prediction, predict
from perfgate.units import bounded_percent


@dataclass(frozen=True)
class Way:
    """One way of holding a head against a baseline.

    Args:
        machine_class: The machines that it speaks for.
        anchor: What is measured beside the head, in words; empty where the head is measured alone.
        starts: Engine starts.
        minutes: Their wall time; ``None`` where the duration of a trial is unknown.
        detectable: By gated metric the slowdown that is told (``would-regress``) with probability 1 - beta, for a head
            on the card that most is known of; ``None`` where nothing can be told yet.
    """

    machine_class: str
    anchor: str
    starts: int
    minutes: float | None
    detectable: dict[str, float | None]


def ways(baseline: Baseline, cell: Cell, price: CellPower, gates_in_run: int) -> Iterator[Way]:
    """The head alone, and in pairs with the anchor of the newest visit, if there is one.

    Args:
        baseline: Of the cell.
        cell: The cell.
        price: What its trials cost.
        gates_in_run: Gates of the whole run, which share alpha.
    """
    newest = baseline.newest_anchor
    for anchor in (None, newest) if newest else (None,):
        starts, minutes = _cost(cell, price, 1 if anchor is None else 2)
        level = ALPHA / gates_in_run
        yield Way(
            machine_class=baseline.machine_class,
            anchor=anchor.title if anchor else "",
            starts=starts,
            minutes=minutes,
            detectable={
                gate.gate.measured.name: _detectable(baseline, cell, gate, anchor, level) for gate in cell.gates
            },
        )


def _cost(cell: Cell, price: CellPower, sides: int) -> tuple[int, float | None]:
    """Starts and minutes of so many sides, each measured as often as one alone is."""
    starts = [sides * (cell.due_alone(kind.kind) + (kind.kind == "timed")) for kind in price.kinds]
    each = [kind.minutes[-1] / kind.starts[-1] if kind.minutes else None for kind in price.kinds]
    known = [minutes for minutes in each if minutes is not None]
    whole = len(known) == len(each)
    return sum(starts), sum(n * minutes for n, minutes in zip(starts, known, strict=True)) if whole else None


def _detectable(baseline: Baseline, cell: Cell, gate: GatePlan, anchor: Build | None, level: float) -> float | None:
    metric = gate.gate.measured
    head = [0.0] * (cell.due_alone(metric.kind) if anchor is None else 1)
    raised = RAISED if anchor is None else 1.0
    found: list[Prediction] = []
    for card in baseline.cards:
        sets = held_against(baseline.occupations, metric.name, card, anchor)
        if (
            any(len(visits) > 1 for visits in sets)
            and min(map(min, (visit for visits in sets for visit in visits))) > 0
        ):
            first, *others = [_logs(visits) for visits in sets]
            found.append(predict(first, head, metric.sign, others=others, raised=raised))
    best = max(found, key=lambda prediction: prediction.df, default=None)
    if best is None or not best.warns:
        return None
    carried = drawn(gate.gate.drawn, beside_anchor=anchor is not None)
    return replace(best, excess=best.excess + carried).detectable(level, gate.gate.ignorable, 1 - BETA)


def _logs(visits: Sequence[Sequence[float]]) -> list[stats.Floats]:
    return [stats.logs(visit) for visit in visits]


def price_lines(cell: Cell, price: CellPower, gates_in_run: int, options: Mapping[str, Any]) -> Iterator[str]:
    """What ``perfgate check`` says of a cell's baselines: a line for each way of holding a head against one.

    Args:
        cell: The cell.
        price: What its trials cost.
        gates_in_run: Gates of the whole run, which share alpha.
        options: Those of the command; ``baselines`` is the folder.
    """
    for stored in find(options["baselines"], [cell])[cell.cell_id]:
        if not stored.baseline.cell.differences(Measured.of(cell)):
            for way in ways(stored.baseline, cell, price, gates_in_run):
                yield _way_line(cell, way)


def _way_line(cell: Cell, way: Way) -> str:
    must_catch = {plan.gate.measured.name: plan.gate.must_catch for plan in cell.gates}
    beside = f"in pairs with its anchor {way.anchor}" if way.anchor else "the head alone"
    minutes = "unknown minutes" if way.minutes is None else f"{way.minutes:.0f} minutes"
    effects = ", ".join(
        f"{metric} {'nothing yet' if effect is None else bounded_percent(effect, must_catch[metric])}"
        for metric, effect in way.detectable.items()
    )
    cost = f"{way.starts} engine starts, {minutes}"
    return f"against the baseline of {way.machine_class}, {beside}: {cost}; detectable {effects}"
