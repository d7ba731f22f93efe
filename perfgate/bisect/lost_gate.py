"""The cell and the metric that were lost, and the scenario that measures them and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from perfgate import gate
from perfgate.errors import NotMeasuredError, UsageError
from perfgate.judge.outcome import Outcome
from perfgate.metrics.sides import Side
from perfgate.scenario.declaration import LoadedScenario, dump, load, loads
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Subject

LEAST_DIGITS = 8  # of a cell's identity, that are enough to name it


def chosen(loaded: LoadedScenario, name: str, metric: str) -> tuple[list[Cell], list[str]]:
    """The cells and the timed metrics that a search may be about.

    A cell is named by its name or the beginning of its identity; an empty word means any.

    Raises:
        UsageError: There is none.
    """
    cells = resolve_cells(loaded)
    digits = name if len(name) >= LEAST_DIGITS else " "
    matches = [cell for cell in cells if name in ("", cell.name) or cell.cell_id.startswith(digits)]
    if not matches:
        raise UsageError(f"no cell {name}", where=str(loaded.file), remedy=f"It has {_listed(c.name for c in cells)}.")
    timed = [gate.measured.name for gate in loaded.scenario.gates if gate.measured.kind == "timed"]
    metrics = [gated for gated in timed if metric in ("", gated)]
    if not metrics:
        what = f"no gate on {metric}" if metric else "no gate"
        remedy = f"It has {_listed(timed)}." if timed else "Gate itl_median, or another metric of timed trials."
        raise UsageError(f"{what} that is read from timed trials", where=str(loaded.file), remedy=remedy)
    return matches, metrics


def lost(outcome: Outcome, cells: Sequence[Cell], metrics: Sequence[str]) -> tuple[Cell, str] | None:
    """The cell and the metric that regressed, of several the one whose regression is surest; ``None`` if none did."""
    by_id = {cell.cell_id: cell for cell in cells}
    losses = [
        (gate.p, -abs(gate.change or 0.0), by_id[cell.cell_id], gate.metric)
        for cell in outcome.cells
        for gate in cell.gates
        if gate.verdict == "regressed" and cell.cell_id in by_id and gate.metric in metrics
    ]
    if not losses:
        return None
    _, _, cell, metric = min(losses, key=lambda loss: loss[:2])
    return cell, metric


def narrowed(loaded: LoadedScenario, cell: Cell, metric: str, pairs: int | None = None) -> LoadedScenario:
    """The scenario with one cell and one gate.

    With ``pairs`` they are the only look, and nothing is traced, counted or called.

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
    reloaded = loads(dump(scenario.model_copy(update=update)), loaded.file)
    if [part.cell_id for part in resolve_cells(reloaded)] != [cell.cell_id]:
        raise UsageError(
            f"{cell.name} cannot be written down alone: the model changed meanwhile", where=str(cell.source)
        )
    return reloaded


def _listed(words: Any) -> str:
    return ", ".join(words) or "nothing"


Said = Literal["good", "bad", "unknown"]
# Reason codes of a commit that builds and does not run
OF_THE_COMMIT = (
    "engine-import-failed", "engine-start-failed", "engine-start-timeout", "engine-failed", "request-failed",
    "preempted", "one-sided-failures", "metric-missing",
)  # fmt: skip


def compare_one(scenario: Path, subjects: Mapping[Side, Subject], cell: str, metric: str, loss: float | None,
                **means: Any) -> Said:  # fmt: skip
    """Measure a commit and the good one in pairs, by the gate's own rule.

    The good commit is ``base``. With ``loss``, a ratio minus one, the margins are a third and two thirds of it.

    Raises:
        UsageError: It is not said which of several cells or metrics.
        NotMeasuredError: The machine or the good commit is the reason why nothing was measured.
        PerfgateError: See :func:`perfgate.gate.run`.
    """
    loaded = load(scenario)
    cells, metrics = chosen(loaded, cell, metric)
    for option, names in (("--cell", [cell.name for cell in cells]), ("--metric", metrics)):
        if len(names) > 1:
            text = f"which of {', '.join(names)}? Every commit must be tested for the same"
            raise UsageError(text, where=str(scenario), remedy=f"Name it: {option} {names[0]!r}.")
    if loss is not None:
        margins = {"ignorable": loss / 3, "must_catch": 2 * loss / 3, "floor": None}
        gates = tuple(spec.model_copy(update=margins) if spec.measured.name == metrics[0] else spec
                      for spec in loaded.scenario.gates)  # fmt: skip
        loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"gates": gates}))
        cells, _ = chosen(loaded, cell, metric)
    finished = gate.run([narrowed(loaded, cells[0], metrics[0])], dict(subjects), **means)
    verdict = finished.outcome.verdict
    if verdict in ("not-measured", "internal-error"):
        (outcome,) = finished.outcome.cells
        reason = next(iter(outcome.reasons), None)
        if reason is None or reason.code not in OF_THE_COMMIT:
            text = reason.text if reason else "nothing was measured"
            raise NotMeasuredError(text, where=str(finished.folder), code=reason.code if reason else "")
    return "bad" if verdict == "regressed" else "good" if verdict in ("pass", "improved") else "unknown"
