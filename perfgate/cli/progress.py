"""Progress for people, on stderr: a line a finished trial, and on a terminal below them where the run is.

The lines below are drawn anew whenever something happens. Nothing here has a thread or a clock: a redraw that
nobody asked for would take time from an engine that is being timed. What goes on by itself is therefore shown as a time
of day. The cursor is never hidden, so that even a process that is killed leaves the terminal as it was.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from perfgate.capture.pace import Progress, Step
from perfgate.cli.outlet import Outlet, harmless
from perfgate.cli.report_colours import styled
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Trial
from perfgate.report.interval_strip import strips
from perfgate.report.outcome_charts import drawable
from perfgate.run_steps import RunStep
from perfgate.units import format_value, plural

SHOWN = {"ITL": "itl_median", "TTFT": "ttft_median"}  # what is shown of a finished trial
BAR_WIDTH = 10
LEAST_WIDTH = 36  # a narrower terminal is drawn on as if it had so many columns
ROOM = 3  # columns that stay free, for the `^C` that a terminal writes at the cursor: what it wraps could not be erased
WITH_BAR = 54  # columns from which on there is room for a bar
MOST_GATES = 6
DAY_S = 86_400
LONGEST_S = 99 * DAY_S  # of what is shown as a time; a record may hold any duration
BETWEEN = "between trials"
STYLES = {r"FAILED \S+": "bold red", "^perfgate: warning:": "bold yellow", r"^\[[\d:]+\]": "dim"}
"""Of finished trials and sentences."""
Told = tuple[Step, datetime]  # a step, and when it was told


@contextlib.contextmanager
def progress_to(
    stream: TextIO,
    now_s: Callable[[], float] = time.monotonic,
    time_of_day: Callable[[], datetime] = datetime.now,
    *,
    quiet: bool = False,
) -> Iterator[Progress]:
    """A function that shows steps and sentences on ``stream`` while the block lasts; if ``quiet`` sentences alone.

    It is given the monotonic clock and the local time.
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
        reports = [*at_stations.values()]
        here = [report for report in reports if report[0].cell == reports[-1][0].cell]
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


class StatusBlock:
    """The lines on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        outlet = stream if isinstance(stream, Outlet) else Outlet(stream, watched=False, lasting=True)
        self._outlet = outlet.for_drawing()
        self._console = Console(
            file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._stream = stream
        self._drawn: list[int] = []

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines that may be drawn now: of a terminal that is too narrow, a line takes several rows."""
        columns, rows = _terminal_size(self._stream)
        width = max(columns - ROOM, LEAST_WIDTH)
        return width, max((rows - 1) // math.ceil(width / columns), 1)

    def draw(self, above: str, lines: Sequence[Text]) -> None:
        """Draw the lines in place of those that are there.

        Args:
            above: Printed before them, to stay; may be empty.
            lines: At most as many as :attr:`size` says; what is too long is cut.
        """
        width, _ = self.size
        with self._console.capture() as drawn:
            if above:
                self._console.print(styled(harmless(above), STYLES))
            for line in lines:
                line.truncate(width, overflow="ellipsis")
            self._console.print(Text("\n").join(lines), end="")
        self._write(f"{self._erasure()}{drawn.get()}", [line.cell_len for line in lines])

    def clear(self) -> None:
        """Take the lines away; the cursor is where the first began."""
        self._write(self._erasure(), [])

    def _write(self, text: str, drawn: list[int]) -> None:
        """One write, and what is there then: Ctrl-C is heard before or after it, and all lines there can be erased."""
        shown, write = self._outlet.shown(text), self._outlet.stream.write
        with self._outlet.failures():
            try:
                write(shown)
            finally:  # a signal is heard as the call returns; before it only where a terminal holds its writers up
                self._drawn = drawn
        self._outlet.flush()

    def _erasure(self) -> str:
        """A terminal that has become narrower has wrapped what was drawn, so that it is in more rows now."""
        columns, _ = _terminal_size(self._stream)
        rows = sum(max(1, math.ceil(cells / columns)) for cells in self._drawn)
        if not rows:
            return ""
        line: tuple[ControlType | tuple[ControlType, int], ...] = ((ControlType.ERASE_IN_LINE, 2),)
        up = ((ControlType.CURSOR_UP, 1), *line)
        return str(Control(ControlType.CARRIAGE_RETURN, *line, *up * (rows - 1)))


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Of the terminal that a stream is, whatever the other streams are; else as the environment says."""
    with contextlib.suppress(OSError):  # no descriptor, or no terminal
        size = os.get_terminal_size(stream.fileno())
        if size.columns and size.lines:
            return size
    return shutil.get_terminal_size()


def draws_on(stream: TextIO) -> bool:
    """Whether a stream is a terminal that somebody watches and that can be drawn on."""
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return os.environ.get("CI", "").lower() in ("", "0", "false")


def status_lines(reports: Sequence[Told], elapsed_s: float, now: datetime, size: tuple[int, int]) -> list[Text]:
    """Where a run is: cell, pairs until the next look, each station, and what the last look found.

    ``reports`` has the last step of each station, that of the station that told last at the end; ``size`` is in columns
    and rows.
    """
    (step, _), (width, height) = reports[-1], size
    lines = [Text(_one_line(_where(step)), style="bold"), _pairs(step, elapsed_s, now, bar=width >= WITH_BAR)]
    describe = _at_station if step.station else _alone
    for latest, since in sorted(reports, key=lambda report: report[0].station):
        line, begun = Text(_one_line(describe(latest))), f", since {since:%H:%M:%S}"
        lasts = not (latest.finished or latest.phase.startswith("iteration")) and line.cell_len + len(begun) <= width
        lines.append(line.append(begun if lasts else "", style="dim"))
    intervals = _found(step, width) if isinstance(step, RunStep) else []
    if len(lines) + len(intervals) > height:
        intervals = intervals[-1:]
    room = height - len(intervals)
    return [*lines[:room], *intervals]


def _alone(step: Step) -> str:
    """``pair 3 of 4, head: iteration 5 of 10``."""
    if step.finished:
        return BETWEEN
    label = trial_label(step, f"{min(step.done + 1, step.target)} of {step.target}")
    return f"{label}, {step.side}: {step.phase}{f' (GPU {step.state})' if step.state else ''}"


def _at_station(step: Step) -> str:
    """``GPU 3 (slow): pair 7, head: iteration 5 of 10``."""
    state = f" ({step.state})" if step.state else ""
    if step.finished:
        return f"{step.station}{state}: {BETWEEN}"
    return f"{step.station}{state}: {trial_label(step, str((step.pair or 0) + 1))}, {step.side}: {step.phase}"


def trial_label(trial: Step | Trial, number: str) -> str:
    """What a trial is called."""
    if trial.pair is None:
        return "warm-up"
    return f"pair {number}" if trial.kind == "timed" else f"{trial.kind} pair {number}"


def _where(step: Step) -> str:
    if not isinstance(step, RunStep):
        return step.cell
    part = f"{step.part}: " if step.part else ""
    return f"{part}{step.cell}{f' (cell {step.number} of {step.cells})' if step.cells > 1 else ''}"


def _pairs(step: Step, elapsed_s: float, now: datetime, *, bar: bool) -> Text:
    """How far it is to the next look."""
    filled = BAR_WIDTH * min(step.done, step.target) // max(step.target, 1)
    text = Text(f"[{clock(elapsed_s)}] ")
    if bar:
        text.append("[").append("#" * filled, style="green").append("." * (BAR_WIDTH - filled)).append("] ")
    what = "pair" if step.kind == "timed" else f"{step.kind} pair"
    text.append(f"{step.done} of {plural(step.target, what)}")
    if step.seconds_left is None:
        return text
    if step.seconds_left <= 0 and not step.finished:
        return text.append(", overdue")
    text.append(f", {clock(step.seconds_left)} left")
    if step.seconds_left < LONGEST_S:
        days = step.seconds_left / DAY_S
        form = "%H:%M" if days < 1 else "%a %H:%M" if days < 7 else "%Y-%m-%d"  # noqa: PLR2004 (a week)
        text.append(f", until {now + timedelta(seconds=step.seconds_left):{form}}")
    return text


def _found(step: RunStep, width: int) -> list[Text]:
    """The intervals of the last look against their margins, and when the next comes; never a verdict."""
    if not step.decides:
        return []
    gates = [gate for gate in drawable(step.looked) if gate.kind == step.kind and gate.pairs] if step.looked else []
    pairs = max((gate.pairs for gate in gates), default=0)
    of = f"{step.looked.head}, " if step.looked and step.looked.head else ""
    legend = f"{of}at {plural(pairs, 'pair')}: \u2502 no change, \u2551 must_catch, slower is right"
    lines = [Text(legend, style="dim"), *map(Text, strips(gates[:MOST_GATES], width))] if gates else []
    return [*lines, Text(f"not yet decided, look at {plural(step.target, 'pair')}", style="yellow")]


def _one_line(text: str) -> str:
    return re.sub(r"[\n\t]", " ", harmless(text))


def clock(seconds: float) -> str:
    """``2:05``, or ``1:02:05``; what is longer than anybody waits is not told to the second."""
    if not seconds < LONGEST_S:
        return f"more than {LONGEST_S // DAY_S} days"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
