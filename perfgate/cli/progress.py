"""Progress for people, on stderr: on a terminal a line that is rewritten, elsewhere a line a finished trial."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from perfgate.capture.pace import Progress, Step
from perfgate.cli.outlet import CLEAR
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Trial
from perfgate.units import format_value, plural

BAR_WIDTH = 10
TICK_S = 1.0
"""Seconds between two rewritings of the line while nothing happens; more often would take time from the engine."""
MEASURING = "iteration"
"""The first word of a phase in which the engine is timed: the line is left alone until the phase ends."""
SHOWN = {"ITL": "itl_median", "TTFT": "ttft_median"}
"""What is shown of a finished trial."""


@contextlib.contextmanager
def progress_to(stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A function that shows steps and sentences on ``stream`` while the block lasts.

    Args:
        stream: A terminal, a pipe or a file.
        now_s: The monotonic clock.
    """
    shown = _Progress(stream, now_s)
    if not stream.isatty():
        yield shown.log
        return
    over = threading.Event()
    clock = threading.Thread(target=_tick, args=(shown, over), name="perfgate progress", daemon=True)
    clock.start()
    try:
        yield shown.rewrite
    finally:
        over.set()
        clock.join()
        stream.write(CLEAR)
        stream.flush()


class _Progress:
    """A line a finished trial; on a terminal these are above a line that is rewritten in place."""

    def __init__(self, stream: TextIO, now_s: Callable[[], float]) -> None:
        self._stream, self._now_s, self._begun_s = stream, now_s, now_s()
        self._lock = threading.Lock()
        self._steps: dict[str, tuple[Step, float]] = {}  # by station, the one that told last at the end

    def log(self, step: Step | str) -> None:
        """Print a sentence, or a trial that has finished."""
        if text := _finished(step, self._now_s() - self._begun_s):
            self._stream.write(f"{text}{_to_look(step)}\n")
        self._stream.flush()

    def rewrite(self, step: Step | str) -> None:
        """Print a sentence or a finished trial above the line, and rewrite the line."""
        with self._lock:
            now_s = self._now_s()
            if text := _finished(step, now_s - self._begun_s):
                self._stream.write(f"{CLEAR}{text}\n")
            if not isinstance(step, str):
                self._steps.pop(step.station, None)
                self._steps[step.station] = step, now_s
            self._rewrite_line(now_s)

    def tick(self) -> None:
        """Rewrite the line with the time that it is now, unless an engine is being timed."""
        with self._lock:
            if self._steps and not any(step.phase.startswith(MEASURING) for step, _ in self._steps.values()):
                self._rewrite_line(self._now_s())

    def _rewrite_line(self, now_s: float) -> None:
        if self._steps:
            *others, (step, step_s) = self._steps.values()
            width = shutil.get_terminal_size().columns - 1
            shown = _current(step, [other for other, _ in others], now_s - self._begun_s, now_s - step_s, width)
            self._stream.write(f"{CLEAR}{shown}")
        self._stream.flush()


def _tick(shown: _Progress, over: threading.Event) -> None:
    while not over.wait(TICK_S):
        shown.tick()


def describe(step: Step) -> str:
    """``pair 3 of 4, head: iteration 5 of 10``; a pair that has just been finished is not the next one yet."""
    number = min(step.done + 1, step.target)
    return f"{_label(step, f'{number} of {step.target}')}, {step.side}: {step.phase}"


def _at_stations(steps: Sequence[Step]) -> str:
    """``2 of 4 pairs; GPU 0 head: iteration 5 of 10; GPU 1 warm-up base: starting the engine``."""
    done, target = max(step.done for step in steps), steps[0].target
    shown = [
        f"{step.station}{' warm-up' if step.pair is None else ''} {step.side}: {step.phase}"
        for step in sorted(steps, key=lambda step: step.station)
    ]
    return "; ".join([f"{done} of {plural(target, 'pair')}", *shown])


def _label(trial: Step | Trial, number: str) -> str:
    if trial.pair is None:
        return "warm-up"
    return f"pair {number}" if trial.kind == "timed" else f"{trial.kind} pair {number}"


def _current(step: Step, others: Sequence[Step], elapsed_s: float, since_s: float, width: int) -> str:
    """Where the run is now; a line that wraps could not be rewritten, so the cell's name is cut, and then the end."""
    filled = BAR_WIDTH * min(step.done, step.target) // max(step.target, 1)
    bar = f"[{_clock(elapsed_s)}] [{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"
    words = f"{_at_stations([step, *others]) if others else describe(step)}{_left(step, since_s)}"
    room = width - len(bar) - len(words) - 2
    name = step.cell if len(step.cell) <= room else f"{step.cell[: max(room - 1, 0)]}…"
    return f"{bar} {name} {words}"[:width]


def _left(step: Step, since_s: float) -> str:
    """A trial that takes longer than expected takes nothing from the time of those that follow."""
    if step.seconds_left is None:
        return ""
    left_s = max(step.seconds_left - since_s, step.seconds_after)
    return f", {_clock(left_s)} left" if left_s or step.finished else ", overdue"


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
    label = _label(trial, str((trial.pair or 0) + 1))
    where = f" on {step.station}" if step.station else ""
    return f"[{_clock(elapsed_s)}] {step.cell} trial {trial.index:03} {label} {trial.subject}{where}: {result}"


def _to_look(step: Step | str) -> str:
    if isinstance(step, str) or step.seconds_left is None:
        return ""
    return f" ({_clock(step.seconds_left)} to the look at {plural(step.target, 'pair')})"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
