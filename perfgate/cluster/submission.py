"""The side of the command: have a run measured on a cluster, look on, take what comes back, judge it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from perfgate import gate
from perfgate.capture.job import Collector
from perfgate.capture.pace import Progress
from perfgate.cluster.cell_task import called
from perfgate.cluster.cells_folder import MANIFEST, CellsFolder
from perfgate.cluster.cluster_run import NAMESPACE, ClusterRun, Files, Node, Piece, is_last
from perfgate.cluster.coordinator import Coordinator, News
from perfgate.cluster.task_driver import alive_nodes, start
from perfgate.cluster.travelling import put, read_for_later_pairs
from perfgate.errors import InterruptedRunError, NotMeasuredError, PerfgateError, RecordError, UsageError
from perfgate.fleet.joining import agreed_in, join
from perfgate.gate import Finished
from perfgate.machine.locks import hold
from perfgate.report.run_folders import LATEST

SUFFIX: Final = ".cluster"  # of the folder beside the joined run's that holds the run folder of each cell
POLL_S: Final = 0.5


def run_on(
    address: str, run: ClusterRun, runs: Path, progress: Progress, budget_s: float, collector: Collector | None = None
) -> Finished:
    """Have a run measured on a cluster, and judge it here.

    The joined run's folder is made in ``runs``, and beside it another with the run folders of the cells. The address is
    ``auto``, ``ray://HOST:PORT`` or ``HOST:PORT``, and the budget that of all cells together.

    Raises:
        UsageError: There is no cluster at that address.
        InterruptedRunError: Stopped, or out of budget; what was measured is in the folder.
        NotMeasuredError: Nothing was measured, and why.
    """
    folder = CellsFolder(runs / f"{run.name}{SUFFIX}")
    with connected(address):
        folder.begin(run)
        with hold(folder.path):
            actor = _begin(run, folder, budget_s, progress, collector)
            progress(f"measured on {address}; to look on again: {_way_on(address, run, '--attach')}")
            return _measured(folder, run, address, progress, actor)


def go_on(
    address: str, word: Path, runs: Path, progress: Progress, budget_s: float, collector: Collector | None = None,
    *, attach: bool = False,
) -> Finished:  # fmt: skip
    """Go on with a run: look on where the cluster still measures it, else have its open cells measured.

    ``word`` is its name, its folder, or ``latest``. A run that is still being measured keeps its budget. With
    ``attach`` nothing is measured anew, and the run may have been begun from whatever machine.

    Raises:
        RecordError: There is no such run.
        PerfgateError: See :func:`run_on`.
    """
    folder = _folder_of(word, runs, there=not attach)
    with connected(address):
        actor = _actor(folder.path.name.removesuffix(SUFFIX))
        if actor is not None:
            run = called(actor).order().run
            folder.begin(run)
        elif attach:
            way_on = f"perfgate run --resume {shlex.quote(str(word))} --on {address}"
            raise RecordError(f"{address} measures no run of that name", where=str(word),
                              remedy=f"Where its folder is, it goes on with: {way_on}")  # fmt: skip
        else:
            run = folder.run()
        with hold(folder.path):  # another command may take into it what another cluster measures
            if actor is not None:
                progress(f"{address} measures it: looking on")
            actor = actor or _begin(run, folder, budget_s, progress, collector)
            return _measured(folder, run, address, progress, actor)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A block with a connection to a cluster; nothing of Ray is started.

    What Ray prints of nodes and tasks goes to standard error: an outcome is what is read from standard output.

    Raises:
        UsageError: There is none at that address.
    """
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray exits at once, and the run would go on without anybody
    except (ConnectionError, RuntimeError, ValueError) as error:
        remedy = "Start one (ray start --head), and name it: auto on one of its nodes, or ray://HOST:10001."
        raise UsageError(f"--on {address}: {error}", remedy=remedy) from error
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            ray.shutdown()  # it prints what it has held back


def nodes_at(address: str) -> list[Node]:
    """The nodes of a cluster.

    Raises:
        UsageError: There is none at that address.
    """
    with connected(address):
        return alive_nodes()


def _way_on(address: str, run: ClusterRun, option: str) -> str:
    return f"perfgate run {option} {shlex.quote(run.name)} --on {shlex.quote(address)}"


def _folder_of(word: Path, runs: Path, *, there: bool = True) -> CellsFolder:
    """The folder with the cells of a run, which must be ``there``."""
    if str(word) == LATEST:
        folders = [file.parent for file in runs.glob(f"*{SUFFIX}/{MANIFEST}")]
        if not folders:
            raise RecordError("holds no run that was measured on a cluster", where=str(runs))
        return CellsFolder(max(folders, key=lambda folder: (folder / MANIFEST).stat().st_mtime))
    name = f"{word.name.removesuffix(SUFFIX)}{SUFFIX}"
    folders = [folder for folder in (word.with_name(name), runs / name) if (folder / MANIFEST).is_file()]
    if not folders and there:
        raise RecordError(f"no run of that name was begun on a cluster, here or in {runs}/", where=str(word))
    return CellsFolder(folders[0] if folders else runs / name)


def _actor(name: str) -> Any:
    """The actor that looks after a run; ``None`` where there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _begin(
    run: ClusterRun, folder: CellsFolder, budget_s: float, progress: Progress, collector: Collector | None
) -> Any:
    """Have the open cells measured; the actor that looks after them."""
    files, cells = what_is_left(run, folder, progress)
    try:
        actor: Any = ray.remote(Coordinator)
        return actor.options(
            name=run.name,
            lifetime="detached",
            num_cpus=0,
            resources={"node:__internal_head__": 0.001},
        ).remote(run, files, cells, budget_s, collector, start)
    except ValueError as error:  # somebody was faster
        raise NotMeasuredError(str(error), where=run.name, code="run-folder-busy") from error


def what_is_left(run: ClusterRun, folder: CellsFolder, progress: Progress) -> tuple[dict[int, Files], list[int]]:
    """What an actor needs of each cell that was measured, in part or whole, and the cells that are to have more trials.

    Those that cannot be read are set aside, told of, and measured anew.
    """
    left = []
    for number in run.numbers:
        try:
            is_open = folder.is_open(number)
        except PerfgateError as error:
            kept = folder.set_aside(number)
            progress(f"{run.cell(number)}: {error.finding}\nIt is measured anew; what came back of it is in {kept}")
            is_open = True
        if is_open:
            left.append(number)
    return {number: read_for_later_pairs(folder.cell(number)) for number in run.numbers if folder.has(number)}, left


def _measured(folder: CellsFolder, run: ClusterRun, address: str, progress: Progress, actor: Any) -> Finished:
    """Look on until everything came back into a folder that is held, then join and judge it."""
    looking = Looking(folder, called(actor), progress)
    way_on = f"Go on with: {_way_on(address, run, '--resume')}"
    stopped = False
    try:
        try:
            news = looking.until_finished()
        except KeyboardInterrupt:
            stopped = True
            progress("ending the cells that are being measured; what was measured is kept")
            called(actor).stop()
            news = looking.until_finished()
        with contextlib.suppress(RayActorError):  # ended by another command that looked on
            looking.leave()
            ray.kill(actor)
    except RayActorError as error:
        text = f"the actor that looks after the run is gone; what came back is kept\n{error}"
        raise InterruptedRunError(text, where=str(folder.path), remedy=way_on, code="interrupted") from error
    return joined(folder, run, news, way_on, stopped=stopped)


def joined(folder: CellsFolder, run: ClusterRun, news: News, way_on: str, *, stopped: bool) -> Finished:
    """Join what came back, and judge it.

    Raises:
        NotMeasuredError: Nothing was measured, and why.
        InterruptedRunError: Not all was measured that could be.
    """
    failed = [ending.text for ending in news.endings.values() if ending.kind == "failed"]
    halts = [ending for ending in news.endings.values() if ending.kind == "stopped"]
    parts = folder.parts()
    if not parts and not halts and not news.fault:
        raise NotMeasuredError("\n".join(dict.fromkeys(failed)), where=run.name, remedy=way_on)
    finished = None
    if parts:
        whole = join(parts, folder.path.parent, agreed_in(run.plan))
        finished = Finished(whole, gate.judge_folder(whole))
    if halts or stopped or news.fault or finished is None:
        code = "out-of-budget" if halts and halts[0].code == "out-of-budget" else "interrupted"
        text = f"{news.fault or (halts[0].text if halts else 'stopped')}; what was measured is in {folder.path}"
        raise InterruptedRunError(text, remedy=way_on, code=code)
    return finished


@dataclass
class Looking:
    """Looks on at a run, and takes what comes back."""

    folder: CellsFolder  # where that is put
    coordinator: Coordinator  # looks after the run
    progress: Progress  # told of each trial, and of what happens in the cluster
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
    seen: int = 0  # the last file or sentence that came

    def until_finished(self) -> News:
        """Take what comes back until nothing more comes; the last that was told."""
        while not (news := self._next()).finished:
            time.sleep(POLL_S)
        return news

    def leave(self) -> None:
        """Have what came back removed there, once every other command that looks on has it too."""
        if not self.coordinator.leave(self.name):
            self.progress("waiting until another command that looks on has it too")
        while not self.coordinator.leave(self.name):
            time.sleep(POLL_S)
        self.coordinator.clear()

    def _next(self) -> News:
        news = self.coordinator.news(self.name, self.seen)
        for number, files in news.files.items():
            for path, content in files.items():
                self._take(number, path, content)
        self.seen = news.seen
        for entry in news.told:
            self.progress(entry)
        return news

    def _take(self, number: int, path: str, content: bytes | Piece) -> None:
        """Keep a file, and ask for the rest of a large one; of one that was replaced meanwhile there is news."""
        put(self.folder.cell(number), {path: content})
        while isinstance(content, Piece) and not is_last(content):
            following = self.coordinator.rest(number, path, content)
            if following is None:
                return
            content = following
            put(self.folder.cell(number), {path: content})
