"""Exact profiles: learnt from two engines of a build, checked in one trial of another, accepted with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_collector import COUNTED, ROLES, FakeCollector, FakeSpec
from hand_made import BASE, BOTH, codes, scenario_file
from rank_traces import engine

from perfgate import gate as use_cases
from perfgate.baseline.exact_profile import learn_profiles, read_profile
from perfgate.baseline.promotion import promote
from perfgate.capture.job import Job
from perfgate.errors import NotComparableError, NotMeasuredError, RecordError, UsageError
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Kind, Trial
from perfgate.report.closing_sentence import closing
from perfgate.scenario.subject import Subject
from perfgate.trace.launch_details import Moves

pytestmark = pytest.mark.usefixtures("no_orphans")

CHANGED = "PASS, CHANGED: a step runs something else, at a price that the scenario ignores."
A_A: dict[Side, Subject] = {"base": BASE, "head": BASE}


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario without a calls: block: a profile counts calls whatever it declares."""
    return scenario_file(tmp_path)


def take(scenario: Path, lines: float = 1.0, subjects: dict[Side, Subject] = BOTH) -> use_cases.Finished:
    """A run of what repeats exactly."""
    collector = FakeCollector(FakeSpec(head_ratio={"lines": lines}))
    return use_cases.run([scenario], subjects, runs=scenario.parent / "runs", collector=collector, exact_only=True)


def check(scenario: Path, lines: float = 1.0, kv: float = 1.0, **spec: Any) -> use_cases.Finished:
    """One trial of a head, held against the stored profiles."""
    collector = FakeCollector(FakeSpec(head_ratio={"lines": lines, "kv_token_capacity": kv}, **spec))
    runs, profiles = scenario.parent / "runs", scenario.parent / "profiles"
    return use_cases.check_profiles([scenario], {"head": BASE}, profiles, runs=runs, collector=collector)


def learn(scenario: Path, folder: Path | None = None, side: Side | None = None, reason: str = "the release") -> Path:
    """The profile that a run gives."""
    run_folder = folder or take(scenario, subjects=A_A).folder
    (file,) = learn_profiles(run_folder, scenario.parent / "profiles", reason, side)
    return file


def test_only_what_repeats_exactly_is_taken(scenario: Path) -> None:
    """One called pair decides, and nothing is timed."""
    (cell,) = take(scenario, lines=1.3).outcome.cells

    assert (cell.verdict, cell.pairs, cell.pairs_of("called"), cell.gates) == ("regressed", 0, 1, ())
    assert codes(cell.reasons) == ["work-added"]


@pytest.mark.parametrize(
    ("lines", "verdict", "status", "sentence"),
    [
        (1.0, "pass", 0, "PASS: what repeats exactly is the same."),
        (1.03, "pass", 0, CHANGED),
        (1.3, "regressed", 10, "REGRESSED: the work of a step (exact)."),
    ],
)  # fmt: skip
def test_one_trial_is_enough(scenario: Path, lines: float, verdict: str, status: int, sentence: str) -> None:
    """A head alone is held against the profile, and may be judged again from the run folder alone."""
    file = learn(scenario)

    finished = check(scenario, lines)
    file.unlink()

    assert (finished.outcome.verdict, finished.outcome.exit_status) == (verdict, status)
    assert closing(finished.outcome) == sentence
    assert use_cases.outcome_of(finished.folder) == finished.outcome
    assert len([*(finished.folder / "trials").iterdir()]) == 1


def test_a_head_that_fails_is_not_measured(scenario: Path) -> None:
    """Nothing counted is never a pass."""
    learn(scenario)

    outcome = check(scenario, failures=dict.fromkeys(range(9), "engine-failed")).outcome

    assert (outcome.verdict, outcome.exit_status) == ("not-measured", 22)


def test_without_a_profile_nothing_is_measured(scenario: Path) -> None:
    """A new cell has none; the error comes before any engine."""
    with pytest.raises(NotComparableError, match="there is no profile of this cell") as caught:
        check(scenario)

    assert caught.value.code == "no-profile"
    assert not (scenario.parent / "runs").exists()


def test_a_profile_of_another_python_or_gpu_does_not_fit(scenario: Path) -> None:
    """Host, card and packages are no part of the key; these are."""
    file = learn(scenario)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"gpu": "NVIDIA H200"}))

    outcome = check(scenario).outcome

    assert (outcome.verdict, outcome.exit_status) == ("not-comparable", 21)
    (note,) = outcome.cells[0].reasons
    assert (note.code, note.text) == (
        "no-profile",
        "there are profiles of NVIDIA H200, Python 3.11 by settrace in decode and prefill steps",
    )


def test_a_profile_of_decode_steps_alone_does_not_fit_and_is_replaced(scenario: Path) -> None:
    """It was learnt before prefill steps were counted: the check says so, and learning anew keeps its reasons."""
    file = learn(scenario)
    content = json.loads(file.read_text())
    decode = content["calls"].pop("steps")["decode"]
    del content["calls"]["figures"]
    content["calls"] |= {"step_calls": decode["calls"], "functions": decode["functions"]}
    file.write_text(json.dumps(content))

    outcome = check(scenario).outcome

    (note,) = outcome.cells[0].reasons
    assert (outcome.exit_status, note.code) == (21, "no-profile")
    assert note.text == "there are profiles of CPU, Python 3.11 by settrace in decode steps"
    assert learn(scenario, reason="prefill steps") == file
    assert [accepted.reason for accepted in read_profile(file).accepted] == ["the release", "prefill steps"]
    assert check(scenario).outcome.verdict == "pass"


def test_two_profiles_of_the_same_are_refused(scenario: Path) -> None:
    """Together they would hide what differs between them, as an old copy beside the file does."""
    file = learn(scenario)
    file.with_name("old.json").write_text(file.read_text())

    with pytest.raises(RecordError, match="is a second profile of tiny beside"):
        check(scenario)


def test_a_change_is_accepted_with_a_reason(scenario: Path) -> None:
    """The head's calls take the place of the profile's, and both acceptances are kept."""
    file = learn(scenario)
    changed = take(scenario, lines=1.3)
    with pytest.raises(UsageError, match="two builds"):
        learn(scenario, changed.folder)

    assert learn(scenario, changed.folder, "head", "structured output") == file
    assert [accepted.reason for accepted in read_profile(file).accepted] == ["the release", "structured output"]
    assert check(scenario, lines=1.3).outcome.verdict == "pass"
    assert check(scenario).outcome.verdict == "pass"  # cheaper again


@pytest.mark.parametrize("reason", ["", "  ", "why " * 300])
def test_a_profile_needs_a_reason(scenario: Path, reason: str) -> None:
    """A short one."""
    with pytest.raises(UsageError, match="needs a reason"):
        learn(scenario, take(scenario).folder, "head", reason)


def test_nothing_is_learnt_from_a_run_without_counts(scenario: Path) -> None:
    """The error names the run and the cell."""
    collector = FakeCollector()
    folder = use_cases.run([scenario], BOTH, runs=scenario.parent / "runs", collector=collector).folder

    with pytest.raises(NotMeasuredError, match="no valid called trial was taken") as caught:
        learn(scenario, folder, "head")
    assert caught.value.code == "evidence-missing"


@pytest.mark.parametrize("text", ["", "{}", '{"format": "perfgate-profile/2"}', '{"format": "perfgate-run/1"}', "[1"])
def test_a_broken_profile_is_refused(scenario: Path, text: str) -> None:
    """With the file's name."""
    file = learn(scenario)
    file.write_text(text)

    with pytest.raises(RecordError, match=file.name):
        check(scenario)


def test_a_profile_changed_in_the_run_folder_is_refused(scenario: Path) -> None:
    """The manifest names its digest."""
    learn(scenario)
    folder = check(scenario).folder
    (copy,) = (folder / "profiles").iterdir()
    copy.write_text(copy.read_text().replace("the release", "another one"))

    with pytest.raises(RecordError, match="not the profile that the run was judged against"):
        use_cases.outcome_of(folder)


@pytest.mark.parametrize(
    ("lines", "learnt", "verdict", "code"),
    [
        (1.0, True, "advisory", None),
        (1.3, True, "regressed", "work-added"),
        (1.3, False, "advisory", "no-profile"),
    ],
)
def test_beside_a_baseline_of_times(scenario: Path, lines: float, learnt: str, verdict: str, code: str | None) -> None:
    """Against stored baselines calls are held against the profile: one trial blocks where visits only advise."""
    counted = scenario_file(scenario.parent, more="calls: {}")
    runs, baselines, profiles = (scenario.parent / name for name in ("runs", "baselines", "profiles"))
    first = use_cases.run([counted], {"base": BASE}, runs=runs, collector=FakeCollector())
    promote(first.folder, baselines, reason="the first")
    if learnt:
        learn(counted)

    head = FakeCollector(FakeSpec(head_ratio={"lines": lines}))
    means: dict[str, Any] = {"against": baselines, "profiles": profiles if learnt else None}
    finished = use_cases.run([counted], {"head": BASE}, runs=runs, collector=head, **means)

    (cell,) = finished.outcome.cells
    assert cell.verdict == verdict
    found = [note.code for note in (*cell.reasons, *cell.cautions) if note.code in ("work-added", "no-profile")]
    assert found == ([code] if code else [])
    assert use_cases.outcome_of(finished.folder) == finished.outcome


GEMMS = "counters: [{role: gemm, profile: 4, metrics: {waves: same}}]\n"


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A scenario whose kernels are traced and whose gemms are counted, with a profile of them."""
    file = scenario_file(tmp_path, more="kernels: {traced: {iterations: 2}}\n" + GEMMS)
    learn(file)
    return file


def test_a_profile_holds_kernels_counters_and_memory(traced: Path) -> None:
    """What was traced and counted of the build is in the file, and the build itself passes."""
    (file,) = (traced.parent / "profiles").iterdir()
    profile = read_profile(file)

    (steps,) = profile.ranks
    assert steps.step_ns == ()
    assert len(profile.counted) == 2
    assert profile.capacity == {"kv_token_capacity": (65536, 65536), "model_memory": (16 * 10**9, 16 * 10**9)}
    outcome = check(traced).outcome
    assert (outcome.verdict, outcome.cells[0].cautions) == ("pass", ())


def test_a_kernel_more_is_blocked_in_one_trial(traced: Path) -> None:
    """Held against the profile, at the traced time of what differs."""
    attention, seconds = ROLES["attention"]
    outcome = check(
        traced, roles={**ROLES, "attention": (attention + 32, seconds * (attention + 32) / attention)}
    ).outcome

    (cell,) = outcome.cells
    assert (outcome.exit_status, codes(cell.reasons)) == (10, ["work-added"])
    assert "32 more attention kernels a step" in cell.reasons[0].text
    assert codes(cell.cautions) == []  # the same diff is not told twice
    assert closing(outcome) == "REGRESSED: the work of a step (exact)."


def test_another_counter_is_blocked_in_one_trial(traced: Path) -> None:
    """What a scenario declares the same is held against the profile's launches."""
    outcome = check(traced, counted={**COUNTED, "waves": COUNTED["waves"] + 1}).outcome

    assert (outcome.exit_status, codes(outcome.cells[0].reasons)) == (10, ["counter-differs"])


def test_a_smaller_cache_is_told(traced: Path) -> None:
    """Memory has no price in a decode step."""
    outcome = check(traced, kv=0.5).outcome

    (caution,) = outcome.cells[0].cautions
    assert (outcome.exit_status, caution.code) == (0, "engine-state-changed")
    assert closing(outcome) == "PASS, CHANGED: the engine holds something else, which has no price in a step."
    assert caution.text == "- kv_token_capacity: 65536 tok -> 32768 tok"


@pytest.mark.parametrize(
    "spoil", [lambda profile: profile.pop("ranks"), lambda profile: profile["cell"].pop("tracing")]
)
def test_without_launches_that_were_traced_alike_nothing_passes(
    traced: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    """A profile of before kernels were kept, or of steps traced with other roles, ends the check; calls still block."""
    (file,) = (traced.parent / "profiles").iterdir()
    content = json.loads(file.read_text())
    spoil(content)
    file.write_text(json.dumps(content))

    outcome = check(traced).outcome

    assert (outcome.exit_status, codes(outcome.cells[0].reasons)) == (21, ["no-profile"])
    assert check(traced, lines=1.3).outcome.exit_status == 10


def test_trials_of_another_number_of_ranks_are_left_out(traced: Path) -> None:
    """Of engines of one build that did not show the same ranks the first is learnt from."""

    class Ranked(FakeCollector):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            trial = super().collect(job, progress)
            if (job.kind, job.side) != ("traced", "head"):
                return trial
            decode, ranks = engine()
            return trial.model_copy(update={"decode": decode, "ranks": ranks})

    run = use_cases.run([traced], A_A, runs=traced.parent / "runs", collector=Ranked(), exact_only=True)

    assert len(read_profile(learn(traced, run.folder)).ranks) == 1


@pytest.mark.parametrize(("memsets", "status"), [(1, 0), (51, 10)])
def test_a_memset_more_is_blocked_in_one_trial(tmp_path: Path, memsets: int, status: int) -> None:
    """The file keeps what a step copies and sets, which no kernel and no call of the host shows."""

    class Setting(FakeCollector):
        def __init__(self, each: int) -> None:
            super().__init__()
            self.each = each

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            trial = super().collect(job, progress)
            if trial.decode is None:
                return trial
            steps, each = trial.decode.steps, self.each
            moves = {"memset": (Moves(steps=steps, launches=each, bytes=4 * each, ns=900 * each * steps),)}
            return trial.model_copy(update={"decode": trial.decode.model_copy(update={"moves": moves})})

    file = scenario_file(tmp_path, more="kernels: {traced: {iterations: 2}}\n")
    runs, profiles = tmp_path / "runs", tmp_path / "profiles"
    learn(file, use_cases.run([file], A_A, runs=runs, collector=Setting(1), exact_only=True).folder)

    finished = use_cases.check_profiles([file], {"head": BASE}, profiles, runs=runs, collector=Setting(memsets))

    assert finished.outcome.exit_status == status
    told = [line for note in finished.outcome.cells[0].reasons for line in note.text.splitlines()[1:]]
    assert told == ["+ memset: 1 -> 51 a step; 4 B -> 204 B a step (+45.00 us)"] * (status == 10)
    assert use_cases.outcome_of(finished.folder) == finished.outcome


@pytest.mark.parametrize(("kind", "code"), [("traced", "evidence-missing"), ("counted", "counters-missing")])
def test_nothing_is_learnt_where_a_declared_kind_failed(traced: Path, kind: Kind, code: str) -> None:
    """A profile that held launches is not overwritten by one without."""
    (file,) = (traced.parent / "profiles").iterdir()
    before = file.read_text()
    failing = FakeCollector(kinds={kind: FakeSpec(failures=dict.fromkeys(range(20), "engine-failed"))})
    folder = use_cases.run([traced], A_A, runs=traced.parent / "runs", collector=failing, exact_only=True).folder

    with pytest.raises(NotMeasuredError) as caught:
        learn(traced, folder)
    assert caught.value.code in (code, "evidence-missing")
    assert file.read_text() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda steps: steps.update(patterns=[]),
        lambda steps: steps["patterns"][0].update(steps=0),
        lambda steps: steps["key_ns"].__setitem__(0, -1),
    ],
)
def test_a_profile_with_impossible_launches_is_refused(traced: Path, spoil: Callable[[dict[str, Any]], object]) -> None:
    """With the file's name, before anything is measured."""
    (file,) = (traced.parent / "profiles").iterdir()
    content = json.loads(file.read_text())
    spoil(content["ranks"][0])
    file.write_text(json.dumps(content))

    with pytest.raises(RecordError, match=file.name):
        check(traced)


def test_an_old_profile_does_not_make_the_envelope_stale(tmp_path: Path) -> None:
    """The envelope was learnt again for a change that is meant: the head alone is held against it."""
    priced = "calls: {ignorable: 1ms}\n"
    learn(scenario_file(tmp_path, more="kernels: {traced: {iterations: 2}}\n" + priced))
    count = sum(launches for launches, _ in ROLES.values())
    inside = f"kernels: {{traced: {{iterations: 2}}, per_decode_step: {{patterns: [{{launches: {count + 32}}}]}}}}\n"
    scenario = scenario_file(tmp_path, more=inside + priced)
    attention, seconds = ROLES["attention"]

    outcome = check(scenario, roles={**ROLES, "attention": (attention + 32, seconds)}).outcome

    assert (outcome.exit_status, codes(outcome.cells[0].cautions)) == (0, ["work-changed"])
