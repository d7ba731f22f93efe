"""A night: what its two halves mean together, what may be promoted, and going on after a stop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, BOTH, scenario_file

from perfgate import gate
from perfgate.baseline.promotion import promote
from perfgate.baseline.store import baseline_path
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError, RecordError, UsageError, Verdict
from perfgate.fleet.nightly import (
    BESIDE,
    HALVES,
    candidate,
    judge_night,
    night_of_the_head,
    resume_night,
    run_night,
    run_of,
)
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import read_records, read_run
from perfgate.run_steps import RunStep
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Source, Subject
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
REFERENCE_TRIALS = 10
"""Trials of the first half: a warm-up one of each side and four pairs."""


class Builds(FakeCollector):
    """A fake whose trials depend on the build, not on its side, unless the machine drifts; it may stop after some."""

    def __init__(self, ratio: float = 1.0, stop_at: int = 10**6, *, drift: bool = False, seed: int = 0) -> None:
        super().__init__(SAME, seed)
        self.slower = FakeCollector(FakeSpec(restart_sd=0.0003, head_ratio={"step": ratio}), seed)
        self.left = stop_at
        self.drift = drift

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take a trial of the build that the job names."""
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        if self.drift or job.subject != BASE:
            return self.slower.collect(job, progress)
        return super().collect(job, progress)


def night(folder: Path, collector: Builds, **means: Any) -> Any:
    """A night of the tiny scenario."""
    return run_night([scenario_file(folder)], BOTH, runs=folder / "runs", collector=collector, **{"seed": 1, **means})


def test_steps_name_the_part(tmp_path: Path) -> None:
    """Who watches a night is told which of its runs is measured."""
    steps = list[Any]()
    night(tmp_path, Builds(), progress=steps.append)

    assert list(dict.fromkeys(step.part for step in steps if isinstance(step, RunStep))) == [
        "reference against itself (1 of 2)",
        "head against reference (2 of 2)",
    ]


def test_what_verify_says_of_a_night(tmp_path: Path) -> None:
    """Its verdict is recomputed; the reference against itself is no verdict on the head, whatever folder it is in."""
    folder = night(tmp_path, Builds(1.01)).folder
    assert {one.result for one in verify_path(folder)} == {"ok", "unknown"}
    file = folder / "verdict.json"
    file.write_text(file.read_text().replace("regressed", "pass"))
    assert [one.what for one in verify_path(folder) if one.result == "FAILED"] == ["verdict"]
    shutil.rmtree(folder / "head")
    (folder / "reference").rename(folder / "head")

    with pytest.raises(RecordError, match=r"is not head against reference: its subjects are not those of night\.json"):
        judge_night(folder)
    assert [one.what for one in verify_path(folder) if one.result == "FAILED"] == ["night", "verdict"]


@pytest.mark.parametrize(
    ("collector", "verdict", "status", "promoted"),
    [
        (Builds(), "pass", 0, True),
        (Builds(0.99), "improved", 0, True),
        (Builds(1.01), "regressed", 10, True),
        (Builds(1.01, drift=True), "not-measured", 22, False),
    ],
    ids=["same", "faster", "slower", "unsteady"],
)
def test_verdicts(tmp_path: Path, collector: Builds, verdict: str, status: int, *, promoted: bool) -> None:
    """The night's verdict is the head's where the reference holds still; only then may the reference be promoted."""
    finished = night(tmp_path, collector)

    assert (finished.outcome.verdict, finished.outcome.exit_status) == (verdict, status)
    assert [cell.name.partition(":")[0] for cell in finished.outcome.cells] == list(HALVES.values())
    assert candidate(finished.folder) == (run_of(finished.folder, "reference") if promoted else None)
    assert (finished.folder / "verdict.json").read_text() == verdict_json(judge_night(finished.folder))


def test_a_reference_faster_than_itself(tmp_path: Path) -> None:
    """A reference that is 1 % faster than itself did not hold still: no candidate, and nothing passes."""
    finished = night(tmp_path, Builds(0.99, drift=True))
    assert (finished.outcome.exit_status, candidate(finished.folder)) == (22, None)
    (note,) = finished.outcome.reasons
    assert note.text == "the reference build against itself: improved; the head against the reference: improved"


@pytest.mark.parametrize(
    ("reference", "gates", "head", "verdict", "status"),
    [
        ("inconclusive", "inconclusive", "regressed", "regressed", 10),
        ("inconclusive", "inconclusive", "pass", "inconclusive", 20),
        ("inconclusive", "inconclusive", "not-measured", "not-measured", 22),
        ("inconclusive", "improved", "regressed", "not-measured", 22),
        ("regressed", "regressed", "regressed", "not-measured", 22),
        ("not-measured", "not-measured", "regressed", "not-measured", 22),
        ("internal-error", "not-measured", "regressed", "internal-error", 1),
        ("regressed", "regressed", "internal-error", "internal-error", 1),
    ],
)
def test_a_reference_that_is_not_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Verdict, gates: Verdict, head: Verdict, verdict: str,
    status: int,
) -> None:  # fmt: skip
    """A regression of the head is shown where the reference is only undecided; both verdicts are in the reason."""
    folder = night(tmp_path, Builds()).folder

    def judged_as(begun: Path) -> Outcome:
        outcome = gate.outcome_of(begun)
        if begun.parent.name == "head":
            return outcome.model_copy(update={"verdict": head})
        (cell,) = outcome.cells
        judged = tuple(one.model_copy(update={"verdict": gates}) for one in cell.gates)
        return outcome.model_copy(update={"verdict": reference, "cells": (cell.model_copy(update={"gates": judged}),)})

    monkeypatch.setattr("perfgate.fleet.nightly.gate.judge_folder", judged_as)

    outcome = judge_night(folder)

    assert (outcome.verdict, outcome.exit_status) == (verdict, status)
    (note,) = outcome.reasons
    assert note.text == f"the reference build against itself: {reference}; the head against the reference: {head}"


def test_asking_for_a_candidate_writes_nothing(tmp_path: Path) -> None:
    """The verdict of a half stays as it was written, also when its candidate is asked for."""
    folder = night(tmp_path, Builds()).folder
    (verdict,) = folder.glob("reference/*/verdict.json")
    verdict.write_text("mine")
    assert candidate(folder) == verdict.parent
    assert verdict.read_text() == "mine"


def test_visits_accumulate(tmp_path: Path) -> None:
    """Five nights with five commits of the head are five visits of the reference; only the first needs a reason."""

    def built(commit: str) -> Subject:
        source = Source(ref=commit[0], commit=commit, changes="", recipe="c" * 64, folder="/cache/build")
        return Subject(python="/bin/true", path=("/cache/build/tree",), built_from=source)

    kinds = []
    for number, commit in enumerate("12345"):
        subjects: dict[Side, Subject] = {"base": built("a" * 40), "head": built(commit * 40)}
        collector = Builds(seed=number)
        folder = run_night(
            [scenario_file(tmp_path)], subjects, runs=tmp_path / "runs", collector=collector, seed=number
        ).folder
        found = candidate(folder)
        assert found is not None
        reason = "" if number else "the release"
        (done,) = promote(found, tmp_path / "baselines", side="base", reason=reason)
        kinds.append(done.kind)

    assert kinds == ["first", *["equivalent"] * 4]
    assert len(done.baseline.visits) == 5
    assert done.baseline.build.source == f"{'a' * 12} by {'c' * 12}"


@pytest.mark.parametrize("stop_at", [0, 5, 12, 17])
def test_going_on(tmp_path: Path, stop_at: int) -> None:
    """A night that is stopped anywhere goes on where it was, keeps every trial, and ends as if it had not been."""
    place = tmp_path / "my nights"  # the command that goes on is quoted for the shell
    place.mkdir()
    with pytest.raises(InterruptedRunError) as stopped:
        night(place, Builds(1.01, stop_at))
    (folder,) = (place / "runs").iterdir()
    assert stopped.value.remedy == f"Go on with: perfgate nightly --resume '{folder}'"
    assert judge_night(folder).verdict in ("not-measured", "inconclusive")
    assert (candidate(folder) is not None) == (stop_at > REFERENCE_TRIALS)
    before = {half: trials(folder, half) for half in HALVES}

    finished = resume_night(folder, collector=Builds(1.01))

    assert finished.outcome.verdict == "regressed"
    for half in HALVES:
        assert trials(folder, half)[: len(before[half])] == before[half]


ANCHOR = Subject(python="/envs/anchor/bin/python")


def test_beside_an_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference and head are measured beside it too: one is a visit of the baseline, the other a night of a drift."""
    monkeypatch.chdir(tmp_path)
    finished = night(tmp_path, Builds(1.01), anchor=ANCHOR)

    assert finished.outcome.verdict == "regressed"
    assert [cell.name.partition(":")[0] for cell in finished.outcome.cells] == list(HALVES.values())
    reference, head = candidate(finished.folder), night_of_the_head(finished.folder)
    assert (reference, head) == tuple(run_of(finished.folder, part) for part in BESIDE)
    assert {one.result for one in verify_path(finished.folder)} == {"ok", "unknown"}

    assert reference is not None
    assert head is not None
    with pytest.raises(UsageError, match="the base of this run is its anchor"):
        promote(reference, Path("baselines"), side="base", reason="the release")
    kept = [promote(run, root, reason="night")[0].baseline for run, root in (
        (reference, Path("baselines")), (head, Path("heads")),
    )]  # fmt: skip
    assert all(lineage.visits[0].anchor for lineage in kept)
    levels = [lineage.visits[0].values["itl_median"][0] for lineage in kept]
    assert levels[1] / levels[0] == pytest.approx(1.01, abs=0.002)


def test_a_night_beside_an_anchor_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped within the last visit it has its verdict; what is missing is prepared for and measured then."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InterruptedRunError, match="perfgate nightly --resume"):
        night(tmp_path, Builds(1.01, stop_at=40), anchor=ANCHOR)
    (folder,) = (tmp_path / "runs").iterdir()
    assert judge_night(folder).verdict == "regressed"
    assert night_of_the_head(folder) is None
    prepared: list[Any] = []

    resume_night(folder, prepare=prepared.append, collector=Builds(1.01))

    assert night_of_the_head(folder) == run_of(folder, "anchored-head")
    assert all(one.subjects["base"] == ANCHOR for one in prepared)


def break_baseline(cell: Cell) -> None:
    """Put a file that is none where a baseline of a cell would be."""
    broken = Path("baselines", baseline_path(cell, "cpu-x2-observe-000000"))
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_text('{"format": "perfgate-baseline/1"}')


def test_what_no_visit_could_rest_on_is_refused_before_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An anchor that cannot be told from others, or a broken baseline, is told before hours are measured."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the anchor has path= or env= of its own"):
        night(tmp_path, Builds(), anchor=Subject(python="/bin/anchor", path=("/plugin",)))
    break_baseline(resolve_cells(load(scenario_file(tmp_path)))[0])
    with pytest.raises(RecordError, match="not a baseline: expected a list of entries"):
        night(tmp_path, Builds(), anchor=ANCHOR)

    assert not (tmp_path / "runs").exists()


def test_a_visit_that_cannot_be_made_leaves_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves are judged though the visits beside the anchor, which decide nothing, could not begin."""
    monkeypatch.chdir(tmp_path)
    cell, *_ = resolve_cells(load(scenario_file(tmp_path)))

    class Breaking(Builds):
        """While it measures, somebody breaks a baseline."""

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            """Take a trial."""
            break_baseline(cell)
            return super().collect(job, progress)

    with pytest.raises(RecordError, match="not a baseline: expected a list of entries"):
        night(tmp_path, Breaking(1.01), anchor=ANCHOR)

    (folder,) = (tmp_path / "runs").iterdir()
    assert '"regressed"' in (folder / "verdict.json").read_text()


def trials(folder: Path, half: str) -> tuple[Trial, ...]:
    """Every trial of a half so far."""
    begun = run_of(folder, half)
    return tuple(one for record in read_records(begun, read_run(begun)) for one in record.trials) if begun else ()


def test_refusals(tmp_path: Path) -> None:
    """A night without a head, and a folder that holds none, are errors that say so."""
    with pytest.raises(UsageError, match="needs a head"):
        run_night([scenario_file(tmp_path)], {"base": BASE}, runs=tmp_path)
    with pytest.raises(RecordError, match=r"night\.json: does not exist"):
        resume_night(tmp_path)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints one report of both halves and names what may be promoted."""
    monkeypatch.chdir(tmp_path)
    words = [str(scenario_file(tmp_path)), "--base", "python=/bin/true", "--head", "env.BUILD=new"]

    result = CliRunner().invoke(main, ["nightly", *words], obj=Builds())

    assert result.exit_code == 0, result.output
    assert "### reference against itself: tiny: 4 pairs" in result.stdout
    assert "### head against reference: tiny: 4 pairs" in result.stdout
    (folder,) = Path("runs").iterdir()
    promoting = f"perfgate baseline promote {run_of(folder, 'reference')} --side base"
    assert f"candidate for promotion: {promoting}\n" in result.stderr
    assert CliRunner().invoke(main, ["nightly", *words, "--resume", str(folder)]).exit_code == 2
    for word in (str(folder), folder.name, "latest"):
        assert CliRunner().invoke(main, ["nightly", "--resume", word], obj=Builds()).stdout == result.stdout
    nothing = CliRunner().invoke(main, ["nightly", "--resume", "latest", "--runs", "elsewhere"], obj=Builds())
    assert (nothing.exit_code, nothing.stderr.splitlines()[0]) == (2, "perfgate: elsewhere: holds no night")
