"""A task measures a cell, sends each trial, and tells what is the node's fault from what is the cell's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deep_tree import deep_tree
from fake_collector import ByCell
from filelock import FileLock
from git_project import GitProject
from hand_made_cluster import Cluster, Lost, NodeLostError, everything, run_of

from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Job
from perfgate.cli.measuring import Builds
from perfgate.cluster.cell_task import PLACE, RAYLET, Here, as_the_node, measure, without_ray
from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.cluster_run import Ending
from perfgate.cluster.coordinator import News
from perfgate.cluster.submission import joined
from perfgate.cluster.travelling import GrowingFolder
from perfgate.errors import ExitStatus
from perfgate.gate import Finished
from perfgate.machine.locks import state_folder
from perfgate.machine.temporary_folder import temporary_folder
from perfgate.metrics.trial import Trial
from perfgate.project.build import CACHE


def kept(cluster: Cluster) -> CellsFolder:
    """What the coordinator has."""
    return cluster.coordinator._folder


def test_each_trial_is_kept_before_the_next(here: Path) -> None:
    """A node that is lost loses only the pair that it was taking, and another one goes on with the rest."""
    cluster = Cluster(run_of(here))
    seen: list[int] = []
    with pytest.raises(NodeLostError):
        cluster.measure(1, Lost(2, before=lambda: seen.append(len(kept(cluster).trials(1)))))
    before = kept(cluster).trials(1)
    assert {trial.pair for trial in before} == {None, 0, 1}
    assert seen == [len(before)]
    cluster.coordinator.ended(1, Ending("elsewhere", "its node was lost"))

    assert cluster.measure(1) == Ending("done")
    assert kept(cluster).trials(1)[: len(before)] == before
    assert not kept(cluster).is_open(1)
    indices = [trial.index for trial in kept(cluster).trials(1)]
    assert len({*indices}) == len(indices)


def test_earlier_trials_stay_where_they_are_kept(here: Path) -> None:
    """A later task is sent no timeline or log of them, takes the next number, and leaves theirs as they are."""
    cluster = Cluster(run_of(here))
    cluster.lose(1)
    before = {
        path: content
        for path, content in everything(GrowingFolder(kept(cluster).cell(1))).items()
        if "/trials/" in path
    }
    begun = cluster.coordinator.begin(1, cluster.coordinator.submitted(1).number)
    assert begun is not None
    assert before
    assert not before.keys() & begun.files.keys()
    assert {path.rpartition("/")[0] + "/" for path in before} <= begun.files.keys()

    cluster.measure(1)
    assert before.items() <= everything(GrowingFolder(kept(cluster).cell(1))).items()


class UnreachableError(Exception):
    """In the place of Ray's."""


class _Deaf:
    """A coordinator that cannot be reached the fourth time that something is sent to it."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
        self._error, self._keep, self._calls = error, cluster.coordinator.keep, 0
        monkeypatch.setattr(cluster.coordinator, "keep", self)

    def __call__(self, *given: Any) -> bool:
        self._calls += 1
        if self._calls == 4:
            raise self._error
        return self._keep(*given)


def test_what_could_not_be_sent_goes_with_the_next_call(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails loses nothing that was measured."""
    cluster = Cluster(run_of(here))
    _Deaf(cluster, monkeypatch, UnreachableError)
    with pytest.raises(UnreachableError):
        cluster.measure(1)
    assert len(kept(cluster).trials(1)) == 4


def test_a_task_that_is_not_wanted_any_longer_ends(here: Path) -> None:
    """It notices when it sends its next trial."""
    cluster = Cluster(run_of(here))

    class Replaced(ByCell):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if (job.pair, job.position) == (1, 0):
                cluster.coordinator.submitted(1)
            return super().collect(job, progress)

    assert cluster.measure(1, Replaced()).kind == "stopped"
    assert {trial.pair for trial in kept(cluster).trials(1)} == {None, 0}


class Leaving(ByCell):
    """Trials whose engine leaves something in its folder."""

    def __init__(self, leave: Callable[[Path], object]) -> None:
        super().__init__()
        self.leave = leave

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial."""
        if job.pair == 1:
            self.leave(job.folder)
        return super().collect(job, progress)


def _core_dump(folder: Path) -> None:
    with (folder / "core.1234").open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("left", ["core dump", "deep tree", "link", "unreadable"])
def test_what_an_engine_leaves_behind_ends_no_cell(left: str, here: Path) -> None:
    """What is too large, too deep or no file is named, and every record and timeline comes back."""
    with contextlib.ExitStack() as trees:
        leave: dict[str, Callable[[Path], object]] = {
            "core dump": _core_dump,
            "deep tree": lambda folder: trees.enter_context(deep_tree(folder)),
            "link": lambda folder: (folder / "link").symlink_to("/etc/hostname"),
            "unreadable": lambda folder: os.mkfifo(folder / "pipe"),
        }
        cluster = Cluster(run_of(here))
        ending = cluster.measure(1, Leaving(leave[left]))

    assert ending == Ending("done")
    assert not kept(cluster).is_open(1)
    names = {path.rpartition("/")[2] for path in everything(GrowingFolder(kept(cluster).cell(1)))}
    assert not names & {"core.1234", "link", "pipe", "d"}
    told = [text for text in cluster.told if "stays behind" in text]
    why = {"core dump": "1048576.0 MiB that no record names", "deep tree": "more than 12 folders deep"}
    assert [why[left] in text for text in told] == [True] * 2 if left in why else told == []


def test_want_of_memory_goes_through_no_cluster(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more memory here than there is takes it everywhere."""
    cluster = Cluster(run_of(here))
    _Deaf(cluster, monkeypatch, MemoryError)

    ending = cluster.measure(1)

    assert (ending.kind, ending.code, ending.node) == ("failed", "internal-error", "")


def test_a_gpu_in_use_is_given_back(here: Path) -> None:
    """The task waits for nobody."""
    cluster = Cluster(run_of(here))
    with FileLock(state_folder() / "cpu.lock"):
        ending = cluster.measure(1)
    assert (ending.kind, ending.code) == ("given-back", "gpu-busy")


def test_what_a_node_lacks_sends_the_cell_to_another(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder, a scenario, this version of perfgate, room on a disk, the interpreter."""
    run = run_of(here)
    moved = run.model_copy(update={"folder": str(here / "nowhere")})
    without = run.model_copy(update={"scenarios": (str(here / "gone.yaml"),)})
    older = run.model_copy(update={"perfgate": "0.0.1"})
    found = {name: Cluster(one).measure(1, host="a") for name, one in (("f", moved), ("s", without), ("v", older))}
    assert {(ending.kind, ending.node) for ending in found.values()} == {("elsewhere", "id of a")}
    assert found["f"].text == f"node a: has no {here}/nowhere, which the run was begun with"
    assert found["s"].text.startswith(f"node a: has no {here}/gone.yaml")
    assert found["v"].text.startswith("node a: has perfgate ")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("perfgate.cluster.cell_task.put", full)
        assert Cluster(run).measure(1).code == "storage-failed"
    interpreter = run_of(here, builds=Builds(("python=/nowhere/python",), (), Path("runs")))
    cluster = Cluster(interpreter)
    attempt = cluster.coordinator.submitted(1)
    ending = measure(interpreter, 1, attempt.number, cluster.coordinator, Here("a"), None)
    assert (ending.kind, ending.code) == ("elsewhere", "subject-not-found")


def test_a_build_ends_with_the_budget(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ref that takes longer to build than is left ends the cell as out of budget; what else fails is of the node."""
    monkeypatch.setenv(CACHE, str(here / "builds"))
    project = GitProject(here)
    recipe = '[build]\npython = "{env}/python"\ncommands = [["COMMAND"]]\n'
    (here / "perfgate.toml").write_text(recipe.replace('"COMMAND"', '"sleep", "600"'))
    project.commit({".gitignore": "/kept\n/builds\n/model\n*.yaml\n*.toml\n"})
    run = run_of(here, builds=Builds(("ref=main",), (), Path("runs")))
    ending = Cluster(run, budget_s=0.2).measure(1)
    assert (ending.kind, ending.code) == ("stopped", "out-of-budget")
    assert ending.text.endswith("(main) could not be built in time")

    (here / "perfgate.toml").write_text(recipe.replace('"COMMAND"', '"false"'))
    run = run_of(here, builds=Builds(("ref=main",), (), Path("runs")))
    ending = Cluster(run).measure(1)
    assert (ending.kind, ending.code) == ("elsewhere", "build-failed")


def test_a_build_that_failed_is_not_tried_again_by_other_cells(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with the same reason at once; a run that is gone on with builds again."""
    monkeypatch.setenv(CACHE, str(here / "builds"))
    recipe = '[build]\npath = "{tree}"\ncommands = [["sh", "-c", "echo made >> \'{here}/kept/made\'; exit 3"]]\n'
    (here / "perfgate.toml").write_text(recipe)
    GitProject(here).commit({".gitignore": "/kept\n/builds\n/model\n*.yaml\n*.toml\n"})
    run = run_of(here, builds=Builds(("ref=main",), (), Path("runs")))

    def made() -> int:
        return len((here / "kept" / "made").read_text().splitlines())

    cluster = Cluster(run)
    endings = [cluster.measure(number) for number in run.numbers]
    assert endings[0] == endings[1]
    assert (endings[0].kind, endings[0].node, "ended with 3" in endings[0].text) == ("elsewhere", "id of node", True)
    assert made() == 1
    Cluster(run).measure(1)
    assert made() == 2


def test_what_ray_sets_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place is the environment of a run alone; the GPUs that Ray chose stay, and none chosen is no choice."""
    for name, value in {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", VISIBLE: ""}.items():
        monkeypatch.setenv(name, value)
    with without_ray():
        assert {"RAY_JOB_ID", "OMP_NUM_THREADS", VISIBLE} & {*os.environ} == set()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv(VISIBLE, "1")
    with without_ray():
        assert os.environ[VISIBLE] == "1"


def test_engines_have_the_niceness_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Ray's worker is undone for the block; where the system does not permit it nothing else is lost."""
    set_to: list[int] = []
    monkeypatch.setenv(RAYLET, str(os.getpid()))
    monkeypatch.setattr(os, "getpriority", lambda _, process: 0 if process == os.getpid() else 15)
    monkeypatch.setattr(os, "setpriority", lambda _, __, niceness: set_to.append(niceness))
    with as_the_node():
        assert set_to == [0]
    assert set_to == [0, 15]

    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    with as_the_node():
        pass


def test_a_killed_task_leaves_nothing_for_long(here: Path) -> None:
    """The next one on that host removes its folder however deep it is, and none in use, or somebody else's to write."""
    with temporary_folder(PLACE) as held:
        killed, shared = (held.with_name(f"{held.name[:-8]}{name}") for name in ("killed", "shared"))
        for folder in (killed, shared):
            folder.mkdir(mode=0o700)
            (folder / "trace.csv").touch()
        shared.chmod(0o777)
        with deep_tree(killed):
            assert Cluster(run_of(here)).measure(1) == Ending("done")
            assert not killed.exists()
        assert {*held.parent.glob(f"{PLACE}*")} == {held, shared}


def plugin_of(folder: Path) -> Builds:
    """A base, and a head with a folder of its own."""
    (folder / "plugin").mkdir()
    (folder / "plugin" / "core.py").write_text("1")
    return Builds(("python=/bin/true",), (f"path={folder / 'plugin'}",), Path("runs"))


def verdict_of(cluster: Cluster) -> Finished:
    """What the command says once all has come back."""
    return joined(kept(cluster), cluster.run, News(0, {}, [], {}, finished=True, fault=""), "", stopped=False)


def test_a_build_that_changes_on_a_node(here: Path) -> None:
    """The cell that was measured then is not measured, and says why; the one before it stands."""
    cluster = Cluster(run_of(here, builds=plugin_of(here)))
    assert cluster.measure(1) == Ending("done")

    class Editing(ByCell):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.pair == 2:
                (here / "plugin" / "core.py").write_text("2")
            return super().collect(job, progress)

    assert cluster.measure(2, Editing()) == Ending("done")
    outcome = verdict_of(cluster).outcome
    assert outcome.exit_status == ExitStatus.NOT_MEASURED
    assert [cell.verdict for cell in outcome.cells] == ["pass", "not-measured"]
    assert [note.code for note in outcome.cells[1].reasons] == ["subject-changed"]


def test_a_node_with_another_build_under_that_name(here: Path) -> None:
    """It goes on with no cell of others, and a cell that it measured whole is none of the same run."""
    cluster = Cluster(run_of(here, builds=plugin_of(here)))
    assert cluster.measure(1) == Ending("done")
    cluster.lose(2)
    (here / "plugin" / "core.py").write_text("2")
    ending = cluster.measure(2, host="another")
    assert (ending.kind, ending.code) == ("elsewhere", "subject-changed")
    assert "core.py" in ending.text


def test_cells_of_nodes_with_other_builds(here: Path) -> None:
    """They are no one run: which of two builds is the one that was meant, nobody knows."""
    cluster = Cluster(run_of(here, builds=plugin_of(here)))
    assert cluster.measure(1) == Ending("done")
    (here / "plugin" / "core.py").write_text("2")
    assert cluster.measure(2, host="another") == Ending("done")
    outcome = verdict_of(cluster).outcome
    assert outcome.exit_status == ExitStatus.NOT_MEASURED
    assert "subject-changed" in [note.code for note in outcome.reasons]
