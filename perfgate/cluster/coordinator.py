"""The actor that looks after a run on the head node: it owns the tasks and keeps what they send back.

It is detached, so that it outlives the command that made it, and it decides nothing about where a task runs: a cell
is one task with the resources that it needs, submitted again where its node was lost or somebody else held its GPU.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from perfgate.capture.job import Collector
from perfgate.capture.pace import Step
from perfgate.cluster.cell_task import Begun, measure_cell
from perfgate.cluster.cluster_run import ClusterRun, Ending, Files, put, read_all

POLL_S: Final = 0.5
AGAIN_S: Final = 2.0
"""After so long a cell whose GPU was in use is submitted again, and twice as long each further time."""
MOST_AGAIN_S: Final = 60.0
SHARE: Final = 0.001
"""What a cell takes of the resource that a class of machines is: any number of them is on one node."""
LOST: Final = 3
"""So often a cell may lose its node. One that brings down every node it runs on must not go through the cluster."""
END_S: Final = 30.0
"""How long a task is given to end its engine; then its worker is killed, and the engine ends with that."""
ANSWER_BYTES: Final = 64 * 1024**2
"""Of files in one answer, but for the last of them."""


@dataclass(frozen=True)
class News:
    """What a command that looks on is told.

    Args:
        seen: The number of the last file or sentence in it, to ask for what comes after.
        files: By number of the cell.
        told: Steps and sentences.
        endings: How cells ended, by number.
        finished: Whether every cell has ended and everything is in this answer or an earlier one.
        fault: Where the actor itself failed, its traceback.
    """

    seen: int
    files: Mapping[int, Files]
    told: Sequence[Step | str]
    endings: Mapping[int, Ending]
    finished: bool
    fault: str


@dataclass
class _Cell:
    """What is known of a cell.

    Args:
        attempt: How often it was submitted.
        running: Whether that task has begun.
        asked_s: When it was asked to end; infinite where it was not.
        lost: How often its node was lost.
        given_back: How often its GPU was in use.
    """

    attempt: int = 0
    running: bool = False
    asked_s: float = math.inf
    lost: int = 0
    given_back: int = 0


@dataclass
class _Log:
    """Files and sentences in the order that they came."""

    last: int = 0
    files: dict[tuple[int, str], int] = field(default_factory=dict)
    told: list[tuple[int, Step | str]] = field(default_factory=list)

    def tell(self, *told: Step | str) -> None:
        for one in told:
            self.last += 1
            self.told.append((self.last, one))

    def note(self, number: int, path: str) -> None:
        self.last += 1
        self.files.pop((number, path), None)
        self.files[number, path] = self.last


class Coordinator:
    """Looks after one run; its methods return at once.

    Args:
        run: What is measured.
        files: What was measured earlier, by number of the cell.
        open_cells: The cells that are to be measured, by number.
        budget_s: For all of them together, from now on.
        collector: Takes the trials; the real engine where there is none.
    """

    def __init__(
        self,
        run: ClusterRun,
        files: Mapping[int, Files],
        open_cells: Sequence[int],
        budget_s: float,
        collector: Collector | None,
    ) -> None:
        self._run = run
        self._collector = collector
        self._until_s = time.monotonic() + budget_s
        self._folder = Path(tempfile.mkdtemp(prefix="perfgate-cluster-"))
        self._cells = {number: _Cell() for number in open_cells}
        self._endings: dict[int, Ending] = {}
        self._log = _Log()
        self._lock = threading.RLock()
        self._stopped_s = math.inf
        self._fault = ""
        self._here = ray.get_runtime_context().current_actor
        for number, own in files.items():
            self._keep(number, own)
        threading.Thread(target=self._work, daemon=True).start()

    def run(self) -> ClusterRun:
        """What is measured."""
        return self._run

    def begin(self, number: int, attempt: int) -> Begun | None:
        """What the task of a cell needs; ``None`` where another was begun in its place, or the run is stopped."""
        with self._lock:
            if self._cells[number].attempt != attempt or self._stopped_s < math.inf:
                return None
            self._cells[number].running = True
            return Begun(read_all(self._folder / str(number)), max(self._until_s - time.monotonic(), 0.0))

    def keep(self, number: int, attempt: int, files: Files, told: Sequence[Step | str]) -> bool:
        """Keep what a task sends; ``False`` where another was begun in its place."""
        with self._lock:
            if self._cells[number].attempt != attempt or number in self._endings:
                return False
            self._keep(number, files)
            self._log.tell(*told)
            return True

    def news(self, seen: int) -> News:
        """What came after the file or sentence of that number; files of the whole run after 0."""
        with self._lock:
            files: dict[int, dict[str, bytes]] = {}
            size, last, whole = 0, self._log.last, True
            for (number, path), came in self._log.files.items():
                if came <= seen:
                    continue
                if size >= ANSWER_BYTES:
                    last, whole = came - 1, False
                    break
                content = (self._folder / str(number) / path).read_bytes()
                files.setdefault(number, {})[path] = content
                size += len(content)
            told = [one for came, one in self._log.told if seen < came <= last]
            finished = whole and (len(self._endings) == len(self._cells) or bool(self._fault))
            return News(last, files, told, dict(self._endings), finished, self._fault)

    def stop(self) -> None:
        """End every task as Ctrl-C ends a run; what was measured stays."""
        with self._lock:
            self._stopped_s = min(self._stopped_s, time.monotonic())

    def clear(self) -> None:
        """Remove what is kept here, once somebody has it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, number: int, files: Files) -> None:
        put(self._folder / str(number), files)
        for path in files:
            self._log.note(number, path)

    def _work(self) -> None:
        try:
            self._measure()
        except BaseException:  # noqa: BLE001 (told to whoever looks on: nobody waits for this thread)
            self._fault = traceback.format_exc()

    def _measure(self) -> None:
        """Submit every cell, and again where that is called for, until each has ended."""
        waiting: dict[Any, int] = {}
        due = dict.fromkeys(self._cells, 0.0)
        while len(self._endings) < len(self._cells):
            self._stop_what_is_over(waiting, due)
            for number in [number for number, when_s in due.items() if when_s <= time.monotonic()]:
                del due[number]
                waiting[self._submit(number)] = number
            if not waiting:
                time.sleep(POLL_S)
                continue
            for task in ray.wait([*waiting], num_returns=1, timeout=POLL_S)[0]:
                number = waiting.pop(task)
                if (again_s := self._end(number, _ending_of(task))) is not None:
                    due[number] = time.monotonic() + again_s

    def _submit(self, number: int) -> Any:
        with self._lock:
            cell = self._cells[number]
            cell.attempt += 1
            cell.running, cell.asked_s = False, math.inf
        machine = self._run.shard(number).machine
        gpus, cores = _needed(machine, self._run.ranks[number - 1])
        task = ray.remote(max_calls=1 if gpus else 0)(measure_cell)  # a worker that had GPUs takes one cell
        return task.options(
            name=f"perfgate {self._run.cell(number)}",
            num_gpus=gpus,
            num_cpus=cores,
            resources={machine: SHARE} if machine else {},
            max_retries=0,
        ).remote(self._run, number, cell.attempt, self._here, self._collector)

    def _end(self, number: int, ending: Ending | None) -> float | None:
        """Note how a task ended; in how many seconds it is submitted again, ``None`` where it is not."""
        with self._lock:
            cell, name = self._cells[number], self._run.cell(number)
            over = time.monotonic() > min(self._until_s, self._stopped_s)
            if ending is None:  # its node or worker is gone
                cell.lost += 1
                ending = Ending("stopped" if over else "failed", f"its node was lost {cell.lost} times")
                if cell.lost < LOST and not over:
                    self._log.tell(f"{name}: its node was lost; it goes on with what came back, on another one")
                    return 0.0
            if ending.kind == "stopped" and over and self._stopped_s == math.inf:
                ending = Ending("stopped", "the budget is over", "out-of-budget")
            if ending.kind == "given-back" and not over:
                wait_s = min(math.ldexp(AGAIN_S, cell.given_back), MOST_AGAIN_S)
                cell.given_back += 1
                self._log.tell(f"{name}: given back: {ending.text}; tried again in {wait_s:g} s")
                return wait_s
            if ending.kind == "failed":
                self._log.tell(f"{name}: {ending.text}")
            self._endings[number] = ending
            return None

    def _stop_what_is_over(self, waiting: Mapping[Any, int], due: dict[int, float]) -> None:
        """Where the run was stopped end every task, where its budget is over those that have not begun."""
        now_s = time.monotonic()
        stopped = now_s > self._stopped_s
        if not stopped and now_s < self._until_s:
            return
        code = "interrupted" if stopped else "out-of-budget"
        for number in [*due]:
            del due[number]
            self._endings[number] = Ending("stopped", "stopped" if stopped else "the budget is over", code)
        for task, number in waiting.items():
            cell = self._cells[number]
            impatient = now_s > cell.asked_s + END_S
            if impatient or (cell.asked_s == math.inf and (stopped or not cell.running)):  # a second Ctrl-C would kill
                cell.asked_s = now_s
                ray.cancel(task, force=impatient)


def _needed(machine: str, ranks: int) -> tuple[int, float]:
    """The GPUs and cores that a cell is to have on nodes of a class; on those without GPUs it has all cores.

    Where no such node is there yet Ray waits for one, and GPUs are taken for granted.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    like = [node["Resources"] for node in nodes if node["Alive"]]
    like = [resources for resources in like if not machine or machine in resources]
    if not like or any(resources.get("GPU") for resources in like):
        return ranks, 1
    return 0, max(resources.get("CPU", 0.0) for resources in like)


def _ending_of(task: Any) -> Ending | None:
    """How a task ended; ``None`` where its worker or node is gone."""
    try:
        ending = ray.get(task)
    except TaskCancelledError:
        return Ending("stopped", "stopped", "interrupted")
    except RayTaskError as error:
        return Ending("failed", f"{error.cause}\n{error}", "internal-error")
    except RayError:
        return None
    return ending if isinstance(ending, Ending) else None
