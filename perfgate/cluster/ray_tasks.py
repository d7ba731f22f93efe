"""Cells as tasks of Ray: submitted, waited for, ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

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

from perfgate.cluster.cell_task import measure_cell
from perfgate.cluster.cluster_run import Ending
from perfgate.cluster.coordinator import Attempt, Order
from perfgate.cluster.placement import Need, Node

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
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(one["NodeID"], one["NodeManagerHostname"], one["Resources"]) for one in known if one["Alive"]]


class RayTasks:
    """The tasks of one run.

    Args:
        actor: That looks after it.
        order: What is measured.
    """

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
