"""Builds whose files change while they are measured: each run ends as not measured, and names the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file
from stub_engine import bare_python, leave_two_traces, write_stub

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.cli.main import main
from perfgate.errors import ExitStatus, InterruptedRunError, NotMeasuredError
from perfgate.judge.outcome import Outcome
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_records, read_run
from perfgate.record.shards import read_shard_plan
from perfgate.scenario.subject import Source, Subject
from perfgate.verify.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
SLOWER = FakeSpec(restart_sd=0.0003, head_ratio={"step": 1.05})
LAST = 9
"""Index of the last trial of a run of four pairs: two of warm-up come before."""
Edit = Callable[[Path], object]


class Editing(FakeCollector):
    """A fake collector that does something to a folder while it takes a trial.

    Args:
        edit: What is done.
        folder: To which.
        during: Index of the trial, or of the last of several.
        since: Index of the first of several.
        spec: What the builds are like.
        stop_at: Index of the trial that Ctrl-C comes in front of.
        kind: What is done, is done in trials of that kind alone.
    """

    def __init__(
        self, edit: Edit, folder: Path, during: int, since: int | None = None, spec: FakeSpec = SAME,
        *, stop_at: int = 99, kind: str = "timed",
    ) -> None:  # fmt: skip
        super().__init__(spec)
        self._edit, self._folder, self._stop_at, self._kind = edit, folder, stop_at, kind
        self._during = range(during if since is None else since, during + 1)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        if job.index == self._stop_at:
            raise KeyboardInterrupt
        if job.index in self._during and job.kind == self._kind:
            self._edit(self._folder)
        return super().collect(job, progress)


def tree(folder: Path) -> Path:
    """A checkout with a package, its data, a script, a link to a module elsewhere, and what builds and tools left."""
    elsewhere = folder.with_name("elsewhere")
    for name in ("plugin/configs", "plugin-1.0.dist-info", "build/lib", "csrc", "plugin.egg-info", ".git", "linked",
                 "single/build", "marked", "shared"):  # fmt: skip
        (folder / name).mkdir(parents=True)
    elsewhere.mkdir()
    files = {
        "plugin/__init__.py": "version = 1\n", "plugin/core.py": "def step(): pass\n", "plugin/_C.abi3.so": "library",
        "plugin/configs/tuned.json": '{"block": 64}', "plugin-1.0.dist-info/entry_points.txt": "[vllm.plugins]\n",
        "plugin-1.0.dist-info/RECORD": "", "plugin/only.pyc": "code", "build/lib/plugin.py": "old",
        "csrc/kernel.cu": "source", "csrc/kernel.o": "object", "plugin.egg-info/SOURCES.txt": "a", "README.md": "words",
        ".git/index": "index", "setup.py": "setup()\n", "results.json": "{}", "single/one.py": "1",
        "single/tuned.json": "[]", "single/build/kern.py": "1", "marked/__init__.py": "", "marked/pyvenv.cfg": "",
        "marked/core.py": "1", "shared/sizes.json": "[]",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    (elsewhere / "far.py").write_text("far = 1\n")
    (folder / "linked" / "far.py").symlink_to(elsewhere / "far.py")
    (folder / "plugin" / "shared").symlink_to("../shared")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A head's folder."""
    return tree(tmp_path / "tree")


def subjects(folder: Path) -> dict[Any, Subject]:
    """A base without it, and the head."""
    return {"base": Subject(python="/bin/true"), "head": Subject(python="/bin/true", path=(str(folder),))}


def measure(tmp_path: Path, collector: FakeCollector, built: Any, **options: Any) -> gate.Finished:
    """A run of four pairs."""
    more = options.pop("more", "")
    return gate.run([scenario_file(tmp_path, more=more)], built, runs=tmp_path / "runs", seed=1, collector=collector,
                    **options)  # fmt: skip


def record_of(run: Path) -> Record:
    """The only record of a run."""
    (record,) = read_records(run, read_run(run))
    return record


def why(finished: gate.Finished) -> list[str]:
    """The reasons of its only cell."""
    return [f"{note.code}: {note.text}" for note in finished.outcome.cells[0].reasons]


def rewrite_with_the_same_times(folder: Path) -> None:
    """Other content of the same size, with the times that the file had."""
    file = folder / "plugin" / "core.py"
    status = file.stat()
    file.write_text(file.read_text().replace("pass", "fail"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap_the_link(folder: Path) -> None:
    """A link to another file."""
    (folder.with_name("elsewhere") / "other.py").write_text("far = 2\n")
    (folder / "linked" / "far.py").unlink()
    (folder / "linked" / "far.py").symlink_to(folder.with_name("elsewhere") / "other.py")


def edit_beside_a_link(folder: Path) -> None:
    """Another module, and a link that leads nowhere."""
    (folder / "plugin" / "core.py").write_text("2")
    (folder / "loop").symlink_to("loop")


CHANGES: dict[str, tuple[Edit, str]] = {
    "a module": (lambda folder: (folder / "plugin/core.py").write_text("def step(): print()\n"), "core.py has changed"),
    "a module of the same size and times": (rewrite_with_the_same_times, "core.py has changed"),
    "a library": (lambda folder: (folder / "plugin/_C.abi3.so").write_text("another"), "_C.abi3.so has changed"),
    "tuned kernels": (lambda folder: (folder / "plugin/configs/tuned.json").write_text("{}"), "tuned.json has changed"),
    "a module more": (lambda folder: (folder / "plugin/more.py").write_text("1"), "more.py is new"),
    "a module less": (lambda folder: (folder / "plugin/core.py").unlink(), "core.py is gone"),
    "a folder less": (lambda folder: shutil.rmtree(folder / "plugin/configs"), "tuned.json is gone"),
    "an entry point": (lambda folder: (folder / "plugin-1.0.dist-info/entry_points.txt").write_text("[x]\n"),
                       "entry_points.txt has changed"),
    "bytecode without a source": (lambda folder: (folder / "plugin/only.pyc").write_text("mode"), "only.pyc has"),
    "what a link leads to": (lambda folder: (folder.with_name("elsewhere") / "far.py").write_text("far = 3\n"),
                             "far.py has changed"),
    "a link": (swap_the_link, "far.py has changed"),
    "the whole folder": (shutil.rmtree, "is gone"),
    "data beside a single module": (lambda folder: (folder / "single/tuned.json").write_text("{}"), "tuned.json has"),
    "a namespace package called build": (lambda folder: (folder / "single/build/kern.py").write_text("2"), "kern.py "),
    "a package with pyvenv.cfg": (lambda folder: (folder / "marked/core.py").write_text("2"), "core.py has"),
    "data that a package has by a link": (lambda folder: (folder / "shared/sizes.json").write_text("{}"), "sizes.json"),
    "tuned kernels more": (lambda folder: (folder / "plugin/configs/more.json").write_text("{}"), "more.json is new"),
    "a module, beside a link to itself": (edit_beside_a_link, "core.py has changed"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "said"), CHANGES.values(), ids=CHANGES)
def test_a_change_ends_the_run(tmp_path: Path, folder: Path, edit: Edit, said: str) -> None:
    """It is not measured, whatever the trials before and after say, and the file is named."""
    finished = measure(tmp_path, Editing(edit, folder, during=4, spec=SLOWER), subjects(folder))
    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED
    (reason,) = why(finished)
    assert reason.startswith("subject-changed: ")
    assert said in reason
    assert {gate.verdict for gate in finished.outcome.cells[0].gates} == {"not-measured"}
    assert [check.result for check in verify_path(finished.folder) if check.what == "builds"] == ["FAILED"]


def touch(folder: Path) -> None:
    """New times of every file."""
    for file in folder.rglob("*.py"):
        file.touch()


def copy_over(folder: Path) -> None:
    """A copy of the same content in the place of a file, as editors and installers make them."""
    shutil.copy(folder / "plugin/core.py", folder / "plugin/copy.tmp")
    (folder / "plugin/copy.tmp").replace(folder / "plugin/core.py")


def build_again(folder: Path) -> None:
    """What a build, git, tests, an editor and an engine leave in a checkout."""
    outputs = ("cmake-build-debug", "_skbuild/linux", "target/release", "build_cpu", "bazel-out", "ninja", "cached")
    for name in ("build/temp", "dist", "plugin/__pycache__", ".pytest_cache", "csrc/CMakeFiles", "runs/one/trials",
                 *outputs):  # fmt: skip
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = (
        "build/lib/plugin.py", "build/temp/plugin.so", "dist/plugin.whl", "plugin/__pycache__/core.cpython-312.pyc",
        "plugin.egg-info/SOURCES.txt", ".git/index", ".pytest_cache/lastfailed", "csrc/kernel.o", "csrc/kernel.cu",
        "plugin/.core.py.swp", "plugin/core.py~", "plugin/#core.py#", "plugin/run.log", "plugin/core.pyc", "README.md",
        "results.json", "plugin/.lock", "csrc/CMakeFiles/rules.make", "compile_commands.json", "plugin/kernel.o",
        "runs/one/run.json", "runs/one/trials/made.py", "plugin-1.0.dist-info/RECORD", "ninja/.ninja_log",
        "cached/CACHEDIR.TAG", *(f"{name}/made.so" for name in outputs),
    )  # fmt: skip
    for name in names:
        with (folder / name).open("a") as stream:
            stream.write("more")


QUIET: dict[str, Edit] = {"touched": touch, "the same content anew": copy_over, "build outputs": build_again}


@pytest.mark.parametrize("edit", QUIET.values(), ids=QUIET)
def test_what_is_no_change(tmp_path: Path, folder: Path, edit: Edit) -> None:
    """Neither new times nor what nothing imports end a run, in whichever trial they come."""
    finished = measure(tmp_path, Editing(edit, folder, during=LAST, since=0), subjects(folder))
    assert finished.outcome.verdict == "pass"
    assert not {note.code for note in finished.outcome.cells[0].cautions} & {"subject-changed"}
    assert record_of(finished.folder).visits[0].builds["head"].digest


def edited(folder: Path) -> None:
    """One module changes."""
    CHANGES["a module"][0](folder)


def src_layout(folder: Path) -> Path:
    """A project with its package one folder further down, and a table beside it."""
    (folder / "src/plugin").mkdir(parents=True)
    for name in ("pyproject.toml", "src/plugin/__init__.py", "results.csv"):
        (folder / name).write_text("")
    return folder


def test_a_project_without_a_module_at_its_top(tmp_path: Path) -> None:
    """It holds no data by that: what tools write into it is no change."""
    folder = src_layout(tmp_path / "tree")
    during = Editing(lambda folder: (folder / "results.csv").write_text("1"), folder, during=4)
    assert measure(tmp_path, during, subjects(folder)).outcome.verdict == "pass"


def test_what_tools_leave_inside_a_package(tmp_path: Path, folder: Path) -> None:
    """A new file that nothing looks for ends no run: a caution tells that it is there, of each trial from then on."""
    during = Editing(lambda folder: (folder / "plugin/nohup.out").write_text("more"), folder, during=LAST, since=4)
    finished = measure(tmp_path, during, subjects(folder))
    assert finished.outcome.verdict == "pass"
    assert "subject-changed" in {note.code for note in finished.outcome.cells[0].cautions}
    assert [check.result for check in verify_path(finished.folder) if check.what == "builds"] == ["unknown"]


def test_a_folder_that_is_declared_as_data(tmp_path: Path) -> None:
    """All in it counts, also beside a module."""
    folder = src_layout(tmp_path / "tree")
    built = subjects(folder)
    built["head"] = built["head"].model_copy(update={"data": (str(folder),)})
    during = Editing(lambda folder: (folder / "results.csv").write_text("1"), folder, during=4)
    assert "results.csv has changed" in why(measure(tmp_path, during, built))[0]


def test_cells_that_were_measured_before_stay(tmp_path: Path, folder: Path) -> None:
    """What was decided while nothing had changed is decided; the cell of that trial and those after it are not."""
    during = Editing(edited, folder, during=LAST + 4)
    finished = measure(tmp_path, during, subjects(folder), more="matrix: {batch: [1, 2, 4]}")
    assert [cell.verdict for cell in finished.outcome.cells] == ["pass", "not-measured", "not-measured"]
    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED


def test_the_cell_before_the_look_is_lost_too(tmp_path: Path, folder: Path) -> None:
    """Its last trial may have run what was changed."""
    during = Editing(edited, folder, during=LAST)
    finished = measure(tmp_path, during, subjects(folder), more="matrix: {batch: [1, 2]}")
    assert [cell.verdict for cell in finished.outcome.cells] == ["not-measured", "not-measured"]


@pytest.mark.parametrize("kind", ["traced", "counted", "called"])
def test_every_kind_of_trial(tmp_path: Path, folder: Path, kind: str) -> None:
    """What is read of single trials ends so, too, and with it the times that were measured before."""
    more = "kernels: {traced: {iterations: 2}}\ncounters: [{role: gemm, profile: 4}]\ncalls: {ignorable: 10us}"
    finished = measure(tmp_path, Editing(edited, folder, during=99, since=0, kind=kind), subjects(folder), more=more)
    assert why(finished)[0].startswith("subject-changed: ")
    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED


@pytest.mark.parametrize(("during", "quick", "sides"), [(0, True, 2), (2, False, 1), (LAST, False, 2)])
def test_whichever_run_it_is(tmp_path: Path, folder: Path, during: int, sides: int, *, quick: bool) -> None:
    """A quick look; one side alone, for a baseline; the last trial, after which the files are looked at once more."""
    built = subjects(folder) if sides > 1 else {"base": subjects(folder)["head"]}
    finished = measure(tmp_path, Editing(edited, folder, during=during), built, quick=quick)
    assert why(finished)[0].startswith("subject-changed: ")
    assert during != LAST or len(record_of(finished.folder).trials) == LAST + 1


def test_one_of_several_heads(tmp_path: Path, folder: Path) -> None:
    """It alone is lost."""
    built = {**subjects(folder), "other": Subject(python="/bin/true", env={"A": "1"})}
    finished = measure(tmp_path, Editing(edited, folder, during=5), built)
    verdicts = {cell.head: cell.verdict for cell in finished.outcome.cells}
    assert verdicts == {"head": "not-measured", "other": "pass"}


def begun(tmp_path: Path, folder: Path) -> Path:
    """A run that Ctrl-C came in front of the sixth trial of."""
    with pytest.raises(InterruptedRunError):
        measure(tmp_path, Editing(edited, folder, during=99, stop_at=5), subjects(folder))
    (run,) = (tmp_path / "runs").iterdir()
    return run


def test_days_later(tmp_path: Path, folder: Path) -> None:
    """A run is not gone on with where a build is another; its trials stay, and with the files put back it goes on."""
    run = begun(tmp_path, folder)
    before, text = record_of(run), (folder / "plugin/core.py").read_text()
    edited(folder)
    with pytest.raises(NotMeasuredError, match=r"head is not the build .*core\.py") as refused:
        gate.resume(run, collector=FakeCollector(SAME))
    assert refused.value.code == "subject-changed"
    assert record_of(run) == before

    (folder / "plugin/core.py").write_text(text)
    assert gate.resume(run, collector=FakeCollector(SAME)).outcome.verdict == "pass"
    assert [check.result for check in verify_path(run) if check.what == "builds"] == ["unknown"]  # of base's python


def too_much(folder: Path) -> None:
    """A file that nobody reads to its end, so that the build is not known."""
    edited(folder)
    with (folder / "plugin" / "_C.abi3.so").open("wb") as stream:
        stream.truncate(1 << 40)


def test_a_build_that_is_not_known_at_the_end(tmp_path: Path, folder: Path) -> None:
    """The last trial carries the caution, though it began with what was known."""
    finished = measure(tmp_path, Editing(too_much, folder, during=LAST), subjects(folder))
    (last,) = [trial for trial in record_of(finished.folder).trials if "subject-unknown" in trial.cautions]
    assert last.subject == "head"
    assert [check.result for check in verify_path(finished.folder) if check.what == "builds"] == ["unknown"]


def test_a_build_that_is_not_known_any_more(tmp_path: Path, folder: Path) -> None:
    """No run is gone on with where nobody can tell whether it is the build that was measured."""
    run = begun(tmp_path, folder)
    too_much(folder)
    with pytest.raises(NotMeasuredError, match=r"head is not the build .*not known: more than") as refused:
        gate.resume(run, collector=FakeCollector(SAME))
    assert refused.value.code == "subject-changed"


def test_what_was_lost_stays_lost(tmp_path: Path, folder: Path) -> None:
    """No further visit adds pairs to trials of two builds, even where the files were put back."""
    text = (folder / "plugin/core.py").read_text()
    finished = measure(tmp_path, Editing(edited, folder, during=4), subjects(folder))
    (folder / "plugin/core.py").write_text(text)
    again = gate.resume(finished.folder, collector=FakeCollector(SAME))
    assert again.outcome.verdict == "not-measured"
    assert len(record_of(again.folder).visits) == 1


def shards(tmp_path: Path, folder: Path, built: dict[Any, Subject]) -> list[str]:
    """A plan of two cells, each measured as a shard of its own; the head's folder changes after each."""
    scenario = scenario_file(tmp_path, more="matrix: {batch: [1, 2]}")
    printed = CliRunner().invoke(main, ["plan", str(scenario), "--shards", "2", "--seed", "1"])
    (tmp_path / "plan.json").write_text(printed.stdout)
    plan = read_shard_plan(tmp_path / "plan.json")
    parts = []
    for number in (1, 2):
        runs = tmp_path / f"shard-{number}"
        gate.run([scenario], built, runs=runs, shard=plan.numbered(f"{number}/2"), collector=FakeCollector(SAME))
        parts.append(str(runs))
        edited(folder)
    return parts


def test_shards_that_measured_other_files(tmp_path: Path, folder: Path) -> None:
    """They are no one run: the join refuses, and beside a plan nothing passes."""
    parts = shards(tmp_path, folder, subjects(folder))
    refused = CliRunner().invoke(main, ["judge", *parts])
    assert refused.exit_code == ExitStatus.NOT_MEASURED
    assert "subject-changed" in refused.stderr
    assert "head: files " in refused.stderr
    joined = CliRunner().invoke(main, ["judge", *parts, "--plan", str(tmp_path / "plan.json")])
    assert joined.exit_code == ExitStatus.NOT_MEASURED
    assert "subject-changed" in joined.stdout


def test_shards_that_built_one_commit_otherwise(tmp_path: Path, folder: Path) -> None:
    """They join, because two builds of a commit may differ in bytes, and a caution tells of it."""
    source = Source(ref="new", commit="c" * 40, changes="", recipe="r" * 64, folder=str(folder))
    built = subjects(folder)
    built["head"] = built["head"].model_copy(update={"built_from": source})
    joined = CliRunner().invoke(main, ["judge", *shards(tmp_path, folder, built), "--format", "json"])
    assert joined.exit_code == ExitStatus.PASS, joined.output
    told = [note.text for cell in Outcome.model_validate_json(joined.stdout).cells for note in cell.cautions]
    assert len([text for text in told if text.startswith("head: files ")]) == 1


def engines(tmp_path: Path, folder: Path) -> tuple[Path, dict[Any, Subject]]:
    """A scenario for the stand-in engine, timed and traced, and a head that has a folder more than its base."""
    write_stub(tmp_path / "stub")
    leave_two_traces(tmp_path / "stub")
    file = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 900%, must_catch: 1000%}",
                         more="kernels: {traced: {iterations: 1}}")  # fmt: skip
    file.write_text(file.read_text().replace("looks: [4, 6, 8, 12]", "looks: [4]"))
    python, stub = bare_python(tmp_path / "env"), str(tmp_path / "stub")
    base = Subject(python=python, path=(stub,), env={"STUB_MODE": "", "PERFGATE_PROBE": "0"})
    more = {"path": (str(folder), *base.path), "env": {**base.env, "MORE": "1"}}  # nothing of the folder is used
    return file, {"base": base, "head": base.model_copy(update=more)}


def editing(folder: Path, kind: str, index: int) -> Callable[[Step | str], None]:
    """A progress that changes a module when a trial of a kind, from some number on, has ended."""

    def told(step: Step | str) -> None:
        if not isinstance(step, str) and step.finished and step.kind == kind and step.trial >= index:
            edited(folder)

    return told


@pytest.mark.parametrize(("kind", "index"), [("timed", 4), pytest.param("traced", 0, marks=pytest.mark.slow)])
def test_runs_of_an_engine(tmp_path: Path, folder: Path, kind: str, index: int) -> None:
    """They end alike, and leave no bytecode in the folders of either side."""
    file, built = engines(tmp_path, folder)
    finished = gate.run([file], built, runs=tmp_path / "runs", seed=1, progress=editing(folder, kind, index))
    assert finished.outcome.exit_status == ExitStatus.NOT_MEASURED
    (reason,) = why(finished)
    assert reason.startswith("subject-changed: ")
    assert f"{folder / 'plugin' / 'core.py'} has changed: " in reason
    assert not [*(tmp_path / "stub").rglob("__pycache__"), *folder.rglob("__pycache__")]


def test_a_run_of_an_engine_days_later(tmp_path: Path, folder: Path) -> None:
    """By the command: 22, with the file; with it put back the run goes on to its verdict, which is verified."""
    file, built = engines(tmp_path, folder)

    def stop(step: Step | str) -> None:
        if not isinstance(step, str) and step.finished and step.trial == 4:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        gate.run([file], built, runs=tmp_path / "runs", seed=1, progress=stop)
    (run,) = (tmp_path / "runs").iterdir()
    text = (folder / "plugin/core.py").read_text()
    edited(folder)
    refused = CliRunner().invoke(main, ["run", "--resume", str(run)])
    assert refused.exit_code == ExitStatus.NOT_MEASURED
    assert "subject-changed" in refused.stderr
    assert str(folder / "plugin" / "core.py") in refused.stderr.replace("\n", "")

    (folder / "plugin/core.py").write_text(text)
    again = CliRunner().invoke(main, ["run", "--resume", str(run)])
    assert again.exit_code == ExitStatus.PASS, again.output
    assert f", files {record_of(run).visits[0].builds['head'].digest[:12]}" in again.stdout
    assert [check.result for check in verify_path(run) if check.what == "builds"] == ["ok"]
