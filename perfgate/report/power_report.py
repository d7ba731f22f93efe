"""What a run would cost and could show, for ``perfgate check``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from perfgate.judge.power import CellPower, GatePower
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.record.cost import KindCost
from perfgate.record.iteration_choice import IterationChoice
from perfgate.report.document import Document, Section
from perfgate.scenario.margins import Gate
from perfgate.scenario.plan import Cell
from perfgate.units import bounded_percent, percent


def power_document(cell: Cell, price: CellPower, more: Iterable[str] = (), budget_s: float = math.inf) -> Document:
    """One cell: its looks and its price until each of them, by kind of pairs; what each gate could detect at them.

    ``more`` are lines of rooms: other ways of judging a head, with what they cost and show.
    """
    lines = [
        *(line for kind in price.kinds for line in _kind_lines(cell, kind, price.chosen)),
        *_budget_lines(price.kinds, budget_s),
        *_choice_lines(cell, price),
        *(_gate_line(cell, gate) for gate in price.gates),
        *more,
        *(f"warning: {gate.metric}: {gate.problem}" for gate in price.gates if gate.problem),
    ]
    title = f"{cell.name}  cell {cell.cell_id[:12]}  {cell.source}"
    return Document.of((), [Section(title=title, lines=tuple(lines))])


def _choice_lines(cell: Cell, price: CellPower) -> Iterator[str]:
    """The number of iterations that a run would choose, and why; nothing where it is declared."""
    bounds = cell.measure.choose
    if bounds is None:
        return
    between = f"from {bounds.least} to {bounds.most}"
    if price.chosen is None:
        yield f"iterations: {between}, chosen by the warm-up trials; {cell.measure.iterations} in these"
    else:
        yield f"iterations: {price.chosen.iterations}, {between}: {price.chosen.reason}"


def _gate_line(cell: Cell, price: GatePower) -> str:
    gate = next(plan.gate for plan in cell.gates if plan.gate.measured.name == price.metric)
    floor = f", floor {gate.floor}" if gate.floor else ""
    spread = "unknown" if price.pair_sd is None else percent(price.pair_sd)
    spread += f" (from {price.source})" if price.source else ""
    spread += f" and of one side's compilations {percent(gate.draw_sd)}" if gate.draw_sd else ""
    margins = f"ignorable {percent(gate.ignorable)}, must catch {percent(gate.must_catch)}{floor}"
    return f"{price.metric}: {margins}; pair spread {spread}; {_detectable(cell, gate, price)}"


def _detectable(cell: Cell, gate: Gate, price: GatePower) -> str:
    """What each look blocks as often as promised: none does below six pairs, or where the plan leaves it no alpha."""
    if price.pair_sd is None:
        return "detectable unknown"
    kind = gate.measured.kind
    at = f"{_list(cell.schedule(kind).looks)}{'' if kind == 'timed' else f' {kind}'} pairs"
    effects = (
        "cannot block" if effect is None else bounded_percent(effect, gate.must_catch) for effect in price.detectable
    )
    return f"detectable at {at}: {_list(effects)}"


def _kind_lines(cell: Cell, price: KindCost, chosen: IterationChoice | None) -> tuple[str, str]:
    pairs, until = f"looks at {_list(price.looks)} pairs", " until each look"
    if price.looks == (1,):
        pairs, until = f"one pair, to see what the {TRIAL_KINDS[price.kind].shows}", ""
    starts = " to ".join(dict.fromkeys(map(str, (price.starts[0], price.starts[-1]))))
    return (
        f"{price.kind}: {pairs}; {starts} engine starts of {_amount(cell, price, chosen)}",
        f"{price.kind}: minutes{until}: {_minutes(price)}",
    )


def _budget_lines(kinds: Iterable[KindCost], budget_s: float) -> Iterator[str]:
    """Which looks a budget is enough for, if it is spent on one kind; nothing of a kind whose price is unknown."""
    for kind in kinds:
        if kind.minutes is None or math.isinf(budget_s):
            continue
        looks = [pairs for pairs, minutes in zip(kind.looks, kind.minutes, strict=True) if minutes * 60 <= budget_s]
        enough = f"enough for the looks at {_list(looks)} pairs" if looks else "not enough for a look"
        are = "minute is" if budget_s == 60 else "minutes are"  # noqa: PLR2004 (seconds)
        yield f"{kind.kind}: {budget_s / 60:g} {are} {enough}"


def _amount(cell: Cell, price: KindCost, chosen: IterationChoice | None) -> str:
    """What a trial of a kind does."""
    warmup = cell.measure.warmup_iterations
    if price.passes is not None:
        launches = "the launches asked for" if price.window is None else f"{price.window} launches"
        return f"{launches} in at most {price.passes} passes"
    if price.kind == "timed":
        return f"{warmup} + {chosen.iterations if chosen else cell.measure.iterations} iterations"
    # An instrument never begins with a cold engine.
    iterations = getattr(cell.sampling(price.kind), "iterations", cell.measure.iterations)
    return f"{max(warmup, 1)} + {iterations} iterations"


def _minutes(price: KindCost) -> str:
    if price.minutes is None:
        return f"unknown ({price.source})"
    on_gpus = f"; GPU-minutes: {_list(f'{price.gpus * m:.0f}' for m in price.minutes)}" if price.gpus else ""
    return _list(f"{minutes:.0f}" for minutes in price.minutes) + f"{on_gpus} (from {price.source})"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
