"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO, cast

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import BOTH, cell, failed, gate, record, run, scenario_file, spread, trial, trials
from hypothesis import given
from hypothesis import strategies as st
from perfgate_process import DEADLINE_S, PROGRAM, fake_words
from rich.text import Text
from terminal import Terminal

from perfgate.capture.pace import Pace, Step
from perfgate.cli.main import main
from perfgate.cli.outlet import harmless
from perfgate.cli.progress import StatusBlock, progress_to
from perfgate.errors import InterruptedRunError
from perfgate.gate import run as measure
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import WORST_FIRST
from perfgate.metrics.trial import SETTLED, Kind, Startup, Trial
from perfgate.record.run_record import read_records, read_run
from perfgate.run_steps import RunStep

pytestmark = pytest.mark.needs("kernels")


def step(
    phase: str = "iteration 3 of 10",
    pair: int | None = 2,
    seconds_left: float | None = 125.4,
    finished: Trial | None = None,
    kind: Kind = "timed",
    done: int = 2,
) -> Step:
    """The head of the third pair of four."""
    return Step("tiny", 7, "head", pair, done, 4, phase, seconds_left, kind, finished)


def shown(stream: io.StringIO, *steps: Step) -> io.StringIO:
    """The stream after these steps."""
    with progress_to(stream) as show:
        for one in steps:
            show(one)
    return stream


def test_pipe_is_silent_between_trials() -> None:
    """A pipe gets nothing while a trial runs."""
    assert shown(io.StringIO(), step(), step("starting the engine")).getvalue() == ""


def test_pipe(golden: Callable[[str, str], None]) -> None:
    """A finished trial is a line: clock, cell, trial, pair, side, values or what failed, time left; nothing steers."""
    ended = [trial(7, 2, "head", 0.00535), failed(7, 2, "head"), trial(0, None, "base"),
             trial(7, 2, "head", kind="traced"), trial(7, 2, "head", iterations=())]  # fmt: skip

    golden("progress-pipe.txt", shown(io.StringIO(), *(step(finished=one) for one in ended)).getvalue())


SEVERAL = cell("llama-8b-decode[batch=8]", [gate(), gate("ttft_median", "2%", "8%"), gate("output_throughput")])
"""A cell with three gates."""


def run_step(phase: str = "iteration 3 of 10", looked: int = 0, target: int = 4, **more: object) -> RunStep:
    """A step of the second cell of three, after a look at so many pairs."""
    found = judge(run([SEVERAL]), {SEVERAL.cell_id: record(SEVERAL, trials(spread(0.002, 0.003, looked)))}).cells[0]
    known = {"looked": found if looked else None, "number": 2, "cells": 3, "decides": True, **more}
    plain = Step(SEVERAL.name, 9, "head", looked, looked, target, phase, 125.4)
    own = {field.name for field in dataclasses.fields(Step)}
    plain = dataclasses.replace(plain, **{name: value for name, value in known.items() if name in own})  # type: ignore[arg-type]
    return RunStep(**vars(plain), **{name: value for name, value in known.items() if name not in own})  # type: ignore[arg-type]


def frames(terminal: Terminal, *steps: Step | str) -> str:
    """What a terminal shows after each step, and once all is over; a clock that is 15 seconds later each time."""
    seconds, shown = itertools.count(0, 15), []
    with progress_to(terminal.stream, lambda: float(next(seconds)), lambda: datetime(2026, 1, 1, 17, 30)) as show:  # noqa: DTZ001
        for one in steps:
            show(one)
            shown.append(terminal.text)
    return "\n".join([*shown, terminal.text])


@pytest.mark.parametrize("columns", [40, 80])
def test_frames(columns: int, terminal: Callable[..., Terminal], golden: Callable[[str, str], None]) -> None:
    """Every frame of a run is its golden file: on a narrow terminal lines are cut and never wrap; nothing is left."""
    steps: list[Step | str] = [
        "waiting for the GPU",
        run_step("starting the engine", pair=None, seconds_left=None),
        run_step(done=3, pair=3),
        run_step("done", done=4, pair=3, finished=trial(7, 3, "head")),
        run_step("iteration 5 of 10", looked=4, target=6),
        run_step("iteration 6 of 10", looked=4, target=6, state="slow", part="head against reference (2 of 4)"),
        run_step("reading the trace", kind="traced", decides=False, target=1),
        run_step("stopping the engine", looked=8, target=12, seconds_left=0.0),
    ]

    golden(f"progress-{columns}.txt", frames(terminal(columns), *steps))


def test_frames_of_several_stations(terminal: Callable[..., Terminal], golden: Callable[[str, str], None]) -> None:
    """Each station has a line with the state of its GPUs; what is too much for a low terminal is left out."""
    told = [
        run_step(f"iteration {n} of 10", looked=6, target=8, pair=6 + n, station=f"GPU {n}", state=state, done=6)
        for n, state in enumerate(("fast", "slow", "", "fast"))
    ]

    low = frames(terminal(100, 9), *told)
    golden("progress-stations.txt", frames(terminal(100), *told) + "\n" + low)


def test_no_verdict_is_shown_between_looks(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    """What is shown while pairs are taken is what the judge found at the last look, and never what that would mean."""
    opened, seen = terminal(120), []
    with progress_to(opened.stream) as show:

        def told(step: Step | str) -> None:
            show(step)
            if isinstance(step, RunStep):
                seen.append((step, opened.text))

        collector = FakeCollector(FakeSpec(head_ratio={"step": 1.004}, restart_sd=0.001))
        finished = measure([scenario_file(tmp_path)], BOTH, runs=tmp_path, seed=1, collector=collector, progress=told)

    manifest, (taken,) = read_run(finished.folder), read_records(finished.folder, read_run(finished.folder))
    assert finished.outcome.cells[0].pairs > 4
    for step, text in seen:
        assert f"not yet decided, look at {step.target} pairs" in text
        below = text[text.rindex("tiny\n") :]
        assert not [word for word in WORST_FIRST if re.search(rf"\b{word}\b", below, re.IGNORECASE)]
        if step.target == 4:
            assert step.looked is None
        else:
            looks = [look for look in taken.schedule("timed").looks if look < step.target]
            first = [one for one in taken.trials if one.pair is None or one.pair < looks[-1]]
            then = judge(manifest, {taken.cell.cell_id: taken.model_copy(update={"trials": tuple(first)})})
            assert step.looked is not None
            assert step.looked.gates == then.cells[0].gates


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5.0, "4 of 6 pairs, overdue"),
        (90_000.0, "4 of 6 pairs, 25:00:00 left, until Fri 18:30"),
        (1e6, "4 of 6 pairs, 277:46:40 left, until 2026-01-13"),
        (1e12, "4 of 6 pairs, more than 99 days left"),
        (math.inf, "4 of 6 pairs, more than 99 days left"),
    ],
)
def test_absurd_times(seconds: float, words: str, terminal: Callable[..., Terminal]) -> None:
    """Whatever durations a record holds, the time left is told, on a terminal and in a pipe, and ends no run."""
    opened, one = terminal(80), dataclasses.replace(run_step(looked=4, target=6), seconds_left=seconds)

    assert words in frames(opened, one).splitlines()[2]
    assert (
        "to the look at 6 pairs)\n"
        in shown(io.StringIO(), dataclasses.replace(one, finished=trial(7, 2, "head"))).getvalue()
    )


@pytest.mark.parametrize("columns", [8, 20])
def test_a_very_narrow_terminal(columns: int, terminal: Callable[..., Terminal]) -> None:
    """Lines that it wraps are so few that the first is still there to be erased: none scrolls out of reach."""
    opened = terminal(columns, 12)

    shown = frames(opened, *(run_step(f"iteration {n} of 10", looked=4, target=6) for n in range(3)))

    edge, first = "-" * columns, SEVERAL.name[:columns]
    assert shown.count(f"{edge}\n{first}\n") == 3
    assert opened.lines == []


def test_no_thread_draws(terminal: Callable[..., Terminal]) -> None:
    """Nothing is drawn but when something is told: no thread takes time from an engine that is being timed."""
    before = threading.enumerate()

    with progress_to(terminal().stream) as show:
        show(step())
        assert threading.enumerate() == before


def test_a_terminal_that_becomes_narrower(terminal: Callable[..., Terminal]) -> None:
    """What the terminal has wrapped is erased row by row, and the next frame fits; a wider one is drawn on at once."""
    opened = terminal(80)
    with progress_to(opened.stream, lambda: 0.0, lambda: datetime(2026, 1, 1)) as show:  # noqa: DTZ001
        show(run_step(looked=4, target=6))
        wide = opened.lines
        opened.resize(40)
        opened.read()
        show(run_step(looked=4, target=6))
        drawn = opened.read()
        opened.resize(80)
        show(run_step(looked=4, target=6))
        assert opened.lines[-len(wide) :] == wide

    rows = sum(-(-len(line) // 40) for line in wide)
    assert drawn.count("\x1b[1A") == rows - 1 > len(wide) - 1
    assert max(map(len, re.sub(r"\x1b\[[\d;]*[A-Za-z]|\r", "", drawn).split("\n"))) <= 37


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("TERM=xterm-256color", {"block", "colours"}),
        ("NO_COLOR=1", {"block"}),
        ("TERM=dumb", set()),
        ("CI=true", set()),
        ("CI=false", {"block", "colours"}),
    ],
)
def test_environment(
    terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, variable: str, expected: set[str]
) -> None:
    """A CI's terminal and a dumb one get the lines of a pipe; NO_COLOR takes the colours away and nothing else."""
    opened, pipe = terminal(160), io.StringIO()
    monkeypatch.setenv(*variable.split("="))

    for stream in (opened.stream, pipe):
        with progress_to(stream, lambda: 0.0) as show:
            show(step())
            show(step(finished=trial(7, 2, "head")))
    drawn = opened.read()

    assert ("pair 3 of 4, head: iteration 3 of 10" in drawn) == ("block" in expected)
    assert bool(re.search(r"\x1b\[3\dm", drawn)) == ("colours" in expected)
    assert "block" in expected or drawn.replace("\r\n", "\n") == pipe.getvalue()


def test_force_color_leaves_a_pipe_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that other tools read have no colours, whatever the environment says."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert "\x1b" not in shown(io.StringIO(), step(finished=trial(7, 2, "head"))).getvalue()


@given(text=st.text(st.characters(codec=None), max_size=30))
def test_hostile_words(text: str) -> None:
    """Whatever names and phases hold: the terminal gets what it would get had they been harmless."""
    drawings = []
    for words in (text, harmless(text)):
        one = dataclasses.replace(run_step(words), cell=words, part=words, station=words)
        opened = Terminal(80, 24)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.setenv("CI", "")
            with progress_to(opened.stream, lambda: 0.0, lambda: datetime(2026, 1, 1)) as show:  # noqa: DTZ001
                show(words)
                show(one)
        drawings.append(opened.read())
        opened.close()

    assert drawings[0] == drawings[1]
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", re.sub(r"\x1b\[[\d;]*[mAK]", "", drawings[0]))


class Interrupting(io.TextIOBase):
    """What is written to a terminal; Ctrl-C is heard as one of its writes returns, or before the next."""

    def __init__(self, opened: Terminal) -> None:
        self._stream = opened.stream
        self.comes_at = math.inf
        self.comes_before = False

    def write(self, text: str) -> int:
        """Write to the terminal."""
        self._stream.write(text)
        self.comes_at -= bool(text)
        if self.comes_at <= 0:
            self.comes_at = math.inf
            raise KeyboardInterrupt
        return len(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The terminal's, which is asked for before anything is written."""
        if self.comes_before:
            self.comes_before = False
            raise KeyboardInterrupt
        return self._stream.encoding

    def isatty(self) -> bool:
        """It is one."""
        return True

    def fileno(self) -> int:
        """The terminal's."""
        return self._stream.fileno()


@pytest.mark.parametrize(("at", "then"), [*itertools.product(["rendered", "prepared", "written"], ["fewer", "more"])])
def test_an_interrupted_drawing_leaves_no_line(
    terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, at: str, then: str
) -> None:
    """Whether Ctrl-C is heard before the lines are written or after that: what is there is erased, and no more."""
    opened = terminal()
    stream = Interrupting(opened)
    drawings = [run_step(looked=4, target=6), step()]

    def interrupted() -> None:
        with progress_to(cast("TextIO", stream)) as show:
            show("one")
            before, after = drawings if then == "fewer" else reversed(drawings)
            show(before)
            if at == "rendered":
                monkeypatch.setattr(Text, "cell_len", property(lambda _: signal.raise_signal(signal.SIGINT)))
            stream.comes_before = at == "prepared"
            stream.comes_at = 1 if at == "written" else math.inf
            show(after)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert opened.lines == ["perfgate: one"]


def test_each_drawing_is_one_write() -> None:
    """Its end is known then; a terminal that is gone stops nothing."""

    class Gone(io.StringIO):
        writes = 0

        def write(self, _: str) -> int:
            self.writes += 1
            raise OSError(errno.EIO, "gone")

    stream = Gone()
    block = StatusBlock(stream)
    for number in range(3):
        block.draw("one", [Text("two"), Text("three")])
        assert stream.writes == number + 1


@pytest.mark.parametrize("stop", ["^C", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_what_stops_a_run_leaves_its_terminal_clean(
    tmp_path: Path, terminal: Callable[..., Terminal], stop: str
) -> None:
    """On a real terminal no line of the block is left, the cursor is there, and how to go on is the last word."""
    opened = terminal(100)
    both = f'exec "$@" <{opened.name} >{opened.name} 2>&1'  # whoever opens it first in a new session owns it
    words = ["/bin/sh", "-c", both, "sh", sys.executable, "-c", PROGRAM, "0.01@10", "run", *fake_words(tmp_path)]
    process = subprocess.Popen(words, cwd=tmp_path, start_new_session=True)
    while "look at 4 pairs" not in "".join(opened.lines):
        assert opened.read(DEADLINE_S)

    if stop == "^C":
        opened.type("\x03")
    else:
        process.terminate()
    status = process.wait(DEADLINE_S)

    assert status == 130
    assert "not yet decided" not in opened.text
    assert "perfgate run --resume" in opened.text
    assert opened.is_clean
    assert "\x1b[?25l" not in opened.written


def test_quiet(tmp_path: Path) -> None:
    """A quiet run says where its folder is and sentences, and nothing else; the verdict is on stdout as ever."""
    stream = io.StringIO()
    with progress_to(stream, quiet=True) as show:
        show("warning: a thing")
        show(step(finished=trial(7, 2, "head")))
    scenario, runs = str(scenario_file(tmp_path)), str(tmp_path / "runs")
    both = ["--base", "python=/bin/true", "--head", "env.BUILD=new", "--runs", runs]
    ended = CliRunner().invoke(main, ["run", scenario, *both, "-q"], obj=FakeCollector(FakeSpec(restart_sd=0.0003)))

    assert stream.getvalue() == "perfgate: warning: a thing\n"
    assert ended.stderr.startswith(f"run folder: {runs}")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout.startswith("**PASS")


def test_ascii_terminal(terminal: Callable[..., Terminal]) -> None:
    """A terminal without Unicode gets the strips in characters that it has."""
    opened = terminal(80)
    opened.stream.reconfigure(encoding="ascii")

    assert "itl_median         <" in frames(opened, run_step(looked=4, target=6))
    assert "?" not in opened.written


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


def test_the_pace_of_traced_trials() -> None:
    """Until one was measured they go by warm-up, or by twice this visit's timed ones if that is less.

    Those count with their imports, and without what they waited for a fast GPU.
    """
    pace, second = Pace(), 10**9
    parked = Startup(import_ns=8 * second, engine_ns=second, ready_ns=3 * second, parked_ns=second)
    pace.note("b", trial(0, 0, "base", kind="traced", duration_ns=12 * second))
    pace.begin("a", [trial(0, None, "base", duration_ns=80 * second), trial(1, 0, "base", duration_ns=9 * second)], {})
    assert (pace.measured_s("a", "traced"), pace.measured_s("a", "counted")) == (12.0, 80.0)
    pace.note("a", trial(2, None, "head", duration_ns=80 * second))
    pace.note("a", trial(3, 1, "base", duration_ns=20 * second))
    assert (pace.measured_s("a", "traced"), pace.measured_s("a", "counted")) == (40.0, 80.0)
    for n in range(2):
        pace.note("a", trial(4 + n, 1, "head", duration_ns=13 * second, startup=parked))
    assert pace.measured_s("a", "traced") == 42.0
    for n in range(4):
        pace.note("a", trial(6 + n, 2, "base", duration_ns=83 * second, figures={SETTLED: 60 * second}))
    assert pace.measured_s("a", "traced") == 46.0
    for n in range(8):
        pace.note("a", trial(10 + n, 2, "base", duration_ns=900 * second))
    assert pace.measured_s("a", "traced") == 80.0
    pace.note("a", trial(18, 0, "base", kind="traced", duration_ns=90 * second))
    assert pace.measured_s("a", "traced") == 90.0


def test_the_budget_that_the_next_visit_needs() -> None:
    """It may find caches empty, and its first traced trials then take as long as those of warm-up."""
    pace, second = Pace(), 10**9
    pace.note("a", trial(0, None, "base", duration_ns=80 * second))
    pace.note("a", trial(1, 0, "base", duration_ns=20 * second))
    with pytest.raises(InterruptedRunError, match=r"2 trials take about 80 s.*--budget 3\n"):
        pace.afford("a", 2, 0.0, "traced", warm=True)
    with pytest.raises(InterruptedRunError, match=r"2 trials take about 40 s.*--budget 2\n"):
        pace.afford("a", 2, 0.0, "timed", warm=True)
    pace.note("a", trial(2, 0, "base", kind="traced", duration_ns=40 * second))
    with pytest.raises(InterruptedRunError, match=r"2 trials take about 80 s.*--budget 2\n"):
        pace.afford("a", 2, 0.0, "traced", warm=True)
