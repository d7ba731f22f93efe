"""Comparisons of what was measured elsewhere or at other times: records, a record and a baseline, a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from perfgate.errors import NotComparableError, RecordError, UsageError
from perfgate.judge.cell_verdict import compare_sides, judge_advisory, judge_cells
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import CellOutcome, Outcome, worst
from perfgate.judge.pair_order import MOST_GATES, of_table, shown_of_table
from perfgate.judge.rule import Series, judge_series
from perfgate.judge.ungated import rows
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.fingerprint import comparable
from perfgate.metrics.catalogue import find_metric, split_name
from perfgate.metrics.sides import Side
from perfgate.models import Note
from perfgate.record.csv_table import read_table
from perfgate.record.identity import Measured, profiled_otherwise
from perfgate.record.manifest import check_sequence, read_manifest
from perfgate.record.run_record import Record, read_record, read_records
from perfgate.scenario.margins import Gate
from perfgate.scenario.plan import GatePlan, Plan


def compare_records(base: str, head: str) -> Outcome:
    """Compare one side of what was measured with one side of something else, cell by cell; unpaired, hence advisory.

    Args:
        base: A record file or a run folder, with ``:base`` or ``:head`` behind it where it holds both sides.
        head: The same for the head; its gates are the ones judged.

    Raises:
        RecordError: A file is not a record, a folder not a run folder.
        UsageError: There are two sides and the word does not say which.
        NotComparableError: No cell is in both, or the machines differ.
    """
    bases, heads = read_sides(base), read_sides(head)
    shared = [cell_id for cell_id in heads if cell_id in bases]
    if not shared:
        text = f"{base} holds {_cells(bases)}, {head} holds {_cells(heads)}"
        raise NotComparableError(text, code="different-cells")
    sides = [(bases[cell_id], heads[cell_id]) for cell_id in shared]
    for base_side, head_side in sides:
        _refuse_differences(base, base_side.record, head, head_side.record)
    plan = Plan(cells=tuple(head_side.record.cell for _, head_side in sides), seed=sides[0][1].record.seed)
    # Holm's procedure is within a cell here, so that each gets its share of alpha.
    share = plan.model_copy(update={"alpha": plan.alpha / len(sides)})
    cells = tuple(compare_sides(*both, share) for both in sides)
    others = [side.record.cell.name for s in (bases, heads) for cell_id, side in s.items() if cell_id not in shared]
    text = f"measured apart from each other{'; not in both: ' if others else ''}{', '.join(others)}"
    return judge_advisory(f"{base} {head}", plan, cells, Note(code="advisory-unpaired", text=text))


def _cells(sides: dict[str, RecordSide]) -> str:
    return ", ".join(f"{side.record.cell.name} ({cell_id[:12]})" for cell_id, side in sides.items())


def _refuse_differences(base: str, base_record: Record, head: str, head_record: Record) -> None:
    if otherwise := profiled_otherwise(head_record.cell, Measured.of(base_record.cell)):
        raise NotComparableError(f"{base} and {head} were {'; '.join(otherwise)}", code="different-cells")
    differences = [d for x in base_record.visits for y in head_record.visits for d in comparable(x.machine, y.machine)]
    if differences:
        raise NotComparableError("; ".join(dict.fromkeys(differences)), code="different-machines")


def compare_table(file: Path, gates: Sequence[GatePlan], order: Literal["randomised"] | None = None) -> Outcome:
    """Compare the two sides of a CSV: by the rule at one look where it is paired, else advisory.

    One look spends 0.8 of both error rates, which is right when the number of pairs was fixed before they were seen.

    Args:
        file: Read by :func:`perfgate.record.csv_table.read_table`.
        gates: What is judged; every other metric of the file is shown.
        order: ``randomised`` where a coin decided for each pair which side ran first. Without that, and without a
            column that tells it, nothing is blocked.

    Raises:
        RecordError: The file is not such a CSV, or has no values for a gate.
        UsageError: An order is stated of what was not taken in pairs, or there are too many gates for any to block.
    """
    table = read_table(file)
    if order and not table.paired:
        raise UsageError(f"--order {order} is of pairs, and {file} has no column 'pair'")
    if len(gates) > MOST_GATES:
        raise UsageError(f"{len(gates)} gates of one table: of more than {MOST_GATES} none could block")
    series = []
    for gate in gates:
        values = table.metrics.get(gate.gate.measured.name)
        if values is None:
            raise RecordError(f"has no values of {gate.gate.measured.name}, which {gate.where} gates", where=str(file))
        if table.paired and len(values.base) > 1:
            series.append(of_table(gate, values, drawn=bool(order), gates=len(gates)))
        else:
            series.append(Series(gate, values.base, values.head, resolution=values.resolution))
    plan = Plan(cells=(), seed=0)
    judged = judge_series(series, plan.alpha, plan.beta)
    gated = {gate.gate.measured.name for gate in gates}
    shown = [
        shown_of_table(find_metric(name), values, drawn=bool(order), paired=table.paired)
        for name, values in table.metrics.items() if name not in gated
    ]  # fmt: skip
    cell = CellOutcome(
        name=file.stem, cell_id="", record=sha256_hex(file.read_bytes()), verdict=worst(g.verdict for g in judged),
        pairs=max((g.pairs for g in judged), default=0) if table.paired else 0, next_look=None, versions={},
        gates=judged, ungated=rows(shown, plan.alpha),
    )  # fmt: skip
    if table.paired:
        return judge_cells(file.name, plan, (cell,))
    return judge_advisory(file.name, plan, (cell,), Note(code="advisory-unpaired", text="no pair column"))


def parse_gate(word: str) -> GatePlan:
    """A gate from ``metric:ignorable:must_catch``: ``itl_median:0.1%:0.5%``, ``kernel_time_per_step[gemm]:1%:5%``.

    Raises:
        UsageError: The word has another form, or the gate is not possible.
    """
    parts = word.split(":")
    if len(parts) != 3:  # noqa: PLR2004 (metric, ignorable, must_catch)
        raise UsageError(f"--gate {word}: expected METRIC:IGNORABLE:MUST_CATCH, like itl_median:0.1%:0.5%")
    try:
        metric, role = split_name(parts[0])
        gate = Gate.model_validate({"metric": metric, "role": role, "ignorable": parts[1], "must_catch": parts[2]})
    except ValidationError as error:
        raise UsageError(f"--gate {word}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    return GatePlan(gate=gate, where=f"--gate {word}")


def read_sides(word: str) -> dict[str, RecordSide]:
    """One side of each record that a word names, by cell_id; at least one.

    Raises:
        RecordError: A record cannot be read, or there is none.
        UsageError: There are two sides and the word does not say which.
    """
    path, _, side = word.rpartition(":") if word.endswith((":base", ":head")) else (word, "", "")
    location = Path(path)
    fixed = False
    if location.is_dir():
        manifest = read_manifest(location)
        records, fixed = [*read_records(location, manifest)], manifest.fixed
        check_sequence(records)
    else:
        records = [read_record(location)]
    for record in records:
        record.refuse_several(path)
    if not records:
        raise RecordError("holds no record: no trial was finished", where=path)
    return {record.cell.cell_id: RecordSide(record, _side(record, word, side), fixed) for record in records}


def _side(record: Record, word: str, side: str) -> Side:
    meant = [subject for subject in record.subjects if side in ("", subject)]
    if len(meant) > 1:
        raise UsageError(f"{word} holds base and head", remedy=f"Say which: {word}:base or {word}:head.")
    if not meant:
        raise UsageError(f"{word}: the record holds no {side}")
    return meant[0]
