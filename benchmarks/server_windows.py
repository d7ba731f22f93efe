"""How many windows a start of a server is worth: what differs between restarts, and between windows of one.

``python benchmarks/server_windows.py RUN...`` reads run folders of scenarios with ``driver: server``, best A/A runs of
many windows, and splits the variance of the logarithm of each window's median into the part of the restart and that
of the window (one-way random effects). For each number of windows it prints the standard deviation and the time of a
trial; the number with the smallest product of variance and time needs the least time for a given precision.
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
WINDOWS = (1, 2, 3, 5, 8)


def components(trials: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Variances between restarts and between windows of one, from as many values of each trial.

    Args:
        trials: Logarithms of windows, trial by trial; at least two of each.
    """
    windows = len(trials[0])
    within = statistics.fmean(statistics.variance(values) for values in trials)
    between = statistics.variance([statistics.fmean(values) for values in trials]) - within / windows
    return max(0.0, between), within


def report(name: str, trials: Sequence[Sequence[float]], start_s: float, window_s: float) -> Iterable[str]:
    """A line for each number of windows."""
    between, within = components(trials)
    yield f"{name}: restart sd {100 * math.sqrt(between):.2f} %, window sd {100 * math.sqrt(within):.2f} %"
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
