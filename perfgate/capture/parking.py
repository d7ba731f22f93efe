"""Imports hidden: the next trial's worker imports during the present one, and parks before it touches a GPU.

A parked worker has imported torch and vllm in a process of its own and waits for its engine's arguments. It was started
before the present trial's engine was built, and that engine gets no work but the first of its warm-up until it is
parked: no import runs beside an iteration that counts, nor beside the one before, however heavy a head's imports are.
A parked worker is stopped, because what a build imports may start threads.

Nothing depends on it. Where no worker can be parked, the next trial starts its own and fails, if it must, by itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgate.capture.engine import Limit, Worker, engine_environment
from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, InvalidTrialError
from perfgate.machine.cleanup import remove_tree
from perfgate.machine.processes import AHEAD
from perfgate.metrics.catalogue import COLD_START
from perfgate.metrics.trial import Kind
from perfgate.scenario.plan import Cell

SWITCH: Final = "PERFGATE_PARK"
"""Variable of perfgate: ``0`` never parks a worker, ``1`` does so on any machine."""
CORES: Final = 8
"""Usable cores from which on workers are parked: imports take one, the engine that is built beside them a few."""
CPU_THREADS: Final = "OMP_NUM_THREADS"
CPU_BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
PARKED: Final[tuple[Kind, ...]] = ("timed", "called")
"""Kinds of trial whose engine starts as it is; a profiler wraps it, or asks for variables of its own."""
FOLDERS: Final = "parked-"
"""How the folders of parked workers begin, in the run's folder. One becomes the folder of its trial."""


def hides_imports(cell: Cell, cores: int) -> bool:
    """Whether workers of a cell's trials are parked where they have so many cores.

    Never where a start is gated: imports beside another engine take another time than alone. An engine on the CPU whose
    scenario says how many threads compute, bound to no core, leaves the others free: one more than these is enough.
    """
    if any(gate.gate.metric in ("start_time", COLD_START) for gate in cell.gates):
        return False
    threads = cell.engine.env.get(CPU_THREADS, "")
    known = cell.engine.env.get(CPU_BINDING) == "nobind" and threads.isdecimal()
    needed = min(int(threads) + 1, CORES) if known else CORES
    return {"0": False, "1": True}.get(os.environ.get(SWITCH, ""), cores >= needed)


class _Imported(BaseModel):
    """A worker's answer to ``imports``."""

    model_config = ConfigDict(strict=True)

    end_ns: Annotated[int, Field(gt=0, lt=LARGEST)]
    cuda: bool


class Parking:
    """Room for one worker that is started ahead of its trial."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._worker: Worker | None = None
        self._limit: Limit
        self._unfit: set[tuple[str, ...]] = set()

    def begin(self, job: Job) -> None:
        """Start a worker for a later job, and have it import; returns at once.

        Nothing is started for an engine whose worker could not be parked before.

        Raises:
            OSError: Its folder cannot be made.
        """
        if self._job is not None or _engine(job) in self._unfit:
            return
        limit_s = job.cell.measure.start_timeout
        self._job = job
        self._limit = Limit(time.monotonic() + limit_s, "engine-start-timeout", "engine-start-failed")
        job.folder.mkdir(exist_ok=True)
        worker = Worker(job)
        try:
            self._worker = worker.__enter__()
            AHEAD.add(worker.token)
            worker.ask("imports", self._limit, count_calls=job.kind == "called")
        except InvalidTrialError:  # the trial's own start says why
            self._refuse()

    def settle(self) -> None:
        """Wait until the worker is parked; one that cannot be is ended."""
        if self._worker is None or self._worker.imported_ns:
            return
        try:
            imported = _Imported.model_validate(self._worker.answer("imports", self._limit))
        except (InvalidTrialError, ValidationError):  # the trial's own start says why
            self._refuse()
            return
        if imported.cuda or not self._worker.born_ns <= imported.end_ns <= time.monotonic_ns():
            self._refuse()
        else:
            self._worker.park(imported.end_ns)

    def take(self, job: Job) -> Worker | None:
        """The parked worker in this job's folder, if its engine is the job's; another one is ended.

        Raises:
            InvalidTrialError: ``process-left``: another one does not end.
            OSError: The job's folder cannot be replaced by that of the worker.
        """
        if self._job is None or self._worker is None or not self._worker.imported_ns:
            self._end()
            return None
        if _engine(self._job) != _engine(job) or not self._worker.waits():
            self._end()
            return None
        # It works and logs there already: what is open stays open.
        self._job.folder.rename(job.folder)
        worker, self._worker, self._job = self._worker, None, None
        AHEAD.discard(worker.token)
        worker.resume()
        return worker

    def release(self) -> None:
        """End the worker, if there is one, and remove its folder."""
        # What does not end is an orphan from here on, which the next trial's or run's check names.
        with contextlib.suppress(InvalidTrialError):
            self._end()

    def _refuse(self) -> None:
        """End a worker that cannot be parked, and start none for its engine again."""
        if self._job is not None:
            self._unfit.add(_engine(self._job))
        self.release()

    def _end(self) -> None:
        job, worker, self._job, self._worker = self._job, self._worker, None, None
        try:
            if worker is not None:
                AHEAD.discard(worker.token)
                worker.__exit__(None, None, None)
        finally:
            if job is not None:
                remove_tree(job.folder, ignore_errors=True)


def _engine(job: Job) -> tuple[str, ...]:
    """What decides what a worker imports, and whose it is."""
    return (
        job.kind,
        job.owner,
        job.subject.python,
        *(f"{name}={value}" for name, value in engine_environment(job).items()),
    )
