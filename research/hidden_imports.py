"""Whether hidden imports move what is measured: two one-sided tests of equivalence, in one run of one build.

``python research/hidden_imports.py SCENARIO --base python=... --blocks 8 [--gpus 0,1] [--minutes 10]``

Restarts of one build, one after the other; of each four two are parked, and two, crosswise, have a parked worker beside
them:

======  ===================  =====================
trial   was parked itself    has one parked beside
======  ===================  =====================
first   yes                  yes
second  yes                  no
third   no                   no
fourth  no                   yes
======  ===================  =====================

Both effects, and their sum, which is what hidden imports do as a whole, are estimated by least squares over the logs of
all trials, with a level for each run of a card and each state of it: trials of a GPU that jumps have one or the other,
and a jump of 3 % is no effect of imports. A trial counts by its iterations of the state that it has most of. An effect
is equivalent to none within a bound where two one-sided t tests at 5 % refuse that it is larger (Schuirmann 1987),
which is the 90 % interval within the bound. Trials that failed, or were not parked as planned, are left out.

Each GPU has a process of its own; folders are ordinary run folders, and calling the program again adds blocks.
``--summarise`` measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lanes
import numpy as np
from scipy import stats

from perfgate import __version__
from perfgate.capture.job import Collector, Job
from perfgate.capture.pace import Step
from perfgate.capture.parking import SWITCH
from perfgate.capture.session import Session
from perfgate.capture.trial_taking import EngineCollector
from perfgate.machine.locks import hold
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Failure, Trial, in_state, readings_of
from perfgate.record.keeping import make_folder
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import Record, Run, read_records, write_run
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import Cell, make_plan
from perfgate.scenario.subject import Subject

BLOCK = 4
PARKED = (True, True, False, False)
"""Which trials of a block are parked; the next trial says whether one is parked beside."""
LEAST_ALIKE = 6
"""Iterations of one state that a trial needs."""
SOUGHT = {"parked itself": [1.0, 0.0], "one parked beside": [0.0, 1.0], "both": [1.0, 1.0]}
"""By effect, how much of being parked and of a parked neighbour is in it."""
BOUNDS = {"itl_median": 0.0005, "tpot_mean": 0.0005, "ttft_median": 0.005}
"""By metric, how far hidden imports may move it, as a log ratio."""


class Alternating:
    """A collector whose next trial is parked only where the plan of the blocks says so."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """See :class:`perfgate.capture.job.Collector`."""
        return self._collector.probe(cell, subject)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """See :class:`perfgate.capture.job.Collector`."""
        following = 0 if job.pair is None else job.pair + 1
        ahead = itertools.takewhile(lambda place: PARKED[(following + place) % BLOCK], range(len(job.ahead)))
        return self._collector.collect(replace(job, ahead=job.ahead[: len([*ahead])]), progress)

    def release(self) -> None:
        """See :class:`perfgate.capture.job.Collector`."""
        self._collector.release()


@dataclass(frozen=True)
class Restart:
    """A trial that was parked as planned, by its iterations of one state.

    Args:
        level: Its GPUs and their state: what else decides how fast it is.
        parked: Whether it was parked itself.
        beside: Whether one was parked beside it.
        logs: By metric, the log of its value.
    """

    level: str
    parked: bool
    beside: bool
    logs: Mapping[str, float]


@dataclass(frozen=True)
class Effect:
    """What hidden imports do to one metric.

    Args:
        restarts: From how many.
        mean: A log ratio; positive is worse.
        low: Lower end of the 90 % interval.
        high: Upper end.
    """

    restarts: int
    mean: float
    low: float
    high: float

    def within(self, bound: float) -> bool:
        """Whether both one-sided tests at 5 % refuse that it is larger than the bound."""
        return -bound < self.low and self.high < bound


def effects(restarts: Sequence[Restart], metric: str) -> dict[str, Effect]:
    """By name, each effect on a metric; empty where too few restarts, or too much alike, tell it."""
    known = [one for one in restarts if metric in one.logs]
    levels = sorted({one.level for one in known})
    degrees = len(known) - len(levels) - len(SOUGHT["both"])
    rows = [[*(one.level == level for level in levels), one.parked, one.beside] for one in known]
    design = np.array(rows, dtype=float)
    if degrees < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return {}
    logs = np.array([one.logs[metric] for one in known])
    fitted, *_ = np.linalg.lstsq(design, logs)
    variance = float(((logs - design @ fitted) ** 2).sum()) / degrees
    covariance = variance * np.linalg.inv(design.T @ design)
    found = {}
    for name, parts in SOUGHT.items():
        weights = np.array([0.0] * len(levels) + parts)
        half = float(stats.t.isf(0.05, degrees) * np.sqrt(weights @ covariance @ weights))
        mean = float(weights @ fitted)
        found[name] = Effect(len(known), mean, mean - half, mean + half)
    return found


def restarts_of(record: Record, run: str = "") -> Iterator[Restart]:
    """The trials of a record that were parked as planned, and have enough iterations of one state.

    The next trial tells whether one was parked beside, so the last one of a visit does not count.

    Args:
        record: Of one GPU.
        run: Tells its level from that of other runs: what is slow or fast is so beside the fastest reading of a run.
    """
    judged = {trial.pair: trial for trial in record.judged_trials("base") if trial.pair is not None}
    readings = [reading for trial in judged.values() for one in trial.iterations for reading in readings_of(one)]
    fastest = tuple(map(min, zip(*readings, strict=True))) if readings else ()
    for number, trial in judged.items():
        following = judged.get(number + 1)
        if following is None or following.visit != trial.visit or _was_parked(trial) != PARKED[number % BLOCK]:
            continue
        for state, alike in _in_one_state(trial, fastest):
            values = {metric: METRICS[metric].summarise(alike) for metric in BOUNDS}
            logs = {metric: math.log(value) for metric, value in values.items() if value}
            yield Restart(f"{run} {trial.gpus} {state}", _was_parked(trial), _was_parked(following), logs)


def _was_parked(trial: Trial) -> bool:
    return trial.startup is not None and trial.startup.parked_ns > 0


def _in_one_state(trial: Trial, fastest: Sequence[int]) -> Iterator[tuple[str, Trial]]:
    """The state that a trial has most of, and the trial with its iterations in it; nothing where these are too few.

    Only a GPU has states; a busy processor reads slow at times and is measured as it is.
    """
    if not trial.gpus:
        yield "", trial
    elif all(map(readings_of, trial.iterations)):
        states = {"slow": in_state(trial, fastest, slow=True), "fast": in_state(trial, fastest, slow=False)}
        state, alike = max(states.items(), key=lambda one: len(one[1]))
        if len(alike) >= LEAST_ALIKE:
            yield state, trial.model_copy(update={"iterations": alike})


def table(folder: Path) -> Iterator[str]:
    """The lines of a table over all run folders below a folder: a row a metric and effect."""
    restarts: list[Restart] = []
    taken = 0
    for run_folder in sorted(path for path in folder.iterdir() if (path / "run.json").exists()):
        for record in read_records(run_folder, read_manifest(run_folder)):
            taken += len(record.judged_trials("base"))
            restarts += restarts_of(record, run_folder.name)
    yield f"{taken} trials\n"
    yield "| metric | effect | restarts | change | 90 % interval | bound | equivalent |\n|---|---|---|---|---|---|---|"
    for metric, bound in BOUNDS.items():
        for name, known in effects(restarts, metric).items():
            yield (
                f"| `{metric}` | {name} | {known.restarts} | {100 * known.mean:+.3f} % | {100 * known.low:+.3f} to "
                f"{100 * known.high:+.3f} % | {100 * bound:g} % | {'yes' if known.within(bound) else 'not shown'} |"
            )


def take_blocks(
    folder: Path, scenario: Path, subject: Subject, blocks: int, deadline_s: float, collector: Collector | None = None
) -> None:
    """Add blocks of trials to the run folder of one GPU, which is made where it is missing.

    Args:
        folder: The run folder.
        scenario: Its file.
        subject: The build.
        blocks: How many more.
        deadline_s: No trial is begun that would not end before, on the monotonic clock.
        collector: Takes the trials; the real engine where not given.

    Raises:
        PerfgateError: The machine is not fit to measure on, or the folder is not of this scenario and build.
    """
    loaded = (load(scenario),)
    if not folder.exists():
        plan = make_plan(loaded, 0)
        make_folder(folder, loaded)
        write_run(folder, Run(name=folder.name, plan=plan, subjects={"base": subject}, perfgate=__version__))
    run = read_manifest(folder)
    with hold(folder), Session(folder, run, Alternating(collector or EngineCollector()), _tell, deadline_s) as session:
        taken = {record.cell.cell_id: record.measured() for record in read_records(folder, run)}
        for cell in run.plan.cells:
            session.measure(cell, taken.get(cell.cell_id, 0) + BLOCK * blocks)


def _tell(step: Step | str) -> None:
    if isinstance(step, str):
        print(step, file=sys.stderr, flush=True)
    elif step.finished is not None:
        failure = step.finished.failure
        print(f"trial {step.trial}: {failure.text if failure else 'done'}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> int:
    """Take blocks on all GPUs at once, each in a process of its own; the number of those that failed."""
    deadline_s = time.monotonic() + options.minutes * 60
    running = []
    for gpu in options.gpus:
        words = ("--blocks", str(options.blocks))
        running.append(lanes.start(__file__, options, gpu, deadline_s, words, {SWITCH: "1"}))
    return sum(process.wait() != 0 for process in running)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table; 1 where a GPU's process failed."""
    parser = lanes.parser(__doc__, "hidden-imports")
    parser.add_argument("--blocks", type=int, default=8, help="of four trials, on each GPU")
    options = parser.parse_args(words)
    if options.lane is not None:
        return lanes.in_lane(
            options, lambda base: take_blocks(options.into, options.scenario, base, options.blocks, options.lane)
        )
    options.into.mkdir(parents=True, exist_ok=True)
    failed = 0 if options.summarise else measure(options)
    for line in table(options.into):
        print(line)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
