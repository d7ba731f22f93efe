"""The pairs of a cell in characters: what a terminal shows under the table of gates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hand_made import cell, gate, record, run, trials
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import ON_GPU, recorded, recorded_together

from perfgate.judge.cell_verdict import judge
from perfgate.report.dot_plot import HEIGHT, SIGNS, terminal_text
from perfgate.report.formats import render
from perfgate.report.run_page import MeasuredRun

LEAD = "head beside base, pair by pair:"


def plots(text: str) -> str:
    """What a report has of the pairs, up to the first line that is indented less."""
    lines = text.splitlines()
    begins = [n for n, line in enumerate(lines) if line.endswith(LEAD)]
    ends = [next(m for m, line in enumerate(lines) if m > n and not line.startswith("    ")) for n in begins]
    return "\n".join(line for begin, end in zip(begins, ends, strict=True) for line in (*lines[begin:end], ""))


def measured(changes: list[float], metric: str = "itl_median") -> MeasuredRun:
    """A run of one cell with these log ratios, slower is larger."""
    one = cell("cell", [gate(metric)])
    records = {one.cell_id: record(one, trials(changes))}
    return MeasuredRun(judge(run([one]), records), run([one]), records)


@pytest.mark.needs("kernels")
def test_plots(golden: Callable[[str, str], None]) -> None:
    """Pairs in order between no change and the margin, with the state of each where the machine had two."""
    narrow = plots(terminal_text(recorded("states"), 40))

    golden("dot-plots.txt", "\n".join([*(plots(terminal_text(recorded(name), 80)) for name in ON_GPU), narrow]))


@pytest.mark.needs("kernels")
@pytest.mark.parametrize("name", ON_GPU)
def test_the_rest_of_the_report_is_as_everywhere(name: str) -> None:
    """A terminal gets the plot right under the table, and nothing else that a pipe does not get."""
    drawn, plain = terminal_text(recorded(name), 80), render("outcome", "text", recorded(name).outcome, 80)
    before, _, after = drawn.partition(f"{LEAD}\n")

    assert before.rpartition("\n\n")[0] in plain
    assert plain.endswith(after[after.index("  not gated:") :])
    assert LEAD not in plain


@pytest.mark.needs("kernels")
def test_of_many_cells_those_that_did_not_pass() -> None:
    """A matrix that passes is no page of plots."""
    three = recorded_together()
    assert three.run is not None
    spare = three.run.plan.cells[0].model_copy(update={"cell_id": "spare", "name": "spare"})
    plan = three.run.plan.model_copy(update={"cells": (*three.run.plan.cells, spare)})
    wide = three.run.model_copy(update={"plan": plan})
    four = MeasuredRun(judge(wide, three.records), wide, three.records)

    assert terminal_text(three, 80).count(LEAD) == 3
    assert terminal_text(four, 80).count(LEAD) == 2


def test_nothing_is_drawn_of_one_pair_or_of_figures_from_elsewhere() -> None:
    """One pair shows no spread, and without records there are no pairs."""
    assert LEAD not in terminal_text(measured([0.01]), 80)
    assert LEAD not in terminal_text(MeasuredRun(recorded("pass").outcome), 80)


@pytest.mark.parametrize("metric", ["itl_median", "output_throughput"])
@given(changes=st.lists(st.floats(-2, 2), min_size=2, max_size=30), width=st.integers(36, 120))
def test_any_pairs(metric: str, changes: list[float], width: int) -> None:
    """Whatever was measured, each pair that there is room for has one sign, and no line is wider than the terminal."""
    _, *rows = plots(terminal_text(measured(changes, metric), width)).splitlines()
    signs = sum(row.count(SIGNS["fast"]) for row in rows[:HEIGHT])

    assert signs == len(rows[HEIGHT].split())
    assert signs == len(changes) or signs > (width - 40) // 3
    assert max(map(len, rows)) <= width
