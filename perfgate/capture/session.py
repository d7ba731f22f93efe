"""A visit: one uninterrupted occupation of one machine, in which trials are taken in order.

The session knows order, warm-up trials, dropped pairs, the guard over the GPUs and where things are written; it does
not know what a trial does (collectors do) nor when there are enough (the caller asks for a number of pairs). The record
is on disk after every trial, and a later visit goes on from it. The caller holds the run folder's lock.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfgate.capture.compile_caches import CompileCaches
from perfgate.capture.earlier_visits import refuse_another_machine, refuse_other_builds, sweep
from perfgate.capture.engine import visit_environment
from perfgate.capture.failed_starts import FailedStarts
from perfgate.capture.gpus import find_gpus, guard
from perfgate.capture.job import Collector, Job
from perfgate.capture.neighbours import StationFailedError, check_neighbours
from perfgate.capture.pace import Pace, Progress, Step
from perfgate.capture.parking import hides_imports
from perfgate.capture.rounds import Aim, Rounds
from perfgate.capture.station import Station, at_once, imports_are_free, places, utc_now
from perfgate.capture.trial_taking import EngineCollector, lacking
from perfgate.capture.watched_builds import WatchedBuilds
from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.machine.cgroup import why_none
from perfgate.machine.cpu_load import look_at_cores
from perfgate.machine.locks import CPU, hold_devices
from perfgate.machine.orphans import end_orphans
from perfgate.machine.telemetry import DISTURBANCES
from perfgate.metrics.trial import Failure, Kind, Trial
from perfgate.models import build_models
from perfgate.record.cost import newest_records, trial_seconds, with_iterations
from perfgate.record.dropped_pairs import HOPELESS, OF_THE_GPU, met_unfit_caches, overdrawn, reopened
from perfgate.record.run_record import Record, Run, Visit, read_record, record_file, write_record
from perfgate.record.unused_folders import ends
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject_words import replaced_path


class Session:
    """Takes the trials of a run on this machine; a context manager.

    Args:
        folder: The run's folder.
        run: Its manifest.
        collector: Takes the trials; the real engine where there is none.
        progress: Called at every step.
        deadline_s: Monotonic time at which the visit is to be over.
        gpus: The stations, as :func:`perfgate.capture.gpus.environments` reads them; by default one, on the first GPUs.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        collector: Collector | None,
        progress: Progress,
        deadline_s: float = math.inf,
        gpus: str = "",
    ) -> None:
        self._folder = folder
        self._run = run
        self._collector = collector
        self._progress = progress
        self._deadline_s = deadline_s
        self._opened: dict[str, Record] = {}
        self._starts = FailedStarts()
        self._pace = Pace()
        self._asked = gpus
        self._rounds = Rounds(run)
        self._neighbours: set[tuple[str, Station]] = set()  # that may measure a cell at once
        self._most: dict[str, int] = {}  # stations that a cell is measured on, where time is short
        # Over all of these, and over what is told: stations work in threads of their own.
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        """Begin the visit: wait for the GPUs, note the machine, and clear away what killed visits left behind.

        Raises:
            NotComparableError: An earlier visit of this run was to another kind of machine.
            NotMeasuredError: ``gpu-busy``: somebody else computes on a GPU; or the driver does not answer;
                ``subject-changed``: a build is not the one that an earlier visit measured.
            InterruptedRunError: ``out-of-budget``: another run held a GPU until the deadline.
            OSError: The run folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            run, here = self._run, str(self._folder.absolute())
            environment = stack.enter_context(visit_environment(os.environ))
            cards = find_gpus(stack, run, environment, self._asked, self._tell)
            refuse_another_machine(self._folder, run, cards[0].machine)
            uuids = [uuid for gpus in cards for uuid in gpus.uuids]
            stack.enter_context(hold_devices(uuids or (CPU,), here, self._tell, self._deadline_s))
            for orphan in end_orphans():
                self._tell(f"ended {orphan}, left behind by a run that is gone")
            if self._collector is None and (load := look_at_cores()) is not None and load.disturbs(gpu=bool(uuids)):
                self._tell(f"warning: {load}: what runs beside a measurement slows and spreads its trials")
            cards = guard(stack, cards, self._tell)
            self._visit = Visit(
                machine=cards[0].machine,
                t0_utc=utc_now(),
                environment=tuple(sorted(cards[0].environment)),
                processes="subreaper" if why_none() else "cgroup",
                stations=tuple(gpus.machine.gpus for gpus in cards) if len(cards) > 1 else (),
            )
            build_models()  # stations are threads
            for name in ("trials", "records"):
                (self._folder / name).mkdir(exist_ok=True)
            sweep(self._folder)
            self._watched = stack.enter_context(WatchedBuilds(self._folder, run, cards[0].environment))
            refuse_other_builds(self._folder, run, self._watched)
            caches = [CompileCaches(self._folder, gpus.machine, self._watched.builds, self._tell, alone=len(cards) == 1)
                      for gpus in cards]  # fmt: skip
            self._stations = [
                Station(self._folder, gpus, place, self._collector or EngineCollector(), stack.enter_context(cache),
                        self._watched)
                for gpus, place, cache in zip(cards, places(run.name, cards), caches, strict=True)
            ]  # fmt: skip
            for station in self._stations:
                stack.callback(station.release)
            self._held = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the visit: look at the builds once more, release clocks and GPUs; records stay, caches go."""
        with self._held:
            if not isinstance(error, OSError):  # a record can be written
                for cell_id, label, looked in self._watched.last_look():
                    record = self._opened[cell_id] = looked.after(self._opened[cell_id], label)
                    why = looked.failure and Failure(code=looked.failure.code, text=f"{label}: {looked.failure.text}")
                    self._keep(record.cell, stopped=why, head=label if label in record.heads else "")

    def measure(
        self, cell: Cell, pairs: int, kind: Kind = "timed", heads: tuple[str, ...] = ("",), then: Kind | None = None
    ) -> Record:
        """Take trials of ``cell`` until it has ``pairs`` valid pairs (one-sided: trials), or cannot be measured.

        Whatever was measured earlier counts. A pair with a failed trial is dropped whole and replaced; too many of
        them in the record, a failed warm-up trial, or clocks that cannot be held set its ``stopped``, and of one among
        several heads its ``stops``. Timed pairs come after warm-up trials; what traced ones run depends on no cache.
        Several ``heads`` go on, each to so many pairs. ``then`` is the kind that comes next in any case.

        Raises:
            KeyboardInterrupt: The user stopped; every finished trial is in the record on disk.
            InterruptedRunError: ``out-of-budget``: the next pair would not end before the deadline.
            OSError: The run folder cannot be written.
        """
        if cell.cell_id not in self._opened:
            self._opened[cell.cell_id] = self._open(cell)
        more = then is None and self._rounds.have_look_after(pairs, self._opened[cell.cell_id], kind)
        aim = Aim(cell, pairs, kind, heads, then, kind if more and imports_are_free(self._stations) else None)
        while self._opened[cell.cell_id].stopped is None:
            lacking = pairs - aim.done(self._opened[cell.cell_id])
            if lacking <= 0:
                break
            at_work = self._ready(cell)[: min(lacking, self._most.get(cell.cell_id, lacking))]
            if at_work and self._may_neighbour(cell, at_work):
                at_once(at_work, lambda station: self._work(station, aim))
        return self._opened[cell.cell_id]

    def _ready(self, cell: Cell) -> list[Station]:
        """The stations whose clocks are as the cell has them; where there is none the cell is stopped."""
        ready, failures = [], []
        for station in self._stations:
            if station.out:
                continue
            try:
                station.gpus.set_clocks(cell)
                ready.append(station)
            except NotMeasuredError as error:  # of this cell: others may have other clocks, and verdicts
                failures.append(_failure(error))
        if not ready:
            self._keep(cell, stopped=failures[-1])
        return ready

    def _may_neighbour(self, cell: Cell, at_work: list[Station]) -> bool:
        """Whether stations may measure at once; where not, one that failed was left out, or the cell is stopped."""
        wanted = {(cell.cell_id, station) for station in at_work}
        if len(at_work) == 1 or wanted <= self._neighbours:
            return True
        record = self._opened[cell.cell_id]
        try:
            check_neighbours(at_work, record, self._folder, self._tell, self._pace, self._deadline_s)
        except InterruptedRunError as error:
            most = self._most[cell.cell_id] = max(len(wanted & self._neighbours), 1)
            names = " and ".join(station.name for station in at_work[:most])
            self._tell(f"{cell.name} is measured on {names} alone: {error.finding}")
            return False
        except StationFailedError as error:
            if error.failure.code not in OF_THE_GPU or not self._leaves(error.station, error.failure):
                self._keep(cell, stopped=error.failure)
            return False
        except NotMeasuredError as error:
            self._keep(cell, stopped=_failure(error))
            return False
        self._neighbours |= wanted
        return True

    def _work(self, station: Station, aim: Aim) -> None:
        """Take rounds at one station until no further one is wanted of it."""
        try:
            while not station.out and (number := self._begin_round(aim)) is not None:
                station.pair = number
                try:
                    self._take_round(station, aim)
                finally:
                    with self._lock:
                        self._rounds.end(number)
        except NotMeasuredError as error:
            if not self._leaves(station, failure := _failure(error)):
                self._keep(aim.cell, stopped=failure)
        finally:
            if station.out or self._opened[aim.cell.cell_id].stopped or not (aim.then or aim.undecided):
                station.release()

    def _begin_round(self, aim: Aim) -> int | None:
        with self._lock:
            return self._rounds.begin(self._opened[aim.cell.cell_id], aim)

    def _take_round(self, station: Station, aim: Aim) -> None:
        if aim.kind == "timed" and not self._condition(station, aim):
            return
        heads = self._rounds.heads(station.pair, self._opened[aim.cell.cell_id])
        self._pace.afford(aim.cell.cell_id, len(self._rounds.builds(heads)), self._deadline_s, aim.kind, warm=True)
        for position, label in self._rounds.order(aim.cell, station.pair, heads):
            failed = self._take(station, aim, label, heads, position).failure
            if failed:
                lost = (label,) if label in heads else heads  # without its base no head has a pair
                left = failed.code in OF_THE_GPU and self._leaves(station, failed)
                self._drop(aim, label, lost, failed if failed.code in HOPELESS and not left else None)
                heads = tuple(head for head in heads if head not in lost)
                if left or not heads:
                    break

    def _drop(self, aim: Aim, label: str, lost: tuple[str, ...], hopeless: Failure | None) -> None:
        """See that no further pair of some heads is taken, where what was dropped says so."""
        record = self._opened[aim.cell.cell_id]
        why = hopeless or self._starts.certain(record.cell, record.built[label], label, aim.kind)
        for head in lost:
            stop = why or overdrawn(record.of(head), aim.kind, len(record.visits) - 1)
            self._keep(aim.cell, stopped=stop, head=head)

    def _leaves(self, station: Station, why: Failure) -> bool:
        """Whether a station is done with, because its GPUs cannot be measured on and others can."""
        with self._lock:
            if not any(other is not station and not other.out for other in self._stations):
                return False
            station.out = True
            self._tell(f"{station.name} is left out from here on: {why.code}: {why.sentence}")
            return True

    def _open(self, cell: Cell) -> Record:
        """The cell's record with this visit; where an earlier run tells how many iterations pay, so has warm-up."""
        file = record_file(self._folder, cell)
        if file.exists():
            record = read_record(file)
        else:
            run = self._run
            fields: dict[str, Any] = {"subjects": run.subjects, "heads": run.heads, "seed": run.plan.seed}
            record = with_iterations(Record(cell=cell, orders=run.plan.orders, **fields), run, self._folder.parent)
        self._pace.begin(cell.cell_id, record.trials, trial_seconds(cell, newest_records(self._folder.parent, cell)))
        visit = self._visit.model_copy(update={"builds": self._watched.digests(cell)})
        return reopened(record).model_copy(update={"visits": (*record.visits, visit)})

    def _condition(self, station: Station, aim: Aim) -> bool:
        """Whether pairs may be taken, once each build had a trial that is never judged: it fills caches, and it runs.

        One that was only disturbed did. After the first of a visit a build with caches of this workload needs none.
        """
        cell, heads = aim.cell, self._rounds.heads(station.pair, self._opened[aim.cell.cell_id])
        wanted = [label for label in self._rounds.builds(heads) if (cell.cell_id, label) not in station.conditioned]
        if not wanted:
            return True
        # Warm-up trials that leave no time for a pair are wasted: the next visit warms up again.
        self._pace.afford(cell.cell_id, len(wanted) * (1 if self._run.quick else 2), self._deadline_s)
        for label in wanted:
            subject = self._run.built[label]
            failure = self._starts.certain(cell, subject, label, "timed")
            if failure is None and not self._run.quick and station.warm(self._opened[cell.cell_id], label):
                continue
            if failure is None and (failure := self._warm_up(station, aim, label, heads)) is not None:
                if failure.code in OF_THE_GPU and self._leaves(station, failure):
                    return False
                if failure.code in (*DISTURBANCES, "client-late"):  # its engine ran, and warmed what it should
                    continue
                replaced = replaced_path(subject, self._run.built.get("base"))
                more = f"\n{replaced}" if replaced and failure.code == "engine-import-failed" else ""
                failure = Failure(code=failure.code, text=f"{label}: {failure.text}{more}")
            if failure is not None:
                self._keep(cell, stopped=failure, head=label if label in heads else "")
                if label not in heads:
                    return False
        with self._lock:
            # Another station that was ready before has begun a pair by now: what was not chosen then stays open.
            if not any(cell.cell_id == ready for other in self._stations for ready, _ in other.conditioned):
                self._opened[cell.cell_id] = with_iterations(self._opened[cell.cell_id], self._run, self._folder.parent)
                self._keep(cell)
            station.conditioned.update((cell.cell_id, label) for label in wanted)
            record = self._opened[cell.cell_id]
            return record.stopped is None and bool(self._rounds.heads(station.pair, record))

    def _warm_up(self, station: Station, aim: Aim, label: str, heads: tuple[str, ...]) -> Failure | None:
        failure = station.probe(aim.cell, self._run.built[label])
        if failure is not None or self._run.quick:
            return failure
        trial = self._take(station, aim, label, heads)
        while met_unfit_caches(trial):
            trial = self._take(station, aim, label, heads)
        return trial.failure or lacking(aim.cell, trial)

    def _take(
        self, station: Station, aim: Aim, label: str, heads: tuple[str, ...], position: int | None = None
    ) -> Trial:
        """One trial of the station's round, or a warm-up trial before it, from orphan check to the record on disk."""
        cell, pair = aim.cell, None if position is None else station.pair
        kind: Kind = "timed" if pair is None else aim.kind
        with self._lock:
            record, trials, first = self._opened[cell.cell_id], self._folder / "trials", self._run.first_trial - 1
            index = 1 + max((int(taken.name) for taken in trials.iterdir() if taken.name.isdigit()), default=first)
            folder = trials / f"{index:03}"
            folder.mkdir()
            trial_heads = () if not record.several else (label,) if label in heads else heads
            place: dict[str, Any] = {"kind": kind, "pair": pair, "position": position or 0, "heads": trial_heads}
            job = station.job(record, label, index, folder, **place)
        job = replace(job, ahead=self._ahead(station, record, job, aim))
        builds = self._rounds.builds(heads)
        begun = builds.index(label) if pair is None else min(job.position, len(builds) - 1)
        ahead = len(builds) * (aim.pairs - aim.done(record)) + (len(builds) if pair is None else 0) - begun
        begun_s, trial_s = time.monotonic(), self._pace.expected_s(cell.cell_id, kind)

        def show(phase: str, left: float | None = None, trial: Trial | None = None) -> None:
            done, place = aim.done(self._opened[cell.cell_id]), (station.name, station.state)
            self._tell(Step(cell.name, index, label, pair, done, aim.pairs, phase, left, kind, trial, *place))

        def show_phase(phase: str) -> None:
            after_s = (trial_s or 0.0) * (ahead - 1) / max(len(self._rounds), 1)
            show(phase, None if trial_s is None else after_s + max(trial_s - (time.monotonic() - begun_s), 0.0))

        trial = station.take(job, show_phase)
        if trial.no_floor and pair is None and any(gate.gate.measured.needs_floor for gate in cell.gates):
            self._tell(f"{cell.name}: a gate on {label} cannot be judged, no floor: {trial.no_floor}")
        with self._lock:
            if met_unfit_caches(trial):
                station.conditioned.discard((cell.cell_id, label))
            else:
                self._pace.note(cell.cell_id, trial)
                self._starts.note(cell, job.subject, trial)
            record = self._keep(cell, trial)
            for head, why in ends(record).items():
                self._keep(cell, stopped=why, head=head)
            ahead = ahead - 1 if trial.failure is None else len(builds) * (aim.pairs - aim.done(record))
            left_s = (self._pace.expected_s(cell.cell_id, kind) or 0.0) * ahead / max(len(self._rounds), 1)
            show("done", left_s, trial)
        return trial

    def _ahead(self, station: Station, record: Record, job: Job, aim: Aim) -> tuple[Job, ...]:
        """The trials that come next if none fails, where workers of them are to be parked."""
        if not hides_imports(job.cell, station.place.cores):
            return ()
        others = record.built if job.pair is None else ()
        warm = [label for label in others if label != job.label and station.will_be_warm(record, label, job)]
        with self._lock:
            return station.jobs_ahead(job, self._rounds.after(job, station.pair, aim, record, warm), record.built)

    def _keep(self, cell: Cell, trial: Trial | None = None, stopped: Failure | None = None, head: str = "") -> Record:
        """Write a trial into the record, and why the cell, or one head, goes no further; the first reason stays."""
        with self._lock:
            record = self._opened[cell.cell_id]
            update: dict[str, object] = {"trials": (*record.trials, *filter(None, [trial]))}
            if head and stopped:
                update["stops"] = {head: stopped, **record.stops}
            elif not head:
                update["stopped"] = record.stopped or stopped
            record = self._opened[cell.cell_id] = record.model_copy(update=update)
            write_record(record_file(self._folder, cell), record)
            return record

    def _tell(self, step: Step | str) -> None:
        with self._lock:
            self._progress(step)


def _failure(error: NotMeasuredError) -> Failure:
    return Failure(code=error.code or "gpu-unreadable", text=error.finding)
