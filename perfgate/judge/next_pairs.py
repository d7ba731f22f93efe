"""What a run goes on with: how many pairs of a kind each cell is to have next, and looks added to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfgate.judge.cell_verdict import judge
from perfgate.metrics.trial import KINDS, Kind
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell


def due(run: Run, records: Mapping[str, Record]) -> Iterator[tuple[Cell, Kind, int]]:
    """What a run goes on with: cell, kind, and how many pairs, or trials of one side alone, it is to have next.

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
                yield cell, kind, target


def next_target(run: Run, cell: Cell, records: Mapping[str, Record], kind: Kind) -> int | None:
    """How many pairs of a kind, or trials of one side alone, a cell is to have next; ``None`` where it has enough."""
    return next((target for of, due_kind, target in due(run, records) if (of, due_kind) == (cell, kind)), None)


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
