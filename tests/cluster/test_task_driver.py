"""How the driver submits cells and ends them, with tasks that a test ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made_cluster import LOST, Cluster, run_of

from perfgate.cluster.cluster_run import Ending, Need, Node
from perfgate.cluster.coordinator import NODE_WAIT_S, NODES, OVERTIME_S, Attempt
from perfgate.cluster.task_driver import END_S, OF_ONE_PROCESS, POLL_S, ROOM_WAIT_S, TaskDriver, start

DONE = Ending("done")
STOPPED = Ending("stopped")


def node(name: str, cores: float = 4.0, **more: float) -> Node:
    """A node."""
    return Node(name, name, {"CPU": cores, "memory": 8.0 * 2**30, **more})


@dataclass
class FakeTask:
    """A task that was submitted."""

    number: int
    attempt: Attempt
    need: Need
    ending: Ending | None = None
    forced: bool = False

    def __hash__(self) -> int:
        """By what it is."""
        return id(self)


@dataclass
class FakeTasks:
    """Tasks in the place of Ray's: a test says what happens while one is waited for.

    Args:
        cluster: With the coordinator and the clock, which goes on while nothing ends.
        script: Called with all tasks at every wait; it ends some.
        there: The nodes.
        polite: Whether a task that is asked to end does.
    """

    cluster: Cluster
    script: Callable[[list[FakeTask]], None]
    there: list[Node] = field(default_factory=lambda: [node("a")])
    polite: bool = True
    submitted: list[FakeTask] = field(default_factory=list)

    def nodes(self) -> Sequence[Node]:
        """Those that are there."""
        return self.there

    def free(self) -> dict[str, float]:
        """What others leave."""
        return {"CPU": 1.0, "memory": 2.0**30}

    def submit(self, number: int, attempt: Attempt, need: Need) -> FakeTask:
        """A task that only the script ends."""
        self.submitted.append(FakeTask(number, attempt, need))
        return self.submitted[-1]

    def await_first(self, tasks: Sequence[FakeTask], limit_s: float) -> Sequence[FakeTask]:
        """The first that has ended; else time goes by."""
        assert len(self.submitted) < 100, "submitted without end"
        self.script([*tasks])
        ended = [task for task in tasks if task.ending is not None]
        if not ended:
            self.cluster.clock.now_s += limit_s
        return ended[:1]

    def ending(self, task: FakeTask) -> Ending:
        """What the script said."""
        assert task.ending is not None
        return task.ending

    def cancel(self, task: FakeTask, *, force: bool = False) -> None:
        """End it, if it is polite or forced."""
        task.forced = task.forced or force
        if self.polite or force:
            task.ending = LOST if force else STOPPED

    def drive(self) -> dict[int, Ending]:
        """Drive all cells to their end; how they ended."""
        TaskDriver(self.cluster.coordinator, self, self.cluster.clock).measure()
        return dict(self.cluster.coordinator.news("me", 0).endings)


def begin(cluster: Cluster, task: FakeTask) -> None:
    """What a task does first."""
    cluster.coordinator.begin(task.number, task.attempt.number)


def test_each_cell_is_submitted_until_it_is_done(here: Path) -> None:
    """One whose node is lost goes on at once, one that was given back later, and no further one is submitted."""
    cluster = Cluster(run_of(here, cells=3))
    endings = {1: [DONE], 2: [LOST, DONE], 3: [Ending("given-back", "in use"), DONE]}
    submitted_s: list[float] = []

    def script(tasks: list[FakeTask]) -> None:
        submitted_s.extend([cluster.clock.now_s] * (len(fake.submitted) - len(submitted_s)))
        for task in tasks:
            task.ending = task.ending or endings[task.number].pop(0)

    fake = FakeTasks(cluster, script)
    assert fake.drive() == {1: DONE, 2: DONE, 3: DONE}
    assert [(task.number, task.attempt.number) for task in fake.submitted] == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)]
    assert submitted_s[-2] == submitted_s[0]
    assert submitted_s[-1] >= submitted_s[0] + 2.0


def test_a_cell_that_loses_every_node_ends(here: Path) -> None:
    """It does not go through the cluster."""
    cluster = Cluster(run_of(here))

    def script(tasks: list[FakeTask]) -> None:
        for task in tasks:
            task.ending = LOST if task.number == 1 else DONE

    fake = FakeTasks(cluster, script)
    endings = fake.drive()
    assert (endings[1].kind, endings[2]) == ("failed", DONE)
    assert len(fake.submitted) == NODES + 1


def test_stop_ends_what_runs(here: Path) -> None:
    """Each task is asked once, and one that does not end in time is ended by force."""
    cluster = Cluster(run_of(here))

    def script(tasks: list[FakeTask]) -> None:
        for task in tasks:
            begin(cluster, task)
        cluster.coordinator.stop()

    fake = FakeTasks(cluster, script, polite=False)
    began_s = cluster.clock.now_s
    assert {ending.kind for ending in fake.drive().values()} == {"stopped"}
    assert all(task.forced for task in fake.submitted)
    assert cluster.clock.now_s >= began_s + END_S


def test_over_budget_what_has_begun_ends_by_itself(here: Path) -> None:
    """Only what waits for room is cancelled, and what was given back is not begun again."""
    cluster = Cluster(run_of(here, cells=3), budget_s=10.0)

    def script(tasks: list[FakeTask]) -> None:
        for task in tasks:
            if task.number == 1:
                begin(cluster, task)
                task.ending = DONE if cluster.clock.now_s > 1030.0 else None
            if task.number == 2:
                task.ending = Ending("given-back", "in use")
        cluster.clock.now_s += 1.0

    fake = FakeTasks(cluster, script)
    endings = fake.drive()
    assert endings[1] == DONE
    assert {endings[2].code, endings[3].code} == {"out-of-budget"}
    assert not any(task.forced for task in fake.submitted)


def test_a_worker_that_hangs_is_ended_some_time_after_the_budget(here: Path) -> None:
    """By force where it does not end when it is asked to; its cell is out of budget."""
    cluster = Cluster(run_of(here, cells=1), budget_s=10.0)
    fake = FakeTasks(cluster, lambda tasks: begin(cluster, tasks[0]), polite=False)
    ends_s = cluster.clock.now_s + 10.0 + OVERTIME_S + END_S
    assert fake.drive()[1].code == "out-of-budget"
    assert fake.submitted[0].forced
    assert ends_s <= cluster.clock.now_s <= ends_s + 4 * POLL_S


def test_a_cell_that_no_node_can_hold_is_told_of_and_given_up(here: Path) -> None:
    """Within one look, while the others are measured; its task waits meanwhile, for an autoscaler to see."""
    run = run_of(here).model_copy(update={"ranks": (8, 1)})
    cluster = Cluster(run)
    told: list[list[str]] = []

    def script(tasks: list[FakeTask]) -> None:
        told.append(cluster.told)
        for task in tasks:
            if task.number == 2 and task.need.gpus:
                task.ending = DONE

    fake = FakeTasks(cluster, script, [node("a", GPU=4.0)])
    began_s = cluster.clock.now_s
    endings = fake.drive()
    assert endings[2] == DONE
    assert endings[1].kind == "failed"
    assert "it needs 8 GPUs, 1 core, and of these there are: a (4 GPUs" in endings[1].text
    assert [len(texts) for texts in told[:2]] == [1, 1]
    assert told[0][0].startswith(f"{run.cell(1)}: waits for a node: it needs 8 GPUs")
    assert NODE_WAIT_S <= cluster.clock.now_s - began_s <= NODE_WAIT_S + 4 * POLL_S


def test_over_budget_a_cell_that_no_node_can_hold_failed(here: Path) -> None:
    """It is not measured, for want of a node and not of time."""
    cluster = Cluster(run_of(here), budget_s=10.0)
    endings = FakeTasks(cluster, lambda _: None, [node("head", cores=0.0)]).drive()
    assert {ending.kind for ending in endings.values()} == {"failed"}


def test_cells_that_wait_for_what_others_hold_are_told_of(here: Path) -> None:
    """Once for all of a class, and not while one of it is measured; again where that happens again."""
    cluster = Cluster(run_of(here, cells=3))
    began_s = cluster.clock.now_s
    told_s: list[float] = []

    def script(tasks: list[FakeTask]) -> None:
        after_s = cluster.clock.now_s - began_s
        told_s.extend([after_s] * (len(cluster.told) - len(told_s)))
        if 100.0 <= after_s < 300.0:
            begin(cluster, tasks[0])
        elif after_s >= 300.0:
            tasks[0].ending = DONE if tasks[0].number == 1 or after_s > 500.0 else None

    fake = FakeTasks(cluster, script)
    assert {*fake.drive().values()} == {DONE}
    assert [text.partition(": ")[2] for text in cluster.told] == [
        "waits for room: it needs 4 cores, 4.8 GiB of memory; free in the cluster: 1 core, 1.0 GiB of memory"
    ] * 2
    assert ROOM_WAIT_S < told_s[0] < ROOM_WAIT_S + 4 * POLL_S
    assert 300.0 + ROOM_WAIT_S < told_s[1] < 300.0 + ROOM_WAIT_S + 4 * POLL_S


def test_nodes_of_another_size_that_come_later(here: Path) -> None:
    """A cell that waits for GPUs is submitted anew where nodes without any are what comes."""
    cluster = Cluster(run_of(here, cells=1))

    def script(tasks: list[FakeTask]) -> None:
        fake.there = [node("late")]
        for task in tasks:
            if task.need.cores == 4.0:
                task.ending = DONE

    fake = FakeTasks(cluster, script, [])
    assert fake.drive() == {1: DONE}
    assert [(task.need.gpus, task.attempt.number) for task in fake.submitted] == [(1, 1), (0, 2)]


def test_unfit_nodes_are_avoided(here: Path) -> None:
    """Another node is tried; where all that are there cannot measure the cell it ends at once, with why."""
    cluster = Cluster(run_of(here, cells=1))

    def script(tasks: list[FakeTask]) -> None:
        for task in tasks:
            on = next(iter({"a", "b"} - task.attempt.avoided), None)
            if on is not None and task.ending is None:
                task.ending = Ending("elsewhere", f"node {on}: has no folder", "shard-foreign", on)

    began_s = cluster.clock.now_s
    endings = FakeTasks(cluster, script, [node("a"), node("b")]).drive()
    assert endings[1].kind == "failed"
    assert {"node a: has no folder", "node b: has no folder"} <= {*endings[1].text.split("; ")}
    assert cluster.clock.now_s == began_s


def test_a_cell_that_waits_for_another_node_wants_one_like_those_that_failed(here: Path) -> None:
    """A node of the CPU is there, if avoided, beside a head that never measures: no autoscaler is to bring a GPU."""
    cluster = Cluster(run_of(here, cells=1))

    def script(tasks: list[FakeTask]) -> None:
        for task in tasks:
            if not task.attempt.avoided:
                task.ending = Ending("elsewhere", "node a: no space left", "storage-failed", "a")

    fake = FakeTasks(cluster, script, [node("head", cores=0.0), node("a")])
    fake.drive()

    assert {(task.need.gpus, task.need.cores) for task in fake.submitted} == {(0, 4.0)}
    assert len(fake.submitted) > 1


def test_the_driver_has_what_a_cluster_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of TLS and tokens reach it; those of the actor's own process do not."""
    started: dict[str, Any] = {}
    for name in ("RAY_AUTH_TOKEN", "RAY_TLS_CA_CERT", *OF_ONE_PROCESS):
        monkeypatch.setenv(name, "value")
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    monkeypatch.setattr("subprocess.Popen", lambda words, **given: started.update(given, words=words))
    start("a-run")

    assert started["words"][-2:] == ["10.0.0.1:6379", "a-run"]
    assert started["env"].keys() >= {"RAY_AUTH_TOKEN", "RAY_TLS_CA_CERT"}
    assert not started["env"].keys() & {*OF_ONE_PROCESS}
