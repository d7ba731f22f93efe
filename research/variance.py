"""Where the noise of recorded restarts comes from (iterations, restarts, modes, drift), and how many iterations pay.

``python research/variance.py tests/fixtures/h200-llama-8b-iterations.csv`` prints Markdown tables. The file has a
line an iteration: run, trial, pair, subject, iteration, itl_ns, ttft_ns.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from perfgate.stats.modes import two_modes

FIXED_S = 14.5
"""Seconds of a trial outside its iterations, measured on the H200: import, engine start, stop."""
ITERATION_S = 0.68
"""Seconds of one iteration of llama-8b-decode there."""


def components(logs: np.ndarray) -> tuple[float, float]:
    """(iteration sd, restart sd) of a table of logs, one row a trial: one-way random effects by ANOVA.

    A negative estimate of the restart variance is shown as 0.
    """
    trials, iterations = logs.shape
    within = float(logs.var(axis=1, ddof=1).mean())
    between = float(logs.mean(axis=1).var(ddof=1))
    return math.sqrt(within), math.sqrt(max(0.0, between - within / iterations)) if trials > 1 else math.nan


def sd_by_kept(logs: np.ndarray, kept: int) -> float:
    """Sd between trials when each is summarised by the median of its first ``kept`` iterations."""
    return float(np.median(logs[:, :kept], axis=1).std(ddof=1))


def best_iterations(iteration_sd: float, restart_sd: float) -> float:
    """Iterations a trial that cost least for a wanted precision (Kalibera and Jones 2013, section 5)."""
    return math.inf if restart_sd == 0 else math.sqrt(FIXED_S / ITERATION_S) * iteration_sd / restart_sd


def drift(logs: np.ndarray) -> float:
    """Slope of the trials' medians over their order, in log units from the first to the last trial."""
    medians = np.median(logs, axis=1)
    order = np.arange(len(medians))
    return float(np.polyfit(order, medians, 1)[0] * (len(medians) - 1))


def tables(file: Path, column: str) -> str:
    """Markdown for one column of the recording."""
    frame = pd.read_csv(file)
    frame = frame[frame["pair"].notna()]
    headings = (
        "run", "side", "restarts", "iteration sd", "restart sd", "trial sd by iterations kept: 2, 4, 8, 20",
        "best iterations", "drift over the visit", "modes",
    )  # fmt: skip
    lines = [f"**{column}**", "", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for (run, side), group in frame.groupby(["run", "subject"], sort=False):
        table = group.pivot_table(index="trial", columns="iteration", values=column)
        logs = np.log(table.to_numpy())
        iteration_sd, restart_sd = components(logs)
        kept = ", ".join(f"{sd_by_kept(logs, n) * 100:.3f}" for n in (2, 4, 8, 20))
        split = two_modes(np.median(logs, axis=1))
        modes = "none" if split is None else f"{split[0]} of {len(logs)}, {split[1] * 100:.2f} % above"
        best = best_iterations(iteration_sd, restart_sd)
        lines.append(
            f"| {run} | {side} | {len(logs)} | {iteration_sd * 100:.3f} % | {restart_sd * 100:.3f} % | {kept} % "
            f"| {best:.0f} | {drift(logs) * 100:+.3f} % | {modes} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(tables(Path(sys.argv[1]), column) for column in ("itl_ns", "ttft_ns")))
