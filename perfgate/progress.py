"""Progress for people, on stderr: one rewritten line on a terminal, one line a finished trial elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import TextIO

from perfgate.capture.session import Progress, Step
from perfgate.metrics import METRICS, format_value

BAR_WIDTH = 20
CLEAR = "\r\x1b[K"
"""To the start of the line, and rub it out."""


@contextlib.contextmanager
def progress_to(stream: TextIO) -> Iterator[Progress]:
    """A function that shows steps and sentences on ``stream`` while the block lasts."""
    terminal = stream.isatty()
    started = time.monotonic()

    def show(step: Step | str) -> None:
        if isinstance(step, str):
            stream.write(f"{CLEAR if terminal else ''}perfgate: {step}\n")
        elif terminal:
            # A line that wraps cannot be rewritten, so it is cut; the last column is left to the cursor.
            line = f"{_bar(step)} {describe(step)}{_left(step)}"[: shutil.get_terminal_size().columns - 1]
            stream.write(f"{CLEAR}{line}")
            if step.finished is not None:
                stream.write(f"{CLEAR}{_finished(step, time.monotonic() - started)}\n")
        elif step.finished is not None:
            stream.write(f"{_finished(step, time.monotonic() - started)}{_left(step)}\n")
        stream.flush()

    try:
        yield show
    finally:
        if terminal:
            stream.write(CLEAR)
            stream.flush()


def describe(step: Step) -> str:
    """``cpu-tiny pair 3 of 4, head: iteration 5 of 10``."""
    place = "conditioning" if step.pair is None else f"pair {step.done + 1} of {step.target}"
    return f"{step.cell} {place}, {step.role}: {step.phase}"


def _finished(step: Step, elapsed_s: float) -> str:
    trial = step.finished
    if trial is None:
        return ""
    if trial.failure is not None:
        result = f"FAILED {trial.failure.code}"
    else:
        shown = [(name, METRICS[name].summarise(trial)) for name in ("itl_median", "ttft_median")]
        result = ", ".join(f"{name} {format_value(value, 's')}" for name, value in shown if value is not None)
    place = "conditioning" if trial.pair is None else f"pair {trial.pair + 1}"
    return f"[{_clock(elapsed_s)}] {step.cell} trial {trial.index:03} {place} {trial.subject}: {result}"


def _bar(step: Step) -> str:
    filled = BAR_WIDTH * min(step.done, step.target) // max(step.target, 1)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"


def _left(step: Step) -> str:
    return "" if step.seconds_left is None else f" ({_clock(step.seconds_left)} to the look at {step.target} pairs)"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
