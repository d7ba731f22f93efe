"""Which cell a run takes next: first looks first, then the one whose decision costs least."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec, FakeStates
from hand_made import BOTH, cell, record, run, scenario_file, spread, trials

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError
from perfgate.judge import next_cell
from perfgate.judge.next_pairs import Due, due
from perfgate.judge.slow_share import SLOW_SHARE
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, Run
from perfgate.scenario.subject import Subject
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

FAR, CLOSE, NEARER = FakeSpec(restart_sd=0.02), FakeSpec(restart_sd=0.0003), FakeSpec(restart_sd=0.004)
STEP = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"
TRACED = "kernels: {traced: {iterations: 2}}"


class Cells(FakeCollector):
    """A fake whose cells are each as their scenario's name says; it notes its jobs, and can be stopped before one."""

    def __init__(self, stop_at: int | None = None, **specs: FakeSpec) -> None:
        super().__init__()
        self.specs = specs
        self.stop_at = stop_at
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Stop, or take a fake trial."""
        if job.index == self.stop_at:
            raise KeyboardInterrupt
        self.jobs.append(job)
        self.spec = self.specs[job.cell.scenario]
        return super().collect(job, progress)

    @property
    def turns(self) -> list[tuple[str, int]]:
        """The cells in the order they had their turns, each with the pairs it then got."""
        pairs = (job.cell.name for job in self.jobs if job.pair is not None and job.kind == "timed")
        return [(name, len([*own]) // 2) for name, own in itertools.groupby(pairs)]


def scenarios(folder: Path, names: Iterable[str], gates: str = "", more: str = "", **expect: str) -> list[Path]:
    """Scenarios of these names, each a cell of its own; ``expect`` is what some of them expect."""
    files = []
    for batch, name in enumerate(names, 1):
        file = scenario_file(folder, name, gates, more)
        text = file.read_text().replace("batch: 2", f"batch: {batch}")
        if name in expect:
            text = text.replace("iterations: 2}", f"iterations: 2, expect: {expect[name]}}}", 1)
        file.write_text(text)
        files.append(file)
    return files


def measured(files: Sequence[Path], collector: FakeCollector, said: list[str], *, quick: bool = False) -> gate.Finished:
    """A run of these scenarios; what was said about it is added to ``said``."""

    def note(step: Step | str) -> None:
        if isinstance(step, str):
            said.append(step)

    runs = files[0].parent / "runs"
    return gate.run(files, BOTH, runs=runs, seed=1, collector=collector, progress=note, quick=quick)


def test_every_cell_is_looked_at_before_a_noisy_one_goes_on(tmp_path: Path) -> None:
    """A cell that passes at its first look does not wait for one that no look decides; coming back is no warm-up."""
    collector, said = Cells(far=FAR, close=CLOSE), list[str]()

    finished = measured(scenarios(tmp_path, ["far", "close"]), collector, said)

    assert collector.turns == [("far", 4), ("close", 4), ("far", 8)]
    assert [(one.verdict, one.pairs) for one in finished.outcome.cells] == [("inconclusive", 12), ("pass", 4)]
    assert [job.cell.name for job in collector.jobs if job.pair is None] == ["far", "far", "close", "close"]
    assert said == []
    assert gate.outcome_of(finished.folder) == finished.outcome
    assert {check.result for check in verify_path(finished.folder)} <= {"ok", "unknown"}


def test_an_earlier_run_tells_which_cell_is_decided_soonest(tmp_path: Path) -> None:
    """First looks are in the order of what the newest records promise, and an order that is not the file's is told."""
    files = scenarios(tmp_path, ["far", "close"])
    measured(files, Cells(far=FAR, close=CLOSE), [])
    collector, said = Cells(far=FAR, close=CLOSE), list[str]()

    measured(files, collector, said)

    assert collector.turns == [("close", 4), ("far", 12)]
    assert [text.partition(";")[0] for text in said] == ["order of first looks: close, far"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{trial_s: 30, pair_sd: 2%}", "{trial_s: 30, pair_sd: 0.05%}"),
        ("{trial_s: 90, pair_sd: 0.05%}", "{trial_s: 30, pair_sd: 0.05%}"),
    ],
    ids=["spread", "price"],
)
def test_an_expectation_tells_it_where_nothing_was_measured(tmp_path: Path, first: str, second: str) -> None:
    """Of two cells the one that is expected to spread less, or to take less time, comes first."""
    collector = Cells(one=CLOSE, two=CLOSE)

    measured(scenarios(tmp_path, ["one", "two"], one=first, two=second), collector, [])

    assert collector.turns == [("two", 4), ("one", 4)]


def test_of_undecided_cells_the_nearest_goes_on(tmp_path: Path) -> None:
    """After the first looks the cell goes on that is likeliest to be decided, whichever way, and that is told."""
    slower = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
    collector, said = Cells(far=FAR, worse=slower, near=NEARER), list[str]()

    finished = measured(scenarios(tmp_path, ["far", "worse", "near"]), collector, said)

    assert collector.turns[:4] == [("far", 4), ("worse", 4), ("near", 4), ("worse", 2)]
    later = [name for name, _ in collector.turns[4:]]
    assert later.index("near") < later.index("far")
    assert [one.verdict for one in finished.outcome.cells][:2] == ["inconclusive", "regressed"]
    assert said[0].startswith("next worse, for the look at 6 pairs: of 3 open cells")


@pytest.mark.parametrize("ratio", [0.995, 1.0, 1.005])
def test_a_run_that_is_cut_short_has_decided_what_is_near(tmp_path: Path, ratio: float) -> None:
    """When a run ends after as many trials as its noisy cell alone takes, the other is decided, whatever its head."""
    files = scenarios(tmp_path, ["far", "close"])
    close = FakeSpec(head_ratio={"step": ratio}, restart_sd=0.0003)

    with pytest.raises(InterruptedRunError):
        measured(files, Cells(stop_at=26, far=FAR, close=close), [])

    (folder,) = (tmp_path / "runs").iterdir()
    far, other = gate.outcome_of(folder).cells
    assert (far.verdict, other.pairs >= 4) == ("inconclusive", True)
    assert ratio == 1.005 or other.verdict in ("pass", "improved")


@pytest.mark.parametrize("stop_at", [1, 6, 11, 16, 21, 26, 31])
def test_a_run_that_was_killed_goes_on_by_the_same_rule(tmp_path: Path, stop_at: int) -> None:
    """Whenever it is interrupted, a resumed run has looked at every cell before the noisy one gets its fifth pair."""
    files = scenarios(tmp_path, ["far", "close"])
    collector = Cells(stop_at=stop_at, far=FAR, close=CLOSE)
    with contextlib.suppress(InterruptedRunError):
        measured(files, collector, [])
    (folder,) = (tmp_path / "runs").iterdir()
    again = Cells(far=FAR, close=CLOSE)

    finished = gate.resume(folder, collector=again)

    names = [job.cell.name for job in (*collector.jobs, *again.jobs) if job.pair is not None]
    assert names[: names.index("close")].count("far") <= 9  # four pairs, and half of one that was cut
    assert [(one.verdict, one.pairs) for one in finished.outcome.cells] == [("inconclusive", 12), ("pass", 4)]
    assert {check.result for check in verify_path(folder)} <= {"ok", "unknown"}


def test_what_no_look_decides_is_taken_at_once(tmp_path: Path) -> None:
    """A cell that passes has its traced pair before another one is taken, with no gate resting on it."""
    collector = Cells(near=CLOSE, far=FAR)

    measured(scenarios(tmp_path, ["near", "far"], more=TRACED), collector, [])

    judged = [(job.cell.name, job.kind) for job in collector.jobs if job.pair is not None]
    assert [one for one, _ in itertools.groupby(judged)] == [
        ("near", "timed"), ("near", "traced"), ("far", "timed"), ("far", "traced"),
    ]  # fmt: skip


@pytest.mark.parametrize("heads", [("head",), ("a", "b")], ids=["one head", "two heads"])
def test_states_of_the_machine_and_several_heads(tmp_path: Path, heads: Sequence[str]) -> None:
    """Where gates are judged by state, and for each head, cells take turns all the same, each to an end of its own."""
    leaning = FakeStates(slow_share={"base": 0.3, "head": 0.7})
    collector = Cells(one=replace(CLOSE, states=leaning), two=replace(NEARER, states=leaning))
    builds = {name: Subject(python=f"/envs/{name}/bin/python") for name in ("base", *heads)}
    files = scenarios(tmp_path, ["one", "two"])
    for file in files:
        file.write_text(file.read_text().replace("iterations: 2}", "iterations: 8}"))

    outcome = gate.run(files, builds, runs=tmp_path / "runs", seed=1, collector=collector).outcome

    assert [name for name, _ in collector.turns[:2]] == ["one", "two"]
    assert {one.next_look for one in outcome.cells} == {None}
    assert any(one.states for one in outcome.cells)


def test_of_a_state_that_leans_nobody_knows_a_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is open for the share of its slow state alone comes after one whose gate may be decided."""
    leaning, noisy = cell("leaning"), cell("noisy")
    records = {one.cell_id: record(one, trials(spread(0.0, 0.004, 4))) for one in (leaning, noisy)}

    def with_share(of: Run, known: Mapping[str, Record]) -> Iterator[Due]:
        for one in due(of, known):
            share = one.judged.gates[0].model_copy(update={"metric": SLOW_SHARE, "change": None})
            judged = one.judged.model_copy(update={"gates": (share,)})
            yield replace(one, judged=judged) if one.cell == leaning else one

    monkeypatch.setattr(next_cell, "due", with_share)
    order = next_cell.CellOrder(run([leaning, noisy]), records, tmp_path, lambda _: None)

    assert (turn := order.next(records)) is not None
    assert turn[0].cell == noisy


def test_a_cell_that_gates_its_start_is_not_left(tmp_path: Path) -> None:
    """What another engine reads in between would be in the first start after it, so such a cell is taken to its end."""
    gates = f"{STEP}, {{metric: start_time, ignorable: 20%, must_catch: 100%}}"
    collector = Cells(far=FAR, close=CLOSE)

    measured(scenarios(tmp_path, ["far", "close"], gates), collector, [])

    assert collector.turns == [("far", 12), ("close", 4)]


def test_a_run_of_a_fixed_size_takes_cells_as_they_are_written(tmp_path: Path) -> None:
    """A quick run has no look to reach soonest, whatever an earlier run tells."""
    files = scenarios(tmp_path, ["far", "close"])
    measured(files, Cells(far=FAR, close=CLOSE), [])
    collector, said = Cells(far=FAR, close=CLOSE), list[str]()

    measured(files, collector, said, quick=True)

    assert (collector.turns, said) == ([("far", 1), ("close", 1)], [])


def test_check_tells_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``perfgate check`` names the order of first looks where that is not the scenarios'; else it says nothing."""
    monkeypatch.chdir(tmp_path)
    slow, fast = "{trial_s: 30, pair_sd: 2%}", "{trial_s: 30, pair_sd: 0.05%}"
    files = [file.name for file in scenarios(tmp_path, ["one", "two", "three"], one=slow, three=fast)]

    differs = CliRunner().invoke(main, ["check", *files])
    same = CliRunner().invoke(main, ["check", files[2], files[1]])

    assert (differs.exit_code, same.exit_code) == (0, 0)
    assert "order of first looks: three, one, two; " in differs.output
    assert "order of first looks" not in same.output
