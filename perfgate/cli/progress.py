"""Progress for people, on stderr: a line a finished trial, and on a terminal below them where the run is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TextIO

from perfgate.capture.pace import Progress, Step
from perfgate.cli.status_block import StatusBlock, Told, clock, draws_on, status_lines, trial_label
from perfgate.metrics.catalogue import METRICS
from perfgate.run_steps import RunStep
from perfgate.units import format_value, plural

SHOWN = {"ITL": "itl_median", "TTFT": "ttft_median"}
"""What is shown of a finished trial."""


@contextlib.contextmanager
def progress_to(
    stream: TextIO,
    now_s: Callable[[], float] = time.monotonic,
    time_of_day: Callable[[], datetime] = datetime.now,
    *,
    quiet: bool = False,
) -> Iterator[Progress]:
    """A function that shows steps and sentences on ``stream`` while the block lasts.

    Args:
        stream: A terminal, a pipe or a file.
        now_s: The monotonic clock.
        time_of_day: The local time.
        quiet: Show sentences alone.
    """
    begun_s = now_s()

    def log(step: Step | str) -> None:
        if text := _finished(step, now_s() - begun_s) if isinstance(step, str) or not quiet else "":
            stream.write(f"{text}{_to_look(step)}\n")
        stream.flush()

    if quiet or not draws_on(stream):
        yield log
        return
    block = StatusBlock(stream)
    at_stations: dict[str, Told] = {}  # the one that told last at the end

    def draw(step: Step | str) -> None:
        elapsed_s = now_s() - begun_s
        if not isinstance(step, str):
            at_stations.pop(step.station, None)
            at_stations[step.station] = step, time_of_day()
        told = [*at_stations.values()]
        here = [one for one in told if one[0].cell == told[-1][0].cell]
        lines = status_lines(here, elapsed_s, time_of_day(), block.size) if here else []
        block.draw(_finished(step, elapsed_s), lines)

    try:
        yield draw
    finally:
        block.clear()


def _finished(step: Step | str, elapsed_s: float) -> str:
    """A sentence, or the trial that a step finished; empty where it finished none."""
    if isinstance(step, str):
        return f"perfgate: {step}"
    trial = step.finished
    if trial is None:
        return ""
    if trial.failure is not None:
        result = f"FAILED {trial.failure.code}"
    else:
        shown = [(name, METRICS[metric].summarise(trial)) for name, metric in SHOWN.items()]
        result = ", ".join(f"{name} {format_value(value, 's')}" for name, value in shown if value is not None)
    label = trial_label(trial, str((trial.pair or 0) + 1))
    where = f" on {step.station}" if step.station else ""
    return f"[{clock(elapsed_s)}] {step.cell} trial {trial.index:03} {label} {trial.label}{where}: {result}"


def _to_look(step: Step | str) -> str:
    if isinstance(step, str) or step.seconds_left is None:
        return ""
    if isinstance(step, RunStep) and not step.decides:
        return f" ({clock(step.seconds_left)} left)"
    return f" ({clock(step.seconds_left)} to the look at {plural(step.target, 'pair')})"
