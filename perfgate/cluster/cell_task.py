"""The task of one cell, as a Ray worker runs it: perfgate measures as it would alone, and what it took is sent back.

Both builds of a pair run here, on the GPUs that Ray gave to the task, so no pair is ever divided between nodes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from perfgate import __version__, gate
from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Collector
from perfgate.capture.pace import Progress, Step
from perfgate.cluster.cluster_run import ClusterRun, Ending, Files, GrowingFolder, put
from perfgate.errors import InterruptedRunError, NotMeasuredError, PerfgateError
from perfgate.machine.locks import never_waiting
from perfgate.project.build import Builder
from perfgate.project.config import load_config
from perfgate.report.run_folders import RUN
from perfgate.run_steps import RunStep

SET_BY_RAY = ("RAY_", "OMP_NUM_THREADS")
"""How the variables begin that Ray sets for its workers. An engine that saw them would choose Ray to start its ranks
(vllm/config/parallel.py asks ``ray.is_initialized()``), and one thread for its kernels on the CPU."""


@dataclass(frozen=True)
class Begun:
    """What a task is given when it begins to run.

    Args:
        files: What was measured of its cell so far.
        seconds_left: Of the budget; infinite without one.
    """

    files: Files
    seconds_left: float


def measure_cell(run: ClusterRun, number: int, attempt: int, keeper: Any, collector: Collector | None) -> Ending:
    """Measure one cell here, or go on with it, and send back each trial before the next one begins.

    Args:
        run: What is measured.
        number: The cell, from 1.
        attempt: Which attempt at it this is; what a task sends after another one was begun is not taken.
        keeper: The actor that keeps what comes back, see :class:`perfgate.cluster.coordinator.Coordinator`.
        collector: Takes the trials; the real engine where there is none.
    """
    begun: Begun | None = ray.get(keeper.begin.remote(number, attempt))
    if begun is None:
        return Ending("stopped", "another task measures this cell")
    temporary = tempfile.TemporaryDirectory(prefix="perfgate-cell-", ignore_cleanup_errors=True)
    with temporary as place, without_ray(), never_waiting():
        runs = Path(place)
        put(runs, begun.files)
        sender = _Sender(GrowingFolder(runs), run, number, attempt, keeper)
        try:
            ending = _measure(run, number, runs, sender, begun.seconds_left, collector)
        finally:
            sender.send()
    return ending


def _measure(
    run: ClusterRun, number: int, runs: Path, progress: Progress, budget_s: float, collector: Collector | None
) -> Ending:
    try:
        if not Path(run.folder).is_dir():
            text = f"node {socket.gethostname()} has no {run.folder}, from which the run was begun"
            return Ending("failed", text)
        if run.perfgate != __version__:
            text = f"node {socket.gethostname()} has perfgate {__version__}, and {run.perfgate} began the run"
            return Ending("failed", text)
        os.chdir(run.folder)
        for subject in run.subjects.values():
            Builder(load_config(), progress).restore(subject)
        shard = run.plan.numbered(run.shard(number).shard)
        scenarios = [*map(Path, run.scenarios)]
        means: dict[str, Any] = {"shard": shard, "budget_s": budget_s, "progress": progress, "collector": collector}
        if found := sorted(runs.glob(f"*/{RUN}")):
            gate.resume(found[0].parent, only=(scenarios, run.subjects), **means)
        else:
            gate.run(scenarios, run.subjects, runs=runs, **means)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        return Ending("stopped", getattr(error, "text", "stopped"), getattr(error, "code", "interrupted"))
    except NotMeasuredError as error:
        return Ending("given-back" if error.code == "gpu-busy" else "failed", error.finding, error.code)
    except PerfgateError as error:
        return Ending("failed", error.finding, error.code)
    return Ending("done")


class _Sender:
    """Tells the keeper of each trial that has ended, with its files, and waits until they are kept."""

    def __init__(self, growing: GrowingFolder, run: ClusterRun, number: int, attempt: int, keeper: Any) -> None:
        self._growing = growing
        self._run = run
        self._number = number
        self._attempt = attempt
        self._keeper = keeper
        self._began = bool(growing.changed())
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        self._here = " GPU ".join([socket.gethostname(), *(",".join(gpus),) * bool(gpus)])

    def __call__(self, step: Step | str) -> None:
        """One step of the run.

        Raises:
            KeyboardInterrupt: Nobody takes what is measured here any longer.
        """
        if isinstance(step, str):
            print(step, flush=True)  # noqa: T201 (Ray shows it as the log of this task)
            taken = self.send(f"{self._run.cell(self._number)} on {self._here}: {step}")
        elif step.finished is not None:
            self._began = True
            if isinstance(step, RunStep):
                step = replace(step, number=self._number, cells=len(self._run.plan.include))
            taken = self.send(replace(step, station=self._here))
        else:
            return
        if not taken:
            raise KeyboardInterrupt

    def send(self, *told: Step | str) -> bool:
        """Send what has changed; whether it was taken, and not another task begun in the place of this one."""
        files = self._growing.changed() if self._began else {}  # a run without a trial is begun anew
        return bool(ray.get(self._keeper.keep.remote(self._number, self._attempt, files, told)))


@contextlib.contextmanager
def without_ray() -> Iterator[None]:
    """A block in which the environment is what it would be without Ray, but for the GPUs that it chose."""
    own = {name: value for name, value in os.environ.items() if name.startswith(SET_BY_RAY)}
    if not os.environ.get(VISIBLE, "all"):  # none was asked for: a cell of the CPU
        own[VISIBLE] = os.environ[VISIBLE]
    for name in own:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(own)
