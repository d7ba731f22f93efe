"""What a run goes on with: how many pairs of a kind each cell is to have next, and looks added to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.trial import KINDS, Kind
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell


@dataclass(frozen=True)
class Due:
    """What a cell is to have next."""

    cell: Cell  # the cell
    kind: Kind  # of which trials
    target: int  # how many pairs, or trials of one side alone
    decides: bool  # whether gates are looked at then
    # The cell as it is judged before these are taken; of several heads as the first that goes on is
    judged: CellOutcome
    heads: tuple[str, ...] = ("",)  # the names of the heads, of several, that go on; of one alone it is empty


def due(run: Run, records: Mapping[str, Record]) -> Iterator[Due]:
    """What a run goes on with, in order.

    Only pairs on which a gate rests are taken until that is decided. A quick run takes one trial a side, of the kind
    that comes first, and a sampled one where that was asked for. What a gate blocked is traced once where the scenario
    says so.
    Of several heads those go on that are undecided, to the look that comes first among theirs.
    """
    judged = iter(judge(run, records).cells)
    for cell in run.cells:
        record = records.get(cell.cell_id)
        outcomes = {head: next(judged) for head in run.compared}
        for kind in KINDS:
            taken = {head: record.of(head).measured(kind) if record else 0 for head in outcomes}
            targets = {
                head: _target(run, cell, outcome, kind, taken[head])
                for head, outcome in outcomes.items()
                if record is None or record.of(head).stopped is None
            }
            lacking = [target for head, target in targets.items() if taken[head] < target]
            if lacking:
                heads = tuple(head for head, target in targets.items() if taken[head] < min(target, *lacking))
                decides = cell.gates_on(kind) and not (run.quick or run.fixed)
                yield Due(cell, kind, min(lacking), decides, outcomes[heads[0]], heads)


def _target(run: Run, cell: Cell, outcome: CellOutcome, kind: Kind, taken: int) -> int:
    """How many pairs of a kind, or trials of one side alone, one head is to have next; no more than it has: none."""
    if run.quick:
        return int(kind in cell.kinds[:1] or (TRIAL_KINDS[kind].quick and kind in cell.kinds))
    if run.fixed:
        return cell.due_alone(kind)
    if taken and cell.gates_on(kind):
        return outcome.next_look_at(kind) or 0
    if cell.explains_by(kind):
        return int(any(gate.verdict == "regressed" for gate in outcome.gates))
    return cell.due_in_pairs(kind)


def _left_as_they_are(run: Run, records: Mapping[str, Record], added: Mapping[str, Record]) -> Iterator[str]:
    """Of each cell that got no further look a sentence that says why."""
    for cell in judge(run, records).cells:
        if cell.cell_id in added or cell.cell_id not in records:
            continue
        if run.quick or run.fixed:
            yield f"--more adds no pairs to {cell.name}: its number of trials was set beforehand, it has no looks"
        elif any(cell.next_look_at(kind) is not None for kind in KINDS):
            yield f"--more adds no pairs to {cell.name}: it comes to the looks of its scenario first"
        else:
            yield f"--more adds no pairs to {cell.name}: its verdict, {cell.verdict}, is not inconclusive"


def with_further_looks(
    run: Run, records: Mapping[str, Record], more: int, tell: Callable[[str], None]
) -> dict[str, Record]:
    """The records of the cells that are inconclusive at their last look, with one look more at that kind of pair.

    Of each other cell ``tell`` is told why it gets none.
    """
    added: dict[str, Record] = {}
    for cell in () if run.quick or run.fixed else judge(run, records).cells:
        record = added.get(cell.cell_id) or records.get(cell.cell_id)
        if record is None:  # interrupted before it began: its own looks come first
            continue
        for kind in KINDS:
            again = record.looks_added(kind) == records[cell.cell_id].looks_added(kind)
            if again and cell.undecided_in(kind) and cell.next_look_at(kind) is None:
                wanted = record.schedule(kind).looks[-1] + more
                place = record.cell.schedule(kind).place(wanted)
                if place > wanted:
                    tell(f"{cell.name}: looks again at {place} pairs: places of further looks are fixed beforehand")
                record = added[cell.cell_id] = record.with_look(kind, place)
    for sentence in _left_as_they_are(run, records, added):
        tell(sentence)
    return added
