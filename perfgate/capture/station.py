"""A station: the GPUs on which a visit takes trials one at a time, with all that such a trial needs of the host."""

from __future__ import annotations

import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from perfgate.capture.compile_caches import CompileCaches, starts_cold
from perfgate.capture.gpus import Gpus
from perfgate.capture.job import Collector, Job
from perfgate.capture.parking import AHEAD_OF, CORES, FOLDERS, PARKED
from perfgate.capture.pinning import shares_of_cores
from perfgate.capture.settling import fastest_probe_ns, patience_s, state_after
from perfgate.capture.watched_builds import WatchedBuilds
from perfgate.errors import InterruptedRunError
from perfgate.machine.fingerprint import usable_cores
from perfgate.machine.orphans import end_orphans, find_orphans
from perfgate.machine.processes import AHEAD, LADDER, Ladder, owner_mark
from perfgate.metrics.roofline_bound import find_floor
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Kind, Trial
from perfgate.record.dropped_pairs import UNKNOWN, met_unfit_caches
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

JOIN_S: Final = 0.2
"""How often stations at work are looked at."""


@dataclass(frozen=True)
class Place:
    """What tells a station from those beside it.

    Args:
        number: From 0.
        owner: The mark of the processes of its trials, see :mod:`perfgate.machine.processes`.
        alone: Whether there is no other.
        cores: How many logical cores fall to it: no more than it is held to.
        held: The cores that its engines are held to; none where they may use all.
    """

    number: int
    owner: str
    alone: bool
    cores: int
    held: frozenset[int] = frozenset()


def places(run_name: str, cards: Sequence[Gpus]) -> list[Place]:
    """A place for each station; one alone may use the whole machine."""
    if len(cards) == 1:
        return [Place(0, owner_mark(run_name), alone=True, cores=usable_cores())]
    shares, each = shares_of_cores([gpus.nodes for gpus in cards]), usable_cores() // len(cards)
    return [
        # A cgroup may allow less than all cores at once, and then all stations share that.
        Place(number, owner_mark(f"{run_name}:{number}"), alone=False, cores=min(len(held) or each, each), held=held)
        for number, held in enumerate(shares)
    ]


class Station:
    """Takes the trials that a session asks for, and says how each went.

    Args:
        run_folder: The run's folder.
        gpus: Where engines run.
        place: What is its own.
        collector: Takes the trials.
        caches: Where compile caches are during the visit, apart from those of other stations.
        watched: The builds of the visit.
    """

    def __init__(
        self, run_folder: Path, gpus: Gpus, place: Place, collector: Collector, caches: CompileCaches,
        watched: WatchedBuilds,
    ) -> None:  # fmt: skip
        self._run_folder = run_folder
        self.gpus = gpus
        self.place = place
        self._collector = collector
        self._caches = caches
        self._watched = watched
        self.name = "" if place.alone else gpus.name
        """For people; empty where it is alone."""
        self.pair = 0
        """Number of the pair, or round, that it takes."""
        self.conditioned: set[tuple[str, str]] = set()
        """The builds, each with the cell, that had their warm-up trials here."""
        self.out = False
        """Whether it is done with for this visit."""
        self.state = ""
        """Of its GPUs when the last timed trial ended, see :func:`perfgate.capture.settling.state_after`."""
        self.stopping = False
        """Whether its engine is being ended because the visit is over."""

    def job(self, record: Record, label: str, index: int, folder: Path, *, cold: bool = False, **place: Any) -> Job:
        """A trial to be taken here.

        Args:
            record: What was measured so far.
            label: What its build is called in the run.
            index: Number of the trial in its run.
            folder: Its own, which is empty.
            cold: Whether its engine compiles anew, although no gate rests on that.
            place: Its ``kind``, ``pair`` and ``position``, and among several heads its ``heads``.
        """
        subject, gpus = record.built[label], self.gpus.of(record.cell)
        iterations = record.chosen.iterations if record.chosen else None
        cold = cold or starts_cold(record.cell)
        return Job(
            cell=record.cell, side=_side(label), subject=subject, index=index, visit=len(record.visits) - 1,
            run_folder=self._run_folder, folder=folder, environment=self.gpus.environment, owner=self.place.owner,
            cache_folder=self._caches.folder(record.cell, label, subject, index, cold=cold), cold=cold,
            station=self.place.number, bytecode=self._watched.bytecode(label),
            decode=_last_seen(record, label), iterations=iterations,
            gpu=bool(self.gpus.uuids), architecture=self.gpus.architecture,
            fastest_probe_ns=fastest_probe_ns(record, label, self.gpus.names, gpus),
            settle_s=patience_s(record, gpus, place["pair"], iterations or record.cell.measure.iterations), **place,
        )  # fmt: skip

    def jobs_ahead(self, job: Job, coming: Sequence[tuple[Kind, str]], built: Mapping[str, Subject]) -> tuple[Job, ...]:
        """The jobs of trials that come after another, as far as workers of them may be parked.

        Args:
            job: The other.
            coming: Kind and build of each that comes.
            built: The run's builds, by what they are called there.
        """
        parked = itertools.takewhile(lambda trial: trial[0] in PARKED, coming[:AHEAD_OF])
        return tuple(
            self._job_ahead(job, place, kind, label, built[label]) for place, (kind, label) in enumerate(parked, 1)
        )

    def _job_ahead(self, job: Job, place: int, kind: Kind, label: str, subject: Subject) -> Job:
        """The job of a trial that is the first, second, ... after another, in a folder that does not exist yet."""
        folder = self._run_folder.resolve() / f"{FOLDERS}{job.index}-{place}"
        caches = self._caches.folder(job.cell, label, subject, job.index + place, cold=job.cold)
        return replace(
            job, kind=kind, side=_side(label), heads=(), subject=subject, cache_folder=caches, folder=folder,
            bytecode=self._watched.bytecode(label),
        )  # fmt: skip

    def warm(self, record: Record, label: str) -> bool:
        """Whether a build needs no warm-up trial of its own: its compile caches were filled for the workload.

        The base always has one, which warms the machine; so has each build whose start is gated, as that reads more
        than its caches.
        """
        return not _always_warmed_up(record, label) and self._caches.warm(self._warm_up_job(record, label))

    def will_be_warm(self, record: Record, label: str, beside: Job) -> bool:
        """Whether :meth:`warm` will hold once another warm-up trial has ended."""
        if _always_warmed_up(record, label):
            return False
        return self._caches.will_be_warm(self._warm_up_job(record, label), beside)

    def _warm_up_job(self, record: Record, label: str) -> Job:
        return self.job(record, label, 0, self._run_folder, kind="timed", pair=None, position=0, heads=())

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
            KeyboardInterrupt: The user stopped, or what another station met ended the visit.
            GpuError: Who uses the GPUs cannot be read.
            OSError: The run folder cannot be written.
        """
        if self.stopping:
            raise KeyboardInterrupt
        self._caches.prepare(job)
        looked = self._watched.look(job)
        if looked.failure is not None:
            return job.trial(t0_utc=utc_now(), duration_ns=0, failure=looked.failure)
        trial = self._refused(job) or self.gpus.watch(job, lambda: self._collect(job, show))
        if self.stopping and trial.failure is not None:
            raise KeyboardInterrupt
        trial = self._caches.note(job, trial)
        if met_unfit_caches(trial):
            self.release()  # a worker that waits may be of the same build, and work in the same folder
            self._caches.empty(job)
        if job.kind == "timed":
            self.state = state_after(trial, job.fastest_probe_ns)
        fields = self._floor(job, trial)
        if looked.unknown:
            fields["cautions"] = (*fields.get("cautions", trial.cautions), UNKNOWN)
        return trial.model_copy(update={"gpus": self.gpus.of(job.cell), **fields})

    def release(self) -> None:
        """End whatever was started for a later trial, because none comes."""
        self._collector.release()

    def _floor(self, job: Job, trial: Trial) -> dict[str, Any]:
        """What the decode steps of a timed trial are held against, or why that is unknown."""
        if job.kind != "timed":
            return {}
        gpus = [gpu.name for gpu in self.gpus.machine.gpus[: len(self.gpus.of(job.cell))]]
        if why_not := job.cell.work.no_floor:
            return {"no_floor": why_not}
        workload = job.cell.batch
        finding = find_floor(
            job.cell.model_folder, job.engine_args, gpus,
            batch=workload.batch, input_tokens=workload.input_tokens, output_tokens=workload.output_tokens,
            loaded=trial.startup.model_memory_bytes if trial.startup else None,
        )  # fmt: skip
        cautions = (*trial.cautions, *filter(None, [finding.caution]))
        return {"floor": finding.floor, "no_floor": finding.why_not, "cautions": cautions}

    def _refused(self, job: Job) -> Trial | None:
        """A failed trial where an earlier one's process cannot be ended, or a stranger is there: engines run alone."""
        owner = "" if self.place.alone else self.place.owner
        end_orphans(own=owner)
        left = find_orphans(owner)
        if left:
            failure = Failure(code="process-left", text="still alive: " + "; ".join(str(orphan) for orphan in left))
        elif busy := self.gpus.await_idle(self.gpus.of(job.cell)):
            failure = Failure(code="gpu-busy", text=busy)
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


def _always_warmed_up(record: Record, label: str) -> bool:
    return label == "base" or any(gate.gate.metric == "start_time" for gate in record.cell.gates)


def _side(label: str) -> Side:
    return "base" if label == "base" else "head"


def _last_seen(record: Record, label: str) -> Any:
    """What the last valid traced trial of a build saw of its decode steps."""
    trials = (t for t in reversed(record.trials) if t.label == label and t.kind == "traced" and t.failure is None)
    return next((trial.decode for trial in trials if trial.decode), None)


def _internal_error(error: Exception) -> Failure:
    lines = traceback.format_exception(error)
    return Failure(code="internal-error", text=f"{lines[-1].strip()}\n{''.join(lines).strip()}")


def imports_are_free(stations: Sequence[Station]) -> bool:
    """Whether an import that nobody may need takes nothing: one station with cores to spare.

    Of several, what a thread started ends with the thread, which is at each look (``PR_SET_PDEATHSIG``).
    """
    return len(stations) == 1 and stations[0].place.cores >= CORES


def at_once(stations: Sequence[Station], work: Callable[[Station], None]) -> None:
    """Work at all stations at once, each in a thread of its own; one alone needs none, unless it has cores of its own.

    A trial waits for its engine nearly all of the time, and the engine stamps its own times, so that threads do not
    hold each other up. Signals come to the main thread: where one interrupts it, and where a station raises anything
    but the end of the budget, the engines of all are ended, and what comes of their trials is not kept unless it is
    valid.

    Raises:
        BaseException: The first that work raised, but for the end of the budget, once all have ended.
    """
    if len(stations) == 1 and not stations[0].place.held:
        work(stations[0])
        return
    raised: list[BaseException] = []
    threads = [
        threading.Thread(target=_at, args=(station, work, raised), name=f"perfgate {station.name}", daemon=True)
        for station in stations
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and all(isinstance(e, InterruptedRunError) for e in raised):
            _join(threads)
    finally:
        if any(thread.is_alive() for thread in threads):
            _end(stations, threads)
    if raised:
        raise next((error for error in raised if not isinstance(error, InterruptedRunError)), raised[0])


def _at(station: Station, work: Callable[[Station], None], raised: list[BaseException]) -> None:
    """What a thread does; processes that it starts get its cores."""
    try:
        if station.place.held:
            os.sched_setaffinity(0, station.place.held)
        work(station)
    except BaseException as error:  # noqa: BLE001 (raised where all are waited for)
        raised.append(error)


def _end(stations: Sequence[Station], threads: Sequence[threading.Thread]) -> None:
    """End what the stations have running; a second Ctrl-C meanwhile has it killed at once, and is then raised."""
    for station in stations:
        station.stopping = True
    try:
        _end_all(threads, LADDER)
    except KeyboardInterrupt:
        _end_all(threads, LADDER[-1:])
        raise
    for station in stations:
        station.stopping = False


def _end_all(threads: Sequence[threading.Thread], ladder: Ladder) -> None:
    """End what was started, also for later trials, again and again until no thread starts anything more."""
    while any(thread.is_alive() for thread in threads):
        AHEAD.clear()
        end_orphans(ladder=ladder)
        _join(threads)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait a moment for the first that still runs."""
    next((thread for thread in threads if thread.is_alive()), threads[0]).join(JOIN_S)


def utc_now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
