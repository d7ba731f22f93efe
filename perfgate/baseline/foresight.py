"""What holding a head against a stored baseline would cost and could show, said before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from perfgate import stats
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.occupations import held_against
from perfgate.baseline.store import find
from perfgate.baseline.stored_visit import Build
from perfgate.baseline.visit_series import drawn
from perfgate.judge.power import CellPower
from perfgate.record.identity import Measured
from perfgate.scenario.plan import ALPHA, BETA, Cell, GatePlan
from perfgate.stats.prediction import RAISED, predict
from perfgate.units import bounded_percent


class Way(NamedTuple):
    """One way of holding a head against a baseline.

    Args:
        anchor: What is measured beside the head, in words; empty where the head is measured alone.
        starts: Engine starts.
        minutes: Their wall time; ``None`` where the duration of a trial is unknown.
        detectable: By gated metric the slowdown that is told (``would-regress``) with probability 1 - beta, for a head
            on the card that most is known of; ``None`` where nothing can be told yet.
    """

    anchor: str
    starts: int
    minutes: float | None
    detectable: dict[str, float | None]


def ways(baseline: Baseline, cell: Cell, price: CellPower, gates_in_run: int) -> Iterator[Way]:
    """The head alone, and in pairs with the anchor of the newest visit, if there is one.

    ``price`` is what the cell's trials cost; all gates of the run share alpha.
    """
    newest = baseline.newest_anchor
    for anchor in (None, newest) if newest else (None,):
        sides = 1 if anchor is None else 2  # each is measured as often as one alone is
        starts = [sides * (cell.due_alone(kind.kind) + (kind.kind == "timed")) for kind in price.kinds]
        each = [kind.minutes[-1] / kind.starts[-1] for kind in price.kinds if kind.minutes]
        whole = len(each) == len(starts)
        minutes = sum(n * minutes for n, minutes in zip(starts, each, strict=True)) if whole else None
        level = ALPHA / gates_in_run
        detectable = {gate.gate.measured.name: _detectable(baseline, cell, gate, anchor, level) for gate in cell.gates}
        yield Way(anchor.title if anchor else "", sum(starts), minutes, detectable)


def _detectable(baseline: Baseline, cell: Cell, gate: GatePlan, anchor: Build | None, level: float) -> float | None:
    metric = gate.gate.measured
    head = [0.0] * (cell.due_alone(metric.kind) if anchor is None else 1)
    raised = RAISED if anchor is None else 1.0
    by_card = [held_against(baseline.occupations, metric.name, card, anchor) for card in baseline.cards]
    predictions = []
    for sets in by_card:
        restarts = [value for visits in sets for visit in visits for value in visit]
        if any(len(visits) > 1 for visits in sets) and min(restarts) > 0:
            first, *others = [[stats.logs(visit) for visit in visits] for visits in sets]
            predictions.append(predict(first, head, metric.sign, others=others, raised=raised))
    best = max(predictions, key=lambda prediction: prediction.df, default=None)
    if best is None or not best.warns:
        return None
    carried = drawn(gate.gate.drawn, beside_anchor=anchor is not None)
    return replace(best, excess=best.excess + carried).detectable(level, gate.gate.ignorable, 1 - BETA)


def price_lines(cell: Cell, price: CellPower, gates_in_run: int, options: Mapping[str, Any]) -> Iterator[str]:
    """What ``perfgate check`` says of a cell's baselines: a line for each of :func:`ways`.

    ``options`` are those of the command; ``baselines`` is the folder.
    """
    must_catch = {plan.gate.measured.name: plan.gate.must_catch for plan in cell.gates}
    for baseline in (stored.baseline for stored in find(options["baselines"], [cell])[cell.cell_id]):
        if baseline.cell.differences(Measured.of(cell)):
            continue
        for anchor, starts, minutes, detectable in ways(baseline, cell, price, gates_in_run):
            beside = f"in pairs with its anchor {anchor}" if anchor else "the head alone"
            cost = f"{starts} engine starts, {'unknown' if minutes is None else f'{minutes:.0f}'} minutes"
            effects = ", ".join(
                f"{metric} {'nothing yet' if effect is None else bounded_percent(effect, must_catch[metric])}"
                for metric, effect in detectable.items()
            )
            yield f"against the baseline of {baseline.machine_class}, {beside}: {cost}; detectable {effects}"
