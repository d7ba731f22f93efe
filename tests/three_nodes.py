"""A Ray cluster of three nodes on this machine, each with host locks of its own, and what measures on it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from fake_collector import ByCell, FakeSpec
from perfgate_process import marked_processes, wait_for
from ray.cluster_utils import Cluster

from perfgate.capture import session, station
from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.machine.children import spawn
from perfgate.machine.locks import STATE
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.run_record import read_records, read_run
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

CLASS = "small"
"""The class of machines that all three are."""
SLOWER = FakeSpec(restart_sd=0.0003, head_ratio={"step": 1.01})
SETTINGS = {
    # what a lost node is known by sooner than by default
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4,
    # workers start when there is a task for them
    "prestart_worker_first_driver": False, "enable_worker_prestart": False,
}  # fmt: skip

PROGRAM = """
import sys
from pathlib import Path
from three_nodes import Mixed
from perfgate.cli.main import main
main(obj=Mixed(Path(sys.argv.pop(1))))
"""


OBJECTS = 80 * 1024**2
"""Bytes of memory that a node keeps for objects; the least that Ray takes is 75 MiB."""


class Mixed(ByCell):
    """Trials of the stand-in engine for the scenario ``stub``, invented ones for others.

    Cells called ``held`` stop in the middle of each pair after their second until the folder holds ``go``; a process
    runs beside.

    Args:
        folder: Where a cell that waits leaves a file: its node's name is in it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__({"tiny[batch=3,output_tokens=4]": SLOWER})
        self.folder = folder
        self.engine = EngineCollector()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a Ray worker, as ``conftest`` has it for this process: no search for orphans, no waiting for a disk."""
        self.__dict__.update(state)
        os.fsync = lambda _: None  # type: ignore[assignment]
        for module in (session, station):
            vars(module)["end_orphans"] = lambda **_: ()
        vars(station)["find_orphans"] = lambda _: ()

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """Of whoever takes the trials of this cell."""
        return self.engine.probe(cell, subject) if cell.scenario == "stub" else None

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """The trial of this place in the plan."""
        if job.cell.scenario == "stub":
            return self.engine.collect(job, progress)
        if job.cell.scenario == "held" and (job.pair or 0) > 1 and job.position and not (self.folder / "go").exists():
            # A process in the place of an engine, which must end with whatever is killed above it.
            engine = spawn(
                ["/bin/sleep", "600"], environment={}, owner=job.owner, log=job.folder / "engine.log", folder=job.folder
            )
            try:
                (self.folder / f"{job.cell.name}.waits").write_text(Path(os.environ[STATE]).name)
                wait_for((self.folder / "go").exists)
            finally:
                engine.end()
        return super().collect(job, progress)


class ThreeNodes:
    """The cluster.

    Args:
        folder: For its nodes' locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._others = {*psutil.Process().children(recursive=True)}
        """What other tests keep in this process, such as a browser."""
        self._cluster = Cluster()
        self.nodes: dict[str, Any] = {}
        """Those that are there, by name."""
        before = os.environ[STATE]
        for name in ("head", "second", "third"):
            os.environ[STATE] = str(folder / name)
            node: dict[str, Any] = {"num_cpus": 1, "resources": {CLASS: 1}, "include_dashboard": False}
            node |= {"include_log_monitor": False, "no_monitor": True}  # which print and scale, and take seconds each
            node |= {"_system_config": SETTINGS} if name == "head" else {}
            self.nodes[name] = self._cluster.add_node(wait=False, **node, object_store_memory=OBJECTS)
        os.environ[STATE] = before
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        """For ``--on``."""
        return str(self._cluster.address)

    def kill(self, name: str) -> None:
        """Take a node away without a word."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def processes(self) -> list[psutil.Process]:
        """Of Ray, and below it."""
        return [one for one in psutil.Process().children(recursive=True) if one not in self._others]

    def actor(self) -> psutil.Process | None:
        """The process of the actor that looks after a run."""
        found = [one for one in self.processes() if "Coordinator" in " ".join(_words(one))]
        return found[0] if found else None

    def shutdown(self) -> None:
        """End it."""
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def three_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreeNodes]:
    """Three nodes for the length of a block; afterwards nothing of them runs.

    Raises:
        TimeoutError: Something does.
    """
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # the paths of its sockets must be short
    (folder.parent / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder.parent / "temporary"))  # where actors keep what came back
    own = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{own.parent}")  # the perfgate beside these tests
    cluster = ThreeNodes(folder)
    try:
        yield cluster
        processes = cluster.processes()
    finally:
        ray.shutdown()
        cluster.shutdown()
    wait_for(lambda: not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])


def command(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """``perfgate`` with :class:`Mixed` as a process of its own."""
    with (folder / "output").open("ab") as output:
        arguments = [sys.executable, "-c", PROGRAM, str(folder), *words]
        return subprocess.Popen(arguments, cwd=folder, stdout=output, stderr=output)


def kept(folder: Path) -> set[tuple[str, str]]:
    """The trials in the records that came back, by cell and content."""
    manifests = folder.glob("runs/*.cluster/cells/*/*/run.json")
    records = [record for file in manifests for record in read_records(file.parent, read_run(file.parent))]
    return {(record.cell.name, trial.model_dump_json()) for record in records for trial in record.trials}


def engines(folder: Path, manifests: str) -> list[tuple[str, psutil.Process]]:
    """The processes of cells that came back, in part or whole, with the names of their runs."""
    names = [file.parent.name for file in folder.glob(manifests)]
    return [(name, process) for name in names for process in marked_processes(name)]


def trials_with_the_actor(folder: Path) -> int:
    """How many trials it keeps."""
    files = folder.glob("temporary/perfgate-cluster-*/cells/*/*/records/*.json")
    return sum(len(json.loads(file.read_text())["trials"]) for file in files)
