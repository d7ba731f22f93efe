"""Whole runs with a calls: block, on fakes whose hosts run the same lines in every trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BOTH, codes, run, scenario_file

from perfgate import gate as use_cases
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome
from perfgate.record.run_record import read_record, read_run, record_digest, record_file

pytestmark = pytest.mark.usefixtures("no_orphans")

CALLS = "{metric: host_calls_per_step, ignorable: 1%, must_catch: 5%}"
TIME = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"


def finish(folder: Path, lines: float = 1.0, *, gates: str = TIME, **options: Any) -> use_cases.Finished:
    """A run whose head runs so many times the base's lines."""
    spec = FakeSpec(restart_sd=0.0003, head_ratio={"lines": lines})
    return use_cases.run(
        [scenario_file(folder, gates=gates, more="calls: {ignorable: 10us}")], options.pop("subjects", BOTH),
        runs=folder / "runs", seed=1, collector=FakeCollector(spec), **options,
    )  # fmt: skip


def only(finished: use_cases.Finished) -> CellOutcome:
    """The one cell's outcome."""
    (cell,) = finished.outcome.cells
    return cell


@pytest.mark.parametrize(
    ("lines", "verdict", "reasons", "cautions"),
    [
        (1.0, "pass", [], set()),
        (1.05, "pass", [], {"work-changed"}),
        (0.5, "pass", [], {"work-changed"}),
        (1.3, "regressed", ["work-added"], set()),
    ],
)
def test_one_pair_decides_beside_the_gates(
    tmp_path: Path, lines: float, verdict: str, reasons: list[str], cautions: set[str]
) -> None:
    """The step is as long on both sides; one called pair blocks what costs more than ignorable, and tells the rest."""
    cell = only(finish(tmp_path, lines))

    assert (cell.verdict, cell.pairs_of("called"), cell.next_look_at("called")) == (verdict, 1, None)
    assert codes(cell.reasons) == reasons
    assert {code for code in codes(cell.cautions) if code.startswith("work-")} == cautions
    assert [gate.verdict for gate in cell.gates] == ["pass"]


def test_a_gate_on_the_calls_takes_pairs(tmp_path: Path) -> None:
    """As a metric it has margins and looks of its own; equal counts pass at the first look."""
    cell = only(finish(tmp_path, gates=f"{TIME}, {CALLS}"))

    assert [(gate.metric, gate.verdict, gate.pairs) for gate in cell.gates] == [
        ("itl_median", "pass", 4),
        ("host_calls_per_step", "pass", 6),
    ]
    assert cell.pairs_of("called") == 6


def test_one_side_alone_is_counted_and_not_judged(tmp_path: Path) -> None:
    """A side for a later comparison keeps its counts."""
    finished = finish(tmp_path, subjects={"base": BOTH["base"]})

    (cell,) = read_run(finished.folder).plan.cells
    record = read_record(record_file(finished.folder, cell))
    assert [trial.payload("calls") is not None for trial in record.trials if trial.kind == "called"] == [True]
    assert finished.outcome.verdict == "not-comparable"


def test_records_and_verdicts_without_calls_are_as_before(tmp_path: Path) -> None:
    """What is not counted is not written, so that every record and verdict of before keeps its digest."""
    more = use_cases.run([scenario_file(tmp_path)], BOTH, runs=tmp_path / "runs", seed=1, collector=FakeCollector())
    manifest = read_run(more.folder)
    record = read_record(record_file(more.folder, manifest.plan.cells[0]))

    text = record.model_dump_json() + manifest.model_dump_json() + more.outcome.model_dump_json()
    assert "call" not in text.replace("call_ns", "")
    assert record_digest(record) == more.outcome.cells[0].record
    assert judge(run(manifest.plan.cells), {}).verdict == "not-measured"
