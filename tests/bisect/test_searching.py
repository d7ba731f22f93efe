"""Whole searches of a git repository: what is built, what is measured, and that nothing measured is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from commit_line import RECIPE, SCENARIO, CommitCollector, CommitLine
from fake_nvml import FakeMachine, fake_uuid
from stub_engine import bare_python, write_stub

from perfgate import gate
from perfgate.bisect.bisection import State, read_state
from perfgate.bisect.commit_search import Step
from perfgate.capture.compile_caches import VARIABLE
from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import Problem, ScenarioError
from perfgate.machine.locks import STATE
from perfgate.metrics.sides import Side
from perfgate.project.build import CACHE
from perfgate.scenario.subject import Subject

SPEEDS = ["1", "1", "0.9997", "1.0002", "broken", "1", "1.0104", "1.01", "1.0098", "1.0102"]
"""One build is faster, one does not build, and the seventh commit lost 1 %."""
LOST = 6


def perfgate(*words: str, collector: CommitCollector | None = None) -> Result:
    """A command of perfgate with invented trials."""
    return CliRunner().invoke(main, words, obj=collector or CommitCollector())


def search(line: CommitLine, *words: str, collector: CommitCollector | None = None) -> Result:
    """Search a line of commits."""
    ends = ("--good", line.commits[0], "--bad", line.commits[-1])
    return perfgate("bisect", "scenario.yaml", *ends, "--seed", "1", "--base", "python=/bin/true", *words,
                    collector=collector)  # fmt: skip


@pytest.fixture
def lined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], CommitLine]:
    """A function that makes a repository of such commits, with builds of its own, the working directory."""

    def make(speeds: Sequence[str]) -> CommitLine:
        monkeypatch.setenv(CACHE, str(tmp_path / "builds"))
        made = CommitLine(tmp_path / "a project", speeds)
        monkeypatch.chdir(made.folder)
        return made

    return make


@pytest.fixture
def line(lined: Callable[[Sequence[str]], CommitLine]) -> CommitLine:
    """One in which a commit lost 1 %."""
    return lined(SPEEDS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommitLine, Result]]:
    """A repository that was searched, which is the working directory, and what the command said."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in ((CACHE, "builds"), (STATE, "state")):
            patch.setenv(variable, str(folder / value))
        patch.setenv(VARIABLE, "0")
        (folder / "state").mkdir()
        made = CommitLine(folder / "project", SPEEDS)
        patch.chdir(made.folder)
        yield made, search(made, "--format", "json")


def folder_of(line: CommitLine) -> Path:
    """The only search."""
    (found,) = (line.folder / "runs").glob("bisect-*")
    return found


def test_the_commit_is_found(finished: tuple[CommitLine, Result]) -> None:
    """It is named with its change, each build was made once, and the report can be had again without an engine."""
    line, ended = finished
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["verdict"], found["exit_status"], found["why"]) == ("found", 0, "one")
    assert [one["commit"] for one in found["answer"]] == [line.commits[LOST]]
    assert found["loss"]["low"] < 0.01 < found["loss"]["high"]
    assert found["probability"] > 0.95
    assert found["confirmed"]["verdict"] == found["reproduced"]["verdict"] == "regressed"
    assert found["confirmed"]["base"] == line.commits[LOST - 1]
    assert found["metric"] == "itl_median"
    assert set(Counter(line.made).values()) == {1}
    assert len(line.made) < len(line.commits)

    again = CommitCollector()
    shown = perfgate("bisect", "--resume", "latest", "--format", "json", collector=again)
    assert (shown.exit_code, json.loads(shown.stdout), again.taken) == (0, found, 0)


def test_each_step_tests_what_was_lost(line: CommitLine) -> None:
    """Of two cells and two gates the one that regressed is measured in every later step, and no other."""
    text = Path("scenario.yaml").read_text()
    gate = "{metric: ttft_median, ignorable: 5%, must_catch: 20%}, {metric: itl_median"
    Path("scenario.yaml").write_text(text.replace("{metric: itl_median", gate) + "matrix: {batch: [2, 4]}\n")

    assert search(line).exit_code == 0
    state = read_state(folder_of(line))
    first, *others = state.taken
    assert len(first.run.plan.cells) == 2
    assert state.lost is not None
    lost, metric = state.lost
    assert metric == "itl_median"
    for one in others:
        (cell,) = one.run.plan.cells
        assert cell.cell_id == lost.cell_id
        assert [gate.gate.metric for gate in cell.gates] == [metric]


@pytest.mark.slow
@pytest.mark.usefixtures("no_orphans")
def test_the_pairs_of_a_step_are_taken_on_several_gpus_at_once(
    line: CommitLine, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step uses both GPUs, each pair is of one, and the answer is that of a single GPU."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr("perfgate.capture.session.check_neighbours", lambda *_: None)
    FakeMachine.build(fake_nvml.file, {}, {})
    ended = search(line, "--gpus", "all", "--format", "json")

    assert ended.exit_code == 0, ended.stderr
    assert [one["commit"] for one in json.loads(ended.stdout)["answer"]] == [line.commits[LOST]]
    for one in read_state(folder_of(line)).taken:
        (record,) = one.records.values()
        assert {base.gpus for base, _ in record.pairs()} == {(fake_uuid(0),), (fake_uuid(1),)}
        assert all(base.gpus == head.gpus for base, head in record.pairs())


def test_commits_that_do_not_build_or_run_are_skipped(lined: Callable[[Sequence[str]], CommitLine]) -> None:
    """They are named with the reason and tried once; those beside the answer belong to it."""
    other = lined(["1", "1", "broken", "7", "1.01", "1.01"])
    ended = search(other, "--format", "json", collector=CommitCollector(dies=("7",)))

    assert ended.exit_code == 20, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["verdict"], found["why"]) == ("several", "inseparable")
    assert [one["commit"] for one in found["answer"]] == other.commits[2:5]
    reasons = {shown["commit"]: note["code"] for shown, note in found["skipped"]}
    assert reasons == {other.commits[2]: "build-failed", other.commits[3]: "engine-start-failed"}
    assert set(Counter(other.made).values()) == {1}
    assert any("cannot be told from the next commit" in text for text in found["uncertain"])


def an_outage(line: CommitLine) -> CommitCollector:
    """Invented trials, after the last but one of the first step of which no commit builds any more."""

    def fail_from_now_on(_: Job) -> None:
        if collector.taken == 9:
            (line.folder / "down").touch()

    collector = CommitCollector(before=fail_from_now_on)
    return collector


@pytest.mark.slow
def test_a_passing_outage_of_the_build_costs_no_commit(line: CommitLine) -> None:
    """Several commits in a row that do not build stop the search, and --resume tries them again."""
    stopped = search(line, collector=an_outage(line))
    assert stopped.exit_code == 130, stopped.stderr
    assert "3 commits in a row do not build" in stopped.stderr
    assert f"perfgate bisect --resume {folder_of(line).relative_to(line.folder)}" in stopped.stderr
    assert len(line.made) == 2 + 3
    assert len(read_state(folder_of(line)).skipped) == 3

    (line.folder / "down").unlink()
    ended = perfgate("bisect", "--resume", "latest", "--format", "json")
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [one["commit"] for one in found["answer"]] == [line.commits[LOST]]
    assert {shown["commit"] for shown, _ in found["skipped"]} <= {line.commits[4]}


def test_a_build_that_refuses_the_scenario_is_no_outage(
    lined: Callable[[Sequence[str]], CommitLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four such commits are skipped under a code of their own, stop nothing, and are not tried again."""
    other = lined(["1"] * 6 + ["1.01", "1.01"])
    measured, tried = gate.run, list[str]()

    def run(scenarios: Any, subjects: Mapping[Side, Subject], **means: Any) -> Any:
        source = subjects["head"].built_from
        if source is not None and source.commit in other.commits[2:6]:
            tried.append(source.commit)
            raise ScenarioError((Problem("scenario.yaml", 3, 1, "engine.args", "no such argument"),))
        return measured(scenarios, subjects, **means)

    monkeypatch.setattr("perfgate.bisect.searching.gate.run", run)
    ended = search(other, "--format", "json")
    assert ended.exit_code == 20, ended.stderr
    assert {note["code"] for _, note in json.loads(ended.stdout)["skipped"]} == {"scenario-refused"}
    assert perfgate("bisect", "--resume", "latest").exit_code == 20
    assert sorted(tried) == sorted(other.commits[2:6])


@pytest.mark.slow
def test_a_hole_of_commits_that_do_not_build_costs_one_resume(lined: Callable[[Sequence[str]], CommitLine]) -> None:
    """Each of twelve is built once, and three of them again."""
    other = lined(["1", "1", *["broken"] * 12, "1.01", "1.01"])
    assert search(other).exit_code == 130
    ended = perfgate("bisect", "--resume", "latest", "--format", "json")

    assert ended.exit_code == 20, ended.stderr
    assert len(json.loads(ended.stdout)["skipped"]) == 12
    counts = Counter(other.made)
    assert sorted(counts[commit] for commit in other.commits[2:14]) == [1] * 9 + [2] * 3


@pytest.mark.slow
def test_an_outage_that_outlasts_a_resume_costs_no_commit(line: CommitLine) -> None:
    """What did not build in two calls is tried once more in the third, for none has built since."""
    assert search(line, collector=an_outage(line)).exit_code == 130
    assert perfgate("bisect", "--resume", "latest").exit_code == 20

    (line.folder / "down").unlink()
    ended = perfgate("bisect", "--resume", "latest", "--format", "json")
    assert ended.exit_code == 0, ended.stderr
    assert [one["commit"] for one in json.loads(ended.stdout)["answer"]] == [line.commits[LOST]]


@pytest.mark.slow
def test_commits_that_never_build_end_a_search(lined: Callable[[Sequence[str]], CommitLine]) -> None:
    """Those that fail once more do not stop it again: it ends with the commits that it cannot tell apart."""
    other = lined(["1", "1", *["broken"] * 4, "1.01", "1.01"])
    assert search(other).exit_code == 130
    ended = perfgate("bisect", "--resume", "latest", "--format", "json")

    assert ended.exit_code == 20, ended.stderr
    found = json.loads(ended.stdout)
    assert found["why"] == "inseparable"
    assert [one["commit"] for one in found["answer"]] == other.commits[2:7]
    assert len(found["skipped"]) == 4


def test_a_search_that_was_stopped_goes_on(line: CommitLine) -> None:
    """Stopped in the middle of a step, it takes up that step; no build is made twice and every pair counts."""
    stopping = 25

    def stop(_: Job) -> None:
        if collector.taken == stopping:
            raise KeyboardInterrupt

    collector = CommitCollector(before=stop)
    stopped = search(line, collector=collector)
    assert stopped.exit_code == 130
    assert "The search is not over" in stopped.stdout
    folder = folder_of(line)
    assert f"perfgate bisect --resume {folder.relative_to(line.folder)}" in stopped.stderr
    before = {file: file.read_bytes() for file in folder.glob("steps/*/*/trials/*/*")}
    state = read_state(folder)
    assert state.unfinished is not None

    ended = perfgate("bisect", "--resume", folder.name, "--format", "json")
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["answer"][0]["commit"] == line.commits[LOST]
    assert {file: file.read_bytes() for file in before if file.exists()} == before
    assert set(Counter(line.made).values()) == {1}
    assert read_state(folder).taken[len(state.taken) - 1].folder == state.unfinished.folder


@pytest.mark.parametrize(("bad", "status", "said"), [(3, 21, "Nothing to search for"), (4, 22, "build-failed")])
def test_ends_that_leave_nothing_to_search(line: CommitLine, bad: int, status: int, said: str) -> None:
    """A bad commit that passes beside the good one ends the search with 21, and one that does not build with 22."""
    ended = perfgate("bisect", "scenario.yaml", "--good", line.commits[0], "--bad", line.commits[bad],
                     "--base", "python=/bin/true", "--seed", "1")  # fmt: skip
    assert (ended.exit_code, said in ended.stdout + ended.stderr) == (status, True), ended.output
    assert len(line.made) == 2


def test_a_run_of_something_else_is_refused(finished: tuple[CommitLine, Result], tmp_path: Path) -> None:
    """A run folder that was put into a search, and whose builds are not its commits, is not counted."""
    line, _ = finished
    copied = shutil.copytree(folder_of(line), tmp_path / "copied")
    (run,) = copied.glob("steps/001-*/*")
    file = run / "run.json"
    file.write_text(file.read_text().replace(line.commits[0], "0" * 40))

    ended = perfgate("bisect", "--resume", str(copied))
    assert ended.exit_code == 2
    assert "is not a commit of this search" in ended.stderr


def test_what_comes_next_is_read_from_the_runs(finished: tuple[CommitLine, Result], tmp_path: Path) -> None:
    """Nothing else is kept: a step whose folder is gone is simply taken again."""
    copied = shutil.copytree(folder_of(finished[0]), tmp_path / "copied")
    shutil.rmtree(max((copied / "steps").iterdir()))
    again = read_state(copied).next
    assert isinstance(again, Step)
    assert again.purpose == "confirm"


def test_commits_are_text_of_strangers(line: CommitLine) -> None:
    """Escapes, bytes that are no text and Markdown in a message reach neither a terminal nor a table as such."""
    title = b"Fuse \x1b]0;owned\x07 | a ![x](http://e) \xff\xfe \xe2\x80\xae end"
    tip = line.commits[-1]
    who = {f"GIT_{role}_{what}": "t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    words = ["git", "commit-tree", line.project.git("rev-parse", f"{tip}^{{tree}}"), "-p", tip]
    made = subprocess.run(words, input=title, cwd=line.folder, env=os.environ | who, capture_output=True, check=True)
    ended = perfgate("bisect", "scenario.yaml", "--good", line.commits[LOST - 1], "--bad", made.stdout.decode().strip(),
                     "--base", "python=/bin/true", "--seed", "1")  # fmt: skip

    assert ended.exit_code == 0, ended.stderr
    assert "Fuse" in ended.stdout
    assert not {"\x1b", "\x07", "\u202e"} & {*ended.stdout}
    assert "![x]" not in ended.stdout


def test_a_commit_without_a_value_of_the_metric_is_skipped(line: CommitLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be asked for again and again: nothing of it can be compared."""
    counts = State.counts
    monkeypatch.setattr(State, "counts", lambda state, one: counts(state, one) and one.head != LOST)
    ended = search(line, "--format", "json")

    found = json.loads(ended.stdout)
    assert {shown["commit"]: note["code"] for shown, note in found["skipped"]}[line.commits[LOST]] == "metric-missing"


@pytest.mark.slow
def test_commits_have_engines_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes of the stand-in engine: a build whose steps take four times as long is found."""
    monkeypatch.setenv(CACHE, str(tmp_path / "builds"))
    made = CommitLine(tmp_path / "project", ["1", "1"])
    recipe = RECIPE.replace('path = "{tree}"', 'path = "{tree}/stub"\nenv = {STUB_MODE = "none"}')
    write_stub(made.folder / "stub")
    good = made.project.commit({"perfgate.toml": recipe, "scenario.yaml": SCENARIO.replace("0.5%", "50%")})
    engine = made.folder / "stub" / "vllm" / "__init__.py"
    bad = made.project.commit({"stub/vllm/__init__.py": engine.read_text().replace("sleep(0.001)", "sleep(0.004)")})
    monkeypatch.chdir(made.folder)
    ended = CliRunner().invoke(main, ["bisect", "scenario.yaml", "--good", good, "--bad", bad, "--seed", "1",
                                      "--base", f"python={bare_python(tmp_path / 'env')}"])  # fmt: skip

    assert ended.exit_code == 0, ended.stderr
    assert f"FOUND: {bad[:12]}" in ended.stdout
