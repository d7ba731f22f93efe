"""The manifest of a run folder, checked: its plan is the one that the kept scenarios declare, and no other.

Digests guard against accidents: whoever edits ``run.json`` can make them anew. So nothing that decides is taken from
the manifest alone. Cells, margins, looks and error rates are resolved again from the scenario's text in the run folder,
and a plan that differs is refused. Who may have changed both files is another question, see docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfgate.errors import PerfgateError, RecordError, ScenarioError
from perfgate.plan import ALPHA, BETA, Cell, resolve_cells, without_gates
from perfgate.record import TAKE_AGAIN, Run, read_run
from perfgate.scenario import MAX_BYTES, parse

SCENARIOS = "scenario"
"""Folder of a run that keeps the text of its scenarios, each by its name."""


def read_manifest(folder: Path) -> Run:
    """The manifest of a run folder, if its plan is what its scenarios declare.

    Raises:
        RecordError: The folder is no run folder, a scenario is missing, or the plan is another one.
    """
    run = read_run(folder)
    where = str(folder / "run.json")
    if (run.plan.alpha, run.plan.beta) != (ALPHA, BETA):
        text = (
            f"declares alpha {run.plan.alpha:g} and beta {run.plan.beta:g}, and perfgate's are {ALPHA:g} and {BETA:g}"
        )
        raise RecordError(text, where=where, remedy=TAKE_AGAIN)
    declared = [cell for cells in _declared(folder, run) for cell in cells]
    if run.kernels_only:
        declared = list(map(without_gates, declared))
    names = [cell.name for cell in declared]
    if (planned := [cell.name for cell in run.plan.cells]) != names:
        text = f"plans the cells {', '.join(planned)}, and its scenarios declare {', '.join(names)}"
        raise RecordError(text, where=where, remedy=TAKE_AGAIN)
    for cell, expected in zip(run.plan.cells, declared, strict=True):
        if cell != expected:
            raise RecordError(f"{cell.name}: {_difference(cell, expected)}", where=where, remedy=_remedy(run))
    return run


def _declared(folder: Path, run: Run) -> Iterator[tuple[Cell, ...]]:
    """The cells of each kept scenario, in the plan's order; with the model as it was found when they were measured."""
    first = {cell.scenario: cell for cell in reversed(run.plan.cells)}
    planned = list(dict.fromkeys(cell.scenario for cell in run.plan.cells))
    kept = sorted(file.stem for file in (folder / SCENARIOS).glob("*.yaml"))
    if sorted(planned) != kept:
        text = f"plans cells of {', '.join(sorted(planned))}; kept are the scenarios {', '.join(kept) or '(none)'}"
        raise RecordError(text, where=str(folder / "run.json"), remedy=TAKE_AGAIN)
    for name in planned:
        file, cell = folder / SCENARIOS / f"{name}.yaml", first[name]
        try:
            loaded = parse(_read(file), Path(cell.source))
            hub = loaded.scenario.engine.model.hub is not None  # whose digest is no more than its name and revision
            yield resolve_cells(loaded, None if hub else (cell.model_digest, cell.model_folder))
        except ScenarioError as error:
            raise RecordError(
                f"no scenario of this version: {error.text}", where=str(file), remedy=_remedy(run)
            ) from error
        except PerfgateError as error:
            raise RecordError(error.text, where=str(file)) from error


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(file)) from error


def _difference(cell: Cell, expected: Cell) -> str:
    named = [name for name in Cell.model_fields if getattr(cell, name) != getattr(expected, name)]
    return f"{', '.join(named)}: not what the scenario in {SCENARIOS}/{cell.scenario}.yaml declares"


def _remedy(run: Run) -> str:
    return f"{TAKE_AGAIN} A run of an older version: judge it with the perfgate that measured it ({run.perfgate})."
