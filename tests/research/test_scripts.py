"""Scripts that asked something once: each can still be started, and what a page quotes of one comes out of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("script", sorted(file.stem for file in (ROOT / "research").glob("*.py")))
def test_a_script_can_be_started(script: str) -> None:
    """Everything that it imports of perfgate, of the tests and of other scripts is there."""
    assert importlib.import_module(script).__doc__


def test_recorded_jumps_within_a_trial_go_to_the_fast_level() -> None:
    """The table of the recording from four GPUs: seven jumps to the fast level, none to the slow one."""
    recorded: Any = importlib.import_module("recorded_states")
    *lines, _, totals = recorded.table(ROOT / "tests" / "fixtures" / "h200-x4-states.csv").splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    assert [(row[0], row[1]) for row in cells] == [
        ("block-size-64", "base"), ("block-size-64", "head"),
        ("tp2-other-all-reduce", "base"), ("tp2-other-all-reduce", "head"),
    ]  # fmt: skip
    assert [row[8] for row in cells] == ["1, 0", "2, 0", "2, 0", "2, 0"]
    assert [row[9:] for row in cells[::2]] == [["1.44 %", "0.10 %"], ["2.20 %", "0.16 %"]]
    assert totals == (
        "23 of 26 trials began slow (13 of 15 behind one that ended slow, 8 of 9 behind one that ended fast); within "
        "trials 7 jumps to the fast level, 0 to the slow one."
    )
