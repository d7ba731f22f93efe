"""A plan in shards: divided, measured apart, joined and judged as one run; and what is no part of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_collector import ByCell, FakeCollector, FakeSpec
from hand_made import BASE, BOTH, HEAD, scenario_file
from hypothesis import given
from hypothesis import strategies as st

from perfgate import gate, stats
from perfgate.baseline.promotion import promote
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import ExitStatus, InterruptedRunError, NotComparableError, NotMeasuredError
from perfgate.fleet.joined_nights import nights_joined
from perfgate.fleet.joining import MeasuredPart, part_in
from perfgate.fleet.nightly import candidate, night_in, run_night
from perfgate.judge.outcome import Outcome
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.dropped_pairs import CHANGED
from perfgate.record.run_record import read_run
from perfgate.record.shards import ShardPlan, parse_shards_left, read_shard_plan
from perfgate.scenario.declaration import load
from perfgate.scenario.subject import Source, Subject
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
SLOWER = FakeSpec(restart_sd=0.0003, head_ratio={"step": 1.01})
BATCHES = "matrix: {batch: [1, 2, 4]}"
ONE_GATE = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"
TWO_GATES = f"{ONE_GATE}, {{metric: ttft_median, ignorable: 2%, must_catch: 8%}}"


def planned(folder: Path, shards: int = 3, gates: str = TWO_GATES, more: str = BATCHES) -> tuple[Path, ShardPlan]:
    """The plan of a scenario of three cells, as the command prints it; with its file."""
    words = ["plan", str(scenario_file(folder, gates=gates, more=more)), "--shards", str(shards), "--seed", "1"]
    printed = CliRunner().invoke(main, words)
    assert printed.exit_code == 0, printed.output
    file = folder / "plan.json"
    file.write_text(printed.stdout)
    return file, read_shard_plan(file)


def measured(folder: Path, plan: ShardPlan, collector: FakeCollector, subjects: Any = BOTH) -> list[Path]:
    """The run folders of all shards of a plan, each in a folder of its own as a job's artifact is."""
    return [measure(folder, plan, number, collector, subjects) for number in range(1, len(plan.include) + 1)]


def measure(folder: Path, plan: ShardPlan, number: int, collector: FakeCollector, subjects: Any = BOTH) -> Path:
    """The folder that one shard's run folder is in."""
    runs = folder / f"shard-{number}"
    assigned = plan.numbered(f"{number}/{len(plan.include)}")
    gate.run([folder / "tiny.yaml"], subjects, runs=runs, shard=assigned, collector=collector)
    return runs


def judge(*words: Any) -> Result:
    """``perfgate judge`` of these."""
    return CliRunner().invoke(main, ["judge", *map(str, words), "--format", "json"])


def outcome(result: Result) -> Outcome:
    """What it printed."""
    return Outcome.model_validate_json(result.stdout)


@pytest.mark.parametrize("slow", [(), ("tiny[batch=1]", "tiny[batch=4]")])
def test_three_jobs_stop_and_judge_as_one_run_of_the_same_trials(tmp_path: Path, slow: tuple[str, ...]) -> None:
    """Each cell stops at the same pair, every figure and verdict is the same, and so is the exit status."""
    file, plan = planned(tmp_path)
    collector = ByCell(dict.fromkeys(slow, SLOWER))

    shards = measured(tmp_path, plan, collector)
    whole = gate.run([tmp_path / "tiny.yaml"], BOTH, runs=tmp_path / "runs", seed=1, collector=collector)
    result = judge(*shards, "--plan", file, "--runs", tmp_path / "joined")

    one, joined = whole.outcome, outcome(result)
    assert result.exit_code == one.exit_status == (ExitStatus.REGRESSED if slow else ExitStatus.PASS)
    assert [cell.pairs for cell in joined.cells] == [cell.pairs for cell in one.cells]
    assert [cell.gates for cell in joined.cells] == [cell.gates for cell in one.cells]
    assert joined.reasons == ()
    assert {check.result for check in verify_path(tmp_path / "joined" / plan.run)} == {"ok", "unknown"}


APART: list[Path] = []
"""Where the shards were measured that tests copy, once they were."""


@pytest.fixture
def shards(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three shards that pass, in the working directory, where ``plan.json`` and the scenario are too."""
    if not APART:
        folder = tmp_path_factory.mktemp("apart")
        measured(folder, planned(folder)[1], ByCell())
        APART.append(folder)
    shutil.copytree(APART[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return [Path(f"shard-{number}") for number in (1, 2, 3)]


def test_one_page_of_all_shards(shards: list[Path]) -> None:
    """JSON, Markdown and HTML are those of a run; judging again replaces the joined folder, and it judges alone."""
    name = read_shard_plan(Path("plan.json")).run
    result = CliRunner().invoke(main, ["judge", *map(str, shards), "--plan", "plan.json", "--output", "page.html"])

    assert result.exit_code == 0, result.output
    assert [result.stdout.count(f"### tiny\\[batch={batch}\\]: 4 pairs") for batch in (1, 2, 4)] == [1, 1, 1], (
        result.stdout
    )
    assert Path("page.html").read_text().count("<svg") > len(shards)
    assert f"run folder: runs/{name}\n" in result.stderr
    again, alone = judge(*reversed(shards)), judge("latest")
    assert (again.exit_code, again.stdout) == (alone.exit_code, alone.stdout)
    assert [path.name for path in Path("runs").iterdir()] == [name]
    Path("runs", name, "trials", "1").mkdir()
    assert "holds trials of its own" in judge(*shards).stderr


def test_a_shard_alone_is_no_pass(shards: list[Path]) -> None:
    """Its own run ended with 0; judged, by a pattern that finds no other, it ends with 22 and says what is missing."""
    own = gate.outcome_of(part_in(shards[1]))
    result = judge(shards[1])

    assert (own.verdict, [cell.name for cell in own.cells]) == ("pass", ["tiny[batch=2]"])
    assert [note.code for note in own.reasons] == ["one-shard"]
    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert [note.text for note in outcome(result).reasons] == [
        "shard 1 of 3: 1 cell, tiny[batch=1]",
        "shard 3 of 3: 1 cell, tiny[batch=4]",
    ]
    assert [cell.verdict for cell in outcome(result).cells] == ["not-measured", "pass", "not-measured"]


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the manifest of a shard says."""
    file = part_in(folder) / "run.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def other_division(content: dict[str, Any]) -> None:
    """The third shard as one of two, the other of which has both other cells: its gates had another m."""
    one, two, three = content["part"]["shards"]
    content["part"] |= {"shards": [[*one, *two], three], "numbers": [2]}


@pytest.mark.parametrize("with_plan", [True, False])
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda: edit(Path("shard-3"), other_division), "its plan differ"),
        (lambda: edit(Path("shard-3"), lambda run: run["part"].update(run="other")), "its plan differ"),
        (lambda: shutil.copytree("shard-2", "shard-4"), "shard 2 is there twice: shard-2/"),
        (lambda: shutil.rmtree(part_in(Path("shard-3"))), "shard-3: holds 0 folders with run.json"),
        (lambda: edit(Path("shard-3"), lambda run: run.pop("part")), "is a run of its own"),
        (lambda: edit(Path("shard-3"), lambda run: run["part"].update(shards=[["tiny[batch=4]"]], numbers=[1])),
         "its shards do not hold each cell of the plan once"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("shards")
def test_what_is_not_one_part_of_the_plan_is_not_measured(
    spoil: Callable[[], object], text: str, *, with_plan: bool
) -> None:
    """With the plan the others are judged and the outcome says what is wrong; without it nobody knows who is right."""
    spoil()
    result = judge(*sorted(Path().glob("shard-*")), *(["--plan", "plan.json"] if with_plan else []))

    assert result.exit_code == ExitStatus.NOT_MEASURED, result.output
    assert text in (outcome(result).reasons[0].text if with_plan else result.stderr)
    assert [cell.verdict for cell in outcome(result).cells].count("pass") == 2 if with_plan else not result.stdout


def test_a_shard_that_was_drawn_twice_is_none_of_the_plan(tmp_path: Path) -> None:
    """A shard that regressed, measured once more by a failed job that was run again, fills no place of the first.

    Without the plan nobody knows which attempt is right; the plan of that attempt takes it.
    """
    file, plan = planned(tmp_path)
    slow = measured(tmp_path, plan, ByCell({"tiny[batch=2]": SLOWER}))
    again = plan.numbered("2/3", attempt=2)
    gate.run([tmp_path / "tiny.yaml"], BOTH, runs=tmp_path / "again", shard=again, collector=ByCell())
    swapped = [slow[0], tmp_path / "again", slow[2]]

    first = judge(*slow, "--plan", file, "--runs", tmp_path / "first")
    second = judge(*swapped, "--plan", file, "--runs", tmp_path / "second")
    unplanned = judge(*swapped, "--runs", tmp_path / "third")

    assert first.exit_code == ExitStatus.REGRESSED
    assert second.exit_code == ExitStatus.NOT_MEASURED
    assert [note.code for note in outcome(second).reasons] == ["shard-foreign", "shard-missing"]
    assert "measured in attempt 2 of its job, and not in 1 as planned" in outcome(second).reasons[0].text
    assert (unplanned.exit_code, unplanned.stdout) == (ExitStatus.NOT_MEASURED, "")


@pytest.mark.parametrize("variable", ["PERFGATE_ATTEMPT", "GITHUB_RUN_ATTEMPT"])
def test_a_job_counts_its_attempts(shards: list[Path], variable: str) -> None:
    """A plan and a shard of one attempt go together, as all jobs run again make them; a run goes on in its own."""
    environment = {variable: "2"}
    printed = CliRunner().invoke(main, ["plan", "tiny.yaml", "--shards", "3"], env=environment)
    Path("plan-2.json").write_text(printed.stdout)
    plan = read_shard_plan(Path("plan-2.json"))
    assert plan.attempt == 2
    assert read_shard_plan(Path("plan.json")).attempt == 1

    words = ["run", "tiny.yaml", "--shard", "1/3", "--plan", "plan-2.json", "--runs", "second",
             "--base", f"python={BASE.python}", "--head", f"python={HEAD.python}"]  # fmt: skip
    assert CliRunner().invoke(main, words, env=environment, obj=ByCell()).exit_code == 0
    begun = part_in(Path("second"))
    kept = read_run(begun).part
    assert kept is not None
    assert kept.attempt == 2
    gone_on = gate.resume(begun, only=([load(Path("tiny.yaml"))], BOTH), shard=plan.numbered("1/3", attempt=3),
                          collector=ByCell())  # fmt: skip
    assert read_run(gone_on.folder).part == kept
    assert judge("second", *shards[1:], "--plan", "plan-2.json").exit_code == ExitStatus.NOT_MEASURED


def test_machines_with_other_versions_of_a_build(shards: list[Path]) -> None:
    """The verdict stands, since pairs are of one machine, and a caution says which packages are where."""
    plan = read_shard_plan(Path("plan.json"))

    class Other(ByCell):
        def __init__(self, head: dict[str, str]) -> None:
            super().__init__()
            self.head = head

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            trial = super().collect(job, progress)
            return trial.model_copy(update={"versions": self.head}) if job.side == "head" else trial

    fake = {"vllm": "0.0.0+fake", "python": "3.11.0"}
    for number, head in ((2, {**fake, "torch": "0.0.0+fake", "vllm": "2.0", "flash-attn": "2"}), (3, fake)):
        shutil.rmtree(shards[number - 1])
        measure(Path(), plan, number, Other(head))
    result = judge(*shards, "--plan", "plan.json")
    assert result.exit_code == ExitStatus.PASS
    found = [[note.text for note in cell.cautions if note.code == "subject-changed"] for cell in outcome(result).cells]
    newer = "head: flash-attn 2, and none in tiny[batch=1]; head: vllm 2.0, and 0.0.0+fake in tiny[batch=1]"
    assert found == [[], [newer], ["head: torch none, and 0.0.0+fake in tiny[batch=1]"]]


def test_a_foreign_shard_beside_a_whole_plan_is_no_pass(shards: list[Path]) -> None:
    """Every cell passed, and one shard more is not of this plan: 22, since nobody knows what else went wrong."""
    shutil.copytree("shard-3", "shard-4")
    edit(Path("shard-4"), other_division)
    result = judge(*shards, "shard-4", "--plan", "plan.json")

    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert {cell.verdict for cell in outcome(result).cells} == {"pass"}


def test_shards_of_other_builds_or_scenarios(shards: list[Path]) -> None:
    """Builds of one commit may be in another cache; other builds are foreign, and so are other margins."""
    plan = read_shard_plan(Path("plan.json"))
    source = Source(ref="main", commit="1" * 40, changes="", recipe="r", folder="/a/1")
    built = [
        {"base": BASE,
         "head": Subject(python=f"{cache}/bin/python", built_from=source.model_copy(update={"folder": cache}))}
        for cache in ("/a/1", "/b/1")
    ]  # fmt: skip
    for number, subjects in enumerate((*built, {**built[0], "head": BASE}), 1):
        shutil.rmtree(f"shard-{number}")
        measure(Path(), plan, number, ByCell(), subjects)

    assert judge(*shards[:2]).exit_code == ExitStatus.NOT_MEASURED  # one is missing
    assert "its builds differ from those of shard-1/" in judge(*shards).stderr
    scenario_file(Path(), gates=TWO_GATES.replace("0.5%", "0.6%"), more=BATCHES)
    with pytest.raises(NotMeasuredError, match=f"another plan than {plan.digest[:12]}") as error:
        measure(Path(), plan, 1, ByCell())
    assert error.value.code == "shard-foreign"


def test_a_regression_blocks_though_a_shard_is_missing(tmp_path: Path) -> None:
    """The levels are those of the whole plan, so what blocks without the missing gates blocks with them too."""
    file, plan = planned(tmp_path)
    shard = measure(tmp_path, plan, 1, ByCell({"tiny[batch=1]": SLOWER}))
    (own,) = [one for one in gate.outcome_of(part_in(shard)).cells[0].gates if one.verdict == "regressed"]
    result = judge(shard, tmp_path / "nothing", "--plan", file, "--runs", tmp_path / "runs")

    assert own.block_level == pytest.approx(0.01 / plan.include[0].gates)
    assert result.exit_code == ExitStatus.REGRESSED
    assert [note.code for note in outcome(result).reasons] == ["shard-missing"] * 3


def test_a_shard_is_gone_on_with(tmp_path: Path) -> None:
    """A shard that was stopped is resumed by its own manifest, and by a job that names scenarios, builds and plan."""
    _, plan = planned(tmp_path)
    collector = ByCell({"tiny[batch=2]": FakeSpec(restart_sd=0.02)})
    assigned = plan.numbered("2/3")
    with pytest.raises(InterruptedRunError):
        gate.run([tmp_path / "tiny.yaml"], BOTH, runs=tmp_path / "shard-2", shard=assigned, collector=collector,
                 budget_s=1e-9)  # fmt: skip
    folder = part_in(tmp_path / "shard-2")
    only = ([tmp_path / "tiny.yaml"], BOTH)
    with pytest.raises(NotComparableError, match="its part differs"):
        gate.resume(folder, only=only, collector=collector)

    gate.resume(folder, only=only, shard=assigned, collector=collector)

    assert {job.cell.name for job in collector.taken} == {"tiny[batch=2]"}
    assert min(job.index for job in collector.taken) == 1_000_000


def test_what_is_left_is_measured_again_where_nothing_was_decided(shards: list[Path]) -> None:
    """A shard that is away, or has no decided cell, is left; one with a decided cell is not, whatever it found."""
    shutil.rmtree("shard-1")
    for record in Path("shard-3").glob("*/records/*.json"):
        record.unlink()
    result = CliRunner().invoke(main, ["plan", "--left", "plan.json", *map(str, shards)])

    assert [entry["shard"] for entry in json.loads(result.stdout)["include"]] == ["1/3", "3/3"]
    whole = json.loads(Path("plan.json").read_text())["include"]
    assert json.loads(result.stdout)["include"] == [whole[0], whole[2]]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shard", "1/3"], "--shard and --plan go together"),
        (["--plan", "plan.json"], "--shard and --plan go together"),
        (["--shard", "4/3", "--plan", "plan.json"], "--shard 4/3: the plan has 1/3 to 3/3"),
        (["--shard", "1/3", "--plan", "plan.json", "--quick"], "--quick cannot be given"),
        (["--shard", "1/3", "--plan", "plan.json", "--seed", "1"], "--seed cannot be given"),
        (["--shard", "1/3", "--plan", "plan.json", "--against", "baseline"], "--against baseline cannot be given"),
        (["--shard", "1/3", "--plan", "tiny.yaml"], "tiny.yaml"),
    ],
)
def test_what_does_not_go_with_a_shard(shards: list[Path], words: list[str], text: str) -> None:
    """Each is a usage error that says so, before anything is measured."""
    result = CliRunner().invoke(main, ["run", "tiny.yaml", "--base", "python=/bin/true", *words])

    assert result.exit_code == ExitStatus.USAGE
    assert text in result.stderr
    assert len(shards) == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda entries: entries.pop(), "expected every shard of one plan"),
        (lambda entries: entries[0].update(seed=7), "its entries are of several plans"),
        (lambda entries: entries[0].update(run="../../etc"), "include.0.run"),
    ],
)
def test_a_plan_that_was_changed_is_refused(
    shards: list[Path], change: Callable[[list[dict[str, Any]]], object], text: str
) -> None:
    """Entries of two plans, some that are missing, and a run name that leads elsewhere are no plan."""
    content = json.loads(Path("plan.json").read_text())
    change(content["include"])
    Path("plan.json").write_text(json.dumps(content))
    result = judge(*shards, "--plan", "plan.json")
    assert (result.exit_code, text in result.stderr) == (ExitStatus.USAGE, True)


MACHINES = """
[machines.big]
scenarios = "big*.yaml"
labels = ["self-hosted", "h200-x8"]
[machines.small]
scenarios = ["tiny.yaml"]
labels = "self-hosted"
"""


def test_shards_by_class_and_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario is measured by its class; shards cost alike, and cells of one engine stay together."""
    monkeypatch.chdir(tmp_path)
    files = [
        scenario_file(Path(), "tiny", more="matrix: {max_num_seqs: [4, 8], batch: [1, 2]}"),
        scenario_file(Path(), "big", more="matrix: {batch: [1, 2, 4, 8]}"),
    ]
    text = files[1].read_text().replace("iterations: 2", "iterations: 2, expect: {trial_s: 60, pair_sd: 0.1%}")
    files[1].write_text(text.replace("input_tokens: 4", "input_tokens: 5"))
    Path("perfgate.toml").write_text(MACHINES)

    result = CliRunner().invoke(main, ["plan", *map(str, files), "--shards", "4"])
    assert result.exit_code == 0, result.output
    entries = json.loads(result.stdout)["include"]

    assert [(entry["shard"], entry["machine"], entry["runs-on"]) for entry in entries] == [
        ("1/4", "small", ["self-hosted"]), ("2/4", "small", ["self-hosted"]),
        ("3/4", "big", ["self-hosted", "h200-x8"]), ("4/4", "big", ["self-hosted", "h200-x8"]),
    ]  # fmt: skip
    assert [cell.partition("batch")[0] for cell in entries[0]["cells"]] == ["tiny[max_num_seqs=4,"] * 2
    assert [len(entry["cells"]) for entry in entries] == [2, 2, 2, 2]
    assert {entry["gates"] for entry in entries} == {8}
    assert entries[2]["minutes"] == 52.0  # two cells of 2 x 12 + 2 trials of a minute
    few = CliRunner().invoke(main, ["plan", *map(str, files), "--shards", "1"])
    assert (few.exit_code, "2 classes of machines: small, big" in few.stderr) == (ExitStatus.USAGE, True)
    Path("perfgate.toml").write_text(MACHINES.replace("tiny.yaml", "*.yaml"))
    both = CliRunner().invoke(main, ["plan", *map(str, files), "--shards", "4"])
    assert (both.exit_code, "machines that measure big.yaml: big and small" in both.stderr) == (ExitStatus.USAGE, True)


FAMILY = st.tuples(st.integers(1, 3), st.lists(st.floats(0, 0.03), min_size=1, max_size=5))
"""Gates that a cell declares, and the p values of what they were split into."""


@given(cells=st.lists(FAMILY, min_size=2, max_size=6), cut=st.integers(1, 5))
def test_joining_only_adds_rejections(cells: list[tuple[int, list[float]]], cut: int) -> None:
    """Whatever p values the other shards have, and into how many states their gates split, nothing is taken back."""

    def rejected(known: int) -> list[bool]:
        families = [(gates, p if n < known else [1.0] * gates) for n, (gates, p) in enumerate(cells)]
        weights = [Fraction(gates, len(p)) for gates, p in families for _ in p]
        values = [value for _, p in families for value in p]
        levels = [stats.holm_level(values, n, 0.01, weights) for n in range(len(values))]
        found = stats.holm(values, 0.01, weights)
        assert [*found] == [value <= level for value, level in zip(values, levels, strict=True)]
        return [*found]

    own = rejected(cut)[: sum(len(p) for _, p in cells[:cut])]
    assert all(later or not before for before, later in zip(own, rejected(len(cells)), strict=False))


class Losing(FakeCollector):
    """A fake on whose machine the GPU is lost in some cells, from a half of a night and a pair on."""

    def __init__(self, lost: Collection[str], before: FakeCollector | None = None, half: str = "", pair: int = 0,
                 code: str = "gpu-lost") -> None:  # fmt: skip
        super().__init__(SAME)
        self.lost, self.before, self.half, self.pair, self.code = lost, before or ByCell(), half, pair, code

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial, or none any more."""
        begun = self.half != "head" or job.run_folder.parent.name == "head"
        if begun and job.cell.name in self.lost and (job.pair or 0) >= self.pair:
            return FakeCollector(FakeSpec(failures={job.index: self.code})).collect(job, progress)
        return self.before.collect(job, progress)


def left_of(file: Path, *folders: Path) -> tuple[list[tuple[str, list[str]]], Path]:
    """What ``perfgate plan --left`` prints: the cells of each shard that is left, and the file that holds it."""
    printed = CliRunner().invoke(main, ["plan", "--left", str(file), *map(str, folders)])
    assert printed.exit_code == 0, printed.output
    (kept := file.with_name("left.json")).write_text(printed.stdout)
    return [(entry["shard"], entry["cells"]) for entry in json.loads(printed.stdout)["include"]], kept


def test_a_lost_gpu_costs_what_it_did_not_come_to(tmp_path: Path) -> None:
    """Another machine measures what is left of the shard and nothing else, and all together pass as one run does."""
    file, plan = planned(tmp_path, shards=2)
    (one, lost), other = plan.shards[0], plan.shards[1]
    first = measure(tmp_path, plan, 1, Losing([lost]))
    second = measure(tmp_path, plan, 2, ByCell())

    entries, kept = left_of(file, first, second)
    assert entries == [("1/2", [lost])]
    again = ByCell()
    words = ["run", str(tmp_path / "tiny.yaml"), "--shard", "1/2", "--plan", str(file), "--left", str(kept),
             "--runs", str(tmp_path / "again")]  # fmt: skip
    own = CliRunner().invoke(
        main, [*words, "--base", f"python={BASE.python}", "--head", f"python={HEAD.python}"], obj=again
    )
    joined = judge(first, second, tmp_path / "again", "--plan", file, "--runs", tmp_path / "runs")

    assert own.exit_code == 0, own.output
    assert {job.cell.name for job in again.taken} == {lost}
    assert (one, len(other)) == ("tiny[batch=1]", 1)
    assert [cell.verdict for cell in outcome(joined).cells].count("pass") == 3, joined.output
    assert left_of(file, first, second, tmp_path / "again")[0] == []
    assert not [check for check in verify_path(tmp_path / "runs" / plan.run) if check.result == "FAILED"]


class ByBuild(ByCell):
    """A fake whose head is slower in some cells, whichever half of the night it is; in others the head's side is."""

    def __init__(self, slow: Collection[str] = (), drifting: Collection[str] = ()) -> None:
        super().__init__(dict.fromkeys((*slow, *drifting), SLOWER))
        self.slow = slow

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial that is slow where its build is."""
        kept = self.specs
        if job.cell.name in self.slow and job.subject == BASE:
            self.specs = {**kept, job.cell.name: SAME}
        try:
            return super().collect(job, progress)
        finally:
            self.specs = kept


def nights(folder: Path, plan: ShardPlan, collector: FakeCollector, numbers: Collection[int] = (1, 2, 3)) -> list[Path]:
    """Folders that hold the nights of some shards."""
    for number in numbers:
        shard = plan.numbered(f"{number}/3")
        run_night([folder / "tiny.yaml"], BOTH, runs=folder / f"shard-{number}", shard=shard, collector=collector)
    return [folder / f"shard-{number}" for number in numbers]


def test_a_night_of_a_fleet_is_one_night(tmp_path: Path) -> None:
    """A machine that drifts, and one that is away, take nothing from the others: these are judged and promoted."""
    file, plan = planned(tmp_path, gates=ONE_GATE)
    collector = ByBuild(slow=["tiny[batch=1]"], drifting=["tiny[batch=2]"])

    there = nights(tmp_path, plan, collector, (1, 2))
    result = judge(*there, "--plan", file, "--runs", tmp_path / "runs")
    left = CliRunner().invoke(main, ["plan", "--left", str(file), *map(str, there)])

    found = outcome(result)
    assert result.exit_code == ExitStatus.REGRESSED
    assert [note.code for note in found.reasons].count("reference-unsteady") == 2  # the one that drifts, the one away
    heads = {cell.name.partition(": ")[2]: cell.verdict for cell in found.cells if cell.name.startswith("head")}
    assert heads == {"tiny[batch=1]": "regressed", "tiny[batch=2]": "regressed", "tiny[batch=4]": "not-measured"}
    assert [candidate(night_in(shard) or shard) is not None for shard in there] == [True, False]
    assert [entry["shard"] for entry in json.loads(left.stdout)["include"]] == ["3/3"]
    assert not [check for check in verify_path(tmp_path / "runs" / plan.run) if check.result == "FAILED"]


def test_a_machine_that_drifts_blocks_no_head(tmp_path: Path) -> None:
    """Where the head side is slower of itself, that machine measured nothing; the rest passes, and the night is 22."""
    file, plan = planned(tmp_path, gates=ONE_GATE)
    there = nights(tmp_path, plan, ByBuild(drifting=["tiny[batch=2]"]))
    result = judge(*there, "--plan", file, "--runs", tmp_path / "runs")

    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert [note.code for note in outcome(result).reasons] == ["reference-unsteady"]
    assert "perfgate plan printed" in judge(*there, "--runs", tmp_path / "again").stderr
    promoted = promote(candidate(night_in(there[0]) or there[0]) or Path(), root=tmp_path / "baselines", side="base",
                       reason="first")  # fmt: skip
    assert [one.cell for one in promoted] == ["tiny[batch=1]"]


class Fleet:
    """A plan of one scenario of three cells, and what machines measure of it below a folder."""

    def __init__(self, folder: Path, shards: int = 1) -> None:
        self.folder = folder
        self.file, self.plan = planned(folder, shards, ONE_GATE)

    def night(self, name: str, collector: FakeCollector, left: Path | None = None, **means: Any) -> Path:
        """The folder of that name, with a night of the whole plan, or of what is left of it."""
        again = parse_shards_left(left.read_bytes(), "left.json") if left else None
        run_night([self.folder / "tiny.yaml"], BOTH, runs=self.folder / name, shard=self.plan.numbered("1/1", again),
                  collector=collector, **means)  # fmt: skip
        return self.folder / name

    def again(self, name: str, left: Path, word: str = "1/1") -> Path:
        """The folder of that name, with a run of what is left of a shard."""
        shard = self.plan.numbered(word, parse_shards_left(left.read_bytes(), "left.json"))
        runs = self.folder / name
        gate.run([self.folder / "tiny.yaml"], BOTH, runs=runs, shard=shard, collector=ByCell())
        return runs

    def judge(self, *there: Path, runs: str = "runs") -> Result:
        """``perfgate judge`` of these by the plan."""
        return judge(*there, "--plan", self.file, "--runs", self.folder / runs)

    def left(self, *there: Path) -> tuple[list[tuple[str, list[str]]], Path]:
        """See :func:`left_of`."""
        return left_of(self.file, *there)

    def nights(self, there: Sequence[Path]) -> list[Path]:
        """Of these the nights that the joined one was made of."""
        return nights_joined(self.folder / "runs" / self.plan.run, there)


@pytest.mark.parametrize("half", ["reference", pytest.param("head", marks=pytest.mark.slow)])
def test_a_gpu_lost_midway_costs_no_night(tmp_path: Path, half: str) -> None:
    """Both halves of the cells that are left are measured again, wherever the first machine was lost, and no others."""
    fleet = Fleet(tmp_path)
    lost = ["tiny[batch=2]", "tiny[batch=4]"]
    fleet.night("first", Losing(lost, half=half))
    entries, left = fleet.left(tmp_path / "first")

    again = ByCell()
    there = [tmp_path / "first", fleet.night("again", again, left)]
    result = fleet.judge(*there)

    assert entries == [("1/1", lost)]
    assert {(job.cell.name, job.run_folder.parent.name) for job in again.taken} == {
        (name, folder) for name in lost for folder in ("reference", "head")
    }
    assert result.exit_code == ExitStatus.PASS, result.output
    assert {night.parent for night in fleet.nights(there)} == {*there}
    assert [candidate(night_in(folder) or folder) is not None for folder in there] == [half == "head", True]
    assert fleet.left(*there)[0] == []
    assert not [check for check in verify_path(tmp_path / "runs" / fleet.plan.run) if check.result == "FAILED"]


def test_a_night_that_was_stopped_leaves_what_it_did_not_come_to(tmp_path: Path) -> None:
    """Stopped within its first half, a machine has left all; what cannot be read has decided nothing either."""
    fleet = Fleet(tmp_path)
    first = tmp_path / "first"
    with pytest.raises(InterruptedRunError):
        fleet.night("first", ByCell(), budget_s=1e-9)

    assert fleet.left(first)[0] == [("1/1", list(fleet.plan.shards[0]))]
    (run,) = first.glob("*/reference/*/run.json")
    run.write_text("{}")
    assert fleet.left(first)[0] == [("1/1", list(fleet.plan.shards[0]))]


@pytest.mark.slow
def test_a_second_machine_that_drifts_costs_what_it_measured(tmp_path: Path) -> None:
    """What the first machine measured beside its own reference keeps its verdict: the regression in it is told."""
    fleet = Fleet(tmp_path)
    regressed, lost = "tiny[batch=1]", ["tiny[batch=2]", "tiny[batch=4]"]

    first = Losing(lost, ByBuild(slow=[regressed]), half="head")
    fleet.night("first", first)
    left = fleet.left(tmp_path / "first")[1]
    again = fleet.night("again", ByBuild(drifting=lost), left)
    found = outcome(fleet.judge(tmp_path / "first", again))

    assert found.verdict == "regressed"
    assert [note.text.partition(":")[0] for note in found.reasons if note.code == "reference-unsteady"] == [
        "shard 1, again"
    ]


@pytest.mark.parametrize(
    ("collector", "why"),
    [
        (Losing(["tiny[batch=2]"], ByCell({"tiny[batch=2]": FakeSpec(restart_sd=0.02)}), pair=5), "a look was taken"),
        (ByCell({"tiny[batch=2]": FakeSpec(restart_sd=0.02)}), "inconclusive"),
        (Losing(["tiny[batch=2]"], pair=1, code="engine-failed"), "too many pairs were dropped"),
    ],
)
def test_what_could_have_been_decided_is_not_left(shards: list[Path], collector: FakeCollector, why: str) -> None:
    """A cell at which a look was taken, or whose trials failed too often, has had its chance; so it is not left."""
    shutil.rmtree(shards[1])
    measure(Path(), read_shard_plan(Path("plan.json")), 2, collector)
    (cell,) = gate.outcome_of(part_in(shards[1])).cells

    assert cell.verdict in ("inconclusive", "not-measured"), why
    assert left_of(Path("plan.json"), *shards)[0] == [], why


def test_no_cell_has_two_chances(tmp_path: Path) -> None:
    """A second try of what the first machine decided is set aside, whatever it found, and so are several of a shard."""
    fleet = Fleet(tmp_path)
    slow, lost = "tiny[batch=1]", "tiny[batch=4]"
    first = measure(tmp_path, fleet.plan, 1, Losing([lost], ByCell({slow: SLOWER})))
    file = fleet.left(first)[1]
    left = json.loads(file.read_text())
    left["include"][0]["cells"] = [slow, lost]
    file.write_text(json.dumps(left))
    result = fleet.judge(first, fleet.again("again", file))

    assert result.exit_code == ExitStatus.REGRESSED
    assert [cell.verdict for cell in outcome(result).cells] == ["regressed", "pass", "not-measured"]
    assert [note.code for note in outcome(result).reasons] == ["second-try-unused"]
    assert "the first try of its shard holds tiny[batch=1]" in outcome(result).reasons[0].text
    shutil.copytree(tmp_path / "again", tmp_path / "third")
    only = fleet.judge(tmp_path / "again", tmp_path / "third", runs="only")
    assert (only.exit_code, "no cell has a third" in only.stderr) == (ExitStatus.NOT_MEASURED, True)


def test_a_third_try_fills_nothing(tmp_path: Path) -> None:
    """Of two second tries nobody knows which was first, so neither is used: their cells are not measured."""
    fleet = Fleet(tmp_path)
    lost = "tiny[batch=4]"
    first = measure(tmp_path, fleet.plan, 1, Losing([lost]))
    left = fleet.left(first)[1]
    tries = [fleet.again(name, left) for name in ("again", "third")]
    result = fleet.judge(first, *tries)

    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert [cell.verdict for cell in outcome(result).cells] == ["pass", "pass", "not-measured"]
    assert [note.code for note in outcome(result).reasons] == ["second-try-unused"] * 2
    assert fleet.judge(first, tries[0]).exit_code == ExitStatus.PASS
    later = fleet.judge(tmp_path / "runs" / fleet.plan.run, tries[1], runs="later")
    assert [note.code for note in outcome(later).reasons] == ["second-try-unused"], "what was joined had one"


@pytest.mark.parametrize(
    ("lost_again", "planned_anew"),
    [
        (["tiny[batch=2]"], True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (([], False), ([], True), (["tiny[batch=2]"], False))
        ),
    ],
)
def test_a_job_that_is_run_again_is_judged_beside_what_an_earlier_attempt_left(
    tmp_path: Path, lost_again: list[str], *, planned_anew: bool
) -> None:
    """The second try of the earlier attempt is set aside and no visit of the baseline; what is missing is no pass."""
    fleet = Fleet(tmp_path)
    first = tmp_path / "first"
    fleet.night("first", Losing(["tiny[batch=4]"], half="head"))
    again = fleet.night("again", ByCell(), fleet.left(first)[1])
    shutil.rmtree(first)  # its artifact is replaced
    if planned_anew:
        fleet = Fleet(tmp_path)
    fleet.night("first", Losing(lost_again, half="head"))
    for there in ([first, again], [again, first]):
        result = fleet.judge(*there)
        found = outcome(result)

        assert result.exit_code == (ExitStatus.NOT_MEASURED if lost_again else ExitStatus.PASS)
        assert [note.code for note in found.reasons] == ["second-try-unused"]
        assert [cell.name for cell in found.cells if cell.verdict != "pass"] == [
            f"head against reference: {one}" for one in lost_again
        ]
        assert [night.parent for night in fleet.nights(there)] == [first]


def test_no_head_is_judged_beside_another_machines_reference(tmp_path: Path) -> None:
    """Where a second try's reference is set aside its head is too, though the first try came to no head at all."""
    fleet = Fleet(tmp_path)
    first, whole = tmp_path / "first", list(fleet.plan.shards[0])
    again = fleet.night("again", ByCell(), fleet.left(tmp_path / "nothing")[1])
    fleet.night("first", ByBuild(drifting=whole[:1]))
    (head,) = first.glob("*/head")
    shutil.rmtree(head)
    result = fleet.judge(first, again)

    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert {cell.name.partition(":")[0] for cell in outcome(result).cells} == {"reference against itself"}
    assert [night.parent for night in fleet.nights([first, again])] == [first]


def test_a_second_try_of_a_whole_shard_stands_beside_the_first(tmp_path: Path) -> None:
    """A machine that lost every head has a visit of its reference, which a second try neither replaces nor forbids."""
    fleet = Fleet(tmp_path)
    first, whole = tmp_path / "first", fleet.plan.shards[0]
    fleet.night("first", Losing(whole, half="head"))
    entries, left = fleet.left(first)
    there = [first, fleet.night("again", ByCell(), left)]
    result = fleet.judge(*there)

    assert entries == [("1/1", list(whole))]
    assert fleet.plan.numbered("1/1", parse_shards_left(left.read_bytes(), "left.json")).again == whole
    assert (result.exit_code, outcome(result).reasons) == (ExitStatus.PASS, ())
    visits = fleet.nights(there)
    assert [(night.parent, candidate(night) is not None) for night in visits] == [(one, True) for one in there]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda left: left["include"].clear(), "nothing of shard 1/3 of this plan is left"),
        (lambda left: left["include"][0].update(cells=["other"]), "nothing of shard 1/3 of this plan is left"),
        (lambda left: left["include"][0].update(plan="0" * 64), "nothing of shard 1/3 of this plan is left"),
        (lambda left: left.pop("include"), "left.json: include: Field required"),
    ],
)
@pytest.mark.usefixtures("shards")
def test_what_is_left_is_of_the_plan(change: Callable[[dict[str, Any]], object], text: str) -> None:
    """What names cells of another plan, or is no such list, is refused before anything is measured."""
    kept = left_of(Path("plan.json"), Path("nothing"))[1]
    content = json.loads(kept.read_text())
    change(content)
    kept.write_text(json.dumps(content))
    words = ["run", "tiny.yaml", "--base", "python=/bin/true", "--shard", "1/3", "--plan", "plan.json"]
    result = CliRunner().invoke(main, [*words, "--left", str(kept)])

    assert (result.exit_code, text in result.stderr) == (ExitStatus.USAGE, True), result.output


def test_a_second_try_of_a_shard_that_is_there_twice_is_set_aside(tmp_path: Path) -> None:
    """Nobody knows which of both first tries it fills, so nothing of the shard is used."""
    fleet = Fleet(tmp_path, 2)
    (_, lost), other = fleet.plan.shards
    first, second = measure(tmp_path, fleet.plan, 1, Losing([lost])), measure(tmp_path, fleet.plan, 2, ByCell())
    again = fleet.again("again", fleet.left(first, second)[1], "1/2")
    shutil.copytree(first, tmp_path / "copy")
    result = fleet.judge(first, tmp_path / "copy", second, again)

    assert result.exit_code == ExitStatus.NOT_MEASURED
    assert {cell.name for cell in outcome(result).cells if cell.verdict == "pass"} == {*other}
    aside = [note.text for note in outcome(result).reasons if note.code == "second-try-unused"]
    assert [text.partition(": ")[2] for text in aside] == ["the first try of its shard is there twice"]


def test_a_cell_that_stopped_for_one_of_several_heads_is_not_left(tmp_path: Path) -> None:
    """Its build changed while it was measured, which another machine does not undo; else nothing is known of it."""
    fleet = Fleet(tmp_path)
    subjects = {"base": BASE, "one": HEAD, "two": HEAD.model_copy(update={"python": "/two"})}
    part = MeasuredPart.read(part_in(measure(tmp_path, fleet.plan, 1, ByCell(), subjects)))
    names = [cell.name for cell in part.run.cells]
    gone = dict.fromkeys(("one", "two"), Failure(code="gpu-lost", text="gone"))
    lost = [record.model_copy(update={"trials": (), "stops": gone}) for record in part.records]
    changed = lost[0].model_copy(update={"stops": {**gone, "two": Failure(code=CHANGED, text="another wheel")}})

    assert part.left() == frozenset()
    assert replace(part, records=tuple(lost)).left() == {*names}
    assert replace(part, records=(changed, *lost[1:])).left() == {*names[1:]}
