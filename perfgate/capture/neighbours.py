"""What the stations of a host do to one another, measured before several are used there for the first time.

One station takes a trial alone, two while all others start, run and stop engines without a pause, and another alone.
Its own caches are warm; each of the others begins with empty ones, as on a first visit, and so compiles beside it. A
pair's ratio loses what is the same in both of its trials; what comes and goes with a neighbour's start does not. The
figures are kept beside the host's locks until the machine is another one, or boots, and each cell holds those of its
gates against its margins. Where the probe tells the GPU's state, decode steps are compared in one that all trials
beside others have: a jump of 3 % is not what is looked for, and whether neighbours cause one cannot be told from so few
trials.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, FiniteFloat

from perfgate.capture.pace import Pace
from perfgate.capture.station import Station, at_once, utc_now
from perfgate.errors import InterruptedRunError, NotMeasuredError, RecordError
from perfgate.machine.cleanup import remove_tree
from perfgate.machine.fingerprint import Gpu, Machine, comparable
from perfgate.machine.locks import state_folder
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Trial, in_state, least_iterations, readings_of, tells_states
from perfgate.models import Frozen
from perfgate.record.dropped_pairs import met_unfit_caches
from perfgate.record.run_record import Record
from perfgate.scenario.margins import Gate
from perfgate.scenario.plan import Cell
from perfgate.units import NS_PER_S, format_value, percent

LEAST: Final = 0.01
"""What neighbours may change any metric by: five times what restarts of one build differ by on an H200. One whose gate
must catch a slowdown that is larger they may change by so much."""
TOLD: Final = 0.3
"""From this share of what they may on the figure comes with a warning."""
TRIALS: Final = 6
"""It takes as long as so many: one that fills caches, two alone, two beside others, and one until those have ended."""
ELAPSED: Final = Metric(
    "elapsed", "s", "lower", "median duration of an iteration", decode="part",
    summarise=lambda trial: statistics.median(iteration.elapsed_ns for iteration in trial.iterations) / NS_PER_S,
)  # fmt: skip
"""What is compared where no token follows the first, and no gate has another metric."""
FOLDER: Final = "neighbours"
"""Where a run folder keeps the trials of this check."""


class StationFailedError(Exception):
    """A trial of the check failed."""

    def __init__(self, station: Station, failure: Failure) -> None:
        super().__init__(failure.text)
        self.station, self.failure = station, failure


class Figure(Frozen):
    """What the first station's trials gave of a metric, in its unit: those taken alone, and beside the others."""

    alone: tuple[FiniteFloat, ...] = Field(min_length=1)
    beside: tuple[FiniteFloat, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Effect:
    """What neighbours do to a metric.

    Args:
        metric: What is compared.
        usual: The mean of the trials alone.
        beside: The trial beside neighbours that differs most from it.
        accepted: By which share it may differ.
    """

    metric: Metric
    usual: float
    beside: float
    accepted: float

    @classmethod
    def on(cls, metric: Metric, figure: Figure, gate: Gate | None = None) -> Self:
        """What figures say, by the margins of a gate where there is one."""
        usual = statistics.fmean(figure.alone)
        most = max(figure.beside, key=lambda value: abs(value - usual))
        accepted = max(LEAST, gate.must_catch, gate.floor_value / usual) if gate else LEAST
        return cls(metric, usual, most, accepted)

    @property
    def share(self) -> float:
        """The change, of what is accepted: above 1 nothing is measured."""
        return abs(self.beside / self.usual - 1) / self.accepted

    def __str__(self) -> str:
        """For people."""
        beside, usual = (format_value(value, self.metric.unit) for value in (self.beside, self.usual))
        words = f"{self.metric.name} of a trial changed by {percent(self.beside / self.usual - 1)}"
        return f"{words} ({beside}, alone {usual}), at most {percent(self.accepted)} is accepted"


def _share(metric: Metric, gate: Gate | None, figure: Figure) -> float:
    return Effect.on(metric, figure, gate).share


class Neighbours(Frozen):
    """What was found on a host.

    Args:
        machine: With the GPUs of the first station.
        uuids: All GPUs that were at work.
        figures: By metric: of all that its timed trials had a value of.
        gates: Those on timed trials of the cell that was measured.
        t0_utc: When, ISO 8601.
    """

    format: Literal["perfgate-neighbours/2"] = "perfgate-neighbours/2"
    machine: Machine
    uuids: tuple[str, ...]
    figures: dict[str, Figure]
    gates: tuple[Gate, ...]
    t0_utc: str

    def worst(self, gates: Sequence[Gate]) -> Effect:
        """What is the largest share of what its gate accepts; where no gate has figures, of another metric that has."""
        rows = [(gate.measured, self.figures.get(gate.measured.name), gate) for gate in gates]
        effects = [Effect.on(metric, figure, gate) for metric, figure, gate in rows if figure]
        if not effects:  # a trial that started an engine has a start time at least
            others = (METRICS["itl_median"], ELAPSED, *METRICS.values())
            metric = next(other for other in others if other.name in self.figures)
            return Effect.on(metric, self.figures[metric.name])
        return max(effects, key=lambda effect: effect.share)

    def repeated(self, again: Neighbours) -> Neighbours:
        """What both of two checks show: of each metric the figures that are the smaller share of what is accepted."""
        figures = {**self.figures, **again.figures}
        for gate in (*self.gates, None):
            metric = gate.measured if gate else ELAPSED
            both = [check.figures[metric.name] for check in (self, again) if metric.name in check.figures]
            if both:
                figures[metric.name] = min(both, key=partial(_share, metric, gate))
        return again.model_copy(update={"figures": figures})

    def beside(self, other: Neighbours | None) -> Neighbours:
        """With what is known of the same GPUs from cells with other gates."""
        if other is None or {*other.uuids} != {*self.uuids}:
            return self
        gates = (*self.gates, *(gate for gate in other.gates if gate not in self.gates))
        return self.model_copy(update={"figures": {**other.figures, **self.figures}, "gates": gates})

    def fits(self, machine: Machine, uuids: Sequence[str], gates: Sequence[Gate] | None) -> bool:
        """Whether it speaks for these gates, or for any, on these GPUs of a machine: as it was, since its last boot."""
        same = machine.boot_id == self.machine.boot_id and not comparable(self.machine, machine)
        read = {*self.figures, *(gate.measured.name for gate in self.gates)}
        wanted = set[str]() if gates is None else {gate.measured.name for gate in gates} or {ELAPSED.name}
        return same and {*uuids} <= {*self.uuids} and wanted <= read

    def words(self, effect: Effect) -> str:
        """An effect for people."""
        return f"beside {len(self.uuids)} GPUs at work {effect} ({self.t0_utc})"


def known(machine: Machine, gpus: Sequence[Gpu], gates: Sequence[Gate] | None = None) -> Neighbours | None:
    """What is kept for these GPUs and gates, or any, if this user measured it; ``None`` where it has to be measured."""
    file = kept_in()
    try:
        if file.is_symlink() or file.stat().st_uid != os.geteuid():
            return None
        neighbours = read_model(Neighbours, file)
    except (RecordError, OSError):
        return None
    return neighbours if neighbours.fits(machine, [gpu.uuid for gpu in gpus], gates) else None


def check_neighbours(
    stations: Sequence[Station],
    record: Record,
    folder: Path,
    tell: Callable[[str], None],
    pace: Pace,
    deadline_s: float,
) -> None:
    """See that stations may be at work at once; measure it where that is not known.

    Args:
        stations: All that are to be at work.
        record: Of the cell whose engine is used, on the side that comes first.
        folder: The run's folder.
        tell: Told what is found.
        pace: Tells how long it takes, and is told of trials alone.
        deadline_s: Monotonic time at which the visit is to be over.

    Raises:
        NotMeasuredError: ``gpu-busy``.
        StationFailedError: A trial failed, so that nothing is known.
        InterruptedRunError: ``out-of-budget``: nothing is known, and there is no time to measure it.
        OSError: A folder cannot be written.
    """
    gpus = [gpu for station in stations for gpu in station.gpus.machine.gpus]
    machine, uuids = stations[0].gpus.machine, tuple(gpu.uuid for gpu in gpus)
    gates = tuple(gate.gate for gate in record.cell.gates if gate.gate.measured.kind == "timed")
    neighbours = known(machine, gpus, gates)
    if neighbours is None or neighbours.worst(gates).share > 1:

        def measured() -> Neighbours:
            figures = _measure(stations, record, folder, tell, pace, deadline_s)
            return Neighbours(machine=machine, uuids=uuids, figures=figures, gates=gates, t0_utc=utc_now())

        neighbours = measured()
        if neighbours.worst(gates).share > 1:
            tell(f"once more, as a trial may differ by itself: {neighbours.worst(gates)}")
            neighbours = neighbours.repeated(measured())
        if neighbours.worst(gates).share <= 1:  # what refuses a host is not kept: it may have been a bad moment
            neighbours = neighbours.beside(known(machine, gpus))
            write_model(kept_in(), neighbours)
    effect = neighbours.worst(gates)
    if effect.share > 1:
        raise NotMeasuredError(neighbours.words(effect), where="--gpus", code="gpu-busy")
    tell(f"{'warning: ' if effect.share > TOLD else ''}{neighbours.words(effect)}")


def _measure(
    stations: Sequence[Station],
    record: Record,
    folder: Path,
    tell: Callable[[str], None],
    pace: Pace,
    deadline_s: float,
) -> dict[str, Figure]:
    """What the first station measured alone, and beside the others."""
    side, first, over = next(iter(record.subjects)), stations[0], threading.Event()
    price = partial(_price, len(stations), record, pace, deadline_s)
    tell(f"measuring what {len(stations)} stations do to one another, once on this host: {price(TRIALS)}")
    remove_tree(folder / FOLDER, ignore_errors=True)  # of a visit that was killed
    (folder / FOLDER).mkdir()
    numbers = itertools.count()
    alone: list[Trial] = []
    beside: list[Trial] = []

    def take(station: Station, *, cold: bool = False) -> Trial:
        return _trial(station, record, side, folder / FOLDER / f"{next(numbers):03}", cold=cold)

    def work(station: Station) -> None:
        try:
            if station is not first:
                take(station, cold=True)
                while not over.is_set():
                    take(station)
                return
            beside.extend(take(station) for _ in range(2))
        finally:
            over.set()
            station.release()

    def by_itself() -> None:
        at_once([first], lambda station: alone.append(take(station)))  # held to the cores that it has beside others

    by_itself()
    alone.clear()  # it filled the caches, so it tells nothing of what later ones take
    by_itself()
    pace.note(record.cell.cell_id, alone[-1])
    price(TRIALS - 2)
    at_once(stations, work)
    by_itself()
    first.release()
    return _figures(record.cell, alone, beside, first.gpus.names)


def _price(stations: int, record: Record, pace: Pace, deadline_s: float, trials: int) -> str:
    """How long so many trials take, in words.

    Raises:
        InterruptedRunError: ``out-of-budget``: with them no first pair would end in time.
    """
    trial_s = pace.expected_s(record.cell.cell_id, "timed") or 0.0
    needed_s = (trials + 2 * len(record.built)) * trial_s  # each build is warmed up before its first trial
    if time.monotonic() + needed_s > deadline_s:
        takes = f"that and a first pair take about {math.ceil(needed_s)} s, more than" if needed_s else "nothing"
        text = f"what {stations} stations do to one another has to be measured; {takes} is left of the budget"
        raise InterruptedRunError(text, code="out-of-budget")
    return f"about {math.ceil(trials * trial_s)} s" if trial_s else "some minutes"


def _figures(cell: Cell, alone: Sequence[Trial], beside: Sequence[Trial], names: Sequence[str]) -> dict[str, Figure]:
    """What trials have a value of; decode steps in a state of the GPU that all beside others have, and one alone.

    Raises:
        NotMeasuredError: ``gpu-busy``: there is no such state, so that nothing is known.
    """
    gated = [gate.gate.measured for gate in cell.gates if gate.gate.measured.kind == "timed"]
    metrics = [*(metric for metric in METRICS.values() if metric.kind == "timed"), ELAPSED, *gated]
    alike = _in_one_state(alone, beside, names)
    if alike is None and any(metric.decode != "none" for metric in gated or [ELAPSED]):
        text = ("what stations do to one another is not known: trials alone and beside others had no GPU state in "
                "common; a further run may tell")  # fmt: skip
        raise NotMeasuredError(text, where="--gpus", code="gpu-busy")
    figures = {}
    for metric in metrics:
        sets = (alone, beside) if metric.decode == "none" else alike or ()
        values = [tuple(value for trial in trials if (value := metric.summarise(trial) or 0.0) > 0) for trials in sets]
        if values and all(map(len, values)) and len(values[1]) == len(beside):
            figures[metric.name] = Figure(alone=values[0], beside=values[1])
    return figures


def _in_one_state(
    alone: Sequence[Trial], beside: Sequence[Trial], names: Sequence[str]
) -> tuple[Sequence[Trial], Sequence[Trial]] | None:
    """Trials in a state of the GPU that all beside others have, and one alone; all of them where there are no states.

    Returns:
        ``None`` where there is no such state.
    """
    trials = [*alone, *beside]
    iterations = [iteration for trial in trials for iteration in trial.iterations]
    readings = [reading for iteration in iterations for reading in readings_of(iteration)]
    if len({*map(len, readings)}) != 1 or not all(map(readings_of, iterations)) or not tells_states(names):
        return alone, beside
    least = tuple(map(min, zip(*readings, strict=True)))
    for slow in (False, True):
        lone, other = ([*filter(None, (_cut(trial, least, slow=slow) for trial in group))] for group in (alone, beside))
        if lone and len(other) == len(beside):
            return lone, other
    return None


def _cut(trial: Trial, least: Sequence[int], *, slow: bool) -> Trial | None:
    """A trial with its iterations in one state; ``None`` where these are too few."""
    iterations = in_state(trial, least, slow=slow)
    enough = len(iterations) >= least_iterations(len(trial.iterations))
    return trial.model_copy(update={"iterations": iterations}) if enough else None


def _trial(station: Station, record: Record, side: Side, folder: Path, *, cold: bool) -> Trial:
    folder.mkdir()
    job = station.job(record, side, int(folder.name), folder, cold=cold, kind="timed", pair=None, position=0)
    trial = station.take(replace(job, fastest_probe_ns=()), lambda _: None)
    if met_unfit_caches(trial):
        remove_tree(folder)
        return _trial(station, record, side, folder, cold=cold)
    if trial.failure is not None:
        text = f"{side}: {trial.failure.text} (while it was measured what stations do to one another)"
        raise StationFailedError(station, Failure(code=trial.failure.code, text=text))
    return trial


def kept_in() -> Path:
    """The file of this user's figures."""
    return state_folder() / f"neighbours-{os.geteuid()}.json"
