"""The side of the command: have a run measured on a cluster, look on, take what comes back, judge it."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from perfgate import gate
from perfgate.capture.job import Collector
from perfgate.capture.pace import Progress
from perfgate.cluster.cluster_run import NAMESPACE, ClusterRun, put, read_all
from perfgate.cluster.coordinator import Coordinator, News
from perfgate.errors import InterruptedRunError, NotMeasuredError, RecordError, UsageError
from perfgate.gate import Finished
from perfgate.joining import agreed_in, join, part_in
from perfgate.judge.next_pairs import due
from perfgate.machine.locks import hold
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import read_records
from perfgate.report.run_folders import LATEST, RUN

SUFFIX: Final = ".cluster"
"""Of the folder beside the joined run's that holds the run folder of each cell."""
MANIFEST: Final = "cluster.json"
CELLS: Final = "cells"
POLL_S: Final = 0.5


def run_on(
    address: str, run: ClusterRun, runs: Path, progress: Progress, budget_s: float, collector: Collector | None = None
) -> Finished:
    """Have a run measured on a cluster, and judge it here.

    Args:
        address: ``auto``, ``ray://HOST:PORT`` or ``HOST:PORT``.
        run: What is measured.
        runs: Where the joined run's folder is made, and beside it one with the run folders of the cells.
        progress: Told of each trial, and of what happens in the cluster.
        budget_s: For all cells together.
        collector: Takes the trials; the real engine where there is none.

    Raises:
        UsageError: There is no cluster at that address.
        InterruptedRunError: Stopped, or out of budget; what was measured is in the folder.
        NotMeasuredError: Nothing was measured, and why.
    """
    folder = runs / f"{run.name}{SUFFIX}"
    with connected(address):
        (folder / CELLS).mkdir(parents=True)
        write_model(folder / MANIFEST, run)
        progress(f"measured on {address}; to look on again: {_way_on(address, run, '--attach')}")
        return _measured(folder, run, address, progress, _begin(run, folder, budget_s, collector))


def go_on(
    address: str, word: Path, runs: Path, progress: Progress, budget_s: float, collector: Collector | None = None
) -> Finished:
    """Go on with a run: look on where the cluster still measures it, else have its open cells measured.

    Args:
        address: See :func:`run_on`.
        word: Its name, its folder, or ``latest``.
        runs: See :func:`run_on`.
        progress: See :func:`run_on`.
        budget_s: See :func:`run_on`; a run that is still being measured keeps its own.
        collector: See :func:`run_on`.

    Raises:
        RecordError: There is no such run.
        PerfgateError: See :func:`run_on`.
    """
    folder = _folder_of(word, runs)
    with connected(address):
        actor = _actor(folder.name.removesuffix(SUFFIX))
        if actor is not None:
            return _attached(address, folder, actor, progress)
        run = read_model(ClusterRun, folder / MANIFEST)
        return _measured(folder, run, address, progress, _begin(run, folder, budget_s, collector))


def attach(address: str, word: Path, runs: Path, progress: Progress) -> Finished:
    """Look on at a run that the cluster measures, or has measured while nobody looked; begun from whatever machine.

    Raises:
        RecordError: The cluster has no such run.
        PerfgateError: See :func:`run_on`.
    """
    folder = _folder_of(word, runs, there=False)
    with connected(address):
        actor = _actor(folder.name.removesuffix(SUFFIX))
        if actor is None:
            remedy = (
                f"Where its folder is, it goes on with: perfgate run --resume {shlex.quote(str(word))} --on {address}"
            )
            raise RecordError(f"{address} measures no run of that name", where=str(word), remedy=remedy)
        return _attached(address, folder, actor, progress)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A block with a connection to a cluster; nothing of Ray is started.

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
    try:
        yield
    finally:
        ray.shutdown()


def _way_on(address: str, run: ClusterRun, option: str) -> str:
    return f"perfgate run {option} {shlex.quote(run.name)} --on {shlex.quote(address)}"


def _folder_of(word: Path, runs: Path, *, there: bool = True) -> Path:
    """The folder with the cells of a run, which must be ``there``."""
    if str(word) == LATEST:
        found = [file.parent for file in runs.glob(f"*{SUFFIX}/{MANIFEST}")]
        if not found:
            raise RecordError("holds no run that was measured on a cluster", where=str(runs))
        return max(found, key=lambda folder: (folder / MANIFEST).stat().st_mtime)
    name = f"{word.name.removesuffix(SUFFIX)}{SUFFIX}"
    found = [folder for folder in (word.with_name(name), runs / name) if (folder / MANIFEST).is_file()]
    if not found and there:
        raise RecordError(f"no run of that name was begun on a cluster, here or in {runs}/", where=str(word))
    return found[0] if found else runs / name


def _actor(name: str) -> Any:
    """The actor that looks after a run; ``None`` where there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _begin(run: ClusterRun, folder: Path, budget_s: float, collector: Collector | None) -> Any:
    """Have the open cells measured; the actor that looks after them."""
    open_cells = [number for number in range(1, len(run.plan.include) + 1) if _is_open(_cell(folder, number))]
    files = {number: read_all(_cell(folder, number)) for number in open_cells}
    try:
        actor: Any = ray.remote(Coordinator)
        return actor.options(
            name=run.name,
            lifetime="detached",
            num_cpus=0,
            resources={"node:__internal_head__": 0.001},
        ).remote(run, files, open_cells, budget_s, collector)
    except ValueError as error:  # somebody was faster
        raise NotMeasuredError(str(error), where=run.name, code="run-folder-busy") from error


def _cell(folder: Path, number: int) -> Path:
    return folder / CELLS / f"{number:03}"


def _is_open(cell: Path) -> bool:
    """Whether a cell is to have more trials."""
    try:
        folder = part_in(cell)
        run = read_manifest(folder)
        return any(due(run, {record.cell.cell_id: record for record in read_records(folder, run)}))
    except NotMeasuredError:  # nothing came back
        return True


def _attached(address: str, folder: Path, actor: Any, progress: Progress) -> Finished:
    run: ClusterRun = ray.get(actor.order.remote()).run
    (folder / CELLS).mkdir(parents=True, exist_ok=True)
    write_model(folder / MANIFEST, run)
    progress(f"{address} measures it: looking on")
    return _measured(folder, run, address, progress, actor)


def _measured(folder: Path, run: ClusterRun, address: str, progress: Progress, actor: Any) -> Finished:
    """Look on until everything came back, then join and judge it."""
    stopped = False
    with hold(folder):
        looking = _Looking(folder, actor, progress)
        try:
            news = looking.until_finished()
        except KeyboardInterrupt:
            stopped = True
            progress("ending the cells that are being measured; what was measured is kept")
            actor.stop.remote()
            news = looking.until_finished()
    for number in range(1, len(run.plan.include) + 1):
        if not any(_cell(folder, number).glob(f"*/{RUN}")):
            shutil.rmtree(_cell(folder, number), ignore_errors=True)
    reasons = [ending.text for ending in news.endings.values() if ending.kind == "failed"]
    halts = [ending for ending in news.endings.values() if ending.kind == "stopped"]
    parts = sorted((folder / CELLS).glob("*"))
    way_on = f"Go on with: {_way_on(address, run, '--resume')}"
    if not parts and not halts and not news.fault:
        raise NotMeasuredError("\n".join(dict.fromkeys(reasons)), where=address, remedy=way_on)
    finished = None
    if parts:
        joined = join(parts, folder.parent, agreed_in(run.plan))
        finished = Finished(joined, gate.judge_folder(joined))
    if halts or stopped or news.fault or finished is None:
        code = "out-of-budget" if halts and halts[0].code == "out-of-budget" else "interrupted"
        text = f"{news.fault or (halts[0].text if halts else 'stopped')}; what was measured is in {folder}"
        raise InterruptedRunError(text, remedy=way_on, code=code)
    return finished


class _Looking:
    """Looks on at a run, and takes what comes back."""

    def __init__(self, folder: Path, actor: Any, progress: Progress) -> None:
        self._folder = folder
        self._actor = actor
        self._progress = progress
        self._seen = 0

    def until_finished(self) -> News:
        """Take what comes back until nothing more comes, and let go of the actor; the last that it said."""
        try:
            while not (news := self._next()).finished:
                time.sleep(POLL_S)
            ray.get(self._actor.clear.remote())
            ray.kill(self._actor)
        except RayActorError as error:
            text = f"the actor that looks after the run is gone; what came back is kept\n{error}"
            remedy = "Go on with --resume."
            raise InterruptedRunError(text, where=str(self._folder), remedy=remedy, code="interrupted") from error
        return news

    def _next(self) -> News:
        news: News = ray.get(self._actor.news.remote(self._seen))
        for number, files in news.files.items():
            put(_cell(self._folder, number), files)
        self._seen = news.seen
        for one in news.told:
            self._progress(one)
        return news
