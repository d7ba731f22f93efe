"""The steps of a run: each step of a visit, with the place of its cell in the run and what the last look at it found.

Between two looks nothing is estimated. What is told is what the judge said at the last one: figures that its error
rates cover, and no verdict, so that nobody is tempted to stop when they look good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate.capture.pace import Progress, Step
from perfgate.capture.session import Session
from perfgate.errors import InterruptedRunError
from perfgate.judge.next_cell import CellOrder
from perfgate.judge.next_pairs import Due, due
from perfgate.judge.outcome import CellOutcome
from perfgate.record.cost import short_budget
from perfgate.record.run_record import Record, Run


@dataclass(frozen=True, kw_only=True)
class RunStep(Step):
    """A step, and where in a run it is."""

    number: int = 1  # number of the cell in the run, from 1
    cells: int = 1  # how many there are
    decides: bool = False  # whether gates are looked at once `target` pairs are there
    # The cell as the last look found it; `None` where there was none, or none decides
    looked: CellOutcome | None = None
    part: str = ""  # what the run is of a night or a campaign, with its number; empty for a run of its own


class RunSteps:
    """Tells the steps of a run.

    Args:
        progress: Told of each, as a :class:`RunStep`; sentences pass as they are.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._known: dict[str, Any] = {}

    def towards(self, due: Due, run: Run) -> None:
        """The pairs that are taken from now on, until the next call."""
        seen = any(gate.pairs for gate in due.judged.gates)
        self._known = {
            "number": 1 + run.cells.index(due.cell),
            "cells": len(run.cells),
            "decides": due.decides,
            "looked": due.judged if due.decides and seen else None,
        }

    def __call__(self, step: Step | str) -> None:
        """Tell of one."""
        self._progress(step if isinstance(step, str) else RunStep(**vars(step), **self._known))


def take_steps(session: Session, order: CellOrder, records: dict[str, Record], steps: RunSteps, manifest: Run) -> None:
    """Measure look by look until each cell is decided, cannot be measured, or has used up its looks.

    Where all are, and only traces of what regressed are lacking, a run ends as decided though its budget is too short.

    Raises:
        InterruptedRunError: ``out-of-budget``, and something is undecided; or stopped by a signal.
    """
    while (turn := order.next(records)) is not None:
        now, then = turn
        steps.towards(now, manifest)
        try:
            records[now.cell.cell_id] = session.measure(now.cell, now.target, now.kind, now.heads, then)
        except InterruptedRunError as error:
            is_decided = all(entry.cell.explains_by(entry.kind) for entry in due(manifest, records))
            if error.code != "out-of-budget" or not is_decided:
                raise
            steps(f"warning: what regressed is not traced: {error.text}")
            return


def short_of(budget_s: float, run: Run, records: Mapping[str, Record], runs: Path) -> str:
    """What a budget is too short for, see :func:`short_budget`; empty where it is enough for one of the open cells."""
    if math.isinf(budget_s):
        return ""
    firsts: dict[str, Due] = {}
    for entry in due(run, records):
        firsts.setdefault(entry.cell.cell_id, entry)
    said = [
        short_budget(first.cell, first.kind, budget_s, runs, record=records.get(name), builds=len(run.built),
                     quick=run.quick)
        for name, first in firsts.items()
    ]  # fmt: skip
    return said[0] if said and all(said) else ""


def part_of(progress: Progress, what: str) -> Callable[[Step | str], None]:
    """A progress that says of every step which part it belongs to."""
    return lambda step: progress(replace(step, part=what) if isinstance(step, RunStep) else step)
