"""What the trials of a cell cost, by its records on this machine, else by what its scenario expects."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import RecordError
from perfgate.metrics.trial import Kind
from perfgate.record.iteration_choice import choose_iterations
from perfgate.record.run_record import Record, Run, read_record
from perfgate.scenario.plan import Cell
from perfgate.units import plural

BEGIN_S = 10
"""What a visit takes before its first trial, seconds."""
NEWEST = 3
"""Of so many records one tells what a cell costs and how it spreads."""
SLOWED = 1.25
"""Where the base took so many times what it took in the quickest of these, something else used the machine."""
PASS_S = 0.035
"""What a pass over one launch takes: six trials of 36 launches and 12 passes took 15 s each on an H200."""


@dataclass(frozen=True)
class KindCost:
    """What the pairs of one kind cost.

    Args:
        kind: Timed pairs are taken first, traced ones after them.
        looks: Numbers of pairs at which a decision is tried; ``(1,)`` where one pair is taken and no gate rests on it.
        starts: Engine starts until each look, from the first of this kind, with a warm-up trial a build.
        minutes: Wall time of these; ``None`` where the duration of a trial is unknown.
        source: Where the minutes come from, or why there are none, in words.
        gpus: GPUs that a trial takes; 0 where it is not known to run on one.
        window: Launches counted in a trial; ``None`` for other kinds, and before a trace says what there is.
        passes: Replays of each launch, at most; ``None`` for other kinds.
    """

    kind: Kind
    looks: tuple[int, ...]
    starts: tuple[int, ...]
    minutes: tuple[float, ...] | None
    source: str
    gpus: int = 0
    window: int | None = None
    passes: int | None = None


@dataclass(frozen=True)
class Earlier:
    """A record of two sides of an earlier run, and the name of that."""

    run: str
    record: Record

    @property
    def begun_utc(self) -> str:
        """When its last visit began, ISO 8601."""
        return self.record.visits[-1].t0_utc

    @property
    def source(self) -> str:
        """For people."""
        return f"the record of run {self.run}"


def newest_records(runs: Path, cell: Cell) -> dict[Kind, Earlier]:
    """The newest records of this cell below a folder of run folders, for each kind of pairs that it takes.

    Of several heads the first will do. A kind that gates rest on needs at least two pairs: one has no spread. Records
    that cannot be read are passed over: they do not prevent planning. So are those that were stopped, or in which the
    machine was slowed, where one of the newest few tells better.
    """
    newest: dict[Kind, list[Earlier]] = {}
    for file in sorted(runs.glob(f"*/records/*-{cell.cell_id[:8]}.json")):
        try:
            record = read_record(file)
        except RecordError:
            continue
        if record.cell.cell_id != cell.cell_id or not record.visits:
            continue
        for kind in cell.kinds:
            least = min(2, cell.looks(kind)[0])
            comparison = next(
                (comparison for comparison in record.comparisons().values() if len(comparison.pairs(kind)) >= least),
                None,
            )
            if comparison is not None:
                earlier = [*newest.get(kind, ()), Earlier(file.parents[1].name, comparison)]
                newest[kind] = sorted(earlier, key=lambda entry: entry.begun_utc, reverse=True)[:NEWEST]
    return {kind: _telling(earlier, kind) for kind, earlier in newest.items()}


def _telling(newest: Sequence[Earlier], kind: Kind) -> Earlier:
    """The newest record of a run that was neither stopped nor slowed; the newest of all where there is none."""
    base_ns = [statistics.median(base.duration_ns for base, _ in entry.record.pairs(kind)) for entry in newest]
    rows = zip(newest, base_ns, strict=True)
    return next((entry for entry, ns in rows if not entry.record.stopped and ns < SLOWED * min(base_ns)), newest[0])


def with_iterations(record: Record, run: Run, runs: Path) -> Record:
    """A record with the number of iterations that its judged trials are to have, where its cell leaves that open.

    It has the warm-up trials. It stays as it is once chosen, or once a pair was begun, and where there is no look to
    reach soonest. Of earlier records the newest of the cell below ``runs`` tells most.
    """
    begun = any(trial.pair is not None for trial in record.trials)
    if record.cell.measure.choose is None or record.chosen or begun or run.quick or run.fixed:
        return record
    newest = newest_records(runs, record.cell).get("timed")
    pairs, source = (newest.record.pairs(), newest.source) if newest else ([], "")
    warm_up = [trial for trial in record.trials if trial.failure is None]
    gates = sum(len(cell.gates) for cell in run.plan.cells) * len(run.compared)
    chosen = choose_iterations(record.cell, warm_up, pairs, source, gates, len(run.compared))
    return record.model_copy(update={"chosen": chosen})


def trial_seconds(cell: Cell, history: Mapping[Kind, Earlier]) -> dict[Kind, float]:
    """What a trial of each kind takes by the newest records of the cell, else by the scenario; others are left out."""
    costs = (kind_cost(cell, kind, history.get(kind)) for kind in cell.kinds)
    return {cost.kind: cost.minutes[-1] * 60 / cost.starts[-1] for cost in costs if cost.minutes}


def least_budget(seconds: float) -> int:
    """The smallest budget, in whole minutes, within which a visit takes trials of so many seconds in all."""
    return math.ceil((seconds + BEGIN_S) / 60)


def short_budget(
    cell: Cell, kind: Kind, budget_s: float, runs: Path, *, record: Record | None, builds: int, quick: bool
) -> str:
    """What a budget is too short for, in words; empty where it is enough, or nobody knows what a trial takes.

    ``cell`` and ``kind`` are what is measured first, ``record`` what the run has of it, ``builds`` those of a round.
    """
    trials = record.trials if record else ()
    taken = [trial.duration_ns / 1e9 for trial in trials if trial.kind == kind and trial.duration_ns]
    trial_s = statistics.median(taken) if taken else trial_seconds(cell, newest_records(runs, cell)).get(kind)
    if trial_s is None:
        return ""
    warm_up = builds if kind == "timed" and not quick else 0
    needed_s = trial_s * (warm_up + builds)
    given = f"what is left of the budget, {math.ceil(budget_s)} s,"  # builds may have taken much of it
    if needed_s > budget_s:
        beside = f"{plural(warm_up, 'trial')} of warm-up and " if warm_up else ""
        takes = f"{beside}a round of {builds} take about {math.ceil(needed_s)} s"
        return f"{given} is too short for {cell.name}: {takes}; --budget {least_budget(needed_s)} is not"
    pairs = cell.looks(kind)[0]
    look_s = trial_s * (warm_up + builds * pairs)
    if record is None and not quick and look_s > budget_s:
        first = f"the first look of {cell.name}, at {plural(pairs, 'pair')}"
        return f"{given} ends before {first}: for that --budget {least_budget(look_s)}, or --resume afterwards"
    return ""


def kind_cost(cell: Cell, kind: Kind, history: Earlier | None, heads: int = 1) -> KindCost:
    """What the pairs of one kind cost: by the newest record with such pairs, else by what the scenario expects.

    Each round has a trial of every build: the base and so many heads.
    """
    builds = 1 + heads
    warm_up_trials = builds if kind == "timed" else 0
    looks = cell.looks(kind)
    starts = tuple(builds * rounds + warm_up_trials for rounds in looks)
    expect = cell.measure.expect
    if history is not None:
        trials = history.record.trials
        taken = [trial for trial in trials if trial.kind == kind and not trial.failure]
        judged = [trial.duration_ns / 60e9 for trial in taken if trial.pair is not None]
        first = [trial.duration_ns / 60e9 for trial in taken if trial.pair is None]
        begin = warm_up_trials * statistics.median(first or judged)
        minutes = tuple(begin + builds * rounds * statistics.median(judged) for rounds in looks)
        return KindCost(kind, looks, starts, minutes, history.source, len(trials[-1].gpus))
    declared = cell.work.seconds(cell.measure.warmup_iterations, cell.measure.iterations)
    if kind == "timed" and expect is None and declared is not None:
        seconds, source = declared
        return KindCost(kind, looks, starts, tuple(n * seconds / 60 for n in starts), source)
    if kind != "timed":
        return KindCost(kind, looks, starts, None, f"no record of this cell with enough {kind} pairs")
    if expect is not None:
        return KindCost(kind, looks, starts, tuple(n * expect.trial_s / 60 for n in starts), "measure.expect")
    return KindCost(kind, looks, starts, None, "no record of this cell with enough timed pairs, no measure.expect")
