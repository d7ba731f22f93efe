"""Intervals in characters: what a reader of a pull request sees of the gates."""

from __future__ import annotations

import pytest
from hand_made import cell, gate, judged, spread, trials
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import recorded, recorded_together

from perfgate.report.interval_strip import COLUMNS, LEGEND, MOST_ROWS, interval_lines


def test_a_regression_is_right_of_its_margin() -> None:
    """Every interval of a recorded run beside the same margins, worst first."""
    assert interval_lines(recorded("regressed").outcome) == (
        "itl_median                │     ┊                ├──────●─┤    +30.6 %  REGRESSED !",
        "ttft_median               │     ┊ ├─●┤                         +47.4 %  REGRESSED",
        "start_time              ├─●─┤   ┊                              +0.37 %  pass (at 4 pairs)",
        "kv_token_capacity         ●     ┊                              +0.00 %  pass (at 4 pairs)",
        "model_memory              ●     ┊                              +0.00 %  pass (at 4 pairs)",
        LEGEND,
    )


def test_an_open_end_is_an_arrow() -> None:
    """Below six pairs no look blocks: the interval goes on to the left, across both margins."""
    first, *_ = interval_lines(recorded("states").outcome)

    assert first == "itl_median, slow state   ◄─────────────┼───────┼────────●───────┤   +0.482 %  inconclusive !"


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


def test_nothing_is_drawn_without_values() -> None:
    """Gates without a change have no interval, and then there is no legend either."""
    assert interval_lines(judged((), cell())) == ()


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
