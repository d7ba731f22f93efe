"""How many windows a start of a server is worth: what differs between restarts, and between windows of one.

``python benchmarks/server_windows.py RUN...`` reads run folders of scenarios with ``driver: server``, best A/A runs of
many windows. Every restart gets the same loads, window by window, so the variance of the logarithm of a window's median
has three parts: restarts, loads, and what one restart makes of one load. Loads cancel in pairs and are left out. For
each number of windows it prints the standard deviation and the time of a trial; the number with the smallest product of
variance and time needs the least time for a given precision.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from perfgate.metrics.trial import Iteration, Trial
from perfgate.record.run_record import read_records, read_run

FIGURES: dict[str, Callable[[Iteration], Sequence[int]]] = {
    "ttft": lambda window: window.ttft_ns,
    "itl": lambda window: window.itl_ns,
    "e2e": lambda window: window.e2e_ns,
}
WINDOWS = (1, 2, 3, 5, 8, 12)


def components(trials: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Variances between restarts, between loads, and of one window in one restart, from a table without gaps.

    The moments of a two-way layout with one value a cell (Scheffe, "The Analysis of Variance", 1959, section 7.4).

    Args:
        trials: Logarithms of windows, trial by trial; at least two of each.
    """
    restarts, windows = len(trials), len(trials[0])
    rows = [statistics.fmean(values) for values in trials]
    columns = [statistics.fmean(values) for values in zip(*trials, strict=True)]
    whole = statistics.fmean(rows)
    rest = math.fsum(
        (value - row - column + whole) ** 2
        for values, row in zip(trials, rows, strict=True)
        for value, column in zip(values, columns, strict=True)
    ) / ((restarts - 1) * (windows - 1))
    between = statistics.variance(rows) - rest / windows
    loads = statistics.variance(columns) - rest / restarts
    return max(0.0, between), max(0.0, loads), rest


def report(name: str, trials: Sequence[Sequence[float]], start_s: float, window_s: float) -> Iterable[str]:
    """A line for each number of windows."""
    between, loads, within = components(trials)
    sds = [f"{100 * math.sqrt(variance):.2f} %" for variance in (between, loads, within)]
    yield f"{name}: sd of restarts {sds[0]}, of loads {sds[1]}, of a window beside that {sds[2]}"
    for windows in WINDOWS:
        sd = math.sqrt(between + within / windows)
        cost_s = start_s + windows * window_s
        worth = 1e4 * sd * sd * cost_s
        yield f"  {windows} windows: trial sd {100 * sd:.2f} %, {cost_s:.0f} s, sd^2 x time {worth:.1f}"


def main(folders: Sequence[str]) -> None:
    """Print the report of each cell."""
    for folder in map(Path, folders):
        for record in read_records(folder, read_run(folder)):
            taken: list[Trial] = [*record.judged_trials("base", "timed"), *record.judged_trials("head", "timed")]
            window_s = statistics.fmean(i.elapsed_ns for trial in taken for i in trial.iterations) / 1e9
            trial_s = statistics.fmean(trial.duration_ns for trial in taken) / 1e9
            start_s = trial_s - window_s * len(taken[0].iterations)
            print(f"{record.cell.name}: {len(taken)} restarts of {len(taken[0].iterations)} windows")
            for name, of in FIGURES.items():
                logs = [[math.log(statistics.median(of(i))) for i in trial.iterations] for trial in taken]
                print("\n".join(report(name, logs, start_s, window_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
