"""Intervals in characters: what a reader of a pull request sees of the gates."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hand_made import cell, gate, judged, spread, trials
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import recorded, recorded_together

from perfgate.github.github_markdown import render_within
from perfgate.report.interval_strip import COLUMNS, MOST_ROWS, interval_lines, strips


def test_intervals(golden: Callable[[str, str], None]) -> None:
    """Those of a recorded run beside the same margins, worst first; below six pairs an end is open."""
    open_end = judged(trials(spread(0.002, 0.003, 4)), cell("c", [gate()]))

    golden("intervals.txt", "\n".join([*interval_lines(recorded("regressed").outcome), *interval_lines(open_end), ""]))


def test_cells_are_named_and_what_is_left_out_is_counted() -> None:
    """Of many gates the worst are drawn, each with its cell, and the rest are counted."""
    lines = interval_lines(recorded_together().outcome)
    many = cell("c", [gate(name) for name in ("itl_median", "itl_p95", "itl_p99", "tpot_mean", "e2e_median")])
    (found,) = judged(trials(spread(0.0, 0.0002, 4)), many).cells
    outcome = recorded("pass").outcome
    five = outcome.model_copy(update={"cells": (found,) * 3})

    assert [line.split()[0] for line in lines[:3]] == ["regressed", "regressed", "states"]
    assert len(interval_lines(five)) == MOST_ROWS + 2
    assert interval_lines(five)[MOST_ROWS] == "and 3 more in the tables"


def test_signs_are_in_every_font_of_one_width() -> None:
    """Only characters of WGL4 are drawn: another font steps in for others, and moves the rest of their line."""
    signs = {c for line in interval_lines(recorded_together().outcome) for c in line if not c.isascii()}

    assert signs <= set("│║├┤┼╫─●◄►…")


@pytest.mark.parametrize("name", ["a\tb\nc", "```\n# title", "\u5168\u89d2" * 4, "e\u0301" * 20, "\u202e|<b>@all"])
def test_a_hostile_name_moves_no_strip(name: str) -> None:
    """Line ends, fences, wide letters, marks and controls leave a line a gate, with strips one below the other."""
    outcome = recorded_together().outcome
    cells = (outcome.cells[0].model_copy(update={"name": name}), *outcome.cells[1:])
    lines = interval_lines(outcome.model_copy(update={"cells": cells}))

    changes = [line[: line.index(" %  ")] for line in lines[:-1]]
    wide = [sum(unicodedata.east_asian_width(c) == "W" for c in line) for line in changes]
    marks = [sum(bool(unicodedata.combining(c)) for c in line) for line in changes]
    assert len({len(line) + w - m for line, w, m in zip(changes, wide, marks, strict=True)}) == 1
    assert "\n# title" not in render_within(outcome.model_copy(update={"cells": cells}), 60_000)


def test_nothing_is_drawn_without_values() -> None:
    """Gates without a change have no interval, and then there is no legend either."""
    assert interval_lines(judged((), cell())) == ()


@pytest.mark.parametrize("change", [1e18, 1e300, -1.0])
def test_a_figure_of_any_length_leaves_a_strip(change: float) -> None:
    """What no run can have measured ends no run that shows it: each line has a strip, the narrowest there is."""
    (found,) = judged(trials(spread(0.002, 0.003, 6)), cell()).cells
    wild = found.gates[0].model_copy(update={"change": change, "change_low": -1.0, "change_high": 1e308})

    assert [line.count("\u25cf") for line in strips([*found.gates, wild], 36)] == [1, 1]


@pytest.mark.parametrize("metric", ["itl_median", "output_throughput"])
@given(change=st.floats(-3, 3), noise=st.floats(0, 0.3), pairs=st.integers(2, 8))
def test_a_strip_has_one_width(metric: str, change: float, noise: float, pairs: int) -> None:
    """Whatever is measured, a strip is as wide as any other and has one estimate in it."""
    taken = trials(spread(change, noise, pairs))
    lines = interval_lines(judged(taken, cell(gates=[gate(metric)])))

    for line in lines[:-1]:
        strip = line[len(metric) + 2 :][:COLUMNS]
        assert strip.count("●") == 1
        assert line[len(metric) + 2 + COLUMNS] == " "
