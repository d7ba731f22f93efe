"""Whole runs with gates on kernels, on fakes that take timed and traced trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import BOTH, scenario_file

from perfgate import gate as use_cases
from perfgate.capture.fake import FakeCollector, FakeSpec
from perfgate.errors import RecordError, UsageError
from perfgate.record import Record, read_record, read_run, record_file

pytestmark = pytest.mark.usefixtures("no_orphans")

GATES = (
    "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}, "
    "{metric: kernel_time_per_step, role: attention, ignorable: 1%, must_catch: 5%}"
)
TIMED = FakeSpec(restart_sd=0.0003)
STEADY = FakeSpec(restart_sd=0.003)
SLOWER = FakeSpec(head_ratio={"attention": 1.06}, restart_sd=0.003)
NOISY = FakeSpec(restart_sd=0.2)


def finish(folder: Path, traced: FakeSpec, timed: FakeSpec = TIMED) -> use_cases.Finished:
    """A run whose timed and traced trials are like this."""
    scenario = scenario_file(folder, gates=GATES, more="kernels: {traced: {iterations: 2}}")
    return use_cases.run(
        [scenario], BOTH, runs=folder / "runs", seed=1, collector=FakeCollector(timed),
        traced_collector=FakeCollector(traced, kind="traced"),
    )  # fmt: skip


def only_record(folder: Path) -> Record:
    """The one record of a run folder."""
    (cell,) = read_run(folder).plan.cells
    return read_record(record_file(folder, cell))


@pytest.mark.parametrize(
    ("traced", "verdict", "pairs"),
    [(STEADY, "pass", 4), (SLOWER, "regressed", 6), (NOISY, "inconclusive", 12)],
    ids=["same", "slower", "noisy"],
)
def test_a_run_takes_traced_pairs_until_the_kernel_gate_is_decided(
    tmp_path: Path, traced: FakeSpec, verdict: str, pairs: int
) -> None:
    """A planted slowdown of one role blocks though the step is as long, and an unchanged one passes at four pairs."""
    (cell,) = finish(tmp_path, traced).outcome.cells

    assert [(gate.metric, gate.verdict) for gate in cell.gates] == [
        ("itl_median", "pass"),
        ("kernel_time_per_step[attention]", verdict),
    ]
    assert (cell.pairs, cell.traced_pairs, cell.next_look, cell.next_traced_look) == (4, pairs, None, None)
    assert cell.verdict == verdict
    assert cell.attribution is not None
    assert cell.attribution.pairs == pairs


def test_the_record_keeps_what_was_traced(tmp_path: Path) -> None:
    """A record read back from disk has the decode steps of each traced trial, and gives the same verdict."""
    finished = finish(tmp_path, SLOWER)

    traced = [trial for trial in only_record(finished.folder).trials if trial.kind == "traced"]
    assert len(traced) == 12
    assert all(trial.decode is not None and len(trial.decode.step_ns) == 2 * 6 for trial in traced)
    assert use_cases.judge_folder(finished.folder) == finished.outcome


def test_more_goes_to_the_pairs_that_did_not_decide(tmp_path: Path) -> None:
    """A further look is added where the looks are used up: at traced pairs here, since the timed ones passed."""
    finished = finish(tmp_path, NOISY)

    again = use_cases.resume(
        finished.folder,
        more=4,
        collector=FakeCollector(TIMED),
        traced_collector=FakeCollector(NOISY, kind="traced"),
    )

    record = only_record(finished.folder)
    assert (record.further_looks, record.further_traced_looks) == ((), (16,))
    assert (again.outcome.cells[0].pairs, again.outcome.cells[0].traced_pairs) == (4, 16)


def csv_file(folder: Path, metric: str, unit: str) -> Path:
    """Eight pairs of a metric, the head a tenth slower."""
    rows = [
        f"{pair},{subject},{metric},{unit},{value + 0.01 * pair}"
        for pair in range(8)
        for subject, value in (("base", 100), ("head", 110))
    ]
    file = folder / "kernels.csv"
    file.write_text("\n".join(["pair,subject,metric,unit,value", *rows]))
    return file


def test_a_table_of_kernel_times_is_compared_by_role(tmp_path: Path) -> None:
    """Figures of any origin name the role in brackets, in the table and in --gate."""
    file = csv_file(tmp_path, "kernel_time_per_step[gemm]", "us")

    outcome = use_cases.compare_table(file, [use_cases.parse_gate("kernel_time_per_step[gemm]:1%:5%")])

    assert outcome.verdict == "regressed"
    assert outcome.cells[0].gates[0].metric == "kernel_time_per_step[gemm]"
    with pytest.raises(RecordError, match=r"no values of kernel_time_per_step\[norm\]"):
        use_cases.compare_table(file, [use_cases.parse_gate("kernel_time_per_step[norm]:1%:5%")])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("kernel_time_per_step:1%:5%", "needs the role whose kernels it measures"),
        ("itl_median[gemm]:1%:5%", "itl_median is no metric of a role"),
        ("kernel_tim[gemm]:1%:5%", "did you mean 'kernel_time_per_step'"),
    ],
)
def test_a_gate_on_the_command_line_needs_its_role(word: str, said: str) -> None:
    """A role belongs to the metrics that are measured by role, and to no others."""
    with pytest.raises(UsageError, match=said):
        use_cases.parse_gate(word)


@pytest.mark.parametrize("metric", ["kernel_time_per_step", "itl_median[gemm]"])
def test_a_table_needs_the_role_too(tmp_path: Path, metric: str) -> None:
    """A metric by role without one, and a role beside any other metric, are unknown metrics."""
    with pytest.raises(RecordError, match="unknown metric"):
        use_cases.compare_table(csv_file(tmp_path, metric, "us"), [])
