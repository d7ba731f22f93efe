"""Runs recorded on an H200, cut to eight iterations of forty steps a trial: see tests/fixtures/README.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from perfgate.judge.cell_verdict import judge
from perfgate.machine.versioned_json import validated
from perfgate.record.run_record import Record, Run
from perfgate.report.run_page import MeasuredRun

FIXTURES = Path(__file__).parent / "fixtures"
RUNS = ("pass", "regressed", "states")
"""A build against itself; a head that copies from host memory in each step; a small plant on a GPU with two states."""


def recorded(name: str) -> MeasuredRun:
    """One of :data:`RUNS`, judged."""
    kept = _kept(name)
    return _judged(_run(kept), [_record(kept)])


def recorded_together() -> MeasuredRun:
    """All of them as the three cells of one run."""
    all_kept = [_kept(name) for name in RUNS]
    run = _run(all_kept[0])
    cells, records = [], []
    for name, kept in zip(RUNS, all_kept, strict=True):
        record = _record(kept)
        cell = record.cell.model_copy(update={"cell_id": name, "name": name})
        records.append(record.model_copy(update={"cell": cell}))
        cells.append(cell)
    plan = run.plan.model_copy(update={"cells": tuple(cells)})
    return _judged(run.model_copy(update={"plan": plan}), records)


def _run(kept: dict[str, Any]) -> Run:
    return validated(Run, kept["run"], "run")


def _record(kept: dict[str, Any]) -> Record:
    (one,) = kept["records"]
    return validated(Record, one, "record")


def _judged(run: Run, records: list[Record]) -> MeasuredRun:
    by_cell = {record.cell.cell_id: record for record in records}
    return MeasuredRun(judge(run, by_cell), run, by_cell)


def _kept(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / f"page-{name}.json.gz").read_bytes()))
    return content
