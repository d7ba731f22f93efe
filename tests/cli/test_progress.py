"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import pytest
from hand_made import failed, trial

from perfgate.capture.pace import Pace, Step
from perfgate.cli import progress
from perfgate.cli.progress import describe, progress_to
from perfgate.metrics.trial import Kind, Trial


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True

    @property
    def screen(self) -> list[str]:
        """The lines that a terminal would show, each as last rewritten."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


def step(
    phase: str = "iteration 3 of 10",
    pair: int | None = 2,
    seconds_left: float | None = 125.4,
    finished: Trial | None = None,
    kind: Kind = "timed",
    done: int = 2,
    seconds_after: float = 0.0,
) -> Step:
    """The head of the third pair of four."""
    return Step("tiny", 7, "head", pair, done, 4, phase, seconds_left, kind, seconds_after, finished)


def shown(stream: io.StringIO, *steps: Step) -> io.StringIO:
    """The stream after these steps."""
    with progress_to(stream) as show:
        for one in steps:
            show(one)
    return stream


def test_pipe_is_silent_between_trials() -> None:
    """A pipe gets nothing while a trial runs."""
    assert shown(io.StringIO(), step(), step("starting the engine")).getvalue() == ""


def test_pipe() -> None:
    """A pipe gets a line a finished trial: clock, cell, trial, pair, side, values, time left; no control characters."""
    text = shown(io.StringIO(), step(finished=trial(7, 2, "head", 0.00535))).getvalue()

    assert text == ("[0:00] tiny trial 007 pair 3 head: ITL 5.350 ms, TTFT 107.0 ms (2:05 to the look at 4 pairs)\n")


@pytest.mark.parametrize(
    ("finished", "line"),
    [
        (failed(7, 2, "head"), "[0:00] tiny trial 007 pair 3 head: FAILED engine-died\n"),
        (
            trial(0, None, "base"),
            "[0:00] tiny trial 000 warm-up base: ITL 5.000 ms, TTFT 100.0 ms\n",
        ),
        (trial(7, 2, "head", kind="traced"), "[0:00] tiny trial 007 traced pair 3 head: ITL 5.000 ms, TTFT 100.0 ms\n"),
        (trial(7, 2, "head", iterations=()), "[0:00] tiny trial 007 pair 3 head: \n"),
    ],
    ids=["failed", "warm-up", "traced", "no-values"],
)
def test_kinds_of_trials(finished: Trial, line: str) -> None:
    """A failed trial shows its code, a warm-up trial that it is one, a trial without values none."""
    assert shown(io.StringIO(), step(seconds_left=None, finished=finished)).getvalue() == line


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 160 columns."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, "[0:00] [#####.....] tiny pair 3 of 4, head: iteration 3 of 10, 2:05 left"),
        (70, "[0:00] [#####.....] … pair 3 of 4, head: iteration 3 of 10, 2:05 left"),
        (50, "[0:00] [#####.....] … pair 3 of 4, head: iteratio"),
    ],
)
def test_terminal_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: int, shown: str) -> None:
    """On a narrow terminal first the cell's name is cut and then the line: a wrapped line could not be rewritten."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()

    with progress_to(stream) as show:
        show(step())
        assert stream.screen == [shown]


def test_terminal_rewrites_its_line() -> None:
    """On a terminal one line with a bar is rewritten, and gone at the end."""
    stream = Terminal()

    with progress_to(stream) as show:
        show(step("starting the engine"))
        show(step())
        assert stream.screen == ["[0:00] [#####.....] tiny pair 3 of 4, head: iteration 3 of 10, 2:05 left"]
    assert stream.screen == [""]


def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that is a second later each time it is asked, and a line that only the test rewrites."""
    monkeypatch.setattr(progress, "_tick", lambda *_: None)
    seconds = itertools.count()
    return lambda: float(next(seconds))


@pytest.mark.parametrize(("seconds_after", "shown"), [(60.0, "1:00 left"), (0.0, "overdue")])
def test_a_trial_that_takes_longer(monkeypatch: pytest.MonkeyPatch, seconds_after: float, shown: str) -> None:
    """A trial that takes longer than expected takes nothing from the time of those that follow."""
    stream = Terminal()
    line = progress._Progress(stream, ticking(monkeypatch))

    line.rewrite(step("starting the engine", seconds_left=seconds_after + 1, seconds_after=seconds_after))
    line.tick()
    line.tick()

    assert stream.screen[0].endswith(f"starting the engine, {shown}")


def test_terminal_moves_while_an_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps the time passed and the time left go on; while an engine is timed nothing is written."""
    stream = Terminal()
    line = progress._Progress(stream, ticking(monkeypatch))

    line.rewrite(step("starting the engine"))
    line.tick()
    started = stream.screen
    line.tick()
    later = stream.screen
    line.rewrite(step())
    measuring = stream.getvalue()
    line.tick()

    assert started == ["[0:02] [#####.....] tiny pair 3 of 4, head: starting the engine, 2:04 left"]
    assert later == ["[0:03] [#####.....] tiny pair 3 of 4, head: starting the engine, 2:03 left"]
    assert stream.getvalue() == measuring


def test_terminal_keeps_finished_trials() -> None:
    """On a terminal finished trials stay above the rewritten line."""
    stream = Terminal()

    with progress_to(stream) as show:
        show(step(finished=trial(7, 2, "head")))
        show(step("starting the engine"))
        assert stream.screen[0].startswith("[0:00] tiny trial 007 pair 3 head: ITL 5.000 ms")
        assert stream.screen[1].startswith("[0:00] [#####.....] tiny pair 3 of 4, head: starting the engine")
    assert len(stream.screen) == 2


def test_terminal_is_cleared_after_an_error() -> None:
    """What ends the run leaves no half line behind."""
    stream = Terminal()

    def interrupted() -> None:
        with progress_to(stream) as show:
            show(step())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.screen == [""]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (step(), "pair 3 of 4, head: iteration 3 of 10"),
        (step("starting the engine", pair=None), "warm-up, head: starting the engine"),
        (step("reading the trace", kind="traced"), "traced pair 3 of 4, head: reading the trace"),
        (step("done", pair=3, done=4), "pair 4 of 4, head: done"),
    ],
)
def test_describe(one: Step, words: str) -> None:
    """A step is described by place, side and phase; after the last pair there is no further one."""
    assert describe(one) == words


def test_pace() -> None:
    """A budget goes by trials that were measured; the time left by this cell's own, then by what is known of it."""
    pace = Pace()
    pace.begin("a", [], {"timed": 10.0})

    assert (pace.measured_s("a", "timed"), pace.expected_s("a", "timed")) == (0.0, 10.0)
    assert pace.expected_s("b", "timed") is None
    pace.note("a", trial(0, None, "base", duration_ns=25 * 10**9))
    assert (pace.measured_s("a", "timed"), pace.expected_s("a", "timed")) == (25.0, 10.0)
    pace.note("a", trial(1, 0, "base", duration_ns=12 * 10**9))
    pace.note("a", trial(2, 0, "head", duration_ns=0))
    assert (pace.measured_s("a", "timed"), pace.expected_s("a", "timed")) == (12.0, 12.0)
    assert (pace.measured_s("b", "timed"), pace.expected_s("b", "timed")) == (12.0, 12.0)
