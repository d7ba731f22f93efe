"""What is said of metrics that no gate judges: worse or better only where chance does not explain it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hand_made import cell, record, run, spread, trials

from perfgate import gate
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome, MetricOutcome
from perfgate.judge.ungated import Shown, rows
from perfgate.metrics.catalogue import METRICS
from perfgate.report.outcome_lines import ungated_line

TTFT = METRICS["ttft_median"]


def judged(slowdowns: list[float]) -> CellOutcome:
    """The cell of a run whose head is slower by these log ratios."""
    measured = cell()
    (found,) = judge(run([measured]), {measured.cell_id: record(measured, trials(slowdowns))}).cells
    return found


@pytest.mark.parametrize("pairs", [1, 3])
def test_below_the_first_look_nothing_is_called_worse(pairs: int) -> None:
    """From one pair of engines that differ by three quarters nobody can say that the head starts slower."""
    line = ungated_line(judged([0.5] * pairs))

    assert line.startswith("different, not judged: ttft_median +64.9 %")
    assert not re.search("worse|better", line)


def test_from_the_first_look_on_there_is_an_interval() -> None:
    """What the pairs exclude is called worse with its interval; what they do not is counted."""
    slower, noisy = judged(spread(0.05, 0.001, 6)), judged(spread(0.002, 0.01, 6))

    (row,) = (row for row in slower.ungated if row.metric == "ttft_median")
    assert row.change_low is not None
    assert row.change_high is not None
    assert row.change is not None
    assert 0 < row.change_low < row.change < row.change_high
    assert ungated_line(slower).startswith("worse: ttft_median +5.13 %, ")
    assert "worse" not in ungated_line(noisy)
    assert "the same but for chance: " in ungated_line(noisy)


def test_pairs_after_a_look_wait_for_the_next_one() -> None:
    """As with gates the figures are those of the last look, so that no other moment adds to the chance of an error."""
    six, seven = (judged([*spread(0.05, 0.001, 6), *more]) for more in ([], [0.4]))

    assert six.ungated == seven.ungated


def test_the_interval_holds_for_all_metrics_at_all_looks() -> None:
    """Of ten metrics of equal builds at four looks one lies outside its interval in one run of a hundred at most."""
    rng, wrong, runs = np.random.default_rng(49), 0, 200
    for _ in range(runs):
        base, head = np.exp(0.01 * rng.standard_normal((2, 10, 12))).tolist()
        told = [
            rows([Shown(TTFT, base[n][:look], head[n][:look], 4) for n in range(10)], 0.01) for look in (4, 6, 8, 12)
        ]
        wrong += any(not _holds(row) for one in told for row in one)

    assert wrong <= 6  # of 200 at 1 %: more with probability 0.004


def _holds(row: MetricOutcome) -> bool:
    assert row.change_low is not None
    assert row.change_high is not None
    return row.change_low <= 0 <= row.change_high


def test_a_value_of_zero_has_no_interval() -> None:
    """Zero has no ratio, so a count that was zero on one side differs, and nobody judged it."""
    preempted = METRICS["host_slack_per_step"]

    (row,) = rows([Shown(preempted, [0.0] * 6, [-1e-3] * 6, 4)], 0.01)

    assert (row.change, row.change_low, row.change_high) == (None, None, None)


def test_in_an_unknown_order_nothing_is_called_worse(tmp_path: Path) -> None:
    """A CSV without an order shows its other metrics, and does not say that they are worse; with one it does."""
    for column in ("", "order,"):
        lines = [f"{n},{f'{1 + place % 2},' if column else ''}{side},{name},ms,{value + n / 100}"
                 for n in range(8) for place, (side, slower) in enumerate((("base", 1), ("head", 2)), n)
                 for name, value in (("itl_median", 10), ("ttft_median", 50 * slower))]  # fmt: skip
        (tmp_path / "t.csv").write_text("\n".join([f"pair,{column}subject,metric,unit,value", *lines]))

        (found,) = gate.compare_table(tmp_path / "t.csv", [gate.parse_gate("itl_median:0.1%:0.5%")]).cells

        assert ungated_line(found).startswith("worse: " if column else "different, not judged: ttft_median 50.03 ms to")
