"""A board as people read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfgate.drill.board import Board, BoardReport, BoardRow, false_blocks
from perfgate.drill.campaign import LeftOut
from perfgate.report.formats import render

FIGURES = {"gate": "itl_median", "must_catch": 0.005, "pair_sd": 0.0007, "pairs": 6, "minutes": 6.2}
ROWS = (
    BoardRow(exercise="same-build-1", expected="no block", result="as-expected", verdict="pass", gate="itl_median",
             change=0.0001, change_high=0.0019, pairs=4, minutes=4.1),
    BoardRow(exercise="same-build-2", expected="no block", result="undecided", verdict="inconclusive", pairs=12,
             gate="itl_median", change=0.002, minutes=9.0, why="undecided: the slowdown's upper bound is +1.1 %"),
    BoardRow(exercise="host_work-200", plant="host_work", family="host-work", size="200 us", expected="itl_median",
             result="as-expected", verdict="regressed", true_size=0.038, change=0.0379, change_low=0.03,
             change_high=0.046, cause=True,
             told="+200.1 us a step: idle +199.8 us; the device of head waited for the host", **FIGURES),
    BoardRow(exercise="padded_rows-1280", plant="padded_rows", family="memory-traffic", size="1280 rows",
             expected="itl_median", result="missed", verdict="pass", change=0.0007, change_high=0.002, **FIGURES),
    BoardRow(exercise="device_read-1", plant="device_read", family="launch-and-graph", size="1 reads a step"),
)  # fmt: skip
BOARD = Board(
    perfgate="0.2.0", name="drill-20261122T070000Z-abcdef", scenario=("drill-h200",),
    machine_class="nvidia-h200-x1-observe-3fa2b1", alpha=0.01, beta=0.05, rows=ROWS,
    left_out=(LeftOut(code="extra_all_reduce", text="takes 2 GPUs, and 1 can be used"),),
)  # fmt: skip


@pytest.mark.parametrize(("form", "name"), [("text", "board.txt"), ("markdown", "board.md")])
def test_board(golden: Callable[[str, str], None], form: str, name: str) -> None:
    """Caught, missed, undecided and open exercises, the causes that were named, and the bound of false blocks."""
    golden(name, render("drill", form, BoardReport(BOARD, false_blocks([BOARD]))))


def test_no_verdict_yet() -> None:
    """Before a run of one build has come to a verdict there is no rate to speak of."""
    none = BOARD.model_copy(update={"rows": ROWS[4:]})
    assert "no run of one build against itself has come to a verdict yet" in render(
        "drill", "text", BoardReport(none, false_blocks([none]))
    )
