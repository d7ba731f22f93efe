"""How much separately compiled subjects of one build differ: cold fills of the compile caches, and restarts of each.

``python research/cold_fills.py SCENARIO --base python=... --base path=... --gpus 0,1,2,3 --fills 8 --minutes 4``

A fill is a visit of a one-sided run: its caches are empty, one warm-up trial fills them, and ``--trials`` restarts use
them. Fills are spread over the GPUs, one run a GPU, at the same time. Each GPU is a block, since GPUs of one host
differ by more than fills do; so is each level of step time of a GPU that jumps between two within a fill. ``FOLDER``
(``--into``) keeps the runs. They are ordinary run folders, and calling the program again adds fills to them.
``--summarise`` measures nothing.

Prints a line of JSON a trial, then a line a cell: standard deviations between fills and between restarts of one fill,
as percentages of the step time (``itl_median``), with 95 % intervals. See :func:`components`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lanes
import numpy as np
import pandas as pd
from scipy import stats
from state_summary import boundary

from perfgate import __version__
from perfgate.capture.compile_caches import VARIABLE
from perfgate.capture.job import Collector
from perfgate.capture.pace import Step
from perfgate.capture.session import Session
from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.machine.locks import hold
from perfgate.metrics.trial import SLOWER, tells_states
from perfgate.record.keeping import make_folder
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import Record, Run, read_records, write_run
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import make_plan
from perfgate.scenario.subject import Subject

ALPHA = 0.025
"""On either side of an interval."""


@dataclass(frozen=True)
class Interval:
    """An estimated standard deviation with its 95 % interval, as percentages of the step time."""

    sd_percent: float
    low_percent: float
    high_percent: float


@dataclass(frozen=True)
class Components:
    """Where the variance of restarts comes from.

    Args:
        blocks: Cards, or levels of cards.
        fills: Fills in blocks with at least two.
        restarts: Trials of those fills.
        between: Between fills of one block.
        within: Between restarts of one fill.
        p: Of the F test that fills do not differ.
    """

    blocks: int
    fills: int
    restarts: int
    between: Interval
    within: Interval
    p: float


def components(blocks: Iterable[Sequence[Sequence[float]]]) -> Components | None:
    """Variance components of fills nested in blocks; ``None`` where fills or restarts have no degree of freedom.

    Means of fills are not weighted, and the harmonic mean of their restarts takes the place of a common number (Thomas
    and Hultquist 1978), so fills with fewer restarts count. Where all have as many this is analysis of variance, and
    REML unless the estimate is below zero, which is shown as 0. The interval of the variance between fills is the
    modified large-sample one (Ting et al. 1990; Burdick and Graybill 1992, chapter 3).

    Args:
        blocks: Logs of step times: of each block its fills, of each fill its restarts. Blocks of one fill are left out.
    """
    usable = [[np.asarray(fill) for fill in block if len(fill)] for block in blocks]
    usable = [block for block in usable if len(block) > 1]
    fills = [fill for block in usable for fill in block]
    restarts = sum(map(len, fills))
    df, rest = len(fills) - len(usable), restarts - len(fills)
    if not df or not rest:
        return None
    each = len(fills) / sum(1 / len(fill) for fill in fills)
    means = [np.array([fill.mean() for fill in block]) for block in usable]
    among = each * sum(float(((mean - mean.mean()) ** 2).sum()) for mean in means) / df
    within = sum(float(((fill - fill.mean()) ** 2).sum()) for fill in fills) / rest
    low, high = _difference_bounds(among, within, df, rest)
    between = Interval(_percent((among - within) / each), _percent(low / each), _percent(high / each))
    inside = Interval(
        _percent(within),
        _percent(within * rest / float(stats.chi2.isf(ALPHA, rest))),
        _percent(within * rest / float(stats.chi2.ppf(ALPHA, rest))),
    )
    p = float(stats.f.sf(among / within, df, rest)) if within else 0.0
    return Components(len(usable), len(fills), restarts, between, inside, p)


def _difference_bounds(among: float, within: float, df: int, rest: int) -> tuple[float, float]:
    """Bounds of the difference of two expected mean squares; each is missed with probability ``ALPHA``."""
    (g1, h1), (g2, h2) = _shares(df), _shares(rest)
    above, below = float(stats.f.isf(ALPHA, df, rest)), float(stats.f.ppf(ALPHA, df, rest))
    g12 = ((above - 1) ** 2 - (g1 * above) ** 2 - h2**2) / above
    h12 = ((1 - below) ** 2 - (h1 * below) ** 2 - g2**2) / below
    down = (g1 * among) ** 2 + (h2 * within) ** 2 + g12 * among * within
    up = (h1 * among) ** 2 + (g2 * within) ** 2 + h12 * among * within
    difference = among - within
    return difference - math.sqrt(max(down, 0.0)), difference + math.sqrt(max(up, 0.0))


def _shares(df: int) -> tuple[float, float]:
    """How far below and above a mean square its expectation may be, as shares of it."""
    return 1 - df / float(stats.chi2.isf(ALPHA, df)), df / float(stats.chi2.ppf(ALPHA, df)) - 1


def _percent(variance: float) -> float:
    """Of a variance of logs, or of an estimate or bound of one that may be below zero."""
    return round(100 * math.sqrt(max(variance, 0.0)), 4)


def take_fills(
    folder: Path,
    scenario: Path,
    subject: Subject,
    sizes: tuple[int, int],
    deadline_s: float,
    collector: Collector | None = None,
) -> None:
    """Add fills to a run folder, which is made where it is missing.

    Args:
        folder: The run folder of one GPU.
        scenario: Its file; each cell is measured in each fill.
        subject: The build.
        sizes: How many fills, and restarts in each.
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
    fills, trials = sizes
    longest_s = 0.0
    for _ in range(fills):
        begin_s = time.monotonic()
        if begin_s + longest_s > deadline_s:
            raise InterruptedRunError(f"another fill takes {longest_s:.0f} s, more than is left", code="out-of-budget")
        with hold(folder), Session(folder, run, collector, _tell, deadline_s) as session:
            taken = {record.cell.cell_id: record.measured() for record in read_records(folder, run)}
            for cell in run.plan.cells:
                stopped = session.measure(cell, taken.get(cell.cell_id, 0) + trials).stopped
                if stopped is not None:
                    raise NotMeasuredError(stopped.text, where=cell.name, code=stopped.code)
        longest_s = max(longest_s, time.monotonic() - begin_s)


def _tell(step: Step | str) -> None:
    if isinstance(step, str):
        print(step, file=sys.stderr, flush=True)
    elif step.finished is not None:
        failure = step.finished.failure
        print(f"trial {step.trial}: {failure.text if failure else 'done'}", file=sys.stderr, flush=True)


def trials_of(record: Record, block: str) -> Iterator[dict[str, Any]]:
    """A row for each timed trial and each level that it was on: block, fill, warm-up or not, and its step time."""
    frame = _labelled(record).dropna(subset=["itl_ns"])
    two = bool(frame["slow"].any() and not frame["slow"].all())
    for trial in record.trials:
        row = {"block": block, "fill": trial.visit, "trial": trial.index, "warm_up": trial.pair is None}
        row["cache_files"] = trial.startup.cache_files if trial.startup else None
        row["engine_s"] = round(trial.startup.engine_ns / 1e9, 2) if trial.startup else None
        if trial.kind != "timed" or trial.failure:
            yield {**row, "failure": trial.failure.code if trial.failure else None, "level": None}
            continue
        own = frame[frame["trial"] == trial.index]
        for slow, some in own[own["known"]].groupby("slow"):
            level = "only" if not two else "slow" if slow else "fast"
            yield {**row, "level": level, "iterations": len(some), "step_ms": round(some["step"].median() / 1e6, 6)}


def _labelled(record: Record) -> pd.DataFrame:
    """Iterations with their step time, whether they are slow, and whether that is known.

    By the probe where it tells states, which knows nothing of what was compiled; an iteration with one reading in each
    state is not known. Else by step times: levels are the GPU's only where one fill is on both, since what differs from
    fill to fill is what is looked for, and an iteration beside one on the other level may have the jump in it.
    """
    visits = {trial.index: trial.visit for trial in record.trials}
    frame = record.iteration_frame()
    steps = frame["itl_ns"].astype("float64").to_numpy(dtype=np.float64)
    frame = frame.assign(step=steps, fill=frame["trial"].map(visits), slow=False, known=True)
    probes = [iteration.probe_ns for trial in record.trials for iteration in trial.iterations]
    names = [gpu.name for visit in record.visits for gpu in visit.machine.gpus]
    if probes and tells_states(names) and all(probes):
        marks = np.array([(max(probe.before), max(probe.after)) for probe in probes if probe])
        slow = marks > SLOWER * marks.min()
        return frame.assign(slow=slow.all(axis=1), known=slow.all(axis=1) == slow.any(axis=1))
    edge = boundary(frame["itl_ns"].dropna().to_numpy(dtype=float))
    frame["slow"] = steps > (edge or math.inf)
    if not frame.groupby("fill")["slow"].mean().between(0, 1, inclusive="neither").any():
        return frame.assign(slow=False)
    jumped = frame["slow"].ne(frame.groupby("trial")["slow"].shift().fillna(frame["slow"])).astype(bool)
    after = jumped.groupby(frame["trial"]).shift(-1, fill_value=False)
    return frame.assign(known=~(jumped | after))


def summarised(folder: Path) -> list[dict[str, Any]]:
    """A line a trial and a line a cell of all run folders below a folder."""
    lines: list[dict[str, Any]] = []
    rows: dict[str, list[dict[str, Any]]] = {}
    for run_folder in sorted(path for path in folder.iterdir() if (path / "run.json").exists()):
        for record in read_records(run_folder, read_manifest(run_folder)):
            rows.setdefault(record.cell.name, []).extend(trials_of(record, run_folder.name))
            if record.stopped is not None:
                lines.append({"block": run_folder.name, "stopped": record.stopped.code, "why": record.stopped.text})
    for name, of_cell in rows.items():
        lines += [{"cell": name, **row} for row in of_cell]
        table = pd.DataFrame([row for row in of_cell if row["level"] is not None and not row["warm_up"]])
        found = components(_blocks(table)) if len(table) else None
        lines.append({"cell": name, "components": asdict(found) if found else None, **_levels(table)})
    return lines


def _blocks(table: pd.DataFrame) -> Iterator[list[list[float]]]:
    for _, block in table.groupby(["block", "level"]):
        yield [[math.log(step) for step in fill["step_ms"]] for _, fill in block.groupby("fill")]


def _levels(table: pd.DataFrame) -> dict[str, Any]:
    """Mean step times, milliseconds, by block and level."""
    if table.empty:
        return {}
    means = table.assign(where=table["block"] + " " + table["level"]).groupby("where")["step_ms"].mean()
    return {"step_ms": {str(where): round(float(mean), 4) for where, mean in means.items()}}


def spread(fills: int, gpus: Sequence[str]) -> Mapping[str, int]:
    """How many fills each GPU takes; those named first take one more."""
    return {gpu: len(range(n, fills, len(gpus))) for n, gpu in enumerate(gpus)}


def measure(options: argparse.Namespace) -> int:
    """Take fills on all GPUs at once, each in a process of its own; the number of those that failed."""
    deadline_s = time.monotonic() + options.minutes * 60
    running = []
    for gpu, fills in spread(options.fills, options.gpus).items():
        if not fills:
            continue
        words = ("--fills", str(fills), "--trials", str(options.trials))
        running.append(lanes.start(__file__, options, gpu, deadline_s, words, {VARIABLE: "0"}))
    try:
        return sum(process.wait() != 0 for process in running)
    except KeyboardInterrupt:  # it came to them as well; what they measured is summarised
        for process in running:
            process.wait()
        return len(running)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, summarise and print; 1 where a GPU's process failed or nothing can be estimated."""
    parser = lanes.parser(__doc__, "cold-fills")
    parser.add_argument("--fills", type=int, default=8, help="of all GPUs together")
    parser.add_argument("--trials", type=int, default=2, help="restarts within a fill, after its warm-up trial")
    options = parser.parse_args(words)
    if options.lane is not None:
        counts = (options.fills, options.trials)
        return lanes.in_lane(
            options, lambda base: take_fills(options.into, options.scenario, base, counts, options.lane)
        )
    options.into.mkdir(parents=True, exist_ok=True)
    failed = 0 if options.summarise else measure(options)
    lines = summarised(options.into)
    (options.into / "summary.json").write_text(json.dumps(lines, indent=1) + "\n")
    for line in lines:
        print(json.dumps(line))
    return int(failed > 0 or not any(line.get("components") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
