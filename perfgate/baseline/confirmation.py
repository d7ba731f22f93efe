"""A head that would regress by a baseline's visits, decided by pairs with the build that was promoted last.

Few visits do not show how far one visit may be off: where they are skewed, clustered by card or have outliers, up to
11 % of runs at ``ignorable`` would be blocked by them (docs/error-rates.md). So they say which head is worth pairs, and
pairs alone decide, by their own rule on fresh data. They are a run of their own, in a folder of the run that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfgate.baseline.lineage import Baseline
from perfgate.baseline.stored_visit import Build
from perfgate.baseline.visit_comparison import WOULD_REGRESS, would_regress
from perfgate.errors import RecordError
from perfgate.judge.cell_verdict import judge, judge_cells
from perfgate.judge.outcome import CellOutcome, Outcome, worst
from perfgate.metrics.trial import TAKE_AGAIN
from perfgate.models import Note
from perfgate.record.manifest import check_sequence, read_manifest
from perfgate.record.nested_pairs import begun_too_early, heads_of_both, named_pairs, stopped_if_changed
from perfgate.record.run_record import Record, Run, read_records
from perfgate.stats.prediction import PAIRS_SHARE
from perfgate.units import plural


def left_to_pairs(outcome: Outcome) -> tuple[CellOutcome, ...]:
    """The cells that nothing but pairs can decide: a gate would regress, and nothing else speaks for or against."""
    open_ones = (cell for cell in outcome.cells if cell.verdict in ("advisory", "inconclusive"))
    return tuple(cell for cell in open_ones if any(map(would_regress, cell.gates)))


def read_pairs(folder: Path, run: Run, visited: Mapping[str, Record]) -> tuple[Run, dict[str, Record]] | None:
    """The manifest of a run's pairs and their records by cell_id; ``None`` where none were begun.

    Records end as ``subject-changed`` where a head has other files than in the run, whose records by cell_id are
    ``visited``.

    Raises:
        RecordError: The pairs are of other cells or heads or are older, are not those that were begun, or cannot be
            trusted.
    """
    if (where := named_pairs(folder, run)) is None:
        return None
    pairs = read_manifest(where)
    heads = heads_of_both(run, pairs)
    gates = {cell.cell_id: cell.gates for cell in run.plan.cells}
    wrong = {
        "is of other cells, or of other gates": any(gates.get(cell.cell_id) != cell.gates for cell in pairs.cells),
        "is of another head": not pairs.built.keys() <= {"base", *heads},
        "takes no pairs that could decide": pairs.fixed or pairs.quick or not heads,
    }
    if text := next((text for text, holds in wrong.items() if holds), ""):
        raise RecordError(text, where=str(where), remedy=TAKE_AGAIN)
    records = {record.cell.cell_id: record for record in read_records(where, pairs)}
    check_sequence(records.values())
    for cell_id in records.keys() & visited.keys():
        if begun := begun_too_early(records[cell_id], visited[cell_id]):
            text = f"was begun at {begun}, before the visits that it follows had ended"
            raise RecordError(text, where=str(where), remedy=TAKE_AGAIN)
        records[cell_id] = stopped_if_changed(records[cell_id], visited[cell_id], heads)
    return pairs, records


def decided_by_pairs(
    folder: Path,
    run: Run,
    outcome: Outcome,
    visited: Mapping[str, Record],
    baselines: Mapping[str, Sequence[Baseline]],
) -> Outcome:
    """The outcome with what its pairs decide in the place of what visits would.

    Raises:
        RecordError: See :func:`read_pairs`.
    """
    left = left_to_pairs(outcome)
    read = read_pairs(folder, run, visited) if left or run.pairs is not None else None
    if read is None or not left:
        return outcome
    pairs, records = read
    # Whatever its manifest declares: visits pass by a part of beta, so that of pairs which follow them is another one.
    plan = pairs.plan.model_copy(update={"beta": run.plan.beta * PAIRS_SHARE})
    heads = heads_of_both(run, pairs)
    judged = {
        (cell.cell_id, heads[cell.head or "head"] if run.several else ""): cell
        for cell in judge(pairs.model_copy(update={"plan": plan}), records).cells
    }
    tips = {baseline.tip: baseline for lineages in baselines.values() for baseline in lineages}
    cells = []
    for cell in outcome.cells:
        paired = judged.get((cell.cell_id, cell.head)) if cell in left else None
        promoted = tips[cell.baseline.digest].build if cell.baseline else None
        cells.append(_in_its_place(cell, paired, records.get(cell.cell_id), promoted) if paired and promoted else cell)
    would_be = worst(gate.would_be or gate.verdict for cell in cells for gate in cell.gates)
    return judge_cells(outcome.run, run.plan, tuple(cells), outcome.reasons, would_be)


def _in_its_place(cell: CellOutcome, paired: CellOutcome, record: Record | None, promoted: Build) -> CellOutcome:
    """What pairs say of a cell, if their base is the build that its baseline speaks of."""
    if record is None:
        return cell
    if (base := Build.of(record, "base")) != promoted:
        text = f"its pairs are with {base.title}, and {promoted.title} was promoted last: they decide nothing here"
        return cell.model_copy(update={"reasons": (*cell.reasons, Note(code=WOULD_REGRESS, text=text))})
    visits = max(gate.visits.visits for gate in cell.gates if gate.visits)
    text = f"by {plural(visits, 'visit')} of the baseline; what is said here is of fresh pairs with {base.title}"
    fields = {"name": cell.name, "head": cell.head, "cautions": (*paired.cautions, Note(code=WOULD_REGRESS, text=text))}
    return paired.model_copy(update=fields)
