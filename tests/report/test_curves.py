"""Curves: what a matrix measured against its numbers, and how far that is from ideal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hand_made import STEP_S, cell, record, run, spread, trials

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import Outcome
from perfgate.report.curves import curves, efficiency
from perfgate.report.formats import render


def measured(points: dict[str, float], change: float = 0.0) -> Outcome:
    """A run of cells with these values of their matrix, each with so many times the usual step."""
    cells = [cell(f"llama[{point}]") for point in points]
    steps = [STEP_S * factor for factor in points.values()]
    taken = {
        one.cell_id: record(one, trials(spread(change, 0.0002, 6), [step_s] * 6))
        for one, step_s in zip(cells, steps, strict=True)
    }
    return judge(run(cells), taken)


def shares(outcome: Outcome, metric: str = "itl_median") -> list[float | None]:
    """What the points of the only curve reach of ideal, on the base."""
    (curve,) = curves(outcome)
    rows = curve.of(metric)
    return [efficiency(curve.key, rows, point)[0] for point in rows]


def test_scaling_over_gpus() -> None:
    """Twice the GPUs and 60 % of the time are 83 % of ideal, four times and 40 % are 62.5 %."""
    found = shares(
        measured({"tensor_parallel_size=1": 1.0, "tensor_parallel_size=2": 0.6, "tensor_parallel_size=4": 0.4})
    )
    assert found == pytest.approx([1, 1 / 1.2, 1 / 1.6])


@pytest.mark.parametrize("key", ["pipeline_parallel_size", "data_parallel_size"])
def test_stages_and_replicas_shorten_no_step(key: str) -> None:
    """Each token still passes all layers, one after the other: twice the GPUs may give twice the tokens, no sooner."""
    outcome = measured({f"{key}=1": 1.0, f"{key}=2": 1.0})
    assert shares(outcome) == [None, None]
    assert shares(outcome, "ttft_median") == [None, None]
    assert shares(outcome, "output_throughput") == pytest.approx([1, 0.5], rel=0.05)


def test_scaling_over_the_batch() -> None:
    """A step that takes a tenth longer with eight times the batch is 91 % of ideal, in time and in tokens."""
    outcome = measured({"batch=8": 1.1, "batch=1": 1.0})
    assert shares(outcome) == pytest.approx([1, 1 / 1.1])
    assert shares(outcome, "ttft_median") == [None, None]


def test_nothing_is_ideal_for_longer_requests() -> None:
    """A longer prompt is more work."""
    assert shares(measured({"input_tokens=128": 1.0, "input_tokens=1024": 1.2})) == [None, None]


def test_a_curve_at_each_combination_of_the_others() -> None:
    """Two numbers of two values each are four curves; words make none."""
    points = [f'batch={batch},dtype="a,b]",tensor_parallel_size={n}' for batch in (1, 8) for n in (1, 2)]
    found = curves(measured(dict.fromkeys(points, 1.0)))
    assert [(one.key, one.fixed) for one in found] == [
        ("batch", 'dtype="a,b]", tensor_parallel_size=1'),
        ("tensor_parallel_size", 'batch=1, dtype="a,b]"'),
        ("batch", 'dtype="a,b]", tensor_parallel_size=2'),
        ("tensor_parallel_size", 'batch=8, dtype="a,b]"'),
    ]


@pytest.mark.parametrize("names", [["llama"], ["llama[batch=1]"], ["llama[batch=", "llama[batch=x]"], ["a[", "a[]"]])
def test_cells_without_a_curve(names: Sequence[str]) -> None:
    """One value, or a name that says none, is no curve."""
    cells = [cell(name) for name in names]
    assert curves(judge(run(cells), {})) == []


def test_points_of_a_curve_that_were_not_measured() -> None:
    """They are left out; a curve of one point is not shown."""
    cells = [cell(f"llama[batch={n}]") for n in (1, 8, 16)]
    taken = {one.cell_id: record(one, trials(spread(0.0, 0.0002, 4))) for one in cells[:1]}
    assert "Curve" not in render("outcome", "text", judge(run(cells), taken))
    taken[cells[2].cell_id] = record(cells[2], trials(spread(0.0, 0.0002, 4)))
    text = render("outcome", "text", judge(run(cells), taken))
    assert "Curve: llama against batch" in text
    rows = [line.split()[0] for line in text.splitlines() if " itl_median " in line and line.split()[0].isdigit()]
    assert rows == ["1", "16"]


def test_all_gates_of_a_curve_are_one_family() -> None:
    """A change has a wider interval beside cells that did not change: all share the alpha of the run, as Holm does."""
    cells = [cell(f"llama[batch={n}]") for n in (1, 2, 4, 8)]
    taken = [record(one, trials(spread(0.0 if n else 0.0065, 0.0002, 6))) for n, one in enumerate(cells)]
    lows = []
    for many in (1, 4):
        kept = {one.cell.cell_id: one for one in taken[:many]}
        lows.append(judge(run(cells[:many]), kept).cells[0].gates[0].change_low or 0.0)
    assert 0 < lows[1] < lows[0]


def test_a_curve_as_a_table(golden: Callable[[str, str], None]) -> None:
    """Latency and tokens against the number of GPUs, base and head."""
    points = {f"tensor_parallel_size={n}": factor for n, factor in ((1, 1.0), (2, 0.6), (3, 0.5))}
    text = render("outcome", "text", measured(points, 0.02))
    golden("report-curve.txt", text[text.index("Curve: ") : text.index("\nbase: ")])


def test_a_curve_on_a_page() -> None:
    """A chart a metric, with its figures as a table."""
    page = render("outcome", "html", measured({"batch=1": 1.0, "batch=8": 1.1}))
    assert "itl_median: llama against batch" in page
    assert page.count("<td>output_throughput</td>") == 2
