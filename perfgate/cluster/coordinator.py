"""The actor that looks after a run on the head node: it keeps what tasks send back, and what became of each cell.

It is detached, so that it outlives the command that made it. Tasks belong to a job of Ray, and leases of a job whose
driver is gone may be lost, so the actor starts a driver of its own (:mod:`perfgate.cluster.task_driver`), as Ray's own
jobs do.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import ray

from perfgate.capture.job import Collector
from perfgate.capture.pace import Step
from perfgate.cluster.cell_task import Begun, without_ray
from perfgate.cluster.cluster_run import ClusterRun, Ending, Files, put, read_all

AGAIN_S: Final = 2.0
"""After so long a cell whose GPU was in use is submitted again, and twice as long each further time."""
MOST_AGAIN_S: Final = 60.0
DOUBLED: Final = 5
"""Doublings that reach that."""
LOST: Final = 3
"""So often a cell may lose its node. One that brings down every node it runs on must not go through the cluster."""
ANSWER_BYTES: Final = 64 * 1024**2
"""Of files in one answer, but for the last of them."""


@dataclass(frozen=True)
class Order:
    """What the driver is to do.

    Args:
        run: What is measured.
        open_cells: The cells that are to be measured, by number.
        collector: Takes the trials; the real engine where there is none.
    """

    run: ClusterRun
    open_cells: Sequence[int]
    collector: Collector | None


@dataclass(frozen=True)
class Wanted:
    """What is to end.

    Args:
        over: Whether nothing is to begin any more.
        stopped: Whether what runs is to end as well.
        running: The cells whose tasks have begun.
    """

    over: bool
    stopped: bool
    running: frozenset[int]


@dataclass(frozen=True)
class News:
    """What a command that looks on is told.

    Args:
        seen: The number of the last file or sentence in it, to ask for what comes after.
        files: By number of the cell.
        told: Steps and sentences.
        endings: How cells ended, by number.
        finished: Whether every cell has ended and everything is in this answer or an earlier one.
        fault: Why no further cell is measured, where that is not because all have ended.
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
        lost: How often its node was lost.
        given_back: How often its GPU was in use.
    """

    attempt: int = 0
    running: bool = False
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
        self._order = Order(run, open_cells, collector)
        self._until_s = time.monotonic() + budget_s
        self._folder = Path(tempfile.mkdtemp(prefix="perfgate-cluster-"))
        self._cells = {number: _Cell() for number in open_cells}
        self._endings: dict[int, Ending] = {}
        self._log = _Log()
        self._stopped = False
        for number, own in files.items():
            self._keep(number, own)
        words = [sys.executable, "-m", "perfgate.cluster.task_driver", ray.get_runtime_context().gcs_address, run.name]
        with without_ray():
            self._driver = subprocess.Popen(words, start_new_session=True)  # noqa: S603 (perfgate's own)

    def order(self) -> Order:
        """What is measured, for the driver and for a command that looks on."""
        return self._order

    def wanted(self) -> Wanted:
        """What the driver is to end."""
        running = frozenset(number for number, cell in self._cells.items() if cell.running)
        return Wanted(self._over, self._stopped, running)

    def submitted(self, number: int) -> int:
        """Note that the task of a cell is submitted; which attempt that is."""
        cell = self._cells[number]
        cell.attempt += 1
        cell.running = False
        return cell.attempt

    def begin(self, number: int, attempt: int) -> Begun | None:
        """What the task of a cell needs; ``None`` where another was begun in its place, or the run is stopped."""
        if self._cells[number].attempt != attempt or self._stopped:
            return None
        self._cells[number].running = True
        return Begun(read_all(self._folder / str(number)), max(self._until_s - time.monotonic(), 0.0))

    def keep(self, number: int, attempt: int, files: Files, told: Sequence[Step | str]) -> bool:
        """Keep what a task sends; ``False`` where another was begun in its place."""
        if self._cells[number].attempt != attempt or number in self._endings:
            return False
        self._keep(number, files)
        self._log.tell(*told)
        return True

    def ended(self, number: int, ending: Ending | None) -> float | None:
        """Note how a task ended, ``None`` where its node or worker was lost.

        Returns:
            In how many seconds it is to be submitted again; ``None`` where it is not.
        """
        cell, name = self._cells[number], self._order.run.cell(number)
        if ending is None:
            cell.lost += 1
            if cell.lost < LOST and not self._over:
                self._log.tell(f"{name}: its node was lost; it goes on with what came back, on another one")
                return 0.0
            ending = Ending("stopped" if self._over else "failed", f"its node was lost {cell.lost} times")
        if ending.kind == "given-back" and not self._over:
            wait_s = min(math.ldexp(AGAIN_S, min(cell.given_back, DOUBLED)), MOST_AGAIN_S)
            cell.given_back += 1
            self._log.tell(f"{name}: given back: {ending.text}; tried again in {wait_s:g} s")
            return wait_s
        if ending.kind in ("stopped", "given-back"):
            out = ending.code == "out-of-budget" or (not self._stopped and self._over)
            ending = Ending(
                "stopped", *(("the budget is over", "out-of-budget") if out else ("stopped", "interrupted"))
            )
        if ending.kind == "failed":
            self._log.tell(f"{name}: {ending.text}")
        self._endings[number] = ending
        return None

    def news(self, seen: int) -> News:
        """What came after the file or sentence of that number; everything after 0."""
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
        status = self._driver.poll()
        fault = "" if status in (None, 0) else f"the driver of the tasks ended with {status}"
        return News(last, files, told, dict(self._endings), whole and status is not None, fault)

    def stop(self) -> None:
        """End every task as Ctrl-C ends a run; what was measured stays."""
        self._stopped = True

    def clear(self) -> None:
        """Remove what is kept here, once somebody has it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _over(self) -> bool:
        return self._stopped or time.monotonic() > self._until_s

    def _keep(self, number: int, files: Files) -> None:
        put(self._folder / str(number), files)
        for path in files:
            self._log.note(number, path)
