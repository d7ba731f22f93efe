"""The driver of a run's tasks, a process beside the actor that looks after the run: ``task_driver ADDRESS RUN``.

It decides nothing about where a task runs: a cell is one task with what it needs, submitted again where its node was
lost or somebody else held its GPU. When the driver ends, Ray ends its tasks.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from perfgate.cluster.cell_task import called, measure_cell
from perfgate.cluster.cluster_run import NAMESPACE, Ending, Need, Node, counted, need_of
from perfgate.cluster.coordinator import Attempt, Coordinator, Driver, Order, Wanted

POLL_S: Final = 0.5
# So long after its submission, or after the last cell of its class, it is said that a cell waits for room
ROOM_WAIT_S: Final = 60.0
END_S: Final = 30.0  # how long a task is given to end its engine; then its worker is killed
# Variables of a worker that a driver started by it must not have; Ray's own jobs leave out the same (job_supervisor).
# Others, of TLS and tokens for instance, are how it reaches the cluster.
OF_ONE_PROCESS: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID")


class Tasks(Protocol):
    """See :class:`RayTasks`."""

    def nodes(self) -> Sequence[Node]: ...  # noqa: D102
    def free(self) -> Mapping[str, float]: ...  # noqa: D102
    def submit(self, number: int, attempt: Attempt, need: Need) -> Any: ...  # noqa: D102
    def await_first(self, tasks: Sequence[Any], limit_s: float) -> Sequence[Any]: ...  # noqa: D102
    def ending(self, task: Any) -> Ending: ...  # noqa: D102
    def cancel(self, task: Any, *, force: bool = False) -> None: ...  # noqa: D102


@dataclass
class _Submitted:
    """A task that has not ended."""

    number: int  # of its cell
    attempt: Attempt  # see :class:`perfgate.cluster.coordinator.Attempt`
    need: Need  # what it asks for
    since_s: float  # since when it waits while no cell of its class is measured
    asked_s: float | None = None  # when it was asked to end
    again: bool = False  # whether that was to submit it anew


class TaskDriver:
    """Has each open cell of a run measured."""

    def __init__(self, coordinator: Coordinator, tasks: Tasks, now_s: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._tasks = tasks
        self._now_s = now_s
        self._order = coordinator.order()
        self._due = dict.fromkeys(self._order.open_cells, 0.0)
        """When cells are to be submitted."""
        self._submitted: dict[Any, _Submitted] = {}
        self._homeless: set[int] = set()
        self._crowded: set[str] = set()
        """The classes of which it was said that cells wait for room."""
        self._nodes: Sequence[Node] = ()

    def measure(self) -> None:
        """Submit every cell, and again where that is called for, until each has ended.

        Raises:
            RayError: The actor is gone.
        """
        while self._submitted or self._due:
            wanted = self._coordinator.wanted()
            if wanted.over:
                self._end(wanted)
            self._nodes = self._tasks.nodes()
            for number in [number for number, when_s in self._due.items() if when_s <= self._now_s()]:
                del self._due[number]
                attempt = self._coordinator.submitted(number)
                need = self._need(number, self._able(attempt))
                task = self._tasks.submit(number, attempt, need)
                self._submitted[task] = _Submitted(number, attempt, need, self._now_s())
            self._see_who_can_run(wanted)
            self._see_who_waits(wanted)
            for task in self._tasks.await_first([*self._submitted], POLL_S):
                self._note(task)

    def _need(self, number: int, able: Sequence[Node]) -> Need:
        """By the nodes that are left for a cell; where none is, by those that failed: one like them is waited for."""
        run = self._order.run
        machine = run.shard(number).machine
        nodes = able if any(node.measures(machine) for node in able) else self._nodes
        return need_of(machine, run.ranks[number - 1], nodes)

    def _able(self, attempt: Attempt) -> list[Node]:
        return [node for node in self._nodes if node.id not in attempt.avoided]

    def _see_who_can_run(self, wanted: Wanted) -> None:
        """Say which cells no node can hold, and submit those anew that nodes of another size can.

        They are submitted all the same: what waits is what an autoscaler starts nodes for.
        """
        for task, submission in self._submitted.items():
            if submission.number in wanted.running or submission.asked_s is not None:
                continue
            able = self._able(submission.attempt)
            lack = submission.need.lack(able)
            if lack and not self._need(submission.number, able).lack(able):
                submission.again = True
                self._cancel(task, submission)
            elif lack or submission.number in self._homeless:
                change = self._homeless.add if lack else self._homeless.discard
                change(submission.number)
                if self._coordinator.homeless(submission.number, lack):
                    self._cancel(task, submission)

    def _see_who_waits(self, wanted: Wanted) -> None:
        """Say once that cells wait though nodes could hold them and none of their class runs: others are there."""
        busy = {
            submission.need.machine for submission in self._submitted.values() if submission.number in wanted.running
        }
        self._crowded -= busy
        for submission in self._submitted.values():
            if submission.need.machine in busy or submission.number in self._homeless:
                submission.since_s = self._now_s()
            elif self._now_s() > submission.since_s + ROOM_WAIT_S and submission.need.machine not in self._crowded:
                self._crowded.add(submission.need.machine)
                room = f"it needs {submission.need}; free in the cluster: {counted(self._tasks.free())}"
                text = f"{self._order.run.cell(submission.number)}: waits for room: {room}"
                self._coordinator.keep(submission.number, submission.attempt.number, {}, [text])

    def _end(self, wanted: Wanted) -> None:
        """Ask tasks to end, once: a second Ctrl-C would kill. Over budget those that have begun end by themselves."""
        for number in [*self._due]:
            del self._due[number]
            self._coordinator.ended(number, Ending("stopped"))
        for task, submission in self._submitted.items():
            if submission.asked_s is None and (wanted.stopped or submission.number not in wanted.running):
                self._cancel(task, submission)
            elif submission.asked_s is not None and self._now_s() > submission.asked_s + END_S:
                self._tasks.cancel(task, force=True)

    def _cancel(self, task: Any, submission: _Submitted) -> None:
        submission.asked_s = self._now_s()
        self._tasks.cancel(task)

    def _note(self, task: Any) -> None:
        """See how a task ended, and when its cell is to be submitted again."""
        submission, ending = self._submitted.pop(task), self._tasks.ending(task)
        if submission.again and ending.kind == "stopped":
            self._due[submission.number] = self._now_s()
            return
        again_s = self._coordinator.ended(submission.number, ending)
        if again_s is not None:
            self._due[submission.number] = self._now_s() + again_s


SHARE: Final = 0.001  # what a cell takes of the resource that a class of machines is: any number of them is on one node
# Why a task did not end by itself
WHY_LOST: Final[dict[type[RayError], str]] = {
    NodeDiedError: "its node was lost",
    LocalRayletDiedError: "its node was lost",
    OutOfMemoryError: "its node had hardly any memory left, so Ray killed the cell's worker there",
    WorkerCrashedError: "its worker died, and its node did not: it crashed, or was killed (dmesg tells of memory)",
}
NODE: Final = "ray.io/node-id"  # the label that Ray gives each node


def alive_nodes() -> list[Node]:
    """The nodes of the cluster that this process is connected to."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(node["NodeID"], node["NodeManagerHostname"], node["Resources"]) for node in nodes if node["Alive"]]


class RayTasks:
    """The tasks of one run."""

    def __init__(self, actor: Any, order: Order) -> None:
        self._actor = actor
        self._order = order
        # One for all cells, so that Ray uses a worker again; one that had a GPU takes a single cell.
        self._tasks = {True: ray.remote(max_calls=1)(measure_cell), False: ray.remote(measure_cell)}

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        return alive_nodes()

    def free(self) -> dict[str, float]:
        """What nobody holds, in the whole cluster."""
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        return free

    def submit(self, number: int, attempt: Attempt, need: Need) -> Any:
        """Have a cell measured on a node that has what it needs."""
        run = self._order.run
        wanted: dict[str, Any] = {"num_cpus": need.cores, "max_retries": 0}
        if need.gpus:
            wanted["num_gpus"] = need.gpus
        if need.memory:
            wanted["memory"] = need.memory
        if need.machine:
            wanted["resources"] = {need.machine: SHARE}
        if attempt.avoided:
            wanted["label_selector"] = {NODE: f"!in({','.join(sorted(attempt.avoided))})"}
        task = self._tasks[need.gpus > 0].options(name=f"perfgate {run.cell(number)}", **wanted)
        return task.remote(run, number, attempt.number, self._actor, self._order.collector)

    def await_first(self, tasks: Sequence[Any], limit_s: float) -> Sequence[Any]:
        """The tasks that have ended, as soon as one has; none after so long."""
        if not tasks:
            time.sleep(limit_s)
            return ()
        return ray.wait([*tasks], num_returns=1, timeout=limit_s)[0]

    def ending(self, task: Any) -> Ending:
        """How a task ended."""
        try:
            ending: Ending = ray.get(task)
        except TaskCancelledError:
            return Ending("stopped")
        except RayTaskError as error:
            if isinstance(error.cause, RayActorError):  # the actor could not be reached from there
                return Ending("elsewhere", "its node lost the actor that looks after the run")
            if isinstance(error.cause, MemoryError):  # what takes too much there takes it everywhere
                return Ending("failed", str(error), "internal-error")
            # Of a node that cannot even import this, where other nodes can; where none can, it ends after a few.
            return Ending("elsewhere", str(error), "internal-error")
        except RayError as error:
            unknown = f"Ray could not have it measured: {type(error).__name__}: {error}"
            return Ending("elsewhere", WHY_LOST.get(type(error), unknown))
        return ending

    def cancel(self, task: Any, *, force: bool = False) -> None:
        """Ask a task to end as Ctrl-C does; by force its worker is killed, and the engine ends with that."""
        ray.cancel(task, force=force)


def start(name: str) -> Driver:
    """Start the driver of the run of that name, from the actor that looks after it."""
    words = [sys.executable, "-m", "perfgate.cluster.task_driver", ray.get_runtime_context().gcs_address, name]
    variables = {name: value for name, value in os.environ.items() if name not in OF_ONE_PROCESS}
    return subprocess.Popen(words, env=variables, start_new_session=True)  # noqa: S603 (perfgate's own)


def main(address: str, name: str) -> None:
    """Drive the tasks of the run of that name."""
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    actor = ray.get_actor(name, namespace=NAMESPACE)
    coordinator = called(actor)
    TaskDriver(coordinator, RayTasks(actor, coordinator.order())).measure()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
