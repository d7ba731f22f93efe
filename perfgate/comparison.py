"""Comparisons of what was measured elsewhere or at other times: records, a record and a baseline, a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from perfgate import __version__, stats
from perfgate.against import Side, judge_sides
from perfgate.baseline import Measured, profiled_otherwise
from perfgate.durable import sha256_hex
from perfgate.environment import comparable
from perfgate.errors import NotComparableError, RecordError, UsageError
from perfgate.judge import compare_sides, judge_advisory, judge_cells
from perfgate.margins import Gate
from perfgate.metrics import split_name
from perfgate.outcome import CellOutcome, Note, Outcome, worst
from perfgate.plan import GatePlan, Plan
from perfgate.record import Record, read_record
from perfgate.rule import Series, judge_series
from perfgate.store import find
from perfgate.subject import Role
from perfgate.table import read_table


def compare_records(base: str, head: str) -> Outcome:
    """Compare one side of one record with one side of another; unpaired, hence advisory.

    Args:
        base: A record file, or ``FILE:base`` or ``FILE:head`` where it holds both sides.
        head: Likewise; its gates are the ones judged.

    Raises:
        RecordError: A file is no record.
        UsageError: A record holds two sides and the word does not say which.
        NotComparableError: The cells or the machines differ.
    """
    sides = (_read_side(base), _read_side(head))
    (a, _), (b, _) = sides
    if a.cell.cell_id != b.cell.cell_id:
        raise NotComparableError(
            f"{base} holds {a.cell.name} ({a.cell.cell_id[:12]}), {head} holds {b.cell.name} ({b.cell.cell_id[:12]})",
            code="different-cells",
        )
    gated = [gate.gate.measured.kind for gate in b.cell.gates]
    if otherwise := profiled_otherwise(gated, Measured.of(a.cell), Measured.of(b.cell)):
        raise NotComparableError(f"{base} and {head} were {'; '.join(otherwise)}", code="different-cells")
    differences = [d for x in a.visits for y in b.visits for d in comparable(x.machine, y.machine)]
    if differences:
        raise NotComparableError("; ".join(dict.fromkeys(differences)), code="different-machines")
    plan = Plan(cells=(b.cell,), seed=b.seed)
    reason = Note(code="advisory-unpaired", text=f"{base} against {head}")
    return judge_advisory(f"{base} {head}", __version__, plan, compare_sides(*sides, plan), reason)


def compare_with_baseline(word: str, file: Path) -> Outcome:
    """Hold one side of a record against a stored baseline; from four visits on the verdict can block.

    Args:
        word: A record file, or ``FILE:base`` or ``FILE:head`` where it holds both sides; its gates are judged.
        file: The baseline's file.

    Raises:
        RecordError: The record cannot be read, or the baseline is broken.
        UsageError: A record holds two sides and the word does not say which.
    """
    record, role = _read_side(word)
    found = find(file, [record.cell])
    baselines = {cell_id: [one.baseline for one in stored] for cell_id, stored in found.items()}
    plan = Plan(cells=(record.cell,), seed=record.seed)
    sides = {record.cell.cell_id: Side(record, role)}
    return judge_sides(f"{word} {file}", __version__, plan, sides, baselines)


def compare_table(file: Path, gates: Sequence[GatePlan]) -> Outcome:
    """Compare the two sides of a CSV: by the rule at one look where it is paired, else advisory.

    One look spends both error rates whole, which is right when the number of pairs was fixed before they were seen.

    Raises:
        RecordError: The file is no such CSV, or has no values for a gate.
    """
    table = read_table(file)
    series = []
    for gate in gates:
        values = table.metrics.get(gate.gate.measured.name)
        if values is None:
            raise RecordError(f"has no values of {gate.gate.measured.name}, which {gate.where} gates", where=str(file))
        paired = table.paired and len(values.base) > 1
        series.append(Series(gate, values.base, values.head, stats.one_look(len(values.base)) if paired else None))
    plan = Plan(cells=(), seed=0)
    judged = judge_series(series, plan.alpha, plan.beta)
    cell = CellOutcome(
        name=file.stem, cell_id="", record=sha256_hex(file.read_bytes()), verdict=worst(g.verdict for g in judged),
        pairs=max((g.pairs for g in judged), default=0) if table.paired else 0, next_look=None, versions={},
        gates=judged, ungated=(),
    )  # fmt: skip
    if table.paired:
        return judge_cells(file.name, __version__, plan, (cell,))
    return judge_advisory(file.name, __version__, plan, cell, Note(code="advisory-unpaired", text="no pair column"))


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


def _read_side(word: str) -> tuple[Record, Role]:
    path, _, role = word.rpartition(":")
    if role not in ("base", "head"):
        path, role = word, ""
    record = read_record(Path(path))
    if not role:
        if len(record.subjects) > 1:
            raise UsageError(f"{word} holds base and head", remedy=f"Say which: {word}:base or {word}:head.")
        role = next(iter(record.subjects))
    if role not in record.subjects:
        raise UsageError(f"{word}: the record holds no {role}")
    return record, "head" if role == "head" else "base"
