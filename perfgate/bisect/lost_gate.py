"""The cell and the metric that were lost, and the scenario that measures them and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfgate.errors import UsageError
from perfgate.judge.outcome import Outcome
from perfgate.scenario.declaration import LoadedScenario, dump, loads
from perfgate.scenario.plan import Cell, resolve_cells

LEAST_DIGITS = 8  # of a cell's identity, that are enough to name it


def chosen(loaded: LoadedScenario, name: str, metric: str) -> tuple[list[Cell], list[str]]:
    """The cells and the timed metrics that a search may be about.

    Args:
        loaded: The scenario.
        name: A cell by name or the beginning of its identity; empty for any.
        metric: A gated metric; empty for any.

    Raises:
        UsageError: There is none.
    """
    cells = resolve_cells(loaded)
    digits = name if len(name) >= LEAST_DIGITS else " "
    found = [cell for cell in cells if name in ("", cell.name) or cell.cell_id.startswith(digits)]
    if not found:
        raise UsageError(f"no cell {name}", where=str(loaded.file), remedy=f"It has {_listed(c.name for c in cells)}.")
    timed = [gate.measured.name for gate in loaded.scenario.gates if gate.measured.kind == "timed"]
    metrics = [one for one in timed if metric in ("", one)]
    if not metrics:
        what = f"no gate on {metric}" if metric else "no gate"
        remedy = f"It has {_listed(timed)}." if timed else "Gate itl_median, or another metric of timed trials."
        raise UsageError(f"{what} that is read from timed trials", where=str(loaded.file), remedy=remedy)
    return found, metrics


def lost(outcome: Outcome, cells: Sequence[Cell], metrics: Sequence[str]) -> tuple[Cell, str] | None:
    """The cell and the metric that regressed, of several the one whose regression is surest; ``None`` if none did."""
    known = {cell.cell_id: cell for cell in cells}
    found = [
        (gate.p, -abs(gate.change or 0.0), known[cell.cell_id], gate.metric)
        for cell in outcome.cells
        for gate in cell.gates
        if gate.verdict == "regressed" and cell.cell_id in known and gate.metric in metrics
    ]
    if not found:
        return None
    _, _, cell, metric = min(found, key=lambda one: one[:2])
    return cell, metric


def narrowed(loaded: LoadedScenario, cell: Cell, metric: str, pairs: int | None = None) -> LoadedScenario:
    """The scenario with one cell and one gate.

    Args:
        loaded: The scenario.
        cell: The cell.
        metric: The gated metric.
        pairs: The only look, and then nothing is traced, counted or called; the scenario's own looks where not given.

    Returns:
        A scenario of the same file whose only cell has the same identity.
    """
    scenario = loaded.scenario
    update: dict[str, Any] = {
        "engine": cell.engine, "workload": cell.workload, "matrix": {},
        "gates": tuple(gate for gate in scenario.gates if gate.measured.name == metric),
    }  # fmt: skip
    if pairs is not None:
        update |= {"measure": scenario.measure.model_copy(update={"looks": (pairs,), "spend": None})}
        update |= {"kernels": None, "counters": (), "calls": None}
    found = loads(dump(scenario.model_copy(update=update)), loaded.file)
    if [own.cell_id for own in resolve_cells(found)] != [cell.cell_id]:
        raise UsageError(
            f"{cell.name} cannot be written down alone: the model changed meanwhile", where=str(cell.source)
        )
    return found


def _listed(words: Any) -> str:
    return ", ".join(words) or "nothing"
