"""The use cases: whole runs on a fake, judged again, and comparisons of what was measured elsewhere."""

from __future__ import annotations

import doctest
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, BOTH, MACHINE, STEP_S, cell, gate, record, run, scenario_file, spread, trial, trials

from perfgate import gate as use_cases
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.cli.main import main
from perfgate.errors import (
    ExitStatus,
    InterruptedRunError,
    NotComparableError,
    PerfgateError,
    RecordError,
    ScenarioError,
    UsageError,
)
from perfgate.judge.outcome import verdict_json
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, Visit, read_record, read_records, read_run, record_file, write_record
from perfgate.report.outcome_document import outcome_document
from perfgate.report.text import to_text
from perfgate.run_steps import RunStep
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
SAME = FakeSpec(restart_sd=0.0003)
FASTER = FakeSpec(head_ratio={"step": 0.99}, restart_sd=0.0003)
NOISY = FakeSpec(restart_sd=0.02)


class Failing(FakeCollector):
    """A fake that raises in front of the trial of that index."""

    def __init__(self, error: BaseException, at: int) -> None:
        super().__init__(SAME)
        self.error = error
        self.at = at

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Raise, or take a fake trial."""
        if job.index == self.at:
            raise self.error
        return super().collect(job, progress)


def finish(
    folder: Path, spec: FakeSpec | FakeCollector, more: str = "", gates: str = "", **options: Any
) -> use_cases.Finished:
    """A run of the tiny scenario below ``folder``."""
    collector = spec if isinstance(spec, FakeCollector) else FakeCollector(spec)
    subjects = options.pop("subjects", BOTH)
    scenario = scenario_file(folder, gates=gates, more=more)
    return use_cases.run([scenario], subjects, runs=folder / "runs", seed=1, collector=collector, **options)


# --- runs


@pytest.mark.parametrize(
    ("spec", "verdict", "pairs"),
    [(SLOWER, "regressed", 6), (SAME, "pass", 4), (FASTER, "improved", 4), (NOISY, "inconclusive", 12)],
    ids=["slower", "same", "faster", "noisy"],
)
def test_run(tmp_path: Path, spec: FakeSpec, verdict: str, pairs: int) -> None:
    """A run measures look by look and stops at the first that decides, or at the last."""
    finished = finish(tmp_path, spec)

    assert finished.outcome.verdict == verdict
    assert finished.outcome.cells[0].pairs == pairs
    assert finished.outcome.cells[0].next_look is None


def test_run_folder(tmp_path: Path) -> None:
    """A run's folder holds the scenario as written, the manifest, records, trials, the verdict and a lock."""
    finished = finish(tmp_path, SAME)

    folder = finished.folder
    assert folder.parent == tmp_path / "runs"
    assert folder.name == finished.outcome.run
    assert sorted(file.name for file in folder.iterdir()) == [
        "lock",
        "records",
        "run.json",
        "scenario",
        "trials",
        "verdict.json",
    ]
    assert (folder / "scenario" / "tiny.yaml").read_text() == (tmp_path / "tiny.yaml").read_text()
    assert (folder / "verdict.json").read_text() == verdict_json(finished.outcome)
    assert len(list((folder / "trials").iterdir())) == 10
    manifest = read_run(folder)
    assert (manifest.subjects, manifest.plan.seed) == (BOTH, 1)


def test_cells_stop_alone(tmp_path: Path) -> None:
    """Each cell of a run is measured until it is decided itself, all of them to the first look before any goes on."""
    steps: list[Step | str] = []

    finished = finish(tmp_path, SLOWER, more="matrix: {batch: [1, 2]}", progress=steps.append)

    assert [(one.name, one.pairs) for one in finished.outcome.cells] == [("tiny[batch=1]", 6), ("tiny[batch=2]", 6)]
    order = [step.cell for step in steps if isinstance(step, Step) and step.finished]
    assert order[:20] == ["tiny[batch=1]"] * 10 + ["tiny[batch=2]"] * 10
    assert len([*itertools.groupby(order[20:])]) == 2
    assert {g.block_level for one in finished.outcome.cells for g in one.gates} == {0.01}


def test_steps_say_where_in_the_run_they_are(tmp_path: Path) -> None:
    """Each step names its cell by number; a quick run decides nothing, so that no look is promised."""
    steps: list[Step | str] = []
    more = "matrix: {batch: [1, 2]}"

    finish(tmp_path, SLOWER, more=more, progress=steps.append)
    told = [step for step in steps if isinstance(step, RunStep)]
    assert len(told) == sum(isinstance(step, Step) for step in steps)
    assert {(step.cell, step.number, step.cells, step.decides) for step in told} == {
        ("tiny[batch=1]", 1, 2, True),
        ("tiny[batch=2]", 2, 2, True),
    }
    steps.clear()
    finish(tmp_path, SLOWER, more=more, progress=steps.append, quick=True)
    assert not any(step.decides for step in steps if isinstance(step, RunStep))


def test_several_scenarios(tmp_path: Path) -> None:
    """Several scenarios are one run: one folder, one family, one verdict."""
    files = [
        scenario_file(tmp_path, "one"),
        scenario_file(tmp_path, "two", "{metric: ttft_median, ignorable: 1%, must_catch: 5%}", "matrix: {batch: [3]}"),
    ]

    finished = use_cases.run(files, BOTH, runs=tmp_path / "runs", seed=1, collector=FakeCollector(SLOWER))

    assert finished.folder.name.startswith("one+1-")
    assert [one.verdict for one in finished.outcome.cells] == ["regressed", "pass"]
    assert finished.outcome.verdict == "regressed"
    assert sorted(file.name for file in (finished.folder / "scenario").iterdir()) == ["one.yaml", "two.yaml"]


def test_seed_repeats(tmp_path: Path) -> None:
    """The same seed on the same builds repeats every figure; a seed not given is drawn and kept."""
    (tmp_path / "again").mkdir()
    first, second = (finish(folder, SLOWER).outcome for folder in (tmp_path, tmp_path / "again"))

    drawn = use_cases.run([tmp_path / "tiny.yaml"], BOTH, runs=tmp_path / "runs", collector=FakeCollector(SAME))

    assert [c.gates for c in first.cells] == [
        tuple(g.model_copy(update={"where": g.where.replace("/again/", "/")}) for g in c.gates) for c in second.cells
    ]
    assert 0 <= read_run(drawn.folder).plan.seed < 2**32


def test_quick(tmp_path: Path) -> None:
    """A quick run takes one trial a subject and ends inconclusive, however large the difference."""
    finished = finish(tmp_path, FakeSpec(head_ratio={"step": 3.0}), quick=True)

    assert finished.outcome.exit_status == ExitStatus.INCONCLUSIVE
    assert [note.code for note in finished.outcome.reasons] == ["quick-run"]
    assert len(list((finished.folder / "trials").iterdir())) == 2


def test_one_side(tmp_path: Path) -> None:
    """One side alone is measured as often as the first look that may block asks, and compared with nothing."""
    finished = finish(tmp_path, SAME, subjects={"base": BASE})

    assert finished.outcome.exit_status == ExitStatus.NOT_COMPARABLE
    (measured,) = read_run(finished.folder).plan.cells
    assert len(read_record(record_file(finished.folder, measured)).judged_trials("base")) == 6


def test_failing_head(tmp_path: Path) -> None:
    """A head that cannot start is not measured, and the outcome has its words."""
    finished = finish(tmp_path, FakeSpec(failures={1: "engine-start-failed"}))

    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED
    (note,) = finished.outcome.cells[0].reasons
    assert note.code == "engine-start-failed"
    assert note.text.startswith("head: a fake failure of trial 1")


def test_unknown_error(tmp_path: Path) -> None:
    """An unknown error in one cell makes the run an internal error, with the other cells judged."""
    finished = finish(tmp_path, Failing(ZeroDivisionError("oh"), at=3), more="matrix: {batch: [1, 2]}")

    assert finished.outcome.exit_status == ExitStatus.INTERNAL_ERROR
    assert [one.verdict for one in finished.outcome.cells] == ["internal-error", "pass"]
    assert "ZeroDivisionError: oh" in finished.outcome.cells[0].reasons[0].text


def test_interrupt(tmp_path: Path) -> None:
    """An interrupted run names its folder, which holds a verdict of what was measured and can be judged again."""
    with pytest.raises(InterruptedRunError) as caught:
        finish(tmp_path, Failing(KeyboardInterrupt(), at=6), more="matrix: {batch: [1, 2]}")

    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in str(caught.value)
    assert caught.value.code == "interrupted"
    before = (folder / "verdict.json").read_text()
    outcome = use_cases.judge_folder(folder)
    assert [(one.verdict, one.pairs) for one in outcome.cells] == [("inconclusive", 2), ("not-measured", 0)]
    assert outcome.exit_status == ExitStatus.NOT_MEASURED
    assert before == verdict_json(outcome)


@pytest.mark.parametrize("file", ["run.json", "verdict.json"])
def test_interrupt_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Ctrl-C just after the manifest or the verdict was written names the folder too, and a verdict is there."""
    written: list[Path] = []

    def sync(folder: Path) -> None:
        if (folder / file).exists() and not written:
            written.append(folder)
            raise KeyboardInterrupt

    monkeypatch.setattr("perfgate.machine.atomic_files._sync", sync)

    with pytest.raises(InterruptedRunError) as caught:
        finish(tmp_path, SAME)

    (folder,) = written
    assert str(folder) in str(caught.value)
    assert (folder / "verdict.json").exists()


def test_interrupt_before_there_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the manifest exists leaves nothing to go on with, and nothing is said of it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfgate.gate.write_begun", interrupt)

    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path, SAME)


@pytest.mark.parametrize(
    ("text", "error"),
    [("schema: 1\n", ScenarioError), (None, ScenarioError)],
    ids=["incomplete", "absent"],
)
def test_wrong_scenario(tmp_path: Path, text: str | None, error: type[PerfgateError]) -> None:
    """A wrong scenario is refused before a run folder is made."""
    if text is not None:
        (tmp_path / "s.yaml").write_text(text)

    with pytest.raises(error):
        use_cases.run([tmp_path / "s.yaml"], BOTH, runs=tmp_path / "runs", collector=FakeCollector())
    assert not (tmp_path / "runs").exists()


def test_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    """Linux allows any bytes in a path and a record does not: that is said before there is a run folder."""
    project = tmp_path / "pro\udcffject"
    project.mkdir()
    with pytest.raises(UsageError, match=r"the path '.*pro.+udcffject/tiny\.yaml' is not UTF-8"):
        finish(project, FakeSpec())
    assert not (project / "runs").exists()


def test_the_example_runs() -> None:
    """The module's example is what Python takes as one."""
    found = doctest.testmod(use_cases)

    assert (found.failed, found.attempted > 0) == (0, True)


def test_same_cell_twice(tmp_path: Path) -> None:
    """Two scenarios of one cell are refused before a run folder is made."""
    files = [scenario_file(tmp_path, name) for name in ("one", "two")]

    with pytest.raises(UsageError, match="two and one are the same cell"):
        use_cases.run(files, BOTH, runs=tmp_path / "runs", collector=FakeCollector())
    assert not (tmp_path / "runs").exists()


# --- judging again


def test_judge_folder(tmp_path: Path) -> None:
    """Judging a folder again gives the same outcome and the same bytes, also after verdict.json was lost."""
    finished = finish(tmp_path, SLOWER)
    before = (finished.folder / "verdict.json").read_bytes()
    (finished.folder / "verdict.json").unlink()

    outcome = use_cases.judge_folder(finished.folder)

    assert outcome == finished.outcome
    assert before == (finished.folder / "verdict.json").read_bytes()


def test_no_run_folder(tmp_path: Path) -> None:
    """A folder without a manifest not a run folder."""
    with pytest.raises(RecordError, match="not a run folder"):
        use_cases.judge_folder(tmp_path)


def test_tampered_record(tmp_path: Path) -> None:
    """A record changed by hand is refused, and the verdict on disk stays as it was."""
    finished = finish(tmp_path, SLOWER)
    verdict = (finished.folder / "verdict.json").read_bytes()
    (file,) = (finished.folder / "records").iterdir()
    content = json.loads(file.read_text())
    content["trials"][3]["iterations"][0]["itl_ns"][0] += 1
    file.write_text(json.dumps(content))

    with pytest.raises(RecordError, match="digest"):
        use_cases.judge_folder(finished.folder)
    assert verdict == (finished.folder / "verdict.json").read_bytes()


def test_record_of_another_cell(tmp_path: Path) -> None:
    """A record under another cell's name is refused."""
    first, second = cell("first"), cell("second")
    (tmp_path / "records").mkdir()
    manifest = run([first])
    write_record(record_file(tmp_path, first), record(second))

    with pytest.raises(RecordError, match="another cell"):
        list(read_records(tmp_path, manifest))


# --- comparing records


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    """A function that writes the record of a cell and returns its path."""

    def one(name: str, content: Record) -> str:
        write_record(tmp_path / name, content)
        return str(tmp_path / name)

    return one


def alone(factor: float = 1.0, name: str = "cell", **changes: Any) -> Record:
    """A one-sided record of six trials."""
    measured = cell(name, [gate("itl_median", "1%", "5%")])
    steps = [STEP_S * factor + 1e-5 * (n % 3) for n in range(6)]
    return record(measured, [trial(n, n, "base", s) for n, s in enumerate(steps)], subjects={"base": BASE}, **changes)


@pytest.mark.parametrize(("factor", "would_be"), [(1.0, "pass"), (1.2, "regressed"), (0.8, "improved")])
def test_compare_records(save: Callable[..., str], factor: float, would_be: str) -> None:
    """Two one-sided records give an advisory verdict with what it would be, naming both files."""
    base, head = save("base.json", alone()), save("head.json", alone(factor))

    outcome = use_cases.compare_records(base, head)

    assert (outcome.verdict, outcome.would_be, outcome.exit_status) == ("advisory", would_be, 20)
    assert (outcome.reasons[0].code, outcome.reasons[0].text) == ("advisory-unpaired", "measured apart from each other")
    assert outcome.run == f"{base} {head}"


def test_two_sided_record(save: Callable[..., str]) -> None:
    """Of a record with two sides the word says which, and both can be compared with each other."""
    file = save("both.json", record(cell(), trials(spread(0.02, 0.001, 6))))

    outcome = use_cases.compare_records(f"{file}:base", f"{file}:head")

    assert outcome.would_be == "regressed"
    assert outcome.cells[0].gates[0].change == pytest.approx(math.expm1(0.02), rel=1e-3)
    with pytest.raises(UsageError, match="holds base and head"):
        use_cases.compare_records(file, f"{file}:head")


def test_side_not_there(save: Callable[..., str]) -> None:
    """A side that the record does not hold is refused."""
    file = save("base.json", alone())

    with pytest.raises(UsageError, match="the record holds no head"):
        use_cases.compare_records(file, f"{file}:head")


def test_different_cells(save: Callable[..., str]) -> None:
    """Records of different cells are not comparable, and the error names both."""
    with pytest.raises(NotComparableError, match=r"a\.json holds one .*b\.json holds two") as caught:
        use_cases.compare_records(save("a.json", alone(name="one")), save("b.json", alone(name="two")))
    assert caught.value.code == "different-cells"


def test_different_machines(save: Callable[..., str]) -> None:
    """Records of different machines are not comparable, and the error names the difference once."""
    visit = Visit(machine=MACHINE.model_copy(update={"cpu": "Other CPU"}), t0_utc="2026-01-01T00:00:00+00:00")

    with pytest.raises(NotComparableError) as caught:
        use_cases.compare_records(save("a.json", alone()), save("b.json", alone(visits=(visit, visit))))
    assert caught.value.code == "different-machines"
    assert caught.value.finding == "cpu: 'Test CPU' against 'Other CPU'"


def test_record_not_there(tmp_path: Path) -> None:
    """A file that is not there is an error of perfgate's own."""
    with pytest.raises(RecordError, match="does not exist"):
        use_cases.compare_records(str(tmp_path / "a.json"), str(tmp_path / "b.json"))


# --- comparing tables


def table(folder: Path, slowdowns: list[float], *, paired: bool = True) -> Path:
    """A CSV of itl_median with these log ratios, each side first in every other pair."""
    rows = ["pair,order,subject,metric,unit,value" if paired else "subject,metric,unit,value"]
    for n, d in enumerate(slowdowns):
        for place, (side, value) in enumerate((("base", 5.0), ("head", 5.0 * math.exp(d))), n):
            begin = f"{n},{1 + place % 2}," if paired else ""
            rows.append(f"{begin}{side},itl_median,ms,{value + (0 if paired else 0.001 * (n % 3))}")
    (folder / "t.csv").write_text("\n".join(rows))
    return folder / "t.csv"


@pytest.mark.parametrize(
    ("slowdowns", "verdict", "status"),
    [
        (spread(0.02, 0.0002, 7), "regressed", 10),
        (spread(0.02, 0.0002, 6), "inconclusive", 20),
        (spread(0.0, 0.0002, 5), "pass", 0),
        (spread(0.0, 0.0002, 4), "inconclusive", 20),
        (spread(0.003, 0.01, 8), "inconclusive", 20),
        ([0.0, 0.0, 0.0], "inconclusive", 20),
        ([0.0], "inconclusive", 20),
    ],
)
def test_compare_table(tmp_path: Path, slowdowns: list[float], verdict: str, status: int) -> None:
    """A paired CSV is judged by the rule at one look, which passes from five pairs on and blocks from seven on."""
    outcome = use_cases.compare_table(table(tmp_path, slowdowns), [use_cases.parse_gate("itl_median:0.1%:0.5%")])

    assert (outcome.verdict, outcome.exit_status) == (verdict, status)
    assert outcome.run == "t.csv"


def test_compare_unpaired_table(tmp_path: Path) -> None:
    """An unpaired CSV is advisory."""
    file = table(tmp_path, [0.2] * 6, paired=False)

    outcome = use_cases.compare_table(file, [use_cases.parse_gate("itl_median:0.1%:0.5%")])

    assert (outcome.verdict, outcome.would_be, outcome.exit_status) == ("advisory", "regressed", 20)


def test_table_without_the_metric(tmp_path: Path) -> None:
    """A gate without values in the CSV is an error that names file and gate."""
    with pytest.raises(
        RecordError, match=r"t\.csv: has no values of ttft_median, which --gate ttft_median:1%:5% gates"
    ):
        use_cases.compare_table(table(tmp_path, [0.0] * 4), [use_cases.parse_gate("ttft_median:1%:5%")])


def test_zero_in_a_table(tmp_path: Path) -> None:
    """A value of zero is not measured, whatever the others say."""
    file = table(tmp_path, [0.0] * 6)
    file.write_text(file.read_text().replace("3,2,base,itl_median,ms,5.0", "3,2,base,itl_median,ms,0"))

    outcome = use_cases.compare_table(file, [use_cases.parse_gate("itl_median:0.1%:0.5%")])

    assert (outcome.verdict, outcome.exit_status) == ("not-measured", 22)


def test_parse_gate() -> None:
    """A gate's word gives its metric and margins, and is its place."""
    planned = use_cases.parse_gate("ttft_median:2%:8%")

    assert (planned.gate.metric, planned.gate.ignorable, planned.gate.must_catch) == ("ttft_median", 0.02, 0.08)
    assert planned.where == "--gate ttft_median:2%:8%"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("itl_median", "expected METRIC:IGNORABLE:MUST_CATCH"),
        ("itl_median:1%:2%:3%", "expected METRIC:IGNORABLE:MUST_CATCH"),
        ("itl:1%:2%", "expected one of ttft_median"),
        ("itl_median:1:2", "expected a percentage"),
        ("itl_median:2%:1%", r"must be above ignorable \(2%\)"),
    ],
)
def test_wrong_gate(word: str, says: str) -> None:
    """A word of another form, or an impossible gate, is refused with the word and what was expected."""
    with pytest.raises(UsageError, match=f"--gate {word}: .*{says}"):
        use_cases.parse_gate(word)


def test_iterations_that_pay(tmp_path: Path) -> None:
    """A run with bounds chooses by its warm-up trials, the next one by that run; report, check and verify agree."""
    scenario = scenario_file(tmp_path)
    declared = scenario.read_text()
    scenario.write_text(declared.replace("iterations: 2}", "iterations: 6, choose: {least: 2, most: 30}}"))
    runs = tmp_path / "runs"
    first, second = (
        use_cases.run([scenario], BOTH, runs=runs, seed=seed, collector=FakeCollector()) for seed in (0, 1)
    )

    texts = [to_text(outcome_document(finished.outcome)) for finished in (first, second)]
    assert "iterations a trial: pairs of itl_median spread by" in texts[0]
    assert "by the warm-up trials" in texts[0]
    assert "by the record of" in texts[1]
    (kept,) = read_records(second.folder, read_run(second.folder))
    assert kept.chosen is not None
    assert {len(t.iterations) for t in kept.trials} == {kept.chosen.iterations}  # warm-up trials as well: it was known
    (before,) = read_records(first.folder, read_run(first.folder))
    assert {len(t.iterations) for t in before.trials if t.pair is None} == {6}
    assert next(check.result for check in verify_path(second.folder) if check.what == "times") == "ok"
    checked = CliRunner().invoke(main, ["check", str(scenario), "--runs", str(runs)])
    assert ", from 2 to 30: pairs of itl_median spread by" in checked.stdout
    assert f"engine starts of 1 + {kept.chosen.iterations} iterations\n" in checked.stdout
    assert f"iterations: {kept.chosen.iterations}, from" in checked.stdout
    unknown = CliRunner().invoke(main, ["check", str(scenario), "--runs", str(tmp_path / "none")])
    assert "iterations: from 2 to 30, chosen by the warm-up trials; 6 in these" in unknown.stdout
