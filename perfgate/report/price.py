"""What a run would cost and could show, for ``perfgate check``."""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.plan import Cell
from perfgate.price import CONDITIONING_TRIALS, GatePrice, Price
from perfgate.report.lines import percent


def render_price(cell: Cell, price: Price) -> str:
    """One cell: its looks, its price until each of them, and a line a gate with what each look could detect."""
    measure = cell.measure
    least, most = (2 * pairs + CONDITIONING_TRIALS for pairs in (measure.looks[0], measure.looks[-1]))
    iterations = f"{measure.warmup_iterations} + {measure.iterations} iterations"
    lines = [
        f"{cell.name}  cell {cell.cell_id[:12]}  {cell.source}",
        f"  looks at {_list(measure.looks)} pairs; {least} to {most} engine starts of {iterations}",
        f"  minutes until each look: {_minutes(price)} (from {price.source})",
        *(_gate_line(cell, gate) for gate in price.gates),
        *(f"  warning: {gate.metric}: {gate.problem}" for gate in price.gates if gate.problem),
    ]
    return "\n".join(lines) + "\n"


def _gate_line(cell: Cell, price: GatePrice) -> str:
    gate = next(plan.gate for plan in cell.gates if plan.gate.measured.name == price.metric)
    floor = f", floor {gate.floor}" if gate.floor else ""
    spread = "unknown" if price.pair_sd is None else percent(price.pair_sd)
    effects = _list("-" if effect is None else percent(effect) for effect in price.detectable)
    margins = f"ignorable {percent(gate.ignorable)}, must catch {percent(gate.must_catch)}{floor}"
    own = f" at {_list(cell.schedule('traced').looks)} traced pairs" if gate.measured.kind == "traced" else ""
    return f"  {price.metric}: {margins}; pair spread {spread}; detectable{own} {effects}"


def _minutes(price: Price) -> str:
    if price.minutes is None:
        return "unknown"
    on_gpus = f"; GPU-minutes: {_list(f'{price.gpus * m:.0f}' for m in price.minutes)}" if price.gpus else ""
    return _list(f"{minutes:.0f}" for minutes in price.minutes) + on_gpus


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
