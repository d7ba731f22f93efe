"""What a run goes on with: how many pairs of a kind each cell is to have next, and looks added to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.trial import KINDS, Kind
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell


@dataclass(frozen=True)
class Due:
    """What a cell is to have next.

    Args:
        cell: The cell.
        kind: Of which trials.
        target: How many pairs, or trials of one side alone.
        decides: Whether gates are looked at then.
        judged: The cell as it is judged before these are taken.
    """

    cell: Cell
    kind: Kind
    target: int
    decides: bool
    judged: CellOutcome


def due(run: Run, records: Mapping[str, Record]) -> Iterator[Due]:
    """What a run goes on with, in order.

    Only pairs on which a gate rests are taken until that is decided. A quick run takes one trial a side, of the kind
    that comes first.
    """
    for cell, judged in zip(run.plan.cells, judge(run, records).cells, strict=True):
        record = records.get(cell.cell_id)
        for kind in () if record is not None and record.stopped is not None else KINDS:
            taken = record.measured(kind) if record else 0
            if run.quick:
                target = int(kind in cell.kinds[:1])
            elif run.fixed:
                target = cell.due_alone(kind)
            elif taken and cell.gates_on(kind):
                target = judged.next_look_at(kind) or 0
            else:
                target = cell.due_in_pairs(kind)
            if taken < target:
                yield Due(cell, kind, target, cell.gates_on(kind) and not (run.quick or run.fixed), judged)


def next_due(run: Run, cell: Cell, records: Mapping[str, Record], kind: Kind) -> Due | None:
    """What a cell is to have next of a kind; ``None`` where it has enough."""
    return next((one for one in due(run, records) if (one.cell, one.kind) == (cell, kind)), None)


def with_further_looks(run: Run, records: Mapping[str, Record], more: int) -> dict[str, Record]:
    """The records of the cells that are inconclusive at their last look, with one look more at that kind of pair."""
    added: dict[str, Record] = {}
    for cell in () if run.quick or run.fixed else judge(run, records).cells:
        record = records.get(cell.cell_id)
        if record is None:  # interrupted before it began: its own looks come first
            continue
        for kind in KINDS:
            if cell.undecided_in(kind) and cell.next_look_at(kind) is None:
                record = added[cell.cell_id] = record.with_look(kind, record.schedule(kind).looks[-1] + more)
    return added
