"""The actor that looks after a run on the head node: it keeps what tasks send back, and what became of each cell.

It is detached, so that it outlives the command that made it. Tasks belong to a job of Ray, and leases of a job whose
driver is gone may be lost, so the actor starts a driver of its own (:mod:`perfgate.cluster.task_driver`), as Ray's own
jobs do. Nothing here knows of Ray: the same object works without it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from perfgate.capture.job import Collector
from perfgate.capture.pace import Step
from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.cluster_run import Begun, ClusterRun, Ending, Files, Piece, is_last
from perfgate.cluster.travelling import MESSAGE_BYTES, GrowingFolder, put, read_for_later_pairs, read_piece
from perfgate.errors import PerfgateError, RecordError
from perfgate.machine.locks import hold
from perfgate.machine.temporary_folder import left_behind

# After so long a cell whose GPU was in use is submitted again, and twice as long each further time
AGAIN_S: Final = 2.0
MOST_AGAIN_S: Final = 60.0
# So many nodes a cell may lose. One that brings down every node it runs on must not go through the cluster.
NODES: Final = 3
UNBUILT: Final = "build-failed"
# So many nodes try the builds of a cell: one may lack a compiler, and what a second one cannot build is broken
UNBUILT_ON: Final = 2
NODE_WAIT_S: Final = 1800.0  # so long a cell waits for a node that can hold it: an autoscaler starts one in minutes
# Reasons for which a cell waits for a node that is not there yet; what is set up wrongly is so on new ones, too
OF_ONE_MACHINE: Final = frozenset({"storage-failed", "gpu-lost", "gpu-unreadable"})
# So long after the budget a task is stopped that has not ended by itself: it hangs, or its trials take many times what
# they took before
OVERTIME_S: Final = 3600.0
# A command that has not asked for so long does not look on any longer. One that does asks twice a second.
AWAY_S: Final = 30.0
# How the names of the folders begin in which actors keep what came back, below that for temporary files
PLACE: Final = "perfgate-cluster-"


class Driver(Protocol):
    """The process that drives the tasks."""

    def poll(self) -> int | None:
        """Its exit status; ``None`` while it runs."""


@dataclass(frozen=True)
class Order:
    """What the driver is to do."""

    run: ClusterRun  # what is measured
    open_cells: Sequence[int]  # the cells that are to be measured, by number
    collector: Collector | None  # takes the trials; the real engine where there is none


@dataclass(frozen=True)
class Attempt:
    """A task that is to be submitted."""

    number: int  # which attempt at its cell it is, from 1
    avoided: frozenset[str]  # ray's ids of the nodes that cannot measure the cell


@dataclass(frozen=True)
class Wanted:
    """What is to end."""

    over: bool  # whether nothing is to begin any more
    stopped: bool  # whether what runs is to end as well
    running: frozenset[int]  # the cells whose tasks have begun


@dataclass(frozen=True)
class News:
    """What a command that looks on is told."""

    seen: int  # the number of the last file or sentence in it, to ask for what comes after
    files: Mapping[int, Files]  # by number of the cell
    told: Sequence[Step | str]  # steps and sentences
    endings: Mapping[int, Ending]  # how cells ended, by number
    finished: bool  # whether every cell has ended and everything is in this answer or an earlier one
    fault: str  # why no further cell is measured, where that is not because all have ended


@dataclass
class _Cell:
    """What is known of a cell."""

    attempt: int = 0  # how often it was submitted
    running: bool = False  # whether that task has begun
    lost: int = 0  # how often its node was lost
    # How it ended on nodes that cannot measure it, by Ray's id
    avoided: dict[str, Ending] = field(default_factory=dict)
    wait_s: float = AGAIN_S  # how long it waits where its GPU is in use once more
    homeless: str = ""  # why no node can hold it; empty where one can
    homeless_s: float = 0.0  # since when that is so


@dataclass
class _Log:
    """Files and sentences in the order that they came."""

    last: int = 0
    files: dict[tuple[int, str], int] = field(default_factory=dict)
    told: list[tuple[int, Step | str]] = field(default_factory=list)

    def tell(self, *news: Step | str) -> None:
        for entry in news:
            self.last += 1
            self.told.append((self.last, entry))

    def note(self, number: int, path: str) -> None:
        self.last += 1
        self.files.pop((number, path), None)
        self.files[number, path] = self.last


class Coordinator:
    """Looks after one run; its methods return at once.

    ``files`` is what was measured earlier and ``open_cells`` what is to be measured, by number of the cell. The budget
    is that of all together, from now on. ``start_driver`` starts the driver of the tasks of the run of a name.
    """

    def __init__(
        self, run: ClusterRun, files: Mapping[int, Files], open_cells: Sequence[int], budget_s: float,
        collector: Collector | None, start_driver: Callable[[str], Driver],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._order = Order(run, open_cells, collector)
        self._now_s = now_s
        self._until_s = now_s() + budget_s
        self._cells = {number: _Cell() for number in open_cells}
        self._endings: dict[int, Ending] = {}
        self._looking: dict[str, float] = {}
        self._log = _Log()
        self._stopped = False
        self._fault = ""
        self._folder = CellsFolder(Path(tempfile.mkdtemp(prefix=f"{PLACE}{run.name}-")))
        self._held = ExitStack()
        self._held.enter_context(hold(self._folder.path))
        self._folder.begin(run)
        for number, cell_files in files.items():
            self._keep(number, cell_files)
        for left in left_behind(f"{PLACE}{run.name}-", self._folder.path):
            self._adopt(CellsFolder(left))
        self._driver = start_driver(run.name)

    def order(self) -> Order:
        """What is measured, for the driver and for a command that looks on."""
        return self._order

    def wanted(self) -> Wanted:
        """What the driver is to end."""
        stopped = self._stopped or self._now_s() > self._until_s + OVERTIME_S
        running = frozenset(number for number, cell in self._cells.items() if cell.running)
        return Wanted(self._over, stopped, running)

    def submitted(self, number: int) -> Attempt:
        """Note that the task of a cell is submitted; which attempt that is."""
        cell = self._cells[number]
        cell.attempt += 1
        cell.running = False
        return Attempt(cell.attempt, frozenset(cell.avoided))

    def homeless(self, number: int, why: str) -> bool:
        """Note why no node can hold a cell, empty where one can again.

        Returns:
            Whether the cell is given up: others could not measure it either, or it has waited for too long.
        """
        cell = self._cells[number]
        if why and why != cell.homeless:
            self._log.tell(f"{self._order.run.cell(number)}: {why}")
        if not cell.homeless:
            cell.homeless_s = self._now_s()
        cell.homeless = why
        defects = [other.code in OF_ONE_MACHINE for other in cell.avoided.values()]
        hopeless = not all(defects) or len(defects) >= NODES
        return bool(why) and (hopeless or self._now_s() > cell.homeless_s + NODE_WAIT_S)

    def begin(self, number: int, attempt: int) -> Begun | None:
        """What the task of a cell needs; ``None`` where another was begun in its place, or the run is stopped."""
        cell = self._cells[number]
        if cell.attempt != attempt or self._stopped:
            return None
        cell.running, cell.homeless = True, ""
        left_s = max(self._until_s - self._now_s(), 0.0)
        return Begun(read_for_later_pairs(self._folder.cell(number)), left_s, self._folder.path.name)

    def keep(self, number: int, attempt: int, files: Files, news: Sequence[Step | str]) -> bool:
        """Keep what a task sends; ``False`` where another was begun in its place, or nothing more can be kept."""
        if self._cells[number].attempt != attempt or number in self._endings:
            return False
        try:
            self._keep(number, files)
        except OSError as error:  # not to be raised there, where it would be the node's
            self._fault = f"the head node cannot keep what is measured: {error}"
            self.stop()
            return False
        self._log.tell(*news)
        return True

    def ended(self, number: int, ending: Ending) -> float | None:
        """Note how a task ended.

        Returns:
            In how many seconds it is to be submitted again; ``None`` where it is not.
        """
        cell, name = self._cells[number], self._order.run.cell(number)
        cell.running = False
        if ending.kind == "given-back" and not self._over:
            wait_s, cell.wait_s = cell.wait_s, min(2 * cell.wait_s, MOST_AGAIN_S)
            self._log.tell(f"{name}: given back: {ending.text}; tried again in {wait_s:g} s")
            return wait_s
        if ending.kind == "elsewhere" and not self._over:
            if fresh := ending.node not in {"", *cell.avoided}:  # nodes that cannot measure hide none that can
                cell.avoided[ending.node] = ending
            else:
                cell.lost += 1
            unbuilt = [other.code for other in cell.avoided.values()].count(UNBUILT)
            if unbuilt < UNBUILT_ON and (fresh or cell.lost < NODES):
                self._log.tell(f"{name}: {ending.text}; it goes on with what came back, on another one")
                return 0.0
            text = f"{ending.text}; so it went {NODES} times"
            if unbuilt == UNBUILT_ON:
                text = f"not built on {unbuilt} nodes, at last: {ending.text}"
            ending = Ending("failed", text, ending.code)
        if ending.kind not in ("done", "failed"):
            ending = self._halted(cell, ending)
        if ending.kind == "failed":
            self._log.tell(f"{name}: {ending.text}")
        self._endings[number] = ending
        return None

    def news(self, looker: str, seen: int) -> News:
        """What came after the file or sentence of that number, everything after 0, for a command that looks on."""
        self._looking[looker] = self._now_s()
        files: dict[int, dict[str, bytes | Piece]] = {}
        size, last, whole = 0, self._log.last, True
        for (number, path), came in self._log.files.items():
            if came <= seen:
                continue
            if size >= MESSAGE_BYTES:
                last, whole = came - 1, False
                break
            content = read_piece(self._folder.cell(number), path)
            files.setdefault(number, {})[path] = content
            size += len(content.content if isinstance(content, Piece) else content)
        entries = [entry for came, entry in self._log.told if seen < came <= last]
        status = self._driver.poll()
        fault = self._fault or ("" if status in (None, 0) else f"the driver of the tasks ended with {status}")
        return News(last, files, entries, dict(self._endings), whole and status is not None, fault)

    def rest(self, number: int, path: str, before: Piece) -> Piece | None:
        """The piece of a file that follows another; ``None`` where the file was replaced, which is news."""
        try:
            content = read_piece(self._folder.cell(number), path, before)
        except OSError:
            return None
        return content if isinstance(content, Piece) else None

    def leave(self, looker: str) -> bool:
        """Note that a command has everything; whether no other one still looks on, so that this may be cleared."""
        self._looking.pop(looker, None)
        return all(self._now_s() > asked_s + AWAY_S for asked_s in self._looking.values())

    def stop(self) -> None:
        """End every task as Ctrl-C ends a run; what was measured stays."""
        self._stopped = True

    def clear(self) -> None:
        """Remove what is kept here, once whoever looks on has it."""
        self._held.close()
        shutil.rmtree(self._folder.path, ignore_errors=True)

    @property
    def _over(self) -> bool:
        return self._stopped or self._now_s() > self._until_s

    def _halted(self, cell: _Cell, ending: Ending) -> Ending:
        """How a cell ended that was not measured whole."""
        if cell.homeless and not self._stopped:
            return Ending("failed", "; ".join([*(other.text for other in cell.avoided.values()), cell.homeless]))
        if ending.code == "out-of-budget" or (self._over and not self._stopped):
            return Ending("stopped", "the budget is over", "out-of-budget")
        return Ending("stopped", "stopped", "interrupted")

    def _keep(self, number: int, files: Files) -> None:
        put(self._folder.cell(number), files)
        for path, content in files.items():
            if not path.endswith("/") and is_last(content):
                self._log.note(number, path)

    def _adopt(self, left: CellsFolder) -> None:
        """Go on with what an actor kept that ended before somebody had it; what cannot be used stays where it is."""
        try:
            with hold(left.path):
                if left.run() != self._order.run:
                    raise RecordError("is of a run with other builds or cells")
                taken = [self._takes(left, number) for number in self._cells]
                if all(taken):
                    shutil.rmtree(left.path)
        except (PerfgateError, OSError) as error:  # or in use by an actor of another cluster
            self._log.tell(f"what an earlier actor kept in {left.path} is left there: {error}")

    def _takes(self, left: CellsFolder, number: int) -> bool:
        """Take a cell over where more was measured there; whether nothing is there that is not here."""
        folder, name = self._folder, self._order.run.cell(number)
        try:
            here, there = folder.trials(number), left.trials(number)
        except PerfgateError as error:
            self._log.tell(f"{name}: what an earlier actor kept in {left.cell(number)} cannot be read: {error.finding}")
            return False
        shared = min(len(here), len(there))
        if here[:shared] != there[:shared]:
            self._log.tell(f"{name}: measured otherwise in {left.cell(number)}, which stays there")
            return False
        if len(there) > len(here):
            everything = GrowingFolder(left.cell(number))
            for files in everything.changed():
                self._keep(number, files)
            self._log.tell(*(f"{name}: {text}" for text in everything.behind()))
            self._log.tell(f"{name}: {len(there) - len(here)} trials that an earlier actor kept are taken over")
        return True
