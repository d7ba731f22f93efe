"""Several heads beside one base: what is measured, judged, gone on with and refused."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file

from perfgate import gate
from perfgate.baseline.exact_profile import learn_profiles
from perfgate.baseline.promotion import promote
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.drill.recordings import read_recordings
from perfgate.errors import ExitStatus, InterruptedRunError, NotComparableError, RecordError, UsageError
from perfgate.judge.comparison import compare_records
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.cost import newest_records
from perfgate.record.manifest import check_sequence
from perfgate.record.run_record import Record, read_records, read_run
from perfgate.report.outcome_document import outcome_document
from perfgate.report.setting_lines import same_again
from perfgate.report.text import to_text
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import resolve_several
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
NOISY = FakeSpec(restart_sd=0.02)
HEADS = {
    "base": Subject(python="/envs/base/bin/python"),
    "slow": Subject(python="/envs/slow/bin/python"),
    "same": Subject(python="/envs/same/bin/python"),
}


class OfHeads(FakeCollector):
    """A fake with a spec for each head by its name, which notes its jobs.

    Args:
        specs: What heads are like; those not named are as the base.
        before: Called with every job; what it raises the collector raises, what it returns is the trial's failure.
    """

    def __init__(
        self, specs: Mapping[str, FakeSpec] | None = None, before: Callable[[Job], Failure | None] = lambda _: None
    ) -> None:
        super().__init__(SAME)
        self.specs = {"slow": SLOWER} if specs is None else specs
        self.before = before
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A fake trial of that head, or a failed one."""
        failure = self.before(job)
        self.jobs.append(job)
        self.spec = self.specs.get(job.label, SAME)
        trial = super().collect(job, progress)
        return trial.model_copy(update={"failure": failure, "iterations": ()}) if failure else trial

    @property
    def places(self) -> list[tuple[int | None, str]]:
        """Round and build of every trial, in the order they were taken."""
        return [(job.pair, job.label) for job in self.jobs]


def measure(folder: Path, collector: OfHeads, builds: Mapping[str, Subject] = HEADS, more: str = "") -> gate.Finished:
    """A run of the tiny scenario below ``folder``."""
    return gate.run([scenario_file(folder, more=more)], builds, runs=folder / "runs", seed=1, collector=collector)


def by_head(finished: gate.Finished) -> dict[str, CellOutcome]:
    """The outcome of each head, where there is one cell."""
    return {cell.head: cell for cell in finished.outcome.cells}


def record_in(folder: Path) -> Record:
    """The only record of a run."""
    (record,) = read_records(folder, read_run(folder))
    return record


def test_a_decided_head_leaves_the_rounds(tmp_path: Path) -> None:
    """A head that is as fast passes at four rounds; the slow one goes on with the base alone and is blocked at six."""
    collector = OfHeads()

    finished = measure(tmp_path, collector)

    assert finished.outcome.exit_status == ExitStatus.REGRESSED
    assert {head: (cell.verdict, cell.pairs) for head, cell in by_head(finished).items()} == {
        "slow": ("regressed", 6),
        "same": ("pass", 4),
    }
    rounds = Counter(pair for pair, _ in collector.places)
    assert rounds == {None: 3, 0: 3, 1: 3, 2: 3, 3: 3, 4: 2, 5: 2}
    assert {label for pair, label in collector.places if pair in (4, 5)} == {"base", "slow"}
    record = record_in(finished.folder)
    check_sequence([record])
    assert all(base.pair == head.pair for name in ("slow", "same") for base, head in record.of(name).pairs())
    assert [check.result for check in verify_path(finished.folder)].count("FAILED") == 0


def test_one_head_that_does_not_start_stops_alone(tmp_path: Path) -> None:
    """Its own comparison is not measured, with its reason; the other one passes, and the run is no pass."""

    def before(job: Job) -> Failure | None:
        return Failure(code="engine-start-failed", text="no such flag") if job.label == "slow" else None

    collector = OfHeads(before=before)

    finished = measure(tmp_path, collector)

    cells = by_head(finished)
    assert (cells["slow"].verdict, cells["same"].verdict) == ("not-measured", "pass")
    assert [note.code for note in cells["slow"].reasons] == ["engine-start-failed"]
    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED
    assert [label for pair, label in collector.places if pair is not None].count("slow") == 0


@pytest.mark.parametrize("label", ["base", "slow"])
def test_a_failed_trial_costs_those_pairs_that_it_is_of(tmp_path: Path, label: str) -> None:
    """Without its base a round is lost to all heads; without one head it is a pair of the other all the same."""
    left = [label]

    def before(job: Job) -> Failure | None:
        if job.pair == 1 and job.label in left:
            left.remove(job.label)
            return Failure(code="engine-failed", text="died")
        return None

    collector = OfHeads({}, before)

    finished = measure(tmp_path, collector)

    assert {cell.verdict for cell in finished.outcome.cells} == {"pass"}
    record = record_in(finished.folder)
    check_sequence([record])
    again = {label for pair, label in collector.places if pair == 4}
    assert again == ({"base", "slow", "same"} if label == "base" else {"base", "slow"})
    pairs = {head: {base.pair for base, _ in own.pairs()} for head, own in record.comparisons().items()}
    assert pairs == {"slow": {0, 2, 3, 4}, "same": {0, 2, 3, 4} if label == "base" else {0, 1, 2, 3}}


def test_a_base_that_fails_later_does_not_touch_a_head_that_was_decided(tmp_path: Path) -> None:
    """A head passed at four rounds; that the base then died in every further one stops the other head alone."""

    def before(job: Job) -> Failure | None:
        died = job.label == "base" and (job.pair or 0) > 3
        return Failure(code="engine-failed", text="died") if died else None

    cells = by_head(measure(tmp_path, OfHeads(before=before)))

    assert (cells["same"].verdict, cells["slow"].verdict) == ("pass", "not-measured")


@pytest.mark.parametrize("at", [1, 4, 6, 8, 14, 16])
def test_a_stopped_run_goes_on(tmp_path: Path, at: int) -> None:
    """Wherever it was stopped, every finished trial is kept, and the heads get the pairs that they lack."""

    def before(job: Job) -> None:
        if job.index == at:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        measure(tmp_path, OfHeads(before=before))
    (folder,) = (tmp_path / "runs").iterdir()
    kept = record_in(folder).trials

    finished = gate.resume(folder, collector=OfHeads())

    record = record_in(folder)
    check_sequence([record])
    assert record.trials[: len(kept)] == kept
    assert len(kept) == at
    assert {head: (cell.verdict, cell.pairs) for head, cell in by_head(finished).items()} == {
        "slow": ("regressed", 6),
        "same": ("pass", 4),
    }


def test_a_resumed_run_warms_up_only_what_goes_on(tmp_path: Path) -> None:
    """A head that is decided has no trial in a later visit."""

    def before(job: Job) -> None:
        if job.pair == 4:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        measure(tmp_path, OfHeads(before=before))
    (folder,) = (tmp_path / "runs").iterdir()
    later = OfHeads()

    gate.resume(folder, collector=later)

    assert {label for _, label in later.places} == {"base", "slow"}


def test_a_further_look_is_taken_once_for_all(tmp_path: Path) -> None:
    """Of two heads that are undecided at the last look both get the pairs that --more asks for, with one look."""
    finished = measure(tmp_path, OfHeads({"slow": NOISY, "same": NOISY}))
    assert {cell.verdict for cell in finished.outcome.cells} == {"inconclusive"}

    again = gate.resume(finished.folder, more=4, collector=OfHeads({"slow": NOISY, "same": NOISY}))

    assert record_in(finished.folder).further_looks == (16,)
    assert {cell.pairs for cell in again.outcome.cells} == {16}


def test_the_levels_are_those_of_one_family(tmp_path: Path) -> None:
    """Holm's procedure is over the gates of all heads: the one that blocks does at half of alpha."""
    cells = by_head(measure(tmp_path, OfHeads()))

    assert {head: [gate.block_level for gate in cell.gates] for head, cell in cells.items()} == {
        "slow": [0.005],
        "same": [0.01],
    }
    assert cells["slow"].record == cells["same"].record


def test_what_a_reviewer_reads_first(tmp_path: Path) -> None:
    """One table with a column a head comes before all others, and the last sentence names the head that blocks."""
    text = to_text(outcome_document(measure(tmp_path, OfHeads()).outcome))

    first, *_ = text.split("\n\n")
    assert first.splitlines()[1:] == [
        "  metric              same  slow",
        "  itl_median  +0.00 % pass  +1.02 % REGRESSED",
        "  verdict             pass  REGRESSED",
    ]
    assert text.splitlines()[-1].startswith("REGRESSED: slow: tiny itl_median +1.02 % ")
    assert "\nsame: python=/envs/same/bin/python\nslow: python=/envs/slow/bin/python\n" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position": 3}, "the seed draws another head, or the base, for its place"),
        ({"heads": ("same",)}, "the seed draws another head, or the base, for its place"),
        ({"heads": ()}, "is one of head, which was not measured"),
        ({"heads": ("other",)}, "is one of other, which was not measured"),
    ],
)
def test_a_trial_that_the_run_cannot_have_taken(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A trial given to another head, or moved, is refused."""
    record = record_in(measure(tmp_path, OfHeads()).folder)
    at = next(n for n, trial in enumerate(record.trials) if trial.label == "slow" and trial.pair == 0)
    trials = [*record.trials]
    trials[at] = trials[at].model_copy(update=change)

    with pytest.raises(RecordError, match=words):
        check_sequence([record.model_copy(update={"trials": tuple(trials)})])


def test_a_record_of_several_heads_has_no_pairs_of_its_own(tmp_path: Path) -> None:
    """Asked as a whole it refuses, rather than taking one head for another; what it is one of is refused elsewhere."""
    folder = measure(tmp_path, OfHeads()).folder
    record = record_in(folder)

    for ask in (record.pairs, record.measured, record.dropped_pairs):
        with pytest.raises(TypeError, match="asked of its comparison"):
            ask()
    for refused in (
        lambda: compare_records(f"{folder}:base", f"{folder}:head"),
        lambda: promote(folder, tmp_path / "baselines", reason="first"),
        lambda: learn_profiles(folder, tmp_path / "profiles", reason="first"),
        lambda: read_recordings(folder),
    ):
        with pytest.raises(UsageError, match="is a run of several heads: same, slow"):
            refused()


def test_the_command_that_measures_it_again(tmp_path: Path) -> None:
    """It is one, with every head by its name; what it says is read as the same builds."""
    outcome = measure(tmp_path, OfHeads()).outcome

    (command, *_) = same_again(outcome, 1)

    words = shlex.split(command)
    said = {option: [value for key, value in pairwise(words) if key == option] for option in ("--base", "--head")}
    assert words[-2:] == ["--seed", "1"]
    assert resolve_several(said["--base"], said["--head"], {}) == HEADS


def test_a_quick_run_and_prices(tmp_path: Path) -> None:
    """A quick run takes one round; what a run of several heads measured tells what later ones cost."""
    quick = OfHeads()
    finished = gate.run([scenario_file(tmp_path)], HEADS, runs=tmp_path / "runs", seed=1, collector=quick, quick=True)
    assert (finished.outcome.verdict, len(quick.jobs)) == ("inconclusive", 3)

    record = record_in(measure(tmp_path, OfHeads()).folder)

    newest = newest_records(tmp_path / "runs", record.cell)["timed"]
    assert len(newest.record.pairs()) == 4


def test_a_stopped_run_is_gone_on_with_by_the_same_heads(tmp_path: Path) -> None:
    """Named again they must be the heads that it was begun with."""
    finished = measure(tmp_path, OfHeads())
    scenario = tmp_path / "tiny.yaml"

    again = gate.resume(finished.folder, only=([scenario], HEADS), collector=OfHeads())
    assert again.outcome == finished.outcome

    others = {**HEADS, "slow": HEADS["same"]}
    with pytest.raises(NotComparableError, match="its heads differ from what is to be measured"):
        gate.resume(finished.folder, only=([scenario], others), collector=OfHeads())


def test_several_heads_need_a_base(tmp_path: Path) -> None:
    """Two heads alone are held against nothing."""
    with pytest.raises(UsageError, match="several heads without a base: slow, same"):
        measure(tmp_path, OfHeads(), {"slow": HEADS["slow"], "same": HEADS["same"]})


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named on the command line: the run blocks by the slow head, list and judge know it, an anchor is asked for."""
    monkeypatch.chdir(tmp_path)
    scenario_file(tmp_path)

    def invoke(*words: str, obj: OfHeads | None = None) -> Result:
        return CliRunner().invoke(main, [*words], obj=obj)

    words = ("--base", "python=/p", "--head", "slow:args.n=1", "--head", "same:args.n=2")
    result = invoke("run", "tiny.yaml", *words, obj=OfHeads())
    assert (result.exit_code, result.stdout.splitlines()[0][:34]) == (10, "**REGRESSED: slow: tiny itl_median")
    assert invoke("judge").stdout == result.stdout
    assert " same, slow" in invoke("list").stdout
    for more, problem in (
        (("--against", "baseline"), "without an anchor there is nothing to measure slow, same beside"),
        (("--against", "main"), "--against main takes one head, and there are slow, same"),
    ):
        refused = invoke("run", "tiny.yaml", *words, *more, obj=OfHeads())
        assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr
    assert "--head names several heads" in invoke("nightly", "tiny.yaml", *words, obj=OfHeads()).stderr


def test_only_the_head_that_regressed_is_traced(tmp_path: Path) -> None:
    """Beside the base, once, and its report says where the time went; the head that passes is not traced."""
    collector = OfHeads()
    found = by_head(measure(tmp_path, collector, more="kernels: {traced: {iterations: 2, when: regressed}}"))

    assert {name: (one.verdict, one.traced_pairs) for name, one in found.items()} == {
        "slow": ("regressed", 1), "same": ("pass", 0),
    }  # fmt: skip
    assert [job.label for job in collector.jobs if job.kind == "traced"] in (["base", "slow"], ["slow", "base"])
    assert found["slow"].attribution is not None
    assert found["same"].attribution is None
