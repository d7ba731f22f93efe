"""What a run would cost and could show."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hand_made import cell, decode, gate, record, spread, traces, trial, trials
from scipy import stats as scipy_stats

from perfgate.expectation import Expectation
from perfgate.plan import ALPHA, BETA, Cell
from perfgate.price import newest_record, price
from perfgate.record import Record, record_file, write_record
from perfgate.report.price import render_price
from perfgate.scenario import Expect


def expecting(trial_s: float = 30.0, pair_sd: str | dict[str, str] = "0.07%", **measure: Any) -> Cell:
    """A cell whose author has seen it."""
    text = json.dumps({"trial_s": trial_s, "pair_sd": pair_sd})
    return cell(expect=Expect.model_validate_json(text), **measure)


def test_unknown_without_record_and_expectation() -> None:
    """Nothing is made up where nothing has been seen."""
    found = price(cell(), None, 1)

    assert found.minutes is None
    assert found.gates[0].pair_sd is None
    assert set(found.gates[0].detectable) == {None}
    assert "unknown" in render_price(cell(), found)


def test_minutes_from_an_expectation() -> None:
    """Two conditioning trials, then two trials a pair."""
    assert price(expecting(), None, 1).minutes == (5.0, 7.0, 9.0, 13.0)


def test_detectable_effect_is_that_of_the_noncentral_t() -> None:
    """At a blocking look the noncentral t of that effect exceeds the critical value in 95 % (scipy.stats.nct)."""
    found = price(expecting(), None, 3).gates[0]

    assert found.detectable[0] is None
    for effect, pairs, weight in zip(found.detectable[1:], (6, 8, 12), (0.16, 0.24, 0.40), strict=True):
        assert effect is not None
        critical = scipy_stats.t.isf(ALPHA * weight / 3, pairs - 1)
        shift = (math.log1p(effect) - math.log1p(0.001)) / (0.0007 / math.sqrt(pairs))
        assert scipy_stats.nct.sf(critical, pairs - 1, shift) == pytest.approx(1 - BETA, abs=1e-6)


def test_a_gate_on_kernels_is_priced_by_traced_pairs() -> None:
    """Its looks are those of traced pairs, its spread that of traced trials; timed trials alone make up the minutes."""
    plans = [gate(), gate("kernel_time_per_step", "1%", "5%", role="gemm")]
    block = Expectation.model_validate({"traced": {"looks": [4, 6]}})
    measured = cell(gates=plans).model_copy(update={"kernels": block})
    base, head = ([decode([("gemm", "nvjet", ns + 1000 * n)]) for n in range(2)] for ns in (10**6, 10**6 + 3000))
    slow = [one.model_copy(update={"duration_ns": 10**12}) for one in traces(base, head, first=8)]
    history = record(measured, [*trials([0.0] * 4), *slow])

    found = price(measured, history, 2)

    kernels = found.gates[1]
    assert (kernels.metric, len(kernels.detectable)) == ("kernel_time_per_step[gemm]", 2)
    d = [math.log(1.003), math.log(1.004 / 1.001)]
    assert kernels.pair_sd == pytest.approx(abs(d[0] - d[1]) / math.sqrt(2), rel=1e-3)
    assert found.minutes == price(cell(), record(cell(), trials([0.0] * 4)), 1).minutes
    assert "detectable at 4, 6 traced pairs -, " in render_price(measured, found)


def test_more_gates_see_less() -> None:
    """All gates of a run share alpha."""
    one, ten = (price(expecting(), None, gates).gates[0].detectable[3] for gates in (1, 10))

    assert one is not None
    assert ten is not None
    assert one < ten


@pytest.mark.parametrize(
    ("planned", "problem"),
    [
        (expecting(), ""),
        (expecting(looks=(4,)), "no look of this plan may block"),
        (expecting(pair_sd="0.3%"), "a slowdown of must_catch would often not be blocked: at best 0.549 % is"),
        (
            expecting(pair_sd="2%"),
            "an unchanged build would pass in only 9 % of runs; a slowdown of must_catch",
        ),
    ],
    ids=["fine", "never-blocks", "blind", "hopeless"],
)
def test_a_gate_that_cannot_be_decided_is_named(planned: Cell, problem: str) -> None:
    """What the looks cannot do is said before anything runs."""
    found = price(planned, None, 1)

    assert problem in found.gates[0].problem
    assert bool(problem) == ("warning: itl_median" in render_price(planned, found))


def test_spread_by_metric() -> None:
    """An expectation may name each metric's spread; one that it leaves out is unknown."""
    planned = expecting(pair_sd={"itl_median": "0.07%"}, gates=[gate(), gate("ttft_median", "2%", "8%")])

    assert [found.pair_sd for found in price(planned, None, 2).gates] == [0.0007, None]


def test_a_record_beats_the_expectation() -> None:
    """Durations are medians of what was measured, spreads are those of the pairs; failed trials do not count."""
    planned = expecting()
    d = spread(0.0, 0.001, 4)
    measured = record(planned, [trial(0, None, "base"), *trials(d)])

    found = price(planned, measured, 1)

    assert found.minutes == pytest.approx(
        [(2 * pairs + 2) * measured.trials[1].duration_ns / 60e9 for pairs in (4, 6, 8, 12)]
    )
    assert found.gates[0].pair_sd == pytest.approx(0.001 * math.sqrt(4 / 3), rel=1e-3)
    assert "record of" in render_price(planned, found)


def test_the_newest_record_of_the_same_cell(tmp_path: Path) -> None:
    """Other cells, records without a pair and files that are no record are passed over."""
    planned = cell()
    stored: list[tuple[str, Record]] = [
        ("old", record(planned, trials(spread(0.0, 0.001, 4)))),
        ("empty", record(planned, [])),
    ]
    for name, content in stored:
        file = record_file(tmp_path / name, planned)
        file.parent.mkdir(parents=True)
        write_record(file, content)
    broken = record_file(tmp_path / "broken", planned)
    broken.parent.mkdir(parents=True)
    broken.write_text("{")

    assert newest_record(tmp_path, planned) == stored[0][1]
    assert newest_record(tmp_path / "nowhere", planned) is None
