"""A campaign from the command line: exercises, their board, its exit status, and going on after a stop."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import CONFIG
from fake_collector import FakeCollector, FakeSpec

from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.drill.board import Board, exit_status, false_blocks, make_board
from perfgate.drill.campaign import Drill, Exercise, run_of
from perfgate.errors import ExitStatus, RecordError
from perfgate.machine.fingerprint import read_machine
from perfgate.machine.versioned_json import read_model
from perfgate.metrics.trial import Failure, Trial

pytestmark = pytest.mark.usefixtures("no_orphans")

CATALOGUE = Path(__file__).parents[2] / "drills"

SCENARIO = """\
schema: 1
name: tiny
engine: {model: {config: model}, args: {max_num_seqs: 8}}
workload: {batch: 8, input_tokens: 16, output_tokens: 8, seed: 0}
measure: {warmup_iterations: 0, iterations: 2}
kernels: {}
gates:
  - {metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}
"""


class Planted(FakeCollector):
    """A fake whose head is slower by what the plant on its module path, and the size of its dial, say."""

    SLOWER = {"slow": 1.02, "tiny": 1.0, "noisy": 1.0, "slow_other": 1.02}

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take a fake trial of the plant that is there."""
        plant = next((Path(folder).name for folder in job.subject.path), "")
        ratio = self.SLOWER.get(plant, 1.0) + int(job.subject.env.get("PERFGATE_PLANT_PPM", 0)) / 1e6
        head = {"step": ratio, "gemm": ratio} if job.side == "head" else {}
        spread = 0.05 if plant == "noisy" else 0.0003
        tokens = plant.endswith("other") and job.side == "head"
        return FakeCollector(FakeSpec(head_ratio=head, restart_sd=spread, tokens_differ=tokens)).collect(job, progress)


def plant(folder: Path, name: str, **more: Any) -> None:
    """Write a plant of the catalogue; it would add 1 % of a fake's step of 5.3 ms for each unit of its dial."""
    own = folder / name
    (own / f"{name}-0.1.dist-info").mkdir(parents=True)
    (own / f"{name}.py").touch()
    info = own / f"{name}-0.1.dist-info"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n")
    said: dict[str, Any] = {
        "schema": 1, "name": name, "family": "device-compute", "what": "Slower.", "runs_on": ["cpu", "cuda"],
        "expect": {"metric": "itl_median", "cause": {"cpu": "gemm", "cuda": "gemm"}},
    }  # fmt: skip
    (own / "plant.yaml").write_text(json.dumps(said | more))


ITL = {"metric": "itl_median"}


def dialled(folder: Path) -> None:
    """Write the plant ``dialled``, slower by parts in a million, and ``paired``, whose sizes are lists."""
    plant(folder, "dialled", expect=ITL | {"step_us_per_unit": {"cpu": 0.0053}}, runs_on=["cpu"],
          dial={"variable": "PERFGATE_PLANT_PPM", "unit": "ppm", "sizes": {"cpu": ["9"]}})  # fmt: skip
    plant(folder, "paired", expect=ITL, runs_on=["cpu"],
          dial={"argument": "pair", "unit": "settings", "sizes": {"cpu": ["[1, 1]"]}})  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a scenario and a catalogue, which is the working directory."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    plant(tmp_path / "drills", "slow")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drill(*words: str, collector: FakeCollector | None = None) -> Result:
    """``perfgate drill`` on fakes."""
    return CliRunner().invoke(main, ["drill", *words], obj=collector or Planted())


NEW = ("tiny.yaml", "--base", "python=/bin/true", "--seed", "5", "--format", "json")


def board_of(result: Result) -> dict[str, Any]:
    """What ``--format json`` printed."""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows(result: Result) -> dict[str, dict[str, Any]]:
    """The board's rows by exercise."""
    return {row["exercise"]: row for row in board_of(result)["rows"]}


def test_a_plant_is_caught_with_its_cause(project: Path) -> None:
    """A plant is blocked with its cause named, the build against itself is not, and the board is kept."""
    ended = drill(*NEW, "--same-build", "1")
    assert ended.exit_code == 0, ended.output
    found = rows(ended)
    assert list(found) == ["same-build-1", "slow"]
    assert (found["slow"]["result"], found["slow"]["cause"], found["slow"]["verdict"]) == (
        "as-expected", True, "regressed",
    )  # fmt: skip
    assert "gemm" in found["slow"]["told"]
    assert found["slow"]["change"] == pytest.approx(0.02, abs=0.002)
    assert found["slow"]["true_size"] is None
    assert (found["same-build-1"]["result"], found["same-build-1"]["pairs"]) == ("as-expected", 6)
    (folder,) = (project / "runs").glob("drill-*")
    assert read_model(Board, folder / "board.json") == make_board(folder)
    assert board_of(ended)["false_blocks"]["at_most"] == pytest.approx(0.95)


@pytest.mark.usefixtures("project")
def test_progress_and_quiet() -> None:
    """A line a trial, with the drill's folder; quiet, only sentences, on a campaign that is resumed too."""
    told = drill(*NEW, "--same-build", "1", "--no-plants")
    quiet = drill("--resume", "latest", "--quiet")

    assert "same-build-1 begins" in told.stderr
    assert "trial 003 pair 1" in told.stderr
    assert "trial" not in drill(*NEW, "--same-build", "1", "--no-plants", "-q").stderr
    assert "drill folder:" in quiet.stderr


def test_a_plant_that_passes_is_missed(project: Path) -> None:
    """A plant that must be caught and passes ends the command with 10, and the report says which."""
    plant(project / "drills", "tiny", expect={"metric": "itl_median", "step_us_per_unit": {"cpu": 53, "cuda": 53}},
          dial={"variable": "X", "unit": "us", "sizes": {"cpu": ["1"], "cuda": ["1"]}})  # fmt: skip
    ended = drill(*NEW[:-1], "text", "--same-build", "0", "--plant", "tiny")
    assert ended.exit_code == ExitStatus.REGRESSED, ended.output
    assert "missed: tiny-1" in ended.stdout
    assert "+1 %" in ended.stdout


def test_a_small_plant_may_pass(project: Path) -> None:
    """A plant whose true size is below must_catch may pass; sizes make an exercise each."""
    dialled(project / "drills")
    ended = drill(*NEW, "--same-build", "0", "--plant", "dialled=100,20000")
    assert ended.exit_code == 0, ended.output
    small, large = rows(ended).values()
    assert (small["exercise"], small["result"], small["size"]) == ("dialled-100", "small", "100 ppm")
    assert (large["exercise"], large["result"]) == ("dialled-20000", "as-expected")
    assert small["true_size"] == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(("name", "result", "status"), [("other", "as-expected", 0), ("slow_other", "false-block", 20)])
def test_a_plant_that_must_pass_and_is_blocked(project: Path, name: str, result: str, status: int) -> None:
    """A plant that must pass with a caution is not as expected where it is blocked, whatever the caution."""
    plant(project / "drills", name, expect={"verdict": "pass", "caution": "outputs-differ"})
    ended = drill(*NEW, "--same-build", "0", "--plant", name)
    assert (rows(ended)[name]["result"], ended.exit_code) == (result, status), ended.output


def test_a_plant_that_passes_its_own_gate_is_missed(project: Path) -> None:
    """A plant whose gate passes is missed, though another gate leaves the run undecided."""
    gates = "  - {metric: ttft_median, ignorable: 0.001%, must_catch: 0.0011%}\n"
    (project / "tiny.yaml").write_text(SCENARIO + gates)
    plant(project / "drills", "tiny")
    ended = drill(*NEW, "--same-build", "0", "--plant", "tiny")
    (row,) = rows(ended).values()
    assert (row["verdict"], row["gate"], row["result"]) == ("inconclusive", "itl_median", "missed")
    assert ended.exit_code == ExitStatus.REGRESSED


def test_what_got_shorter_is_no_cause(project: Path) -> None:
    """A role that takes less time in a slower head does not name the cause."""

    class Shorter(Planted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.kind == "traced":
                head = {"gemm": 0.99, "attention": 1.5} if job.side == "head" else {}
                return FakeCollector(FakeSpec(head_ratio=head)).collect(job, progress)
            return super().collect(job, progress)

    ended = drill(*NEW, "--same-build", "0", "--plant", "slow", collector=Shorter())
    assert ended.exit_code == ExitStatus.INCONCLUSIVE, ended.output
    (row,) = rows(ended).values()
    assert row["cause"] is False
    assert "attention" in row["told"]
    assert project.exists()


@pytest.mark.usefixtures("project")
def test_a_traceback_names_no_cause() -> None:
    """A word of an error that a traced trial ended with is not the cause of a regression."""

    class Broken(Planted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.kind == "traced":
                raise IndexError("gemm")
            return super().collect(job, progress)

    ended = drill(*NEW, "--same-build", "0", "--plant", "slow", collector=Broken())
    (row,) = rows(ended).values()
    assert (row["result"], row["cause"]) == ("as-expected", False)
    assert "gemm" in row["why"]


def test_sizes_add_up(project: Path) -> None:
    """A plant that is named twice has the sizes of both; commas within JSON are its own."""
    dialled(project / "drills")
    words = ("dialled=10", "dialled=20,10", "paired=[2, 3],[4,5]")
    ended = drill(*NEW, "--budget", "0.000001", "--same-build", "0", *(w for word in words for w in ("--plant", word)))
    assert ended.exit_code == ExitStatus.INTERRUPTED, ended.output
    assert [(row["exercise"], row["size"]) for row in rows(ended).values()] == [
        ("dialled-10", "10 ppm"), ("dialled-20", "20 ppm"),
        ("paired-2-3", "[2, 3] settings"), ("paired-4-5", "[4, 5] settings"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("dialled=much", "plant dialled: size much: expected whole numbers from 1"),
        ("dialled=0", "expected whole numbers from 1"),
        (f"dialled={'9' * 400}", "expected whole numbers from 1"),
        ("paired={", "plant paired: size {: Expecting property name"),
        ("paired=NaN", "NaN is not a number of JSON"),
        ("paired=[1],[-1]", "size [1] and size [-1] would both be called paired-1"),
        ("slow=3", "plant slow: has no dial"),
    ],
)
def test_a_size_that_a_plant_cannot_have(project: Path, word: str, said: str) -> None:
    """A wrong size is refused before a campaign begins: its board could not be made."""
    dialled(project / "drills")
    ended = drill(*NEW, "--plant", word)
    assert ended.exit_code == ExitStatus.USAGE, ended.output
    assert said in ended.stderr
    assert not (project / "runs").exists()


def test_what_cannot_be_drilled_is_left_out(project: Path) -> None:
    """Plants without a gate, or for another device, are left out by name; nothing left to run is an error."""
    plant(project / "drills", "capacity", expect={"metric": "kv_token_capacity"})
    dial = {"variable": "X", "unit": "us", "sizes": {"cuda": ["1"]}}
    plant(project / "drills", "device", runs_on=["cuda"], expect=ITL, dial=dial)
    plant(project / "drills", "many", base_args={"tensor_parallel_size": 2}, gpus=2, runs_on=["cuda"])
    ended = drill(*NEW, "--same-build", "1", "--plant", "capacity", "--plant", "device")
    assert [(note["code"], note["text"]) for note in board_of(ended)["left_out"]] == [
        ("capacity", "the scenario has no gate on kv_token_capacity"),
        ("device", "runs on cuda only"),
    ]
    assert ended.exit_code == ExitStatus.NOT_MEASURED, "no plant was tried"
    refused = drill(*NEW, "--same-build", "0", "--plant", "device")
    assert refused.exit_code == ExitStatus.USAGE
    assert "nothing to drill: device: runs on cuda only" in refused.stderr


def test_an_exercise_that_is_refused_costs_no_other(project: Path) -> None:
    """What perfgate refuses to begin is on the board with its reason, and the rest is measured."""
    plant(project / "drills", "bad", args={"max_num_seqs": 16}, expect=ITL)
    (project / "drills" / "bad" / "bad.py").unlink()

    class Refusing(Planted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.subject.args:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().collect(job, progress)

    ended = drill(*NEW, "--same-build", "1", collector=Refusing())
    assert ended.exit_code == ExitStatus.NOT_MEASURED, ended.output
    found = rows(ended)
    assert found["bad"]["result"] == "not-measured"
    assert "No space left on device" in found["bad"]["why"]
    assert found["slow"]["result"] == found["same-build-1"]["result"] == "as-expected"


def test_a_head_that_is_preempted_is_caught_by_that(project: Path) -> None:
    """A plant whose first trial is already preempted ends the run by that reason, which is its cause."""
    own = project / "drills" / "preempted_requests"
    own.mkdir()
    (own / "plant.yaml").write_text((CATALOGUE / "preempted_requests" / "plant.yaml").read_text())

    class Preempted(Planted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.side == "base":
                return super().collect(job, progress)
            text = "the scheduler preempted requests 3 times in one iteration"
            return job.trial(t0_utc="", duration_ns=1, failure=Failure(code="preempted", text=text))

    ended = drill(*NEW, "--same-build", "0", "--plant", "preempted_requests", collector=Preempted())
    assert ended.exit_code == 0, ended.output
    found = rows(ended)["preempted_requests-12"]
    assert (found["verdict"], found["result"], found["cause"]) == ("not-measured", "as-expected", True)
    assert "preempted requests 3 times" in found["told"]


@pytest.mark.usefixtures("project")
def test_a_false_block_counts_before_it_is_traced() -> None:
    """A build that is blocked against itself is a false block, though its run cannot go on after that."""

    class Full(FakeCollector):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.kind == "traced":
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().collect(job, progress)

    ended = drill(*NEW, "--same-build", "1", "--no-plants", collector=Full(FakeSpec(head_ratio={"step": 1.02})))
    assert rows(ended)["same-build-1"]["result"] == "false-block"
    assert board_of(ended)["false_blocks"]["blocked"] == 1


def test_a_campaign_goes_on(project: Path) -> None:
    """A budget that is spent ends with 130 and the way on; going on takes up what is open, and only that."""
    ended = drill(*NEW, "--same-build", "2", "--budget", "0.000001", "--output", "board.md")
    assert ended.exit_code == ExitStatus.INTERRUPTED
    assert {row["result"] for row in rows(ended).values()} == {"open"}
    assert "not finished" in (project / "board.md").read_text()
    (folder,) = (project / "runs").glob("drill-*")
    assert f"perfgate drill --resume {folder.relative_to(project)}" in ended.stderr
    assert {row.result for row in read_model(Board, folder / "board.json").rows} == {"open"}

    first = drill("--resume", "latest", "--only", "slow", "--format", "json")
    assert rows(first)["slow"]["result"] == "as-expected"
    assert rows(first)["same-build-1"]["result"] == "open"
    assert first.exit_code == ExitStatus.NOT_MEASURED
    slow = run_of(folder, Exercise(name="slow"))
    assert slow is not None
    before = (slow / "run.json").stat().st_mtime_ns

    last = drill("--resume", str(folder), "--format", "json")
    assert last.exit_code == 0, last.output
    assert (slow / "run.json").stat().st_mtime_ns == before
    (project / "tiny.yaml").unlink()  # a campaign that is over is shown again, whatever became of its scenario
    assert drill("--resume", "latest", "--format", "json").stdout == last.stdout


def test_boards_beside_are_pooled(project: Path) -> None:
    """Runs of one build against itself add up over the campaigns in a folder, and over boards that are named.

    An older copy of the campaign's own board is not counted in its place.
    """
    drill(*NEW, "--same-build", "2", "--plant", "slow")
    second = drill(*NEW, "--same-build", "3", "--plant", "slow")
    assert board_of(second)["false_blocks"]["verdicts"] == 5
    elsewhere = project / "kept.json"
    first = min((project / "runs").glob("drill-*/board.json"))
    elsewhere.write_bytes(first.read_bytes())
    again = drill("--resume", "latest", "--pool", str(elsewhere), "--format", "json")
    assert board_of(again)["false_blocks"]["verdicts"] == 5, "a board counts once, wherever it was found"
    newest = max((project / "runs").glob("drill-*/board.json"))
    older = json.loads(newest.read_text())
    elsewhere.write_text(json.dumps(older | {"rows": []}))
    again = drill("--resume", "latest", "--pool", str(elsewhere), "--format", "json")
    assert board_of(again)["false_blocks"]["verdicts"] == 5


@pytest.mark.parametrize("change", [{"machine_class": "h100-x1-observe-000000"}, {"scenario": ["other"]}])
def test_other_boards_are_not_pooled(project: Path, change: dict[str, Any]) -> None:
    """Boards of another scenario or class of machines say nothing of this campaign, beside it or named."""
    drill(*NEW, "--same-build", "2", "--plant", "slow")
    (file,) = (project / "runs").glob("drill-*/board.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    ended = drill(*NEW, "--same-build", "1", "--plant", "slow", "--pool", str(file))
    assert board_of(ended)["false_blocks"]["verdicts"] == 1
    assert f"not counted: {file}: a board of " in ended.stderr


def test_a_board_that_cannot_be_read_costs_nothing(project: Path) -> None:
    """A broken board beside a campaign is named and not counted; the campaign's own is shown."""
    (project / "runs" / "drill-old").mkdir(parents=True)
    (project / "runs" / "drill-old" / "board.json").write_text("{")
    ended = drill(*NEW, "--same-build", "1", "--plant", "slow")
    assert ended.exit_code == 0, ended.output
    assert "perfgate: not counted: " in ended.stderr
    assert "drill-old/board.json:1:2: invalid JSON" in ended.stderr


def test_another_build_in_the_folder(project: Path) -> None:
    """A run folder of other subjects in a campaign's place is refused, not judged."""
    drill(*NEW, "--same-build", "1", "--plant", "slow")
    (folder,) = (project / "runs").glob("drill-*")
    exercises = {one.name: run_of(folder, one) for one in read_model(Drill, folder / "drill.json").exercises}
    slow, same = exercises["slow"], exercises["same-build-1"]
    assert slow is not None
    assert same is not None
    slow.rename(folder / "moved")
    same.rename(slow)
    with pytest.raises(RecordError, match="other subjects"):
        make_board(folder)


@pytest.mark.parametrize(("name", "said"), [("../elsewhere", "exercises.1.name: String should match"),
                                          ("same-build-1", "two share a name")])  # fmt: skip
def test_a_manifest_that_was_written_by_hand(project: Path, name: str, said: str) -> None:
    """A campaign whose exercises are outside its folder, or are one run twice, is refused."""
    drill(*NEW, "--same-build", "2", "--no-plants", "--budget", "0.000001")
    (file,) = (project / "runs").glob("drill-*/drill.json")
    manifest = json.loads(file.read_text())
    manifest["exercises"][1]["name"] = name
    file.write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=said):
        read_model(Drill, file)


def test_a_changed_scenario_ends_the_campaign(project: Path) -> None:
    """Cells, and what is only judged, may not change: exercises of one board are held to the same gates."""
    drill(*NEW, "--same-build", "1", "--budget", "0.000001")
    assert drill("--resume", "latest", "--only", "slow").exit_code == ExitStatus.NOT_MEASURED
    for old, new, said in (("batch: 8", "batch: 4", "is not what it was when the campaign began: 1 other cells"),
                           ("must_catch: 0.5%", "must_catch: 5%", "same-build-1 has other gates")):  # fmt: skip
        (project / "tiny.yaml").write_text(f"# moved by a line\n{SCENARIO}".replace(old, new))
        ended = drill("--resume", "latest")
        assert (ended.exit_code, said in ended.stderr) == (ExitStatus.USAGE, True), ended.output
    (project / "tiny.yaml").write_text(f"# moved by a line\n{SCENARIO}")
    assert drill("--resume", "latest").exit_code == 0


def test_a_changed_plant_is_not_gone_on_with(project: Path) -> None:
    """The trials of a plant whose module was edited in between would be of two plants; the others go on."""
    drill(*NEW, "--same-build", "1", "--budget", "0.000001")
    (project / "drills" / "slow" / "slow.py").write_text("# larger\n")
    ended = drill("--resume", "latest")
    assert ended.exit_code == ExitStatus.USAGE
    assert "the module of slow is not what it was when the campaign began" in ended.stderr
    other = drill("--resume", "latest", "--only", "same-build-1", "--format", "json")
    assert rows(other)["same-build-1"]["result"] == "as-expected"


def test_a_campaign_stays_on_its_machines(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another class of machines nothing is added to a campaign, whose board could not hold both."""
    drill(*NEW, "--same-build", "1", "--budget", "0.000001")
    drill("--resume", "latest", "--only", "slow")
    other = read_machine().model_copy(update={"cores": 1000})
    monkeypatch.setattr("perfgate.drill.campaign.read_machine", lambda *_: other)
    ended = drill("--resume", "latest", "--format", "json")
    assert ended.exit_code == ExitStatus.NOT_COMPARABLE, ended.output
    assert "was begun on another class of machines" in ended.stderr
    (file,) = (project / "runs").glob("drill-*/board.json")
    assert [row.result for row in read_model(Board, file).rows] == ["open", "as-expected"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--resume", "latest", "--plant", "slow"),
        ("--resume", "latest", "--same-build", "4"),
        ("tiny.yaml", "--resume", "latest"),
        ("tiny.yaml", "--base", "python=/bin/true", "--draws", "9"),
        ("tiny.yaml", "--base", "python=/bin/true", "--only", "slow"),
        ("tiny.yaml", "--base", "python=/bin/true", "--no-plants", "--plant", "slow"),
        ("tiny.yaml", "--replay", "times.csv", "--base", "python=/bin/true"),
        ("tiny.yaml", "--replay", "times.csv", "--plant", "slow"),
        ("tiny.yaml", "--replay", "times.csv", "--budget", "5"),
        ("--resume", "latest", "--replay", "times.csv"),
    ],
)
def test_what_does_not_go_together(project: Path, words: tuple[str, ...]) -> None:
    """A scenario begins a campaign, --resume goes on with it, --replay measures nothing; what is ignored is refused."""
    drill(*NEW, "--same-build", "1", "--no-plants")
    before = [*(project / "runs").iterdir()]
    ended = drill(*words)
    assert (ended.exit_code, "times.csv" in ended.stderr) == (ExitStatus.USAGE, False), ended.stderr
    assert [*(project / "runs").iterdir()] == before


def test_a_single_false_block_is_not_proof(project: Path) -> None:
    """Bounds are exact: one block in eight is possible at 1 %, two are not, and then the exit status is 10."""
    drill(*NEW, "--same-build", "1", "--plant", "slow")
    (folder,) = (project / "runs").glob("drill-*")
    board = make_board(folder)
    same, slow = sorted(board.rows, key=lambda row: row.plant)
    blocked = same.model_copy(update={"result": "false-block", "verdict": "regressed"})
    for count, status in ((0, ExitStatus.PASS), (1, ExitStatus.INCONCLUSIVE), (2, ExitStatus.REGRESSED)):
        made = board.model_copy(update={"rows": (slow, *[blocked] * count, *[same] * (8 - count))})
        assert exit_status(made, false_blocks([made])) == status
