"""The driver of a run's tasks, a process beside the actor that looks after the run: ``task_driver ADDRESS RUN``.

It decides nothing about where a task runs: a cell is one task with the resources that it needs, submitted again where
its node was lost or somebody else held its GPU. When the driver ends, Ray ends its tasks.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from perfgate.cluster.cell_task import measure_cell
from perfgate.cluster.cluster_run import NAMESPACE, Ending
from perfgate.cluster.coordinator import Order, Wanted

POLL_S: Final = 0.5
END_S: Final = 30.0
"""How long a task is given to end its engine; then its worker is killed, and the engine ends with that."""
SHARE: Final = 0.001
"""What a cell takes of the resource that a class of machines is: any number of them is on one node."""
MEMORY: Final = 0.6
"""What a cell of the CPU takes of a node's memory, as Ray counts it, so that no second one is there: Ray lends out the
cores of a task that waits for an answer, and neither its memory nor its GPUs."""


class TaskDriver:
    """Has each open cell of a run measured.

    Args:
        coordinator: The actor that looks after the run.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._order: Order = ray.get(coordinator.order.remote())
        # One for all cells, so that Ray uses a worker again; one that had a GPU takes a single cell.
        self._tasks = {True: ray.remote(max_calls=1)(measure_cell), False: ray.remote(measure_cell)}
        self._asked_s: dict[Any, float] = {}
        """When tasks were asked to end."""

    def measure(self) -> None:
        """Submit every cell, and again where that is called for, until each has ended.

        Raises:
            RayError: The actor is gone.
        """
        waiting: dict[Any, int] = {}
        due = dict.fromkeys(self._order.open_cells, 0.0)
        while waiting or due:
            wanted: Wanted = ray.get(self._coordinator.wanted.remote())
            if wanted.over:
                for number in [*due]:
                    del due[number]
                    ray.get(self._coordinator.ended.remote(number, Ending("stopped")))
                self._end(waiting, wanted)
            for number in [number for number, when_s in due.items() if when_s <= time.monotonic()]:
                del due[number]
                waiting[self._submit(number)] = number
            if not waiting:
                time.sleep(POLL_S)
                continue
            for task in ray.wait([*waiting], num_returns=1, timeout=POLL_S)[0]:
                number = waiting.pop(task)
                again_s: float | None = ray.get(self._coordinator.ended.remote(number, _ending_of(task)))
                if again_s is not None:
                    due[number] = time.monotonic() + again_s

    def _submit(self, number: int) -> Any:
        run, attempt = self._order.run, ray.get(self._coordinator.submitted.remote(number))
        machine = run.shard(number).machine
        needed = _needed(machine, run.ranks[number - 1])
        task = self._tasks["num_gpus" in needed].options(
            name=f"perfgate {run.cell(number)}",
            **needed,
            resources={machine: SHARE} if machine else {},
            max_retries=0,
        )
        return task.remote(run, number, attempt, self._coordinator, self._order.collector)

    def _end(self, waiting: Mapping[Any, int], wanted: Wanted) -> None:
        """Ask tasks to end, once: a second Ctrl-C would kill. Over budget those that have begun end by themselves."""
        now_s = time.monotonic()
        for task, number in waiting.items():
            if task not in self._asked_s and (wanted.stopped or number not in wanted.running):
                self._asked_s[task] = now_s
                ray.cancel(task)
            elif now_s > self._asked_s.get(task, now_s) + END_S:
                ray.cancel(task, force=True)


def _needed(machine: str, ranks: int) -> dict[str, Any]:
    """What a cell is to have on nodes of a class, in Ray's words; on those without GPUs it has the node to itself.

    Where no such node is there yet Ray waits for one, and GPUs are taken for granted.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    like = [node["Resources"] for node in nodes if node["Alive"]]
    like = [resources for resources in like if not machine or machine in resources]
    if not like or any(resources.get("GPU") for resources in like):
        return {"num_gpus": ranks, "num_cpus": 1}
    cores, memory = (max(resources.get(name, 0.0) for resources in like) for name in ("CPU", "memory"))
    return {"num_cpus": cores, "memory": MEMORY * memory}


def _ending_of(task: Any) -> Ending | None:
    """How a task ended; ``None`` where its worker or node is gone."""
    try:
        ending: Ending = ray.get(task)
    except TaskCancelledError:
        return Ending("stopped")
    except RayTaskError as error:
        return Ending("failed", str(error), "internal-error")
    except RayError:
        return None
    return ending


def main(address: str, name: str) -> None:
    """Drive the tasks of the run of that name."""
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    TaskDriver(ray.get_actor(name, namespace=NAMESPACE)).measure()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
