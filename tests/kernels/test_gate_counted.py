"""Whole runs with a counters: block, on fakes that take timed, traced and counted trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, BOTH, codes, run, scenario_file

from perfgate import gate as use_cases
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.catalogue import METRICS
from perfgate.record.run_record import Record, read_record, read_run, record_file, write_record

pytestmark = pytest.mark.usefixtures("no_orphans")

TIME = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"
BYTES = "{metric: dram_bytes, role: gemm, ignorable: 0.2%, must_catch: 0.8%}"
TIMED = FakeSpec(restart_sd=0.0003)


def finish(
    folder: Path, counted: FakeSpec, *, gates: str = TIME, counters: str = "{role: gemm, profile: 4}", **options: Any
) -> use_cases.Finished:
    """A run whose builds count like this."""
    more = f"kernels: {{traced: {{iterations: 2}}}}\ncounters: [{counters}]\n"
    return use_cases.run(
        [scenario_file(folder, gates=gates, more=more)], options.pop("subjects", BOTH), runs=folder / "runs", seed=1,
        collector=FakeCollector(TIMED, kinds={"counted": counted}), **options,
    )  # fmt: skip


def only(finished: use_cases.Finished) -> CellOutcome:
    """The one cell's outcome."""
    (cell,) = finished.outcome.cells
    return cell


def only_record(finished: use_cases.Finished) -> Record:
    """The one record."""
    (cell,) = read_run(finished.folder).plan.cells
    return read_record(record_file(finished.folder, cell))


def test_one_pair_is_counted_where_no_gate_rests_on_it(tmp_path: Path) -> None:
    """Without a gate one pair is counted, of launches that its own side's trace shows; it changes no verdict."""
    finished = finish(tmp_path, FakeSpec())

    cell, record = only(finished), only_record(finished)
    assert (cell.verdict, cell.traced_pairs, cell.counted_pairs) == ("pass", 1, 1)
    (row,) = cell.counters.rows
    assert (row.role, row.launches) == ("gemm", {"base": 4, "head": 4})
    assert row.base["dram_bytes"] == 5.25e7
    counted = [trial for trial in record.trials if trial.kind == "counted"]
    assert [trial.counted and len(trial.counted.launches) for trial in counted] == [4, 4]


def test_counted_trials_feed_no_latency_metric(tmp_path: Path) -> None:
    """A counted trial carries no value of any metric of timed or traced trials, so that none can reach a verdict."""
    record = only_record(finish(tmp_path, FakeSpec()))

    counted = [trial for trial in record.trials if trial.kind == "counted"]
    values = {name: metric.summarise(trial) for name, metric in METRICS.items() for trial in counted}
    assert counted
    assert {name for name, value in values.items() if value is not None} == set()
    assert all(not trial.iterations and trial.decode is None for trial in counted)


@pytest.mark.parametrize(("ratio", "verdict", "pairs"), [(1.0, "pass", 6), (1.001, "pass", 6), (1.01, "regressed", 8)])
def test_a_gate_on_bytes(tmp_path: Path, ratio: float, verdict: str, pairs: int) -> None:
    """One percent more bytes blocks at the first look that may, while the step is as long; a tenth of it passes."""
    cell = only(finish(tmp_path, FakeSpec(head_ratio={"dram_bytes": ratio}), gates=f"{TIME}, {BYTES}"))

    assert [(gate.metric, gate.verdict) for gate in cell.gates] == [
        ("itl_median", "pass"),
        ("dram_bytes[gemm]", verdict),
    ]
    assert (cell.verdict, cell.counted_pairs, cell.next_counted_look) == (verdict, pairs, None)


@pytest.mark.parametrize(
    ("metrics", "ratio", "verdict", "code"),
    [
        ("registers: same", {}, "pass", None),
        ("registers: same", {"registers": 1.5}, "regressed", "counter-differs"),
        ('dram_throughput: ">= 60"', {}, "pass", None),
        ('dram_throughput: ">= 60%"', {"dram_throughput": 0.8}, "regressed", "counter-out-of-bounds"),
        ('dram_throughput: ">= 80"', {}, "not-comparable", "counter-bound-stale"),
        ('spills: "<= 0"', {}, "pass", None),
        ('sm__cycles_active.avg: ">= 1"', {}, "not-measured", "counters-missing"),
    ],
)
def test_conditions(tmp_path: Path, metrics: str, ratio: dict[str, float], verdict: str, code: str | None) -> None:
    """A condition that only the head breaks blocks exactly; one that the base breaks too says nothing of the head."""
    counters = f"{{role: gemm, profile: 2, metrics: {{{metrics}}}}}"

    cell = only(finish(tmp_path, FakeSpec(head_ratio=ratio), counters=counters))

    assert cell.verdict == verdict
    assert codes(cell.reasons) == ([code] if code else [])


def test_a_sentence_says_why_a_role_is_slower(tmp_path: Path) -> None:
    """The role's counters in words: the same bytes, a lower throughput, more stalls, other registers."""
    ratio = {"dram_throughput": 58 / 71, "stall_long_scoreboard": 1.5, "registers": 2.0}

    cell = only(finish(tmp_path, FakeSpec(head_ratio=ratio, iteration_sd=0), counters="{role: attention}"))

    assert cell.counters.sentences == {
        "attention": "attention: same bytes, DRAM throughput 71 to 58 %, long-scoreboard stalls up 50 %, "
        "registers 168 to 336"
    }


def test_launches_that_are_not_there(tmp_path: Path) -> None:
    """A step without the launches asked for is not measured, with what it has; the timed verdict is still shown."""
    cell = only(finish(tmp_path, FakeSpec(), counters="{role: gemm, profile: 200}"))

    assert cell.verdict == "not-measured"
    assert codes(cell.reasons) == ["counters-not-countable"]
    assert "has 129 launches of gemm, 200 are to be counted" in cell.reasons[0].text


def test_one_side_is_counted_for_reading(tmp_path: Path) -> None:
    """A one-sided run counts too: its rows hold the base alone."""
    cell = only(finish(tmp_path, FakeSpec(), subjects={"base": BASE}))

    (row,) = cell.counters.rows
    assert (row.launches, row.head) == ({"base": 4}, {})


@pytest.mark.parametrize("metrics", ["registers: same", 'dram_throughput: ">= 60"'])
def test_a_comparison_without_counted_trials_holds_no_condition(tmp_path: Path, metrics: str) -> None:
    """Two records of which one was not counted are not measured where a condition is declared: no data is no pass."""
    counters = f"{{role: gemm, metrics: {{{metrics}}}}}"
    records = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        done = finish(tmp_path / name, FakeSpec(), counters=counters, subjects={"base": BASE})
        record = only_record(done)
        if name == "b":
            record = record.model_copy(update={"trials": tuple(t for t in record.trials if t.kind != "counted")})
        file = tmp_path / f"{name}.json"
        write_record(file, record)
        records.append(str(file))

    outcome = use_cases.compare_records(*records)

    assert outcome.verdict == "not-measured"
    assert "counters-missing" in codes(outcome.cells[0].reasons)


def test_work_that_is_split_over_more_launches_is_not_compared(tmp_path: Path) -> None:
    """A gate on a launch's mean says so where the sides' windows hold another number of launches."""
    record = only_record(finish(tmp_path, FakeSpec(), gates=f"{TIME}, {BYTES}"))
    trials = []
    for one in record.trials:
        if one.counted and one.subject == "head":
            launches = (*one.counted.launches, one.counted.launches[0])
            one = one.model_copy(update={"counted": one.counted.model_copy(update={"launches": launches})})  # noqa: PLW2901
        trials.append(one)
    split = record.model_copy(update={"trials": tuple(trials)})

    cell = judge(run([record.cell]), {record.cell.cell_id: split}).cells[0]

    assert codes(cell.gates[1].reasons) == ["metric-unusable"]
    assert cell.gates[1].reasons[0].text == "launches of gemm in a trial's window: base 4, head 5"
    assert cell.verdict == "not-measured"


def test_same_compares_kernels_and_not_windows(tmp_path: Path) -> None:
    """A launch more in the head's window, of a kernel that reads the same, is no difference of registers."""
    record = only_record(finish(tmp_path, FakeSpec(), counters="{role: gemm, profile: 2, metrics: {registers: same}}"))
    trials = [
        one.model_copy(update={"counted": one.counted.model_copy(
            update={"launches": (*one.counted.launches, one.counted.launches[0])})})
        if one.counted and one.subject == "head" else one
        for one in record.trials
    ]  # fmt: skip

    cell = judge(run([record.cell]), {record.cell.cell_id: record.model_copy(update={"trials": tuple(trials)})})

    assert cell.verdict == "pass"
