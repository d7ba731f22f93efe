"""The task of one cell, as a Ray worker runs it: perfgate measures as it would alone, and what it took is sent back.

Both builds of a pair run here, on the GPUs that Ray gave to the task, so no pair is ever divided between nodes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import ray

from perfgate import __version__, gate
from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Collector
from perfgate.capture.pace import Step
from perfgate.cluster.cluster_run import ClusterRun, Ending, Files
from perfgate.cluster.coordinator import Coordinator
from perfgate.cluster.travelling import GrowingFolder, put
from perfgate.errors import InterruptedRunError, NotMeasuredError, PerfgateError
from perfgate.machine.locks import never_waiting
from perfgate.machine.temporary_folder import temporary_folder
from perfgate.project.build import Builder
from perfgate.project.config import load_config
from perfgate.record.run_names import run_below
from perfgate.run_steps import RunStep

# How the variables begin that Ray sets for its workers. An engine that saw them would choose Ray to start its ranks
# (vllm/config/parallel.py asks `ray.is_initialized()`), and one thread for its kernels on the CPU.
SET_BY_RAY: Final = ("RAY_", "OMP_NUM_THREADS")
# Reasons for which another node may measure what this one cannot
OF_THE_NODE: Final = frozenset({
    "storage-failed", "subject-not-found", "engine-import-failed", "shard-foreign", "different-machines",
    "gpu-lost", "gpu-missing", "gpu-unreadable", "build-failed", "subject-changed",
})  # fmt: skip
RAYLET: Final = "RAY_RAYLET_PID"  # the variable in which a worker is told the process of its node
PLACE: Final = "perfgate-cell-"  # how the names of folders begin in which tasks measure, below that for temporary files


@dataclass(frozen=True)
class Here:
    """Where a task runs."""

    host: str
    gpus: tuple[str, ...] = ()  # as Ray numbers them
    node: str = ""  # ray's id of it

    def __str__(self) -> str:
        """For people: ``HOST GPU 0,1``."""
        return f"{self.host} GPU {','.join(self.gpus)}" if self.gpus else self.host

    def unfit(self, text: str, code: str) -> Ending:
        """The end of a task that this node cannot run."""
        return Ending("elsewhere", f"node {self.host}: {text}", code, self.node)


class _Called:
    """An actor of Ray as the object that it is: each of its methods waits for the answer."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return lambda *given: ray.get(method.remote(*given))


def called(actor: Any) -> Coordinator:
    """The coordinator that an actor is; its methods raise RayActorError once it is gone."""
    return cast("Coordinator", _Called(actor))


def measure_cell(run: ClusterRun, number: int, attempt: int, actor: Any, collector: Collector | None) -> Ending:
    """What Ray runs as a task; see :func:`measure`."""
    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    here = Here(socket.gethostname(), tuple(map(str, gpus)), context.get_node_id())
    return measure(run, number, attempt, called(actor), here, collector)


def measure(
    run: ClusterRun, number: int, attempt: int, coordinator: Coordinator, here: Here, collector: Collector | None
) -> Ending:
    """Measure one cell here, or go on with it, and send back each trial before the next one begins.

    What a task sends after another attempt was begun is not taken.
    """
    begun = coordinator.begin(number, attempt)
    if begun is None:
        return Ending("stopped", "another task measures this cell")
    until_s = time.monotonic() + begun.seconds_left
    try:
        with temporary_folder(PLACE) as place, as_the_node(), without_ray(), never_waiting():
            put(place, begun.files)
            sender = _Sender(GrowingFolder(place), run, number, attempt, coordinator, here)
            try:
                _build(run, sender, until_s, begun.beginning)
                _take(run, number, place, sender, until_s, collector)
            finally:
                sender.send()
    except (InterruptedRunError, KeyboardInterrupt) as error:
        return Ending("stopped", getattr(error, "text", "stopped"), getattr(error, "code", "interrupted"))
    except OSError as error:
        return here.unfit(str(error), "storage-failed")
    except MemoryError:  # what takes too much here takes it everywhere
        text = f"node {here.host}: perfgate's own process did not get the memory that it asked for"
        return Ending("failed", text, "internal-error")
    except PerfgateError as error:
        ended = Ending("given-back" if error.code == "gpu-busy" else "failed", error.finding, error.code)
        return here.unfit(error.finding, error.code) if error.code in OF_THE_NODE else ended
    return Ending("done")


def _build(run: ClusterRun, sender: _Sender, until_s: float, beginning: str) -> None:
    """Have here what the run was begun with, and the builds of git refs."""
    missing = [place for place in (run.folder, *run.scenarios) if not Path(place).exists()]
    if missing:
        raise NotMeasuredError(f"has no {missing[0]}, which the run was begun with", code="shard-foreign")
    if run.perfgate != __version__:
        raise NotMeasuredError(f"has perfgate {__version__}, and {run.perfgate} began the run", code="shard-foreign")
    os.chdir(run.folder)
    for subject in run.subjects.values():
        Builder(load_config(), sender, deadline_s=until_s, once_in=f"{beginning} on {platform.node()}").restore(subject)


def _take(
    run: ClusterRun, number: int, runs: Path, sender: _Sender, until_s: float, collector: Collector | None
) -> None:
    """Take the trials of a cell, in a run folder below ``runs``."""
    scenarios = run.loaded()
    means: dict[str, Any] = {
        "shard": run.plan.numbered(run.shard(number).shard),
        "budget_s": max(until_s - time.monotonic(), 0.0),
        "progress": sender,
        "collector": collector,
    }
    if (begun := run_below(runs)) is not None:
        gate.resume(begun, only=(scenarios, run.subjects), **means)
    else:
        gate.run(scenarios, run.subjects, runs=runs, **means)


@dataclass
class _Sender:
    """Tells the coordinator of each trial that has ended, with its files, and waits until they are kept."""

    growing: GrowingFolder
    run: ClusterRun
    number: int
    attempt: int
    coordinator: Coordinator
    here: Here
    began: bool = False

    def __post_init__(self) -> None:
        for files in self.growing.changed():
            self.began = True
            self.growing.sent(files)  # it came from there

    def __call__(self, step: Step | str) -> None:
        """One step of the run.

        Raises:
            KeyboardInterrupt: Nobody takes what is measured here any longer.
        """
        if isinstance(step, str):
            print(step, flush=True)  # noqa: T201 (Ray shows it as the log of this task)
            taken = self.send(f"{self.run.cell(self.number)} on {self.here}: {step}")
        elif step.finished is not None:
            self.began = True
            if isinstance(step, RunStep):
                step = replace(step, number=self.number, cells=len(self.run.plan.include))
            taken = self.send(replace(step, station=str(self.here)))
        else:
            return
        if not taken:
            raise KeyboardInterrupt

    def send(self, *news: Step | str) -> bool:
        """Send what has changed; whether it was taken, and not another task begun in the place of this one.

        What could not be sent goes with the next call.
        """
        messages = self.growing.changed() if self.began else iter(())  # a run without a trial is begun anew
        files = next(messages, {})
        while following := next(messages, None):
            if not self._keep(files):
                return False
            files = following
        where = f"{self.run.cell(self.number)} on {self.here}"
        return self._keep(files, *news, *(f"{where}: {text}" for text in self.growing.behind()))

    def _keep(self, files: Files, *news: Step | str) -> bool:
        taken = self.coordinator.keep(self.number, self.attempt, files, news)
        if taken:
            self.growing.sent(files)
        return taken


@contextlib.contextmanager
def as_the_node() -> Iterator[None]:
    """A block with the niceness of the node's own process, and as likely to be killed for want of memory.

    Ray gives its workers 15 and 1000 of these, and engines would inherit both. Where the system does not permit a
    lower niceness, every trial says so (``low-priority``).
    """
    node = os.environ.get(RAYLET, "self")
    own_file, score, niceness = Path("/proc/self/oom_score_adj"), "", os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        score = own_file.read_text()
        own_file.write_text(Path(f"/proc/{node}/oom_score_adj").read_text())
    with contextlib.suppress(OSError, ValueError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, int(node)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            own_file.write_text(score)


@contextlib.contextmanager
def without_ray() -> Iterator[None]:
    """A block in which the environment is what it would be without Ray, but for the GPUs that it chose.

    Ray has read its own variables when the worker began, so that it goes on working.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(SET_BY_RAY)}
    if not os.environ.get(VISIBLE, "all"):  # none was asked for: a cell of the CPU
        variables[VISIBLE] = os.environ[VISIBLE]
    for name in variables:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(variables)
