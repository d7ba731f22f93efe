"""A visit: one uninterrupted occupation of one machine, in which trials are taken in order.

The session knows order, warm-up trials, dropped pairs, the guard over the GPUs and where things are written; it does
not know what a trial does (collectors do) nor when there are enough (the caller asks for a number of pairs). The record
is on disk after every trial, and a later visit goes on from it. The caller holds the run folder's lock.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from perfgate.capture.compile_caches import FOLDERS as CACHES
from perfgate.capture.compile_caches import CompileCaches
from perfgate.capture.engine import allowed_environment
from perfgate.capture.failed_starts import FailedStarts
from perfgate.capture.gpus import Gpus
from perfgate.capture.job import Collector, Job
from perfgate.capture.pace import Pace
from perfgate.capture.parking import FOLDERS, hides_imports
from perfgate.capture.station import Station, utc_now
from perfgate.capture.trial_taking import EngineCollector
from perfgate.errors import InterruptedRunError, NotComparableError, NotMeasuredError
from perfgate.machine.cgroup import why_none
from perfgate.machine.fingerprint import Machine, comparable
from perfgate.machine.locks import hold_devices
from perfgate.machine.orphans import end_orphans
from perfgate.machine.processes import owner_mark
from perfgate.machine.telemetry import DISTURBANCES
from perfgate.metrics.trial import Failure, Kind, Side, Trial
from perfgate.record.cost import trial_seconds
from perfgate.record.dropped_pairs import HOPELESS, overdrawn, reopened
from perfgate.record.run_record import Record, Run, Visit, read_record, read_records, record_file, write_record
from perfgate.scenario.plan import Cell, head_first


@dataclass(frozen=True)
class Step:
    """How far a run has come, for whoever shows progress.

    Args:
        cell: The cell's name.
        trial: Number of the trial in the run.
        side: The side measured.
        pair: Number of the pair; ``None`` for a warm-up trial.
        done: Pairs finished.
        target: Pairs at the look being measured for.
        phase: What is going on, in a few words.
        seconds_left: Estimate until that look; ``None`` while nothing is known of how long a trial takes.
        kind: The kind of trial.
        seconds_after: The share of it that is left to the trials after this one.
        finished: The trial, once it has ended.
    """

    cell: str
    trial: int
    side: Side
    pair: int | None
    done: int
    target: int
    phase: str
    seconds_left: float | None
    kind: Kind = "timed"
    seconds_after: float = 0.0
    finished: Trial | None = None


Progress = Callable[[Step | str], None]
"""Told how far the run has come, and now and then a sentence of its own."""


class Session:
    """Takes the trials of a run on this machine; a context manager.

    Args:
        folder: The run's folder.
        run: Its manifest.
        collector: Takes the trials; the real engine where there is none.
        progress: Called at every step.
        deadline_s: Monotonic time at which the visit is to be over.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        collector: Collector | None,
        progress: Progress,
        deadline_s: float = math.inf,
    ) -> None:
        self._folder = folder
        self._run = run
        self._collector = collector or EngineCollector()
        self._progress = progress
        self._deadline_s = deadline_s
        self._opened: dict[str, Record] = {}
        self._conditioned: set[str] = set()
        self._starts = FailedStarts()
        self._pace = Pace()

    def __enter__(self) -> Self:
        """Begin the visit: wait for the GPUs, note the machine, and clear away what killed visits left behind.

        Raises:
            NotComparableError: An earlier visit of this run was to another kind of machine.
            NotMeasuredError: ``gpu-busy``: somebody else computes on a GPU; or the driver does not answer.
            InterruptedRunError: ``out-of-budget``: another run held a GPU until the deadline.
            OSError: The run folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            environment = allowed_environment(os.environ)
            gpus = stack.enter_context(Gpus.connected(self._run, environment, self._progress))
            self._refuse_another_machine(gpus.machine)
            stack.enter_context(hold_devices(gpus.uuids or ("cpu",), self._run.name, self._progress, self._deadline_s))
            for orphan in end_orphans():
                self._progress(f"ended {orphan}, left behind by a run that is gone")
            stack.enter_context(gpus.guarded())
            self._visit = Visit(
                machine=gpus.machine,
                t0_utc=utc_now(),
                environment=tuple(sorted(environment)),
                processes="subreaper" if why_none(owner_mark(self._run.name)) else "cgroup",
            )
            for name in ("trials", "records"):
                (self._folder / name).mkdir(exist_ok=True)
            self._sweep()
            caches = stack.enter_context(CompileCaches(self._folder, gpus.machine, self._progress))
            name = self._run.name
            self._station = Station(self._folder, name, gpus, environment, self._collector, caches)
            self._held = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the visit: release clocks and GPUs; records stay, caches go."""
        self._held.__exit__(kind, error, traceback)

    def measure(self, cell: Cell, pairs: int, kind: Kind = "timed") -> Record:
        """Take trials of ``cell`` until it has ``pairs`` valid pairs (one-sided: trials), or cannot be measured.

        Whatever was measured earlier counts. A pair with a failed trial is dropped whole and replaced; too many of
        them in the record, a failed warm-up trial, or clocks that cannot be held set its ``stopped``. Timed pairs
        come after warm-up trials; traced ones do without: what they run does not depend on how warm a cache is, and
        their times come after warm-up.

        Raises:
            KeyboardInterrupt: The user stopped; every finished trial is in the record on disk.
            InterruptedRunError: ``out-of-budget``: the next pair would not end before the deadline.
            OSError: The run folder cannot be written.
        """
        if cell.cell_id not in self._opened:
            self._opened[cell.cell_id] = self._open(cell)
        try:
            return self._take_pairs(cell, pairs, kind)
        except NotMeasuredError as error:  # of this cell: others may have other clocks, and verdicts
            stopped = Failure(code=error.code or "gpu-unreadable", text=error.finding)
            return self._save(self._opened[cell.cell_id].model_copy(update={"stopped": stopped}))
        finally:
            self._station.release()

    def _take_pairs(self, cell: Cell, pairs: int, kind: Kind) -> Record:
        self._station.gpus.set_clocks(cell)
        record = self._opened[cell.cell_id]
        if kind == "timed" and record.stopped is None and cell.cell_id not in self._conditioned:
            record = self._condition(record, pairs)
            self._conditioned.add(cell.cell_id)
        while record.stopped is None and record.measured(kind) < pairs:
            self._afford(cell, len(record.subjects), kind)
            number = _next_pair(record, kind)
            for position, side in enumerate(self._order(cell, number)):
                record, failed = self._take(record, side, pairs, kind, number, position)
                if failed:
                    stopped = failed if failed.code in HOPELESS else self._hopeless(record, side, kind)
                    record = self._save(record.model_copy(update={"stopped": stopped}))
                    break
        return record

    def _hopeless(self, record: Record, side: Side, kind: Kind) -> Failure | None:
        """Why no further pair is taken after one that was dropped."""
        certain = self._starts.certain(record.cell, record.subjects[side], side, kind)
        return certain or overdrawn(record, kind, len(record.visits) - 1)

    def _refuse_another_machine(self, machine: Machine) -> None:
        visits = (visit for record in read_records(self._folder, self._run) for visit in record.visits)
        differences = dict.fromkeys(text for visit in visits for text in comparable(visit.machine, machine))
        if differences:
            raise NotComparableError(
                f"was begun on another machine: {'; '.join(differences)}",
                where=str(self._folder),
                remedy="Go on where it was begun, or measure anew here.",
                code="different-machines",
            )

    def _sweep(self) -> None:
        """Take away what a killed visit could not: compile caches, folders of parked workers, what it was writing."""
        for left in (*self._folder.glob(f"{CACHES}*"), *self._folder.glob(f"{FOLDERS}*")):
            shutil.rmtree(left, ignore_errors=True)
        for part in self._folder.glob("records/.*.part"):
            part.unlink()

    def _open(self, cell: Cell) -> Record:
        """The cell's record with this visit."""
        file = record_file(self._folder, cell)
        if file.exists():
            record = read_record(file)
        else:
            plan = self._run.plan
            record = Record(cell=cell, subjects=self._run.subjects, seed=plan.seed, orders=plan.orders)
        self._pace.begin(cell.cell_id, record.trials, trial_seconds(cell, self._folder.parent))
        return reopened(record).model_copy(update={"visits": (*record.visits, self._visit)})

    def _afford(self, cell: Cell, trials: int, kind: Kind = "timed") -> None:
        """Stop before that many more trials if, by the median of those finished, they would end after the deadline."""
        needed_s = self._pace.measured_s(cell.cell_id, kind) * trials
        if time.monotonic() + needed_s > self._deadline_s:
            text = f"the next {trials} trials take about {needed_s:.0f} s, more than is left of the budget"
            raise InterruptedRunError(text, code="out-of-budget")

    def _condition(self, record: Record, pairs: int) -> Record:
        """Before the first pair one trial a subject, never judged: it fills caches and proves that the engine runs.

        One that was only disturbed has done both.
        """
        # Warm-up trials that leave no time for a pair are wasted: the next visit warms up again.
        self._afford(record.cell, len(record.subjects) * (1 if self._run.quick else 2))
        for side, subject in record.subjects.items():
            certain = self._starts.certain(record.cell, subject, side, "timed")
            if certain is not None:
                return self._save(record.model_copy(update={"stopped": certain}))
            failure = self._station.probe(record.cell, subject)
            if failure is None and not self._run.quick:
                record, failure = self._take(record, side, pairs)
                failure = failure or _lacking(record.cell, record.trials[-1])
            if failure is not None and failure.code not in DISTURBANCES:
                text = f"{side}: {failure.text}"
                return self._save(record.model_copy(update={"stopped": Failure(code=failure.code, text=text)}))
        return record

    def _order(self, cell: Cell, pair: int) -> tuple[Side, ...]:
        if self._run.alone is not None:
            return (self._run.alone,)
        plan = self._run.plan
        return ("head", "base") if head_first(plan.seed, cell.cell_id, pair, plan.orders) else ("base", "head")

    def _take(
        self, record: Record, side: Side, target: int, kind: Kind = "timed", pair: int | None = None, position: int = 0
    ) -> tuple[Record, Failure | None]:
        """One trial, from orphan check to the record on disk; by default a warm-up trial."""
        trials = self._folder / "trials"
        index = 1 + max((int(taken.name) for taken in trials.iterdir() if taken.name.isdigit()), default=-1)
        job = self._station.job(record, side, index, kind=kind, pair=pair, position=position)
        job = replace(job, ahead=self._ahead(record, job, target))
        done = record.measured(kind)
        sides = len(record.subjects)
        begun = [*record.subjects].index(side) if pair is None else position
        ahead = sides * (target - done) + (sides if pair is None else 0) - begun
        cell_id, begun_s = record.cell.cell_id, time.monotonic()
        trial_s = self._pace.expected_s(cell_id, kind)

        def show(phase: str) -> None:
            after_s = (trial_s or 0.0) * (ahead - 1)
            left_s = None if trial_s is None else after_s + max(trial_s - (time.monotonic() - begun_s), 0.0)
            self._progress(Step(record.cell.name, index, side, pair, done, target, phase, left_s, kind, after_s))

        trial = self._station.take(job, show)
        if trial.no_floor and pair is None and any(gate.gate.measured.needs_floor for gate in job.cell.gates):
            self._progress(f"{job.cell.name}: a gate on {side} cannot be judged, no-floor: {trial.no_floor}")
        self._pace.note(cell_id, trial)
        self._starts.note(job.cell, job.subject, trial)
        record = self._save(record.model_copy(update={"trials": (*record.trials, trial)}))
        done = record.measured(kind)
        ahead = ahead - 1 if trial.failure is None else sides * (target - done)
        left_s = (self._pace.expected_s(cell_id, kind) or 0.0) * ahead
        self._progress(Step(record.cell.name, index, side, pair, done, target, "done", left_s, kind, left_s, trial))
        return record, trial.failure

    def _ahead(self, record: Record, job: Job, target: int) -> Job | None:
        """The trial that comes next if this one does not fail, where a worker of it is to be parked."""
        if job.kind != "timed" or not hides_imports(job.cell):
            return None
        sides = tuple(record.subjects) if job.pair is None else self._order(job.cell, job.pair)
        later = sides[sides.index(job.side) + 1 :]
        if not later:
            if job.pair is not None and record.measured("timed") + 1 >= target:
                return None  # whether there is another is up to the look
            later = self._order(job.cell, _next_pair(record, "timed") if job.pair is None else job.pair + 1)
        return self._station.job_ahead(job, later[0], record.subjects[later[0]])

    def _save(self, record: Record) -> Record:
        write_record(record_file(self._folder, record.cell), record)
        self._opened[record.cell.cell_id] = record
        return record


def _lacking(cell: Cell, trial: Trial) -> Failure | None:
    """``metric-missing`` where a timed trial has no value of a gated metric, as no further one would.

    Utilisations are told of when their floor is sought.
    """
    timed = {gate.gate.metric: gate.gate.measured for gate in cell.gates if gate.gate.measured.kind == "timed"}
    without = [name for name, metric in timed.items() if not metric.needs_floor and metric.summarise(trial) is None]
    if not without:
        return None
    return Failure(code="metric-missing", text=f"its warm-up trial has no value of {', '.join(without)}")


def _next_pair(record: Record, kind: Kind) -> int:
    """The number of the next pair of a kind: dropped pairs keep theirs."""
    return 1 + max((t.pair for t in record.trials if t.kind == kind and t.pair is not None), default=-1)
