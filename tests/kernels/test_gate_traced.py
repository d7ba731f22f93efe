"""Whole runs with gates on kernels, on fakes that take timed and traced trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_collector import ROLES, FakeCollector, FakeSpec
from hand_made import BASE, BOTH, codes, scenario_file

from perfgate import gate as use_cases
from perfgate.capture.job import Job
from perfgate.errors import InterruptedRunError, NotComparableError, RecordError, UsageError
from perfgate.judge.outcome import Outcome
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_record, read_records, read_run, record_file
from perfgate.scenario.subject import Subject

pytestmark = pytest.mark.usefixtures("no_orphans")

KERNELS = "{metric: kernel_time_per_step, role: attention, ignorable: 1%, must_catch: 5%}"
GATES = f"{{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}}, {KERNELS}"
TRACED = "kernels: {traced: {iterations: 2}}"
TIMED = FakeSpec(restart_sd=0.0003)
STEADY = FakeSpec(restart_sd=0.003)
SLOWER = FakeSpec(head_ratio={"attention": 1.06}, restart_sd=0.003)
NOISY = FakeSpec(restart_sd=0.2)


def fake(traced: FakeSpec = STEADY, timed: FakeSpec = TIMED) -> FakeCollector:
    """A collector whose timed and traced trials are like this."""
    return FakeCollector(timed, kinds={"traced": traced})


def finish(folder: Path, traced: FakeSpec, timed: FakeSpec = TIMED) -> use_cases.Finished:
    """A run whose timed and traced trials are like this."""
    scenario = scenario_file(folder, gates=GATES, more=TRACED)
    return take(scenario, folder, fake(traced, timed))


def take(
    scenario: Path,
    folder: Path,
    collector: FakeCollector | None = None,
    subjects: dict[Side, Subject] = BOTH,
    *,
    quick: bool = False,
    kernels_only: bool = False,
) -> use_cases.Finished:
    """A run of this scenario."""
    return use_cases.run(
        [scenario],
        subjects,
        runs=folder / "runs",
        seed=1,
        collector=collector or fake(),
        quick=quick,
        kernels_only=kernels_only,
    )


def envelope(launches: int) -> str:
    """A block whose one step pattern has so many kernels; a fake's steps have 326."""
    return f"kernels: {{traced: {{iterations: 2}}, per_decode_step: {{patterns: [{{launches: {launches}}}]}}}}"


def only_record(folder: Path) -> Record:
    """The one record of a run folder."""
    (cell,) = read_run(folder).plan.cells
    return read_record(record_file(folder, cell))


@pytest.mark.parametrize(
    ("traced", "verdict", "pairs"),
    [(STEADY, "pass", 6), (SLOWER, "regressed", 8), (NOISY, "inconclusive", 12)],
    ids=["same", "slower", "noisy"],
)
def test_a_run_takes_traced_pairs_until_the_kernel_gate_is_decided(
    tmp_path: Path, traced: FakeSpec, verdict: str, pairs: int
) -> None:
    """A planted slowdown of one role blocks though the step is as long, and an unchanged one passes at six pairs."""
    (cell,) = finish(tmp_path, traced).outcome.cells

    assert [(gate.metric, gate.verdict) for gate in cell.gates] == [
        ("itl_median", "pass"),
        ("kernel_time_per_step[attention]", verdict),
    ]
    assert (cell.pairs, cell.traced_pairs, cell.next_look, cell.next_traced_look) == (4, pairs, None, None)
    assert cell.verdict == verdict
    assert cell.attribution.pairs == pairs


def test_the_record_keeps_what_was_traced(tmp_path: Path) -> None:
    """A record read back from disk has the decode steps of each traced trial, and gives the same verdict."""
    finished = finish(tmp_path, SLOWER)

    traced = [trial for trial in only_record(finished.folder).trials if trial.kind == "traced"]
    assert len(traced) == 16
    assert all(trial.decode is not None and len(trial.decode.step_ns) == 2 * 6 for trial in traced)
    assert use_cases.judge_folder(finished.folder) == finished.outcome


def test_more_goes_to_the_pairs_that_did_not_decide(tmp_path: Path) -> None:
    """A further look is added where the looks are used up: at traced pairs here, since the timed ones passed."""
    finished = finish(tmp_path, NOISY)

    again = use_cases.resume(
        finished.folder,
        more=4,
        collector=fake(NOISY),
    )

    record = only_record(finished.folder)
    assert (record.further_looks, record.further_traced_looks) == ((), (16,))
    assert (again.outcome.cells[0].pairs, again.outcome.cells[0].traced_pairs) == (4, 16)


ITL = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"
WHEN_REGRESSED = "kernels: {traced: {iterations: 2, when: regressed}}"


@pytest.mark.parametrize(
    ("head", "verdict", "pairs", "traced"), [(1.0, "pass", 4, 0), (1.05, "regressed", 6, 1)], ids=["same", "slower"]
)
def test_what_regressed_is_traced_once_where_the_scenario_says_so(
    tmp_path: Path, head: float, verdict: str, pairs: int, traced: int
) -> None:
    """A cell that a gate blocked gets one traced pair, which says where its time went; one that passes gets none."""
    roles = {**ROLES, "copy": (1, 2e-6)} if traced else ROLES
    collector = fake(FakeSpec(restart_sd=0.003, roles=roles), FakeSpec(head_ratio={"step": head}, restart_sd=3e-4))

    finished = take(scenario_file(tmp_path, gates=ITL, more=WHEN_REGRESSED), tmp_path, collector)

    (cell,) = finished.outcome.cells
    assert (finished.outcome.verdict, cell.pairs, cell.traced_pairs) == (verdict, pairs, traced)
    assert (cell.attribution is not None) == bool(traced)
    assert cell.reasons == ()


def test_a_check_of_kernels_traces_whatever_the_gates_say(tmp_path: Path) -> None:
    """A scenario that traces only what regressed learns its envelope all the same, and checks it in every run then."""
    scenario = scenario_file(tmp_path, gates=ITL, more=WHEN_REGRESSED)

    finished = take(scenario, tmp_path, kernels_only=True)

    assert finished.outcome.cells[0].traced_pairs == 1
    learnt = use_cases.learn_envelope(scenario, finished.folder)
    assert "launches: 326" in learnt
    assert "when:" not in learnt


class Stopped(FakeCollector):
    """A fake that Ctrl-C comes to in front of a trial."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Stop at the sixth trial, or take a fake one."""
        if job.index == 5:
            raise KeyboardInterrupt
        return super().collect(job, progress)


def test_more_where_a_cell_was_never_begun(tmp_path: Path) -> None:
    """A run interrupted before its second cell can be asked for more: that cell begins with its own looks."""
    scenario = scenario_file(tmp_path, more=f"{TRACED}\nmatrix: {{batch: [1, 2]}}")
    with pytest.raises(InterruptedRunError):
        take(scenario, tmp_path, Stopped(TIMED))
    (folder,) = (tmp_path / "runs").iterdir()

    again = use_cases.resume(folder, more=4, collector=fake())

    assert [(one.verdict, one.pairs, one.traced_pairs) for one in again.outcome.cells] == [("pass", 4, 1)] * 2


def test_more_adds_no_look_where_the_envelope_decided(tmp_path: Path) -> None:
    """``more`` goes to the cell that further pairs can decide, not to the one whose envelope is stale."""
    stale = scenario_file(tmp_path, "stale", GATES, envelope(295))
    noisy = scenario_file(tmp_path, "noisy", GATES, f"{TRACED}\nmatrix: {{batch: [3]}}")
    collector = fake(NOISY)
    folder = use_cases.run([stale, noisy], BOTH, runs=tmp_path / "runs", seed=1, collector=collector).folder

    again = use_cases.resume(folder, more=4, collector=collector)

    assert [(one.verdict, one.traced_pairs) for one in again.outcome.cells] == [
        ("not-comparable", 6),
        ("inconclusive", 16),
    ]
    assert [one.further_traced_looks for one in read_records(folder, read_run(folder))] == [(), (16,)]


def test_a_quick_look_at_kernels_alone(tmp_path: Path) -> None:
    """Where every gate is on kernels, a quick run takes one traced trial a side, and has no verdict."""
    scenario = scenario_file(tmp_path, gates=KERNELS, more=TRACED)

    finished = take(scenario, tmp_path, quick=True)

    assert (finished.outcome.verdict, finished.outcome.exit_status) == ("inconclusive", 20)
    assert [(t.kind, t.subject) for t in only_record(finished.folder).trials] in (
        [("traced", "base"), ("traced", "head")],
        [("traced", "head"), ("traced", "base")],
    )


def test_one_side_stopped_by_its_traces_keeps_the_rest(tmp_path: Path) -> None:
    """One side alone whose traced trials fail is not measured, and shows what its timed trials did all the same."""
    failing = FakeSpec(failures=dict.fromkeys(range(40), "evidence-missing"))
    scenario = scenario_file(tmp_path, gates=GATES, more=TRACED)

    outcome = take(scenario, tmp_path, fake(failing), {"base": BASE}).outcome

    (found,) = outcome.cells
    assert (outcome.exit_status, codes(found.reasons)) == (22, ["dropped-pairs"])
    assert {"itl_median", "start_time"} <= {row.metric for row in found.ungated}
    assert found.versions["base"]["vllm"] == "0.0.0+fake"
    assert len(found.record) == 64


def test_traced_trials_alone_show_other_outputs(tmp_path: Path) -> None:
    """A check of the kernels says so where the head generates other tokens: there is no timed trial to tell."""
    (found,) = take(
        scenario_file(tmp_path, more=envelope(326)), tmp_path, fake(FakeSpec(tokens_differ=True)), kernels_only=True
    ).outcome.cells  # fmt: skip

    assert found.verdict == "pass"
    assert codes(found.cautions) == ["outputs-differ"]


# --- one side against another


def compared(folder: Path, head: FakeSpec, more: str = "") -> Outcome:
    """Two runs of one side each, the head's with this block, compared."""
    records = []
    for side, spec in (("base", STEADY), ("head", head)):
        place = folder / side
        place.mkdir()
        block = more if side == "head" and more else envelope(326)
        finished = take(scenario_file(place, gates=GATES, more=block), place, fake(spec), {"base": BASE})
        records.append(str(next((finished.folder / "records").iterdir())))
    return use_cases.compare_records(*records)


def test_two_records_are_held_against_the_envelope(tmp_path: Path) -> None:
    """Records of one side each tell whether the head's steps left the envelope, though what they say is advice."""
    head = FakeSpec(restart_sd=0.003, roles={**ROLES, "copy": (1, 2e-6)})

    outcome = compared(tmp_path, head)

    assert (outcome.verdict, outcome.would_be) == ("advisory", "regressed")
    (reason,) = outcome.cells[0].reasons
    assert reason.code == "outside-envelope"
    assert reason.text.startswith("head: 96 of 96 steps (kernels 327, not 326): one more copy kernel")


def test_records_traced_by_other_rules_are_not_compared(tmp_path: Path) -> None:
    """The time of a role is no longer that of the same kernels where its rule has changed."""
    with pytest.raises(NotComparableError, match="were traced with other roles") as caught:
        compared(tmp_path, STEADY, "kernels: {traced: {iterations: 2}, roles: {attention: {match: flash}}}")
    assert caught.value.code == "different-cells"


# --- learning from a run folder


def test_an_envelope_is_learnt_from_its_own_cells(tmp_path: Path) -> None:
    """A run of the scenario as it was before an edit of what it measures teaches nothing; its gates may change."""
    scenario = scenario_file(tmp_path)
    folder = take(scenario, tmp_path, kernels_only=True).folder

    scenario_file(tmp_path, gates=KERNELS, more=TRACED)
    assert "launches: 326" in use_cases.learn_envelope(scenario, folder)
    scenario.write_text(scenario.read_text().replace("batch: 2", "batch: 3"))
    with pytest.raises(NotComparableError, match="it does not measure tiny") as caught:
        use_cases.learn_envelope(scenario, folder)
    assert caught.value.code == "different-cells"


# --- figures of any origin


def csv_file(folder: Path, metric: str, unit: str) -> Path:
    """Eight pairs of a metric, the head a tenth slower, each side first in every other pair."""
    rows = [
        f"{pair},{1 + place % 2},{subject},{metric},{unit},{value + 0.01 * pair}"
        for pair in range(8)
        for place, (subject, value) in enumerate((("base", 100), ("head", 110)), pair)
    ]
    file = folder / "kernels.csv"
    file.write_text("\n".join(["pair,order,subject,metric,unit,value", *rows]))
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
        ("itl_median[gemm]:1%:5%", "itl_median is not a metric of a role"),
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
