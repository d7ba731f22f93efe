"""Going on with a run: what is kept, what is measured again, and what is refused."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, BOTH, MACHINE, cell, codes, judged, scenario_file, trial, trials

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import (
    ExitStatus,
    InterruptedRunError,
    NotComparableError,
    RecordError,
    UsageError,
)
from perfgate.machine.fingerprint import Gpu
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record import keeping
from perfgate.record.manifest import check_sequence
from perfgate.record.run_record import Record, read_records, read_run
from perfgate.report.formats import render
from perfgate.scenario.plan import head_first, make_plan
from perfgate.scenario.subject import Subject
from perfgate.stats.sequential import EARLY_SCHEDULE, Schedule

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
NOISY = FakeSpec(restart_sd=0.02)
EVEN = FakeSpec(restart_sd=0, iteration_sd=0)


class Watched(FakeCollector):
    """A fake that notes its jobs and can be stopped in front of one.

    Args:
        spec: What the builds are like.
        stop_at: Index of the trial that Ctrl-C comes in front of.
        version: Of vllm on the head.
    """

    def __init__(self, spec: FakeSpec = SAME, stop_at: int | None = None, version: str = "1.0") -> None:
        super().__init__(spec)
        self.stop_at = stop_at
        self.version = version
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Stop, or take a fake trial."""
        if job.index == self.stop_at:
            raise KeyboardInterrupt
        self.jobs.append(job)
        taken = super().collect(job, progress)
        own = {"vllm": self.version} if job.side == "head" else {}
        return taken.model_copy(update={"versions": {**taken.versions, **own}})


def begin(folder: Path, collector: FakeCollector, more: str = "", **options: Any) -> Path:
    """A run that may be interrupted; its folder."""
    subjects = options.pop("subjects", BOTH)
    scenario = scenario_file(folder, more=more)
    with contextlib.suppress(InterruptedRunError):
        gate.run([scenario], subjects, runs=folder / "runs", seed=1, collector=collector, **options)
    (found,) = (folder / "runs").iterdir()
    return found


def records(folder: Path) -> list[Record]:
    """The records of a run folder."""
    return list(read_records(folder, read_run(folder)))


# --- what is kept


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 9])
def test_interrupted_anywhere(tmp_path: Path, stop_at: int) -> None:
    """A run interrupted before any of its trials ends in its verdict, and every finished trial stays as it was."""
    folder = begin(tmp_path, Watched(stop_at=stop_at))
    (before,) = records(folder)

    finished = gate.resume(folder, collector=Watched())

    (after,) = records(folder)
    assert (finished.folder, finished.outcome.verdict, finished.outcome.cells[0].pairs) == (folder, "pass", 4)
    assert after.trials[:stop_at] == before.trials
    assert len(before.trials) == stop_at
    assert [len(before.visits), len(after.visits)] == [1, 2]
    assert len({t.index for t in after.trials}) == len(after.trials)


def test_interrupted_in_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while a library is imported that makes another error of it: how to go on is told all the same."""

    def importing(*_: object) -> None:
        raise ImportError("cannot import a part of it") from KeyboardInterrupt()

    monkeypatch.setattr(gate, "take_steps", importing)

    with pytest.raises(InterruptedRunError) as stopped:
        gate.run([scenario_file(tmp_path)], BOTH, runs=tmp_path / "runs", collector=FakeCollector())
    assert "perfgate run --resume" in str(stopped.value)


def test_a_new_visit(tmp_path: Path) -> None:
    """A new visit conditions both subjects, and takes pairs of new numbers in the order that the run's seed draws."""
    folder = begin(tmp_path, Watched(stop_at=5))
    collector = Watched()

    gate.resume(folder, collector=collector)

    (record,) = records(folder)
    assert [(job.pair, job.side) for job in collector.jobs[:2]] == [(None, "base"), (None, "head")]
    firsts = {job.pair: job.side for job in collector.jobs[2:] if job.position == 0}
    expected = {n: "head" if head_first(1, record.cell.cell_id, n, "coins") else "base" for n in (2, 3, 4)}
    assert firsts == expected
    assert all(base.visit == head.visit for base, head in record.pairs())
    assert [base.pair for base, _ in record.pairs()] == [0, 2, 3, 4]
    assert all(job.subject == BOTH[job.side] for job in collector.jobs)


def test_an_older_run_goes_on_by_its_own_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose manifest does not say how orders are drawn has one of each in every two pairs, to its end."""
    with monkeypatch.context() as older:
        older.setattr(keeping, "make_plan", functools.partial(make_plan, orders="blocks"))
        folder = begin(tmp_path, Watched(stop_at=5))
    assert "orders" not in (folder / "run.json").read_text()

    gate.resume(folder, collector=Watched())

    (record,) = records(folder)
    check_sequence([record])
    firsts = [next(t.subject for t in record.trials if (t.pair, t.position) == (pair, 0)) for pair in range(5)]
    drawn = [head_first(1, record.cell.cell_id, pair, "blocks") for pair in range(5)]
    assert firsts == ["head" if first else "base" for first in drawn]
    assert drawn != [head_first(1, record.cell.cell_id, pair, "coins") for pair in range(5)]


@pytest.mark.parametrize("spec", [SAME, SLOWER, NOISY], ids=["pass", "regressed", "inconclusive"])
def test_decided_cells_are_closed(tmp_path: Path, spec: FakeSpec) -> None:
    """Of a run that came to its end nothing is measured; the stored verdict is given again, byte for byte."""
    folder = begin(tmp_path, Watched(spec))
    before = {file: file.read_bytes() for file in (folder / "verdict.json", *(folder / "records").iterdir())}
    collector = Watched()

    finished = gate.resume(folder, collector=collector)

    assert collector.jobs == []
    assert {file: file.read_bytes() for file in before} == before
    assert finished.outcome == gate.judge_folder(folder)


def test_only_open_cells(tmp_path: Path) -> None:
    """A cell decided before the interruption is left alone; the one under way and those not begun are measured."""
    more = "matrix: {batch: [1, 2, 3]}"
    folder = begin(tmp_path, Watched(stop_at=14), more)
    first, _ = records(folder)
    collector = Watched()

    outcome = gate.resume(folder, collector=collector).outcome

    assert {job.cell.batch.batch for job in collector.jobs} == {2, 3}
    assert records(folder)[0] == first
    assert [(one.verdict, one.pairs) for one in outcome.cells] == [("pass", 4)] * 3


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    """A run may be interrupted in every visit; pairs of all visits count together."""
    folder = begin(tmp_path, Watched(stop_at=4))
    for _ in range(2):
        taken = len(list((folder / "trials").iterdir()))
        with pytest.raises(InterruptedRunError):
            gate.resume(folder, collector=Watched(stop_at=taken + 4))

    outcome = gate.resume(folder, collector=Watched()).outcome

    assert (outcome.verdict, outcome.cells[0].pairs, len(records(folder)[0].visits)) == ("pass", 4, 4)


def test_one_side(tmp_path: Path) -> None:
    """One side alone goes on to the number of trials that the first blocking look asks for."""
    folder = begin(tmp_path, Watched(stop_at=3), subjects={"base": BASE})

    outcome = gate.resume(folder, collector=Watched()).outcome

    assert outcome.exit_status == ExitStatus.NOT_COMPARABLE
    assert len(records(folder)[0].judged_trials("base")) == 6


def test_quick(tmp_path: Path) -> None:
    """A quick run goes on to its one pair, and has no verdict then either."""
    folder = begin(tmp_path, Watched(stop_at=1), quick=True)

    outcome = gate.resume(folder, collector=Watched(), more=4).outcome

    assert (outcome.verdict, outcome.cells[0].pairs, codes(outcome.reasons)) == ("inconclusive", 1, ["quick-run"])


def test_what_a_killed_visit_left(tmp_path: Path) -> None:
    """The next visit takes away the caches and half-written files that a killed one left, and nothing else."""
    folder = begin(tmp_path, Watched(stop_at=5))
    (folder / "cache-killed" / "base").mkdir(parents=True)
    (folder / "records" / ".tiny.json.4711.part").write_text("{")
    (folder / "trials" / "007").mkdir()
    (folder / "notes.txt").write_text("mine")

    gate.resume(folder, collector=Watched())

    assert not list(folder.glob("cache-*"))
    assert [file.suffix for file in (folder / "records").iterdir()] == [".json"]
    assert (folder / "notes.txt").exists()
    assert records(folder)[0].trials[5].index == 8


# --- cells that were stopped


def test_stopped_cell_is_taken_up_again(tmp_path: Path) -> None:
    """A cell that could not be measured is tried again; its failed trial stays in the record."""
    folder = begin(tmp_path, Watched(FakeSpec(failures={1: "engine-start-failed"})))
    assert gate.judge_folder(folder).exit_status == ExitStatus.NOT_MEASURED

    outcome = gate.resume(folder, collector=Watched()).outcome

    (record,) = records(folder)
    assert (outcome.verdict, outcome.reasons, record.stopped) == ("pass", (), None)
    assert [t.failure.code for t in record.trials if t.failure] == ["engine-start-failed"]


def test_cap_counts_the_record(tmp_path: Path) -> None:
    """A cell that dropped too many pairs is not measured further, however often it is gone on with."""
    failing = {2: "engine-failed", 3: "engine-failed", 4: "engine-failed"}
    folder = begin(tmp_path, Watched(FakeSpec(failures=failing)))
    before = records(folder)
    collector = Watched()

    outcome = gate.resume(folder, collector=collector, more=4).outcome

    assert (outcome.verdict, codes(outcome.cells[0].reasons)) == ("not-measured", ["dropped-pairs"])
    assert (collector.jobs, records(folder)) == ([], before)


def test_drops_of_two_visits(tmp_path: Path) -> None:
    """What an earlier visit dropped leaves the next one that much less, and the report names all of them."""
    first, second = ({4: "engine-failed"}, {8: "preempted"})
    folder = begin(tmp_path, Watched(FakeSpec(failures=first), stop_at=5))

    outcome = gate.resume(folder, collector=Watched(FakeSpec(restart_sd=0.0003, failures=second))).outcome

    assert outcome.verdict == "pass"
    (dropped,) = (note for note in outcome.cells[0].cautions if note.code == "dropped-pairs")
    assert dropped.text.startswith("2 dropped: engine-failed: a fake failure of trial 4: ")


# --- machines and subjects


@pytest.mark.parametrize(
    "field",
    [{"cpu": "Other CPU"}, {"cores": 64}, {"gpus": (Gpu(name="H200", uuid="GPU-1"),)}, {"driver": "1"}],
)
def test_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: dict[str, Any]) -> None:
    """A run begun on a machine that decides performance otherwise is not gone on with; nothing is touched."""
    monkeypatch.setattr("perfgate.capture.gpus.read_machine", lambda *_: MACHINE)
    folder = begin(tmp_path, Watched(stop_at=5))
    before = records(folder)
    monkeypatch.setattr("perfgate.capture.gpus.read_machine", lambda *_: MACHINE.model_copy(update=field))
    collector = Watched()

    with pytest.raises(NotComparableError, match=f"was begun on another machine: {next(iter(field))}: ") as caught:
        gate.resume(folder, collector=collector)

    assert (caught.value.code, caught.value.exit_status) == ("different-machines", 21)
    assert (collector.jobs, records(folder)) == ([], before)
    assert not list(folder.glob("cache-*"))


def test_more_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further look that cannot be measured here is not added either."""
    folder = begin(tmp_path, Watched(NOISY))
    monkeypatch.setattr("perfgate.capture.gpus.read_machine", lambda *_: MACHINE)

    with pytest.raises(NotComparableError):
        gate.resume(folder, collector=Watched(), more=4)

    assert records(folder)[0].further_looks == ()


def test_the_same_kind_of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host of the same kind, or the same one after a boot, goes on."""
    folder = begin(tmp_path, Watched(stop_at=5))
    machine = records(folder)[0].visits[0].machine.model_copy(update={"host": "other", "boot_id": "new"})
    monkeypatch.setattr("perfgate.capture.gpus.read_machine", lambda *_: machine)

    assert gate.resume(folder, collector=Watched()).outcome.verdict == "pass"
    assert [visit.machine.host == "other" for visit in records(folder)[0].visits] == [False, True]


def test_a_subject_that_is_gone(tmp_path: Path) -> None:
    """It is told before the first engine of the other side is started."""
    python = tmp_path / "python"
    python.symlink_to("/bin/true")
    subjects: dict[Side, Subject] = {"base": BASE, "head": BASE.model_copy(update={"python": str(python)})}
    with pytest.raises(InterruptedRunError):
        gate.run([scenario_file(tmp_path)], subjects, runs=tmp_path / "runs", collector=Watched(stop_at=4))
    (folder,) = (tmp_path / "runs").iterdir()
    taken = sorted((folder / "trials").iterdir())
    python.unlink()

    with pytest.raises(UsageError, match=r"no such program") as refused:
        gate.resume(folder)

    assert refused.value.code == "subject-not-found"
    assert sorted((folder / "trials").iterdir()) == taken


def test_changed_subject(tmp_path: Path) -> None:
    """A subject whose packages changed between the visits is measured, with a caution that names them."""
    folder = begin(tmp_path, Watched(stop_at=6))

    outcome = gate.resume(folder, collector=Watched(version="1.1")).outcome

    (caution,) = outcome.cells[0].cautions
    assert (caution.code, caution.text) == ("subject-changed", "head: vllm 1.0, then 1.1")
    assert outcome.verdict == "pass"


def test_versions_that_agree() -> None:
    """Sides that differ from each other, and trials that tell no versions, are no changed subject."""
    both = [
        one
        for n in range(4)
        for one in (
            trial(2 * n, n, "base", versions={"vllm": "1"}),
            trial(2 * n + 1, n, "head", versions={"vllm": "2", "triton": "3"}),
        )
    ]

    assert "subject-changed" not in codes(judged(both).cells[0].cautions)


# --- further looks


def test_more(tmp_path: Path) -> None:
    """--more adds a look so many pairs after the last one, keeps it in the record, and can be repeated."""
    folder = begin(tmp_path, Watched(NOISY))

    first = gate.resume(folder, collector=Watched(NOISY), more=4).outcome.cells[0]
    assert (first.pairs, first.next_look, records(folder)[0].further_looks) == (16, None, (16,))

    told: list[object] = []
    more: dict[str, Any] = {"collector": Watched(NOISY), "progress": told.append}
    second = gate.resume(folder, more=6, **more).outcome.cells[0]
    (record,) = records(folder)
    assert (second.pairs, second.gates[0].pairs, record.further_looks) == (24, 24, (16, 24))
    assert record.schedule() == EARLY_SCHEDULE.further((16, 24))
    assert "tiny: looks again at 24 pairs: places of further looks are fixed beforehand" in told
    assert (first.spent, second.spent) == pytest.approx((0.825, 0.8375))
    assert "looked again, which spent up to 83.8 % of alpha and beta" in render(
        "outcome", "text", gate.outcome_of(folder)
    )
    assert sum(record.schedule().block) <= 1
    assert sum(record.schedule().pass_) <= 1


def test_more_decides(tmp_path: Path) -> None:
    """A further look can decide, with its share of what the error rates have left."""
    folder = begin(tmp_path, Watched(NOISY))
    assert gate.judge_folder(folder).verdict == "inconclusive"

    outcome = gate.resume(folder, collector=Watched(SAME), more=30).outcome

    assert (outcome.verdict, outcome.cells[0].pairs) == ("pass", 72)  # the first place 30 pairs on


def test_interrupted_while_measuring_more(tmp_path: Path) -> None:
    """A look that was added is measured to its end by a plain --resume."""
    folder = begin(tmp_path, Watched(NOISY))
    with pytest.raises(InterruptedRunError):
        gate.resume(folder, collector=Watched(NOISY, stop_at=30), more=4)
    assert gate.judge_folder(folder).cells[0].next_look == 16

    assert gate.resume(folder, collector=Watched(NOISY)).outcome.cells[0].pairs == 16


@pytest.mark.parametrize(
    ("spec", "stop_at", "pairs", "said"),
    [
        (SAME, None, 4, "its verdict, pass, is not inconclusive"),
        (SLOWER, None, 6, "its verdict, regressed, is not inconclusive"),
        (SAME, 5, 4, "it comes to the looks of its scenario first"),
    ],
)
def test_more_of_what_is_not_used_up(
    tmp_path: Path, spec: FakeSpec, stop_at: int | None, pairs: int, said: str
) -> None:
    """--more says that it adds nothing to a decided cell, nor to one that has not come to its last look yet."""
    folder = begin(tmp_path, Watched(spec, stop_at))
    told: list[object] = []

    outcome = gate.resume(folder, collector=Watched(spec), more=4, progress=told.append).outcome

    assert (outcome.cells[0].pairs, records(folder)[0].further_looks) == (pairs, ())
    assert f"--more adds no pairs to tiny: {said}" in told


def test_judge_at_an_added_look() -> None:
    """The judge uses the pairs of an added look; without it they would lie beyond the last one."""
    slow = trials([0.02 + 0.019 * (-1) ** n for n in range(16)])

    without, extended = judged(slow).cells[0], judged(slow, further_looks=(16,)).cells[0]

    assert (without.gates[0].pairs, extended.gates[0].pairs) == (12, 16)
    assert judged(slow[:28], further_looks=(16,)).cells[0].gates[0].pairs == 12


def test_a_record_refuses_an_impossible_look() -> None:
    """Looks that could not have been added make no record."""
    with pytest.raises(ValueError, match="a further look needs at least 4 pairs after 12"):
        Record(cell=cell(), subjects=BOTH, seed=0, further_looks=(14,))


def test_schedule_without_further_looks() -> None:
    """A record without further looks has its cell's own schedule."""
    own = cell(looks=(6, 9), spend={"block": [0.1, 0.2], "pass": [0.3, 0.3]})

    assert Record(cell=own, subjects=BOTH, seed=0).schedule() == Schedule((6, 9), (0.1, 0.2), (0.3, 0.3))


# --- budget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monotonic clock that stands still but for what a test adds to its one entry."""
    now = [1000.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=lambda: round(now[0] * 1e9))
    for module in ("perfgate.gate.time", "perfgate.capture.session.time", "perfgate.capture.pace.time"):
        monkeypatch.setattr(module, fake)
    return now


class Lasting(Watched):
    """A fake whose trials last as long as they say, on the clock of the test."""

    def __init__(self, clock: list[float], spec: FakeSpec = EVEN) -> None:
        super().__init__(spec)
        self.clock = clock

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take a fake trial and put the clock on by its duration."""
        taken = super().collect(job, progress)
        self.clock[0] += taken.duration_ns / 1e9
        return taken


@pytest.mark.parametrize(("trials_paid", "taken"), [(2.5, 2), (3.9, 2), (4.1, 4), (6.9, 6), (8.2, 8)])
def test_budget(tmp_path: Path, clock: list[float], trials_paid: float, taken: int) -> None:
    """No pair is begun that would not end in time by the median trial, and none is cut."""
    (tmp_path / "probe").mkdir()
    probed = records(begin(tmp_path / "probe", Lasting(clock)))[0]
    trial_s = probed.trials[0].duration_ns / 1e9

    scenario = scenario_file(tmp_path)
    with pytest.raises(InterruptedRunError) as caught:
        gate.run(
            [scenario], BOTH, runs=tmp_path / "runs", seed=1, collector=Lasting(clock), budget_s=trials_paid * trial_s
        )

    (folder,) = (tmp_path / "runs").iterdir()
    (record,) = records(folder)
    assert (caught.value.code, caught.value.exit_status) == ("out-of-budget", 130)
    assert str(caught.value).endswith(f"Go on with: perfgate run --resume {folder}")
    assert (len(record.trials), len(record.pairs())) == (taken, (taken - 2) // 2)
    assert gate.resume(folder, collector=Watched(EVEN), budget_s=math.inf).outcome.verdict == "pass"


def test_a_budget_without_time_for_the_cause(tmp_path: Path, clock: list[float]) -> None:
    """What regressed is decided: the run ends so, says that it is not traced, and --resume traces it."""
    scenario = scenario_file(
        tmp_path, gates="{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}",
        more="kernels: {traced: {iterations: 2, when: regressed}}",
    )  # fmt: skip

    slower = FakeSpec(restart_sd=3e-4, head_ratio={"step": 1.05})
    whole = gate.run([scenario], BOTH, runs=tmp_path / "whole", seed=1, collector=Lasting(clock, slower))
    timed_s = sum(one.duration_ns for one in records(whole.folder)[0].trials if one.kind == "timed") / 1e9

    said: list[str] = []
    found = gate.run([scenario], BOTH, runs=tmp_path / "runs", seed=1, collector=Lasting(clock, slower),
                     budget_s=1.01 * timed_s, progress=lambda step: said.append(str(step)))  # fmt: skip

    (cell,) = found.outcome.cells
    assert (found.outcome.verdict, cell.pairs, cell.traced_pairs) == ("regressed", 6, 0)
    assert any("warning: what regressed is not traced: the next 2 trials take about" in line for line in said), said
    again = gate.resume(found.folder, collector=Watched(slower))
    assert (again.outcome.verdict, again.outcome.cells[0].traced_pairs) == ("regressed", 1)


@pytest.mark.parametrize(
    ("budget_s", "warning"),
    [
        (60, "60 s, is too short for tiny: 2 trials of warm-up and a round of 2 take about 100 s; --budget 2 is not"),
        (180, "180 s, ends before the first look of tiny, at 4 pairs: for that --budget 5, or --resume afterwards"),
    ],
)
def test_budget_that_is_too_short(tmp_path: Path, clock: list[float], budget_s: int, warning: str) -> None:
    """It is told before the first engine where a trial's time is known, and at the end what the run gets on with."""
    told: list[object] = []
    scenario = scenario_file(tmp_path)
    expected = scenario.read_text().replace("iterations: 2}", "iterations: 2, expect: {trial_s: 25, pair_sd: 1%}}")
    scenario.write_text(expected)
    means: dict[str, Any] = {"collector": Lasting(clock), "budget_s": budget_s}

    with pytest.raises(InterruptedRunError, match=r"the next visit gets on with --budget 2;"):
        gate.run([scenario], BOTH, runs=tmp_path / "runs", seed=1, progress=told.append, **means)

    assert told[0] == f"warning: what is left of the budget, {warning}"
    (folder,) = (tmp_path / "runs").iterdir()
    taken = len(records(folder)[0].pairs())
    with pytest.raises(InterruptedRunError):
        gate.resume(folder, collector=Lasting(clock), budget_s=120)
    assert len(records(folder)[0].pairs()) == taken + 1


def test_budget_that_is_enough(tmp_path: Path, clock: list[float]) -> None:
    """A run that ends within its budget ends in its verdict."""
    folder = begin(tmp_path, Lasting(clock), budget_s=600.0)

    assert gate.judge_folder(folder).verdict == "pass"


def test_budget_of_a_resumed_run(tmp_path: Path, clock: list[float]) -> None:
    """A resumed run knows from earlier visits how long its trials take, and does not condition for nothing."""
    folder = begin(tmp_path, Watched(EVEN, stop_at=5))
    trial_s = records(folder)[0].trials[0].duration_ns / 1e9
    collector = Lasting(clock)

    with pytest.raises(InterruptedRunError):
        gate.resume(folder, collector=collector, budget_s=3.9 * trial_s)
    assert collector.jobs == []
    with pytest.raises(InterruptedRunError):
        gate.resume(folder, collector=collector, budget_s=4.1 * trial_s)
    assert len(collector.jobs) == 4


# --- the command line

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """A function that runs perfgate in an empty project with a fake that takes the trials."""
    monkeypatch.chdir(tmp_path)
    scenario_file(tmp_path)

    def one(*words: str, collector: FakeCollector | None = None) -> Result:
        return CliRunner().invoke(main, ["run", *words], obj=collector or Watched())

    return one


NEW = ("tiny.yaml", "--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1")


def test_resume_command(invoke: Invoke) -> None:
    """An interrupted run says how to go on, and doing so prints the verdict."""
    stopped = invoke(*NEW, collector=Watched(stop_at=5))
    assert stopped.exit_code == 130
    way_on = stopped.stderr.splitlines()[-1].removeprefix("  Go on with: perfgate run ").split()

    resumed = invoke(*way_on)

    assert resumed.exit_code == 0
    assert resumed.stdout.startswith("**PASS")
    assert resumed.stdout == invoke(*way_on).stdout


def test_more_command(invoke: Invoke) -> None:
    """--more measures on, and the report counts the pairs."""
    folder = invoke(*NEW, collector=Watched(NOISY)).stderr.splitlines()[-1].removeprefix("run folder: ")

    result = invoke("--resume", folder, "--more", "4", collector=Watched(NOISY))

    assert result.exit_code == 20
    assert "16 pairs" in result.stdout


def test_a_run_that_was_stopped_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed and explained, it has why it was stopped, until a later visit ended; a stop before a trial says so.

    With trials of warm-up alone nothing is measured, so it is explained by its name: it is not the latest.
    """
    stopped = invoke(*NEW, "--budget", "0.5")
    (folder,) = Path("runs").iterdir()
    listed = CliRunner().invoke(main, ["list"]).stdout
    explained = CliRunner().invoke(main, ["explain", folder.name]).stdout
    assert "what was measured is in runs/" in stopped.stderr
    assert "nothing measured, stopped (out of budget)" in listed
    assert CliRunner().invoke(main, ["explain", "latest"]).exit_code == 22
    assert explained.startswith(
        "STOPPED before its end, and can be resumed: out-of-budget: the next 2 trials take about"
    )
    assert f"\n  perfgate run --resume {folder.name}\n" in explained

    assert invoke("--resume", "latest").exit_code in (0, 20)
    assert "stopped" not in CliRunner().invoke(main, ["list"]).stdout

    monkeypatch.setattr("perfgate.gate.Session.__enter__", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "stopped; nothing was measured so far" in invoke(*NEW).stderr


def test_budget_command(invoke: Invoke) -> None:
    """A fake trial says that it took 25 s, so that after the warm-up trials half a minute is too short for a pair."""
    result = invoke(*NEW, "--budget", "0.5")

    assert (result.exit_code, result.stdout) == (130, "")
    assert "perfgate: out-of-budget: the next 2 trials take about 5" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--more", "4"), "--more goes on with a run"),
        (("tiny.yaml", "--more", "4"), "--more goes on with a run"),
        (("--resume", "x", "tiny.yaml", "--seed", "1"), "--seed cannot be given"),
        (("--resume", "x", "--base", "python=a", "--quick"), "--base without a scenario, --quick cannot be given"),
        (("--resume", "x", "--head", "python=a", "--seed", "0"), "--head without a scenario, --seed cannot be given"),
        (("--resume", "x", "--more", "3"), "--more 3: a further look needs at least 4 pairs"),
        (("--resume", "x", "--more", "0"), "--more 0: a further look needs at least 4 pairs"),
        (("--resume", "x"), "x/run.json: "),
        (("--resume", "y"), "y: does not exist, and runs/ holds no run of that name"),
        ((*NEW, "--budget", "0"), "--budget"),
    ],
)
def test_usage_errors(invoke: Invoke, words: tuple[str, ...], says: str) -> None:
    """Words that do not go together end with 2, and nothing is made."""
    Path("x").mkdir()
    Path("x/run.json").write_text("{}")

    result = invoke(*words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert not Path("runs").exists()


def test_no_run_folder(tmp_path: Path) -> None:
    """A folder without a manifest cannot be gone on with, and a further look is checked before."""
    with pytest.raises(RecordError, match="not a run folder"):
        gate.resume(tmp_path)
    with pytest.raises(UsageError, match="--more 1"):
        gate.resume(tmp_path, more=1)


def test_manifest_alone(tmp_path: Path) -> None:
    """A run killed before its first trial has a manifest and no record, and is measured from the start."""
    folder = begin(tmp_path, Watched(stop_at=0))
    assert records(folder) == []
    assert gate.judge_folder(folder).cells[0].reasons[0].code == "not-started"

    assert gate.resume(folder, collector=Watched()).outcome.cells[0].pairs == 4
