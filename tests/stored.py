"""Baselines made by hand: visits of one build with these steps, promoted one after the other."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hand_made import BASE, HEAD, MACHINE, STEP_S, cell, gate, record, run, trial

from perfgate.baseline.lineage import Baseline, Entry, draft
from perfgate.baseline.visit_comparison import judge_against
from perfgate.judge.outcome import GateOutcome, Outcome
from perfgate.record.run_record import Record, Run, Visit, read_record, write_record
from perfgate.scenario.plan import Cell

GATES = [gate("itl_median", "1%", "5%")]


def measured(name: str = "cell", gates: Sequence[Any] = ()) -> Cell:
    """A cell with wide margins, another measurement by each name."""
    one = cell(name, gates or GATES)
    return one.model_copy(update={"workload": one.workload.model_copy(update={"seed": zlib.crc32(name.encode())})})


def alone(slowdowns: Sequence[float], side: str = "head", of: Cell | None = None, **changes: Any) -> Record:
    """One visit of one side: a restart for each log ratio to the usual step."""
    taken = [trial(n, n, "head" if side == "head" else "base", STEP_S * math.exp(d)) for n, d in enumerate(slowdowns)]
    subjects: dict[str, Any] = {"subjects": {side: HEAD if side == "head" else BASE}}
    return record(of or measured(), taken, **{**subjects, **changes})


def visit(day: int, **machine: Any) -> Visit:
    """A visit on that day of January."""
    return Visit(machine=MACHINE.model_copy(update=machine), t0_utc=f"2026-01-{day:02}T00:00:00+00:00")


def of_day(day: int, folder: Path) -> Path:
    """The run folder with its visits moved to that day, as if it had been measured then."""
    for file in (folder / "records").iterdir():
        kept = read_record(file)
        moved = tuple(one.model_copy(update={"t0_utc": visit(day).t0_utc}) for one in kept.visits)
        write_record(file, kept.model_copy(update={"visits": moved}))
    return folder


def lineage(visits: Sequence[Sequence[float]], of: Cell | None = None, **machine: Any) -> Baseline:
    """A baseline with a promotion for each visit's log ratios, the first and then equivalent ones."""
    entries: list[Entry] = []
    for day, slowdowns in enumerate(visits, 1):
        entry = draft(alone(slowdowns, of=of, visits=(visit(day, **machine),)), "head")
        signed: dict[str, Any] = {
            "author": "A Tester",
            "time_utc": f"2026-01-{day:02}T12:00:00+00:00",
            "reason": f"day {day}",
        }
        if entries:
            signed |= {"kind": "equivalent", "cell": None, "machine": None, "parent": entries[-1].digest}
        entries.append(entry.model_copy(update=signed).sealed())
    return Baseline(entries=tuple(entries))


def chained(entries: Iterable[Entry]) -> Baseline:
    """A baseline of one epoch: every entry but the first is equivalent to it."""
    first, *more = entries
    follows: dict[str, Any] = {"kind": "equivalent", "cell": None, "machine": None, "salt": ""}
    return Baseline(entries=(first, *(entry.model_copy(update=follows) for entry in more)))


def visits_beside(records: Iterable[Record]) -> Baseline:
    """A baseline of these visits, each of a head beside its anchor."""
    return chained(draft(one, "head", "salt", anchored=True) for one in records)


def held(side: Record, *baselines: Baseline) -> Outcome:
    """One side's record against these baselines."""
    manifest = run([side.cell], subjects=side.subjects)
    return judge_against(manifest, {side.cell.cell_id: side}, {side.cell.cell_id: baselines})


def said(one: Outcome | GateOutcome) -> str:
    """What visits say: the verdict, or of one that only advises what it would be."""
    return one.would_be or one.verdict


def held_beside(side: Record, baseline: Baseline) -> Outcome:
    """The verdict of a head beside its anchor."""
    manifest: Run = run([side.cell], subjects=side.subjects).model_copy(update={"against": {}})
    return judge_against(manifest, {side.cell.cell_id: side}, {side.cell.cell_id: (baseline,)})
