"""A run on a cluster without Ray: the coordinator as a plain object, and tasks that measure in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_collector import ByCell
from hand_made import scenario_file

from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.cli.measuring import Builds
from perfgate.cluster.cell_task import Here, measure
from perfgate.cluster.cells_folder import CellsFolder
from perfgate.cluster.cluster_run import ClusterRun, Ending, Files, Piece
from perfgate.cluster.commands import declared
from perfgate.cluster.coordinator import Coordinator
from perfgate.cluster.submission import Looking
from perfgate.cluster.travelling import GrowingFolder
from perfgate.metrics.trial import Trial

LOST = Ending("elsewhere", "its node was lost")
BUILDS = Builds(("python=/bin/true",), ("env.BUILD=new",), Path("runs"))


def run_of(folder: Path, cells: int = 2, builds: Builds = BUILDS) -> ClusterRun:
    """A run of so many cells, declared in ``folder``, which must be the working directory."""
    more = f"matrix: {{output_tokens: {[*range(4, 4 + cells)]}}}"
    file = scenario_file(folder, more=more)
    return declared([file], builds, {"against": None, "seed": 1}, lambda _: None)


def everything(growing: GrowingFolder) -> dict[str, bytes]:
    """The files that changed in a folder, of whatever pieces."""
    found: dict[str, bytes] = {}
    for message in growing.changed():
        for path, content in message.items():
            if isinstance(content, Piece):
                assert content.begin == len(found.get(path, b""))
                found[path] = found.get(path, b"") + content.content
            else:
                found[path] = content
    return found


class FakeDriver:
    """The process that drives the tasks, as far as the coordinator knows of it."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        """What it was told to have ended with."""
        return self.status


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


class NodeLostError(BaseException):
    """In the place of the end of a process."""


class Lost(ByCell):
    """Trials of a node that is lost when it takes the first of a pair.

    Args:
        pair: The pair.
        before: Called just before it is lost.
    """

    def __init__(self, pair: int, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.pair = pair
        self.before = before

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial, or the end."""
        if job.pair == self.pair:
            self.before()
            raise NodeLostError
        return super().collect(job, progress)


class Cluster:
    """A coordinator and what tests do with it.

    Args:
        run: What is measured.
        files: What came back earlier.
        budget_s: Of the run.
        open_cells: Those to be measured; all by default.
    """

    def __init__(
        self,
        run: ClusterRun,
        files: Mapping[int, Files] | None = None,
        budget_s: float = 1e9,
        open_cells: Sequence[int] = (),
    ) -> None:
        self.run = run
        self.driver = FakeDriver()
        self.clock = Clock()
        self.coordinator = Coordinator(
            run, files or {}, open_cells or [*run.numbers], budget_s, None, lambda _: self.driver, self.clock
        )

    def measure(self, number: int, collector: Any = None, host: str = "node") -> Ending:
        """Have a cell measured here, as a task does."""
        attempt = self.coordinator.submitted(number)
        here = Here(host, node=f"id of {host}")
        return measure(self.run, number, attempt.number, self.coordinator, here, collector or ByCell())

    def lose(self, number: int, pair: int = 2) -> None:
        """Have a cell measured by a node that is lost in the middle."""
        try:
            self.measure(number, Lost(pair))
        except NodeLostError:
            self.coordinator.ended(number, LOST)

    def finish(self, numbers: Sequence[int] | None = None) -> None:
        """Have cells measured whole, and the driver end."""
        for number in numbers or self.run.numbers:
            self.coordinator.ended(number, self.measure(number))
        self.driver.status = 0

    @property
    def told(self) -> list[str]:
        """The sentences so far."""
        return [one for one in self.coordinator.news("a test", 0).told if isinstance(one, str)]

    def looking(self, folder: Path, told: list[Step | str] | None = None) -> Looking:
        """A command that looks on."""
        cells = CellsFolder(folder / f"{self.run.name}.cluster")
        cells.begin(self.run)
        return Looking(cells, self.coordinator, (told if told is not None else []).append)
