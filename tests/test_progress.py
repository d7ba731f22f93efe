"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from hand_made import failed, trial

from perfgate.capture.session import Step
from perfgate.progress import describe, progress_to
from perfgate.record import Trial


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
) -> Step:
    """The head of the third pair of four."""
    return Step("tiny", 7, "head", pair, 2, 4, phase, seconds_left, finished)


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

    assert text == (
        "[0:00] tiny trial 007 pair 3 head: itl_median 5.350 ms, ttft_median 107.0 ms (2:05 to the look at 4 pairs)\n"
    )


@pytest.mark.parametrize(
    ("finished", "line"),
    [
        (failed(7, 2, "head"), "[0:00] tiny trial 007 pair 3 head: FAILED engine-died\n"),
        (
            trial(0, None, "base"),
            "[0:00] tiny trial 000 conditioning base: itl_median 5.000 ms, ttft_median 100.0 ms\n",
        ),
        (trial(7, 2, "head", iterations=()), "[0:00] tiny trial 007 pair 3 head: \n"),
    ],
    ids=["failed", "conditioning", "no-values"],
)
def test_kinds_of_trials(finished: Trial, line: str) -> None:
    """A failed trial shows its code, a conditioning trial that it is one, a trial without values none."""
    assert shown(io.StringIO(), step(seconds_left=None, finished=finished)).getvalue() == line


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 160 columns."""
    monkeypatch.setenv("COLUMNS", "160")


def test_terminal_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal the rewritten line is cut, because a wrapped line could not be rewritten."""
    monkeypatch.setenv("COLUMNS", "50")
    stream = Terminal()

    with progress_to(stream) as show:
        show(step())
        assert stream.screen == ["[##########..........] tiny pair 3 of 4, head: it"]


def test_terminal_rewrites_its_line() -> None:
    """On a terminal one line with a bar is rewritten, and gone at the end."""
    stream = Terminal()

    with progress_to(stream) as show:
        show(step("starting the engine"))
        show(step())
        assert stream.screen == [
            "[##########..........] tiny pair 3 of 4, head: iteration 3 of 10 (2:05 to the look at 4 pairs)"
        ]
    assert stream.screen == [""]


def test_terminal_keeps_finished_trials() -> None:
    """On a terminal finished trials stay above the rewritten line."""
    stream = Terminal()

    with progress_to(stream) as show:
        show(step(finished=trial(7, 2, "head")))
        show(step("starting the engine"))
        assert stream.screen[0].startswith("[0:00] tiny trial 007 pair 3 head: itl_median 5.000 ms")
        assert stream.screen[1].startswith("[##########..........] tiny pair 3 of 4, head: starting the engine")
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
        (step(), "tiny pair 3 of 4, head: iteration 3 of 10"),
        (step("starting the engine", pair=None), "tiny conditioning, head: starting the engine"),
    ],
)
def test_describe(one: Step, words: str) -> None:
    """A step is described by cell, place, side and phase."""
    assert describe(one) == words
