"""What the stations of a host do to one another, measured before several are used there for the first time.

One station takes a trial alone, two while all others start, run and stop engines without a pause, and another alone.
Its own caches are warm; each of the others begins with empty ones, as on a first visit, and so compiles beside it. A
pair's ratio loses what is the same in both of its trials; what comes and goes with a neighbour's start does not. The
figure is kept beside the host's locks until the machine is another one, or boots. Where the probe tells the GPU's state, trials
are compared in one that all of them beside others have: a jump of 3 % is not what is looked for, and whether neighbours
cause one cannot be told from so few trials.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, FiniteFloat

from perfgate.capture.settling import in_state, readings_of
from perfgate.capture.station import Station, at_once, utc_now
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.machine.cleanup import remove_tree
from perfgate.machine.fingerprint import Gpu, Machine, comparable
from perfgate.machine.locks import state_folder
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Failure, Side, Trial, least_iterations, tells_states
from perfgate.models import Frozen
from perfgate.record.run_record import Record
from perfgate.units import percent

REFUSED: Final = 0.01
"""A trial that neighbours change by more is not measured beside them: twice the slowdown that the scenarios here must
catch, and five times what restarts of one build differ by on an H200."""
TOLD: Final = 0.003
"""From here on the figure comes with a warning."""
FOLDER: Final = "neighbours"
"""Where a run folder keeps the trials of this check."""


class StationFailedError(Exception):
    """A trial of the check failed."""

    def __init__(self, station: Station, failure: Failure) -> None:
        super().__init__(failure.text)
        self.station, self.failure = station, failure


class Neighbours(Frozen):
    """What was found on a host.

    Args:
        machine: With the GPUs of the first station.
        uuids: All GPUs that were at work.
        alone: What each trial that the first station took alone measured, in seconds: the median ITL, or the median
            duration of an iteration where there is none.
        beside: The same of those that it took beside the others.
        t0_utc: When, ISO 8601.
    """

    format: Literal["perfgate-neighbours/1"] = "perfgate-neighbours/1"
    machine: Machine
    uuids: tuple[str, ...]
    alone: tuple[FiniteFloat, ...] = Field(min_length=1)
    beside: tuple[FiniteFloat, ...] = Field(min_length=1)
    t0_utc: str

    @property
    def change(self) -> float:
        """The trial beside neighbours that differs most from those alone, as a ratio minus one."""
        usual = statistics.fmean(self.alone)
        return max((value / usual - 1 for value in self.beside), key=abs)

    def fits(self, machine: Machine, uuids: Sequence[str]) -> bool:
        """Whether it speaks for these GPUs of a machine: as it was, and since its last boot."""
        same = machine.boot_id == self.machine.boot_id and not comparable(self.machine, machine)
        return same and {*uuids} <= {*self.uuids}

    def __str__(self) -> str:
        """For people."""
        words = f"beside {len(self.uuids)} GPUs at work a trial changed by {percent(self.change)}"
        return f"{words}, at most {percent(REFUSED)} is accepted ({self.t0_utc})"


def known(machine: Machine, gpus: Sequence[Gpu]) -> Neighbours | None:
    """What is kept for these GPUs, if this user measured it; ``None`` where it has to be measured."""
    file = kept_in()
    try:
        if file.is_symlink() or file.stat().st_uid != os.geteuid():
            return None
        found = read_model(Neighbours, file)
    except (RecordError, OSError):
        return None
    return found if found.fits(machine, [gpu.uuid for gpu in gpus]) else None


def check_neighbours(stations: Sequence[Station], record: Record, folder: Path, tell: Callable[[str], None]) -> None:
    """See that stations may be at work at once; measure it where that is not known.

    Args:
        stations: All that are to be at work.
        record: Of the cell whose engine is used, on the side that comes first.
        folder: The run's folder.
        tell: Told what is found.

    Raises:
        NotMeasuredError: ``stations-interfere``.
        StationFailedError: A trial failed, so that nothing is known.
        OSError: A folder cannot be written.
    """
    gpus = [gpu for station in stations for gpu in station.gpus.machine.gpus]
    machine = stations[0].gpus.machine
    found = known(machine, gpus)
    if found is None:
        tell(f"measuring what {len(stations)} stations do to one another, once on this host: some minutes")
        alone, beside = _measure(stations, record, folder)
        uuids = tuple(gpu.uuid for gpu in gpus)
        found = Neighbours(machine=machine, uuids=uuids, alone=alone, beside=beside, t0_utc=utc_now())
        write_model(kept_in(), found)
    if abs(found.change) > REFUSED:
        raise NotMeasuredError(str(found), where="--gpus", code="stations-interfere")
    tell(f"{'warning: ' if abs(found.change) > TOLD else ''}{found}")


def _measure(stations: Sequence[Station], record: Record, folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the first station measured alone, and beside the others."""
    side, first, over = next(iter(record.subjects)), stations[0], threading.Event()
    remove_tree(folder / FOLDER, ignore_errors=True)  # of a visit that was killed
    (folder / FOLDER).mkdir()
    numbers = itertools.count()
    alone: list[Trial] = []
    beside: list[Trial] = []

    def take(station: Station, trials: list[Trial], *, cold: bool = False) -> None:
        trials.append(_trial(station, record, side, folder / FOLDER / f"{next(numbers):03}", cold=cold))

    def work(station: Station) -> None:
        try:
            if station is not first:
                take(station, [], cold=True)
                while not over.is_set():
                    take(station, [])
                return
            for _ in range(2):
                take(station, beside)
        finally:
            over.set()
            station.release()

    def by_itself(trials: list[Trial]) -> None:
        at_once([first], lambda station: take(station, trials))  # held to the cores that it has beside others

    by_itself([])  # fills its caches
    by_itself(alone)
    at_once(stations, work)
    by_itself(alone)
    first.release()
    return _in_one_state(alone, beside, first.gpus.names)


def _in_one_state(
    alone: Sequence[Trial], beside: Sequence[Trial], names: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The figures of trials in a state of the GPU that all beside others have, and one alone; without states, of all.

    Raises:
        NotMeasuredError: ``stations-interfere``: there is no such state, so that nothing is known.
    """
    trials = [*alone, *beside]
    iterations = [one for trial in trials for one in trial.iterations]
    readings = [reading for one in iterations for reading in readings_of(one)]
    if len({*map(len, readings)}) != 1 or not all(map(readings_of, iterations)) or not tells_states(names):
        return tuple(map(_value, alone)), tuple(map(_value, beside))
    least = tuple(map(min, zip(*readings, strict=True)))
    for slow in (False, True):
        one, other = (
            tuple(_value(cut) for trial in own if (cut := _cut(trial, least, slow=slow)) is not None)
            for own in (alone, beside)
        )
        if one and len(other) == len(beside):
            return one, other
    text = ("what stations do to one another is not known: trials alone and beside others had no GPU state in common; "
            "a further run may tell")  # fmt: skip
    raise NotMeasuredError(text, where="--gpus", code="stations-interfere")


def _cut(trial: Trial, least: Sequence[int], *, slow: bool) -> Trial | None:
    """A trial with its iterations in one state; ``None`` where these are too few."""
    own = in_state(trial, least, slow=slow)
    enough = len(own) >= least_iterations(len(trial.iterations))
    return trial.model_copy(update={"iterations": own}) if enough else None


def _trial(station: Station, record: Record, side: Side, folder: Path, *, cold: bool) -> Trial:
    folder.mkdir()
    job = station.job(record, side, int(folder.name), folder, cold=cold, kind="timed", pair=None, position=0)
    trial = station.take(replace(job, fastest_probe_ns=()), lambda _: None)
    if trial.failure is not None:
        text = f"{side}: {trial.failure.text} (while it was measured what stations do to one another)"
        raise StationFailedError(station, Failure(code=trial.failure.code, text=text))
    return trial


def _value(trial: Trial) -> float:
    itl = METRICS["itl_median"].summarise(trial)
    return itl or statistics.median(iteration.elapsed_ns for iteration in trial.iterations) / 1e9


def kept_in() -> Path:
    """The file of this user's figures."""
    return state_folder() / f"neighbours-{os.geteuid()}.json"
