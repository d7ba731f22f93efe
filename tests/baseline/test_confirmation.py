"""A head that would regress by a baseline's visits: pairs with the build that was promoted decide, and nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file
from stored import of_day

from perfgate import gate as use_cases
from perfgate.baseline.confirming import in_pairs
from perfgate.baseline.promotion import promote
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.judge.cell_verdict import judge
from perfgate.metrics.trial import Trial
from perfgate.record.nested_pairs import FOLDER, run_of_pairs
from perfgate.record.run_record import read_records, read_run, record_file, write_record, write_run
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import BETA
from perfgate.scenario.subject import Subject
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

BASE = ("--base", "python=/bin/true")
SLOW = ("--head", "args.max_num_seqs=4")
Measure = Callable[..., Result]


def against_baseline(folder: Path, *words: str, collector: FakeCollector) -> Result:
    """``perfgate run`` of the folder's scenario against its baseline."""
    return CliRunner().invoke(main, ["run", str(folder / "tiny.yaml"), "--against", "baseline", *words], obj=collector)


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline of eight visits of one build."""
    folder = tmp_path_factory.mktemp("visited")
    scenario_file(folder, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")
    with contextlib.chdir(folder):
        for day in range(1, 9):
            against_baseline(folder, *BASE, collector=FakeCollector(built(), day))
            promote(of_day(day, newest()), folder / "baselines", reason="one more")
    return folder


@pytest.fixture
def measure(tmp_path: Path, visited: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures a head against those visits, on a machine of so many times the visits' step."""
    shutil.copytree(visited, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, seed: int = 99, fake: type[FakeCollector] = FakeCollector, **spec: float) -> Result:
        return against_baseline(tmp_path, *words, collector=fake(built(**spec), seed))

    return run


def built(head: float = 1.0, machine: float = 1.0, spread: float = 0.003) -> FakeSpec:
    """A head of so many times the base's step, on a machine of so many times the usual one."""
    return FakeSpec(step_s=FakeSpec().step_s * machine, restart_sd=spread, head_ratio={"step": head}, by_pair=True)


class Stopped(FakeCollector):
    """A fake that is stopped as by Ctrl-C in front of a trial of a run's pairs."""

    at = 4

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take a fake trial, or stop."""
        if job.run_folder.parent.name == FOLDER and job.index == self.at:
            raise KeyboardInterrupt
        return super().collect(job, progress)


def newest() -> Path:
    """The run that was begun last."""
    return max(Path("runs").iterdir(), key=lambda one: one.stat().st_mtime_ns)


def unname(run: Path) -> None:
    """Make a run one of an older version, which does not name its pairs."""
    write_run(run, read_run(run).model_copy(update={"pairs": None}))


def test_pairs_block_what_is_slower(measure: Measure) -> None:
    """What visits say alone ends 20; pairs with the named base, taken at once, end 10, and so does judging again."""
    ended = measure(*BASE, *SLOW, head=1.1)

    pairs = run_of_pairs(newest())
    assert pairs is not None
    assert json.loads((pairs / "run.json").read_text())["against"] is None
    assert (ended.exit_code, use_cases.outcome_of(newest()).verdict) == (10, "regressed")
    assert json.loads((newest() / "verdict.json").read_text())["verdict"] == "regressed"
    assert "would regress by the baseline's visits: pairs with the build that was promoted last decide" in ended.output
    shutil.rmtree(newest() / "pairs")
    unname(newest())
    alone = use_cases.outcome_of(newest())
    assert (alone.verdict, alone.exit_status, alone.would_be) == ("advisory", 20, "regressed")


@pytest.mark.parametrize(("machine", "pairs"), [(1.1, True), (1.0, False)])
def test_pairs_pass_what_only_met_a_slow_day(measure: Measure, machine: float, *, pairs: bool) -> None:
    """A machine that is 10 % slower than before slows base and head alike; where visits pass a head none are taken."""
    ended = measure(*BASE, *SLOW, machine=machine)

    assert (ended.exit_code, use_cases.outcome_of(newest()).verdict) == (0, "pass")
    assert ("would-regress" in ended.output, run_of_pairs(newest()) is not None) == (pairs, pairs)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "pairs decide: perfgate run "),
        (("--base", "args.max_num_seqs=8"), "Name that build: perfgate run "),
    ],
    ids=["no base", "another base"],
)
def test_without_pairs_nothing_is_decided(measure: Measure, words: tuple[str, ...], told: str) -> None:
    """It ends 20, and says with which command pairs are taken."""
    ended = measure(*words, *SLOW, head=1.1)

    assert ended.exit_code == 20
    assert told in ended.output
    assert "ADVISORY: itl_median +10" in ended.output
    assert run_of_pairs(newest()) is None


def test_no_time_for_pairs(measure: Measure) -> None:
    """Where the budget does not reach the first look that may block, none are begun: the command is said instead."""
    measure(*SLOW, head=1.1)
    finished = use_cases.Finished(newest(), use_cases.outcome_of(newest()))
    told: list[object] = []

    again = in_pairs(finished, [load(Path("tiny.yaml"))], Subject(python="/bin/true"), told.append, budget_s=1e-3)

    assert again == finished
    assert re.search(
        r"Pairs decide, and take about \d min more: perfgate run tiny.yaml --base python=/bin/true --head ", str(told)
    )


def failed() -> dict[str, str]:
    """What ``verify`` says of the newest run that does not hold."""
    return {check.what: check.text for check in verify_path(newest()) if check.result == "FAILED"}


def test_verify_checks_the_pairs(measure: Measure) -> None:
    """A record of the pairs that was changed, or is missing, is named, and so is that nothing else failed."""
    measure(*BASE, *SLOW, machine=1.1)
    pairs = run_of_pairs(newest())
    assert pairs is not None
    assert not failed()
    (record,) = (pairs / "records").iterdir()
    kept = record.read_text()

    record.write_text(kept.replace('"pair": 1', '"pair": 2', 1))
    assert failed().keys() == {"pairs: records", "pairs: verdict", "pairs: of this run", "verdict"}
    assert str(record) in failed()["pairs: records"]
    record.unlink()
    assert failed().keys() == {"pairs: verdict", "verdict"}
    record.write_text(kept)
    assert not failed()
    shutil.move(pairs.parent, "elsewhere")
    assert failed().keys() == {"pairs: of this run", "verdict"}
    assert failed()["verdict"] == "the pairs that were begun are missing"
    measure("--head", "args.max_num_seqs=6", machine=1.1)
    shutil.copytree("elsewhere", newest() / FOLDER)
    assert failed()["verdict"] == "is of another head"


def test_pairs_that_were_stopped_are_gone_on_with(measure: Measure) -> None:
    """``--resume`` of the run takes what its pairs lack: the trials that they have count, and their verdict is its."""
    assert measure(*BASE, *SLOW, fake=Stopped, machine=1.1).exit_code == 130
    pairs = run_of_pairs(newest())
    assert pairs is not None
    (before,) = read_records(pairs, read_run(pairs))
    assert len(before.trials) == 4
    assert not failed()
    words = ["run", "--resume", str(newest())]
    spent = CliRunner().invoke(main, [*words, "--budget", "0.001"], obj=FakeCollector(built(machine=1.1), 99))
    assert spent.exit_code == 130, spent.output
    assert "what is left of the budget" in spent.output
    assert f"Go on with: perfgate run --resume {newest()}\n" in spent.output
    again = Stopped(built(machine=1.1), 99)
    again.at = 8
    assert CliRunner().invoke(main, words, obj=again).exit_code == 130
    assert not failed()

    ended = CliRunner().invoke(main, words, obj=FakeCollector(built(machine=1.1), 99))

    assert (ended.exit_code, use_cases.outcome_of(newest()).verdict) == (0, "pass")
    assert run_of_pairs(newest()) == pairs
    (after,) = read_records(pairs, read_run(pairs))
    assert after.trials[:4] == before.trials


def test_pairs_in_the_folder_of_somebody_else_are_not_gone_on_with(measure: Measure) -> None:
    """A run that goes on as one of named builds takes no trial of what else its folder holds."""
    measure(*BASE, *SLOW, fake=Stopped, machine=1.1)
    stopped = newest()
    of_names = ["run", "tiny.yaml", *BASE, *SLOW]
    assert CliRunner().invoke(main, of_names, obj=FakeCollector(built())).exit_code == 0
    shutil.copytree(stopped / FOLDER, newest() / FOLDER)

    ended = CliRunner().invoke(main, [*of_names, "--resume", str(newest())], obj=Stopped(built()))

    assert ended.exit_code == 0


def test_pairs_after_visits_pass_by_a_quarter_of_beta(measure: Measure) -> None:
    """What four pairs pass by all of beta has more of them taken, whatever their manifest declares."""
    ended = measure(*BASE, *SLOW, machine=1.1, head=1.02, spread=0.006, seed=203)
    pairs = run_of_pairs(newest())
    assert pairs is not None
    whole, (record,) = read_run(pairs), read_records(pairs, read_run(pairs))
    four = record.model_copy(update={"trials": tuple(one for one in record.trials if (one.pair or 0) < 4)})

    (gate,), (early,) = (
        use_cases.outcome_of(newest()).cells[0].gates,
        judge(whole, {four.cell.cell_id: four}).cells[0].gates,
    )
    assert (ended.exit_code, gate.verdict, whole.plan.beta) == (0, "pass", BETA / 4)
    assert gate.pairs > early.pairs == 4
    assert gate.q <= BETA / 4 < early.q <= BETA
    unname(newest())
    write_run(pairs, whole.model_copy(update={"plan": whole.plan.model_copy(update={"beta": BETA})}))
    write_record(record_file(pairs, four.cell), four)
    assert use_cases.outcome_of(pairs).verdict == "pass"
    assert use_cases.outcome_of(newest()).verdict == "inconclusive"


def head_in(folder: Path, content: str) -> tuple[str, ...]:
    """The words for a head that has a module with this content on its path."""
    folder.mkdir(exist_ok=True)
    (folder / "kernels.py").write_text(content)
    return ("--head", "python=/bin/true", "--head", f"path={folder}")


def of_this_run(run: Path) -> str:
    """What ``verify`` says of whether pairs belong to a run."""
    (told,) = [f"{one.result}: {one.text}" for one in verify_path(run) if one.what == "pairs: of this run"]
    return told


def test_pairs_of_a_head_that_was_edited_are_not_taken(measure: Measure, tmp_path: Path) -> None:
    """Neither at once nor days later; with its files put back they are, and decide."""
    words = head_in(tmp_path / "tree", "blocks = 64")
    measure(*words, machine=1.1)
    outer = newest()

    def edit(told: object) -> None:
        if "decide" in str(told):
            head_in(tmp_path / "tree", "blocks = 128")

    finished = use_cases.Finished(outer, use_cases.outcome_of(outer))
    loaded, base = [load(tmp_path / "tiny.yaml")], Subject(python="/bin/true")
    with pytest.raises(NotMeasuredError, match="head is not the build that was measured") as refused:
        in_pairs(finished, loaded, base, edit, collector=FakeCollector(built(machine=1.1), 99))
    assert refused.value.code == "subject-changed"
    days_later = CliRunner().invoke(main, ["run", "--resume", str(outer)], obj=FakeCollector(built(machine=1.1), 99))
    assert days_later.exit_code == 22
    assert not [*(outer / FOLDER).glob("*/records/*.json")]

    head_in(tmp_path / "tree", "blocks = 64")
    ended = CliRunner().invoke(main, ["run", "--resume", str(outer)], obj=FakeCollector(built(machine=1.1), 99))
    assert ended.exit_code == 0, ended.output
    assert of_this_run(outer).startswith("ok: ")


def test_pairs_of_other_files_under_the_same_words_decide_nothing(measure: Measure, tmp_path: Path) -> None:
    """A run of a head that was edited is not measured by the pairs of what its folder held before or after."""
    measure(*head_in(tmp_path / "tree", "blocks = 128"), machine=1.1)
    edited = newest()
    measure(*BASE, *head_in(tmp_path / "tree", "blocks = 64"), machine=1.1)
    shutil.copytree(newest() / FOLDER, edited / FOLDER)

    found = use_cases.outcome_of(edited)
    assert (found.verdict, found.exit_status) == ("not-measured", 22)
    assert "subject-changed" in {note.code for note in found.cells[0].reasons}
    assert re.match(r"FAILED: head: files \w{12} in the visits, and \w{12} in the pairs", of_this_run(edited))


def test_pairs_that_were_begun_before_the_visits_are_refused(measure: Measure) -> None:
    """A run that does not name its pairs takes no older ones, which others chose; those that fit are in doubt."""
    measure(*BASE, *SLOW, machine=1.1)
    pairs = run_of_pairs(newest())
    assert pairs is not None
    unname(newest())
    assert use_cases.outcome_of(newest()).verdict == "pass"
    assert of_this_run(newest()).startswith("unknown: ")

    of_day(1, pairs)

    with pytest.raises(RecordError, match="before the visits"):
        use_cases.outcome_of(newest())


def test_pairs_that_were_drawn_again_are_refused(measure: Measure) -> None:
    """Pairs of the same builds, taken for another run, do not replace those that regressed, nor come before them."""
    measure(*BASE, *SLOW, head=1.1)
    slow, pairs = newest(), run_of_pairs(newest())
    measure(*BASE, *SLOW, machine=1.1)
    passed = run_of_pairs(newest())
    assert pairs is not None
    assert passed is not None

    for beside in (True, False):
        if not beside:
            shutil.rmtree(pairs)
        shutil.copytree(passed, slow / FOLDER / "again")
        with pytest.raises(RecordError, match="is not as the pairs were begun"):
            use_cases.outcome_of(slow)
        assert of_this_run(slow).startswith("FAILED: ")
        shutil.rmtree(slow / FOLDER / "again")
