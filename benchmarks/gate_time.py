"""Where the wall time of a run went, from its records: ``python benchmarks/gate_time.py FOLDER [FOLDER...]``.

A FOLDER is a run folder, or holds some. Prints a table for each run, and of several the mean of all. Rows are what was
waited for, columns warm-up trials and pairs; with several GPUs at work a second is one of the wall clock, shared among
them. What a trial did is read from its monotonic figures. Beginnings are known to the second, so that ``between`` is
right within one second a visit.

========== ==============================================================================
import     imports of a worker that was not parked; those of one that was were hidden
engine     building the engine, compilers included
spawn      what else passed until it was ready; of a server all but hidden imports
warm-up    its iterations that are not measured, but for settling
settling   warm-up that went on until the GPU was fast
measuring  first measured iteration to the last
waiting    for the engine to stop, and for the next worker to be parked
other      trials of other kinds, and failed ones
neighbours before the first trial of a visit to several GPUs: the check of what they do to one another
between    locks, checks before a trial, writing records, GPUs that wait for others
before     from the command to the visit: what is wrong with scenario and builds, the run folder
judging    judging it once, now and on this machine
========== ==============================================================================
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from perfgate.gate import outcome_of
from perfgate.metrics.trial import SETTLED, Trial
from perfgate.record.run_record import Record, read_records, read_run

WARM_UP, PAIRS, REST = "warm-up trials", "pairs", "the run"
PHASES = (
    "import", "engine", "spawn", "warm-up", "settling", "measuring", "waiting", "other", "neighbours", "between",
    "before", "judging",
)  # fmt: skip
STARTED = re.compile(r"-(\d{8}T\d{6})Z-")

Spent = dict[tuple[str, str], float]
"""Seconds by row and column."""


def of_trial(trial: Trial, warm_ups: int) -> dict[str, float]:
    """Seconds of a trial by phase; they add up to its duration.

    Args:
        trial: Any.
        warm_ups: Iterations before the first that is measured, settling left out.
    """
    whole = trial.duration_ns
    if trial.kind != "timed" or trial.failure is not None or trial.startup is None or not trial.iterations:
        return {"other": whole / 1e9}
    start, first, last = trial.startup, trial.iterations[0], trial.iterations[-1]
    parked = start.parked_ns > 0
    usual = statistics.median(iteration.elapsed_ns for iteration in trial.iterations)
    known: dict[str, float] = {
        "import": 0 if parked else start.import_ns,
        "engine": start.engine_ns,
        "spawn": 0 if parked and start.engine_ns else start.ready_ns - start.import_ns - start.engine_ns,
        "warm-up": warm_ups * usual,
        "settling": trial.figures.get(SETTLED, 0),
        "measuring": last.begin_ns + last.elapsed_ns - first.begin_ns,
    }
    return {name: ns / 1e9 for name, ns in {**known, "waiting": max(whole - sum(known.values()), 0)}.items()}


def of_run(folder: Path) -> Spent:
    """Seconds of the wall clock that a run took, over all of its visits; raises RecordError."""
    run = read_run(folder)
    records = list(read_records(folder, run))
    spent: Spent = defaultdict(float)
    for begun in sorted({visit.t0_utc for record in records for visit in record.visits}):
        taken = [*_of_visit(records, begun)]
        for name, seconds in of_wall(taken, datetime.fromisoformat(begun)).items():
            spent[name] += seconds
    named = STARTED.search(run.name)
    if named and records:
        asked = datetime.strptime(named[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        first = min(datetime.fromisoformat(visit.t0_utc) for record in records for visit in record.visits)
        spent["before", REST] = max((first - asked).total_seconds(), 0.0)
    before_s = time.perf_counter()
    outcome_of(folder)
    spent["judging", REST] = time.perf_counter() - before_s
    return dict(spent)


def _of_visit(records: Iterable[Record], begun: str) -> Iterator[tuple[Trial, int]]:
    """The trials of one visit, of all cells, each with its warm-up iterations."""
    for record in records:
        for trial in record.trials:
            if record.visits[trial.visit].t0_utc == begun:
                yield trial, record.cell.measure.warmup_iterations


def of_wall(taken: Sequence[tuple[Trial, int]], begun: datetime) -> Spent:
    """What the wall clock of a visit went to: what each GPU did, in the mean over those that were at work."""
    spent: Spent = defaultdict(float)
    if not taken:
        return spent
    lanes = len({trial.gpus[:1] for trial, _ in taken})  # a smaller cell takes the first GPUs of a station
    for trial, warm_ups in taken:
        for name, seconds in of_trial(trial, warm_ups).items():
            spent[name, WARM_UP if trial.pair is None else PAIRS] += seconds / lanes
    starts = [(datetime.fromisoformat(trial.t0_utc) - begun).total_seconds() for trial, _ in taken]
    ends = [start + trial.duration_ns / 1e9 for start, (trial, _) in zip(starts, taken, strict=True)]
    spent["neighbours", REST] = max(min(starts), 0.0) if lanes > 1 else 0.0
    spent["between", REST] = max(max(ends) - sum(spent.values()), 0.0)
    return spent


def table(title: str, spent: Mapping[tuple[str, str], float]) -> str:
    """A Markdown table with a row a phase, in seconds; phases of which there was none are left out."""
    whole = sum(spent.values())
    rows = [f"| {title} | {WARM_UP}, s | {PAIRS}, s | all, s | share |", "|---|---|---|---|---|"]
    for phase in PHASES:
        columns = [spent.get((phase, column), 0.0) for column in (WARM_UP, PAIRS, REST)]
        if total := sum(columns):
            shown = [f"{seconds:.1f}" if seconds else "" for seconds in columns[:2]]
            rows.append(f"| {phase} | {shown[0]} | {shown[1]} | {total:.1f} | {total / whole * 100:.0f} % |")
    sums = [sum(seconds for (_, column), seconds in spent.items() if column == of) for of in (WARM_UP, PAIRS)]
    return "\n".join([*rows, f"| all | {sums[0]:.1f} | {sums[1]:.1f} | {whole:.1f} | |"])


def mean(runs: Sequence[Spent]) -> Spent:
    """Seconds a run."""
    return {
        name: sum(run.get(name, 0.0) for run in runs) / len(runs) for name in {name for run in runs for name in run}
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    folders = sorted({file.parent for folder in parser.parse_args().folders for file in folder.rglob("run.json")})
    if not folders:
        parser.error("no run folder there")
    runs = [of_run(folder) for folder in folders]
    for folder, spent in zip(folders, runs, strict=True):
        print(f"{table(folder.name, spent)}\n")
    if len(runs) > 1:
        print(table(f"mean of {len(runs)} runs", mean(runs)))


if __name__ == "__main__":
    main()
