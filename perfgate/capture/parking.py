"""Imports hidden: workers of the next trials import during the present one, and park before they touch a GPU.

A parked worker has imported torch and vllm in a process of its own, and, where caches are warm, made its engine's
configuration; one that becomes a server imports alone, and is stopped before the first window of another. Imports run
beside the start and the end of engines: before the last iteration of warm-up each worker is stopped, parked or
not, and what has not imported all goes on once the present trial has measured. So no import runs beside an iteration
that counts, nor beside the one before, however heavy a head's imports are, and no thread that a build starts when it is
imported. An import takes longer than an engine, and so that no trial waits for one two are under way beside the end of
an engine, and beside the start of one that has imported for itself. They go on beside the iterations of an engine's
warm-up trial where nothing follows from how long these take.

Nothing depends on it. Where no worker can be parked, the next trial starts its own and fails, if it must, by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgate.capture.driver_protocol import Launch
from perfgate.capture.engine import engine_environment
from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, InvalidTrialError
from perfgate.capture.worker import Worker, start_limit
from perfgate.machine.cleanup import count_files, remove_tree
from perfgate.machine.fingerprint import usable_cores
from perfgate.machine.processes import AHEAD
from perfgate.metrics.catalogue import COLD_START
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.trial import Kind
from perfgate.scenario.plan import Cell

SWITCH: Final = "PERFGATE_PARK"
"""Variable of perfgate: ``0`` never parks a worker, ``1`` does so on any machine."""
CORES: Final = 8
"""Usable cores from which on workers are parked: imports take one, the engine that is built beside them a few."""
CPU_THREADS: Final = "OMP_NUM_THREADS"
CPU_BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
PARKED: Final[tuple[Kind, ...]] = tuple(name for name, kind in TRIAL_KINDS.items() if kind.parked)
"""Kinds of trial whose engine starts as it is; a profiler wraps it, or asks for variables of its own."""
FOLDERS: Final = "parked-"
"""How the folders of parked workers begin, in the run's folder. One becomes the folder of its trial."""
BESIDE_A_START: Final = 1
"""So many workers import while an engine starts: another makes that take a fifth longer."""
AHEAD_OF: Final = 3
"""So many trials are foreseen: while an engine ends the next trial's worker is parked, and those of two more import."""


def hides_imports(cell: Cell, cores: int) -> bool:
    """Whether workers of a cell's trials are parked where they have so many cores.

    Never where a start is gated: imports beside another engine take another time than alone; nor for a server with a
    command of its own, which takes its port and its GPU at once. An engine on the CPU whose
    scenario says how many threads compute, bound to no core, leaves the others free: one more than these is enough.
    """
    if cell.engine.command:
        return False
    if any(gate.gate.metric in ("start_time", COLD_START) for gate in cell.gates):
        return False
    threads = cell.engine.env.get(CPU_THREADS, "")
    leaves_cores = cell.engine.env.get(CPU_BINDING) == "nobind" and threads.isdecimal()
    needed = min(int(threads) + 1, CORES) if leaves_cores else CORES
    return {"0": False, "1": True}.get(os.environ.get(SWITCH, ""), cores >= needed)


def beside_the_first() -> int:
    """How many workers import beside an engine that imported for itself.

    Two where cores are to spare: no import begins while a warm-up trial ends, so that the trial after next would wait.
    """
    return 2 if usable_cores() >= CORES else BESIDE_A_START


class _Imported(BaseModel):
    """A worker's answer to ``imports``."""

    model_config = ConfigDict(strict=True)

    end_ns: Annotated[int, Field(gt=0, lt=LARGEST)]
    cuda: bool


@dataclass(frozen=True)
class _Started:
    """A worker that was started ahead of its trial."""

    job: Job
    worker: Worker


class Parking:
    """Workers that were started ahead of their trials, in the order of these.

    Args:
        make: Makes the worker of a trial, which is not started yet.
    """

    def __init__(self, make: Callable[[Job], Worker] = Worker) -> None:
        self._make = make
        self._started: list[_Started] = []
        self._unfit: set[tuple[str, ...]] = set()

    def begin(self, jobs: Sequence[Job], imports: int = AHEAD_OF) -> None:
        """Have workers for the trials that come next import, new ones and those that were stopped; returns at once.

        What was started for just these trials stays, and anything else is ended. Nothing is started for an engine whose
        worker could not be parked before, nor for what comes after it.

        Args:
            jobs: The trials, in their order.
            imports: So many may import then, those that were stopped among them.
        """
        if any(_engine(start.job) != _engine(job) for start, job in zip(self._started, jobs, strict=False)):
            self.release()
        for start in self._started:
            if not start.worker.imported_ns:
                start.worker.go_on()
        importing = sum(not start.worker.imported_ns and not start.worker.has_answered() for start in self._started)
        for job in jobs[len(self._started) :][: max(imports - importing, 0)]:
            if _engine(job) in self._unfit or not self._start(job):
                return

    def pause(self) -> None:
        """Stop every worker; one that has imported and cannot be parked is ended.

        One that holds a lock on a file is waited for, because the engine that is measured might wait for that lock.
        """
        for start in [*self._started]:
            start.worker.pause()
            if start.worker.imported_ns:
                continue
            if not start.worker.has_answered():
                if not start.worker.may_be_waited_for():
                    continue
                start.worker.go_on()
            if self._has_imported(start):
                start.worker.pause()

    def take(self, job: Job) -> Worker | None:
        """The worker that was started for the next trial, in this job's folder, if its engine is the job's.

        Its imports are waited for. Any other is ended, with those for later trials.

        Raises:
            InvalidTrialError: ``process-left``: one of these does not end.
            OSError: The job's folder cannot be replaced by that of the worker.
        """
        start = self._started[0] if self._started else None
        if start is None or _engine(start.job) != _engine(job) or not start.worker.waits():
            self._end_all()
            return None
        start.worker.go_on()
        if not start.worker.imported_ns and not self._has_imported(start):
            self._end_all()
            return None
        # It works and logs there already: what is open stays open.
        start.job.folder.rename(job.folder)
        del self._started[0]
        AHEAD.discard(start.worker.token)
        start.worker.resume()
        return start.worker

    def release(self) -> None:
        """End the workers, and remove their folders."""
        # What does not end is an orphan from here on, which the next trial's or run's check names.
        with contextlib.suppress(InvalidTrialError):
            self._end_all()

    def _start(self, job: Job) -> bool:
        """Start a worker; whether it was asked to import."""
        worker = self._make(job)
        try:
            job.folder.mkdir(exist_ok=True)
            worker.__enter__()
        except (InvalidTrialError, OSError):  # the trial's own start says why
            self._unfit.add(_engine(job))
            remove_tree(job.folder, ignore_errors=True)
            return False
        except BaseException:
            remove_tree(job.folder, ignore_errors=True)
            raise
        start = _Started(job, worker)
        self._started.append(start)
        AHEAD.add(worker.token)
        try:
            # Configuring writes to caches, and how full a trial found them counts: no start is made warm here.
            request = job.engine_request if count_files(job.cache_folder) else {}
            launch = Launch(**TRIAL_KINDS[job.kind].launch)
            worker.ask("imports", start_limit(job), count_calls=launch.count_calls, **request)
        except InvalidTrialError:
            self._refuse(start)
            return False
        return True

    def _has_imported(self, start: _Started) -> bool:
        """Whether a worker may be parked, once it has answered; one that may not is ended."""
        try:
            imported = _Imported.model_validate(start.worker.answer("imports", start_limit(start.job)))
        except (InvalidTrialError, ValidationError):  # the trial's own start says why
            self._refuse(start)
            return False
        if imported.cuda or not start.worker.born_ns <= imported.end_ns <= time.monotonic_ns():
            self._refuse(start)
            return False
        start.worker.note_imported(imported.end_ns)
        return True

    def _refuse(self, start: _Started) -> None:
        """End a worker that cannot be parked, and start none for its engine again."""
        self._unfit.add(_engine(start.job))
        with contextlib.suppress(InvalidTrialError):
            self._end(start)

    def _end_all(self) -> None:
        """End all, those after one that does not end as well.

        Raises:
            InvalidTrialError: ``process-left``: one does not end.
        """
        with contextlib.ExitStack() as stack:
            for start in [*self._started]:
                stack.callback(self._end, start)

    def _end(self, start: _Started) -> None:
        self._started.remove(start)
        AHEAD.discard(start.worker.token)
        try:
            start.worker.discard()
        finally:
            remove_tree(start.job.folder, ignore_errors=True)


def _engine(job: Job) -> tuple[str, ...]:
    """What decides what a worker imports and configures, and whose it is."""
    return (
        job.kind,
        job.owner,
        job.subject.python,
        *(f"{name}={value}" for name, value in engine_environment(job).items()),
        json.dumps(job.engine_request, sort_keys=True),
    )
