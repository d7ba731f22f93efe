"""A station: the GPUs on which a visit takes trials one at a time, with all that such a trial needs of the host."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgate.capture.compile_caches import CompileCaches
from perfgate.capture.gpus import Gpus
from perfgate.capture.job import Collector, Job
from perfgate.capture.parking import FOLDERS
from perfgate.capture.settling import fastest_probe_ns
from perfgate.counters.roofline_bound import find_floor
from perfgate.machine.orphans import end_orphans, find_orphans
from perfgate.machine.processes import owner_mark
from perfgate.metrics.trial import Failure, Side, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.trace.decode_step import DecodeSteps


class Station:
    """Takes the trials that a session asks for, and says how each went.

    Args:
        run_folder: The run's folder.
        run_name: Marks the processes of its trials.
        gpus: Where engines run.
        environment: The variables that engines see.
        collector: Takes the trials.
        caches: Where compile caches are during the visit.
    """

    def __init__(
        self,
        run_folder: Path,
        run_name: str,
        gpus: Gpus,
        environment: Mapping[str, str],
        collector: Collector,
        caches: CompileCaches,
    ) -> None:
        self._run_folder = run_folder
        self.gpus = gpus
        self._environment = environment
        self._collector = collector
        self._caches = caches
        self._owner = owner_mark(run_name)

    def job(self, record: Record, side: Side, index: int, **place: Any) -> Job:
        """A trial to be taken here, in a new folder.

        Args:
            record: What was measured so far.
            side: The side.
            index: Number of the trial in its run.
            place: Its ``kind``, ``pair`` and ``position``.
        """
        folder = self._run_folder / "trials" / f"{index:03}"
        folder.mkdir()
        subject = record.subjects[side]
        return Job(
            cell=record.cell, side=side, subject=subject, index=index, visit=len(record.visits) - 1,
            run_folder=self._run_folder, folder=folder, environment=self._environment, owner=self._owner,
            cache_folder=self._caches.folder(record.cell, side, subject, index), gpu=bool(self.gpus.uuids),
            decode=_last_seen(record, side),
            architecture=self.gpus.architecture, fastest_probe_ns=fastest_probe_ns(record, self.gpus.names, side),
            **place,
        )  # fmt: skip

    def job_ahead(self, job: Job, side: Side, subject: Subject) -> Job:
        """The job of a trial that comes after another, in a folder that does not exist yet."""
        folder = self._run_folder.resolve() / f"{FOLDERS}{job.index + 1}"
        caches = self._caches.folder(job.cell, side, subject, job.index + 1)
        return replace(job, side=side, subject=subject, cache_folder=caches, folder=folder)

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """Why no trial can be taken, see :class:`perfgate.capture.job.Collector`."""
        try:
            return self._collector.probe(cell, subject)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (an unknown error of one cell must not lose the others)
            return _internal_error(error)

    def take(self, job: Job, show: Callable[[str], None]) -> Trial:
        """One trial, from orphan check to what its GPUs did; ``show`` is told phases.

        Raises:
            KeyboardInterrupt: The user stopped.
            GpuError: Who uses the GPUs cannot be read.
            OSError: The run folder cannot be written.
        """
        self._caches.prepare(job)
        trial = self._refused(job) or self.gpus.watch(job, lambda: self._collect(job, show))
        trial = self._caches.note(job, trial)
        return trial.model_copy(update={"gpus": self.gpus.of(job.cell), **self._floor(job)})

    def release(self) -> None:
        """End whatever was started for a later trial, because none comes."""
        self._collector.release()

    def _floor(self, job: Job) -> dict[str, object]:
        """What the decode steps of a timed trial are held against, or why that is unknown."""
        if job.kind != "timed":
            return {}
        gpus = [gpu.name for gpu in self.gpus.machine.gpus[: len(self.gpus.of(job.cell))]]
        workload = job.cell.workload
        floor, no_floor = find_floor(
            job.cell.model_folder, job.engine_args, gpus,
            batch=workload.batch, input_tokens=workload.input_tokens, output_tokens=workload.output_tokens,
        )  # fmt: skip
        return {"floor": floor, "no_floor": no_floor}

    def _refused(self, job: Job) -> Trial | None:
        """A failed trial where an earlier one's process cannot be ended, or a stranger is there: engines run alone."""
        end_orphans()
        left = find_orphans()
        if left:
            failure = Failure(code="start-refused", text="still alive: " + "; ".join(str(orphan) for orphan in left))
        elif busy := self.gpus.await_idle(self.gpus.of(job.cell)):
            failure = Failure(code="foreign-process", text=busy)
        else:
            return None
        return job.trial(t0_utc=utc_now(), duration_ns=0, failure=failure)

    def _collect(self, job: Job, show: Callable[[str], None]) -> Trial:
        """The collector's trial; an error that its protocol does not name becomes a failed trial with the traceback."""
        t0_utc, begin_ns = utc_now(), time.monotonic_ns()
        try:
            return self._collector.collect(job, show)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (an unknown error of one cell must not lose the others)
            duration_ns = time.monotonic_ns() - begin_ns
            return job.trial(t0_utc=t0_utc, duration_ns=duration_ns, failure=_internal_error(error))


def _last_seen(record: Record, side: Side) -> DecodeSteps | None:
    """What the last valid traced trial of a side saw of its decode steps."""
    return next((trial.decode for trial in reversed(record.judged_trials(side, "traced")) if trial.decode), None)


def _internal_error(error: Exception) -> Failure:
    lines = traceback.format_exception(error)
    return Failure(code="internal-error", text=f"{lines[-1].strip()}\n{''.join(lines).strip()}")


def utc_now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
