"""Colours of reports on stdout: where they are wanted, on verdicts alone, and around nothing that steers."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfgate_process import DEADLINE_S, PROGRAM, fake_words
from terminal import Terminal

from perfgate.cli.outlet import Outlet, harmless, outlets
from perfgate.cli.output_options import echo_text
from perfgate.cli.report_colours import echo_coloured

REPORT = """\
tiny: 6 pairs
  metric       change  verdict
  itl_median  +1.01 %  REGRESSED !
  ttft_median +0.01 %  pass (at 4 pairs)
  start_time  +0.01 %  inconclusive !
  reason undecided (start_time): it did not
    pass
  -> This is no pass

REGRESSED: itl_median +1.01 % (alpha 1 % a run, beta 5 % a gate).
"""
SGR = re.compile("\x1b\\[[0-9;]*m")


def coloured(text: str) -> str:
    """What leaves of a report in colours."""
    stream = io.StringIO()
    echo_coloured(text, Outlet(stream, watched=False))
    return stream.getvalue()


def test_verdicts_have_colours_and_prose_has_none() -> None:
    """A verdict at the end of a row and before the last line is coloured; the same words in a sentence are not."""
    assert re.findall("\x1b\\[([0-9;]+)m([^\x1b]+)\x1b\\[0m", coloured(REPORT)) == [
        ("1;31", "REGRESSED !"),
        ("32", "pass (at 4 pairs)"),
        ("33", "inconclusive !"),
        ("1", "  reason"),
        ("1;31", "REGRESSED"),
    ]


@given(st.text(st.characters(codec=None, exclude_characters="\t")))
def test_colours_change_no_character(text: str) -> None:
    """Without its colours a report, which has no tabs, is as ever, and no escape of anybody else is in it."""
    assert SGR.sub("", coloured(text)) == harmless(text)


@pytest.mark.parametrize(
    ("environment", "tty", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_where_there_are_colours(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *, tty: bool, expected: bool
) -> None:
    """A terminal gets colours unless it is dumb; NO_COLOR and FORCE_COLOR say otherwise, and the first wins."""
    for name, value in {"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": "", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: tty)
    monkeypatch.setattr(sys, "stdout", stream)
    with outlets():
        echo_text(REPORT)

    assert ("\x1b" in stream.getvalue()) == expected
    assert SGR.sub("", stream.getvalue()) == REPORT


def test_a_run_on_a_terminal(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    """What stays of a run on a terminal: its trials, the report with the plot of its pairs, and a coloured verdict."""
    opened = terminal(100, 60)
    both = f'exec "$@" <{opened.name} >{opened.name} 2>&1'
    words = ["/bin/sh", "-c", both, "sh", sys.executable, "-c", PROGRAM, "0.0001", "run", *fake_words(tmp_path)]
    process = subprocess.Popen(words, cwd=tmp_path, start_new_session=True)
    while process.poll() is None:
        opened.read(0.1)

    assert process.wait(DEADLINE_S) == 0
    lines = opened.lines
    assert [line for line in lines if "trial 009 pair 4" in line]
    assert "  itl_median, head beside base, pair by pair:" in lines
    assert not [line for line in lines if "not yet decided" in line]
    assert "\x1b[1;32mPASS\x1b[0m: every gate" in opened.written
    assert opened.is_clean
