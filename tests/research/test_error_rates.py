"""The simulation behind docs/error-rates.md, smaller: the declared rates hold."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from scipy import stats as scipy_stats

from perfgate import stats

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
rates: Any = importlib.import_module("error_rates")
models: Any = importlib.import_module("restart_models")
picture: Any = importlib.import_module("effect_picture")
many: Any = importlib.import_module("many_runs")
visits: Any = importlib.import_module("visit_rates")
instrument: Any = importlib.import_module("instrument_rates")
drops: Any = importlib.import_module("dropped_rates")
changes: Any = importlib.import_module("change_rates")
heads: Any = importlib.import_module("head_rates")
searches: Any = importlib.import_module("bisect_rates")
shards: Any = importlib.import_module("shard_rates")
states: Any = importlib.import_module("state_places")
orders: Any = importlib.import_module("order_rates")

RUNS = 2000
BY_NAME = {rates.label(model): model for model in models.MODELS}
NAMES = list(BY_NAME)


# --- many runs at once


def test_every_end_occurs() -> None:
    """Of runs at once some end with each verdict, and after each number of pairs."""
    d = np.concatenate([models.normal(sd).pairs(np.random.default_rng(3), 60, (0.0008, 0.0)) for sd in (0.0003, 0.001)])

    ends = many.decide_all(d, (rates.TIGHT,) * 2)

    assert {stats.PASS, stats.REGRESSED, stats.INCONCLUSIVE} == set(ends.runs.tolist())
    assert set(stats.DEFAULT_SCHEDULE.looks) == set(ends.pairs.tolist())


def test_shards_keep_the_rates() -> None:
    """No join takes back what a shard rejected; neither error is more frequent than declared, nor is a plan split."""
    found = [shards.simulate(case, layout, RUNS) for case in shards.CASES for layout in ((3, 2, 1), (2, 2, 3))]

    assert [row.taken_back for row in found] == [0] * len(found)
    assert [row.standing for row in found if row.least > row.declared] == []
    assert all(row.otherwise < RUNS / 50 for row in found)
    split = found[-1]  # one machine gives each gate of a cell with two states a share of its own
    assert (split.case, split.alone < split.pairs) == ("one at must_catch", True)


def test_too_few_pairs() -> None:
    """Pairs that do not reach the last look are refused, not decided on what there is."""
    with pytest.raises(ValueError, match="7 pairs do not reach the look at 12"):
        many.decide_all(np.zeros((1, 1, 7)), (rates.WIDE,))


# --- the models


@pytest.mark.parametrize("name", NAMES)
def test_spread_and_correlation(name: str) -> None:
    """Pairs of every model spread as it states around the true slowdown, and its gates are correlated."""
    model = BY_NAME[name]

    d = model.pairs(np.random.default_rng(8), 20_000, (0.0, 0.0))

    first, second = d[:, 0].ravel(), d[:, 1].ravel()
    assert pytest.approx(model.pair_sd, rel=0.05) == first.std()
    assert abs(first.mean()) < 5 * model.pair_sd / np.sqrt(first.size)
    expected = {"drift": 0.66, "steep drift": 0.9}.get(name, 0.5)
    assert pytest.approx(expected, abs=0.06) == np.corrcoef(first, second)[0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_true_slowdown(name: str) -> None:
    """The mean of the pairs' log ratios is the slowdown asked for, also where only some restarts carry it."""
    d = BY_NAME[name].pairs(np.random.default_rng(9), 20_000, (0.005, 0.0))

    assert pytest.approx((np.log(1.005), 0.0), abs=3e-5) == tuple(d.mean(axis=(0, 2)))


def test_orders_are_the_plans() -> None:
    """In no simulated run are the first four pairs all alike; else each pair has a fair coin."""
    drawn = models.orders()

    assert {*drawn[:, :4].sum(axis=1).tolist()} == {1, 2, 3}
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.06
    assert np.abs(np.corrcoef(drawn[:, 4:].T) - np.eye(models.PAIRS - 4)).max() < 0.12


def test_drift_is_a_slower_second_trial() -> None:
    """A steady drift is in every pair with the sign that its order draws, and moves the mean of all to neither side."""
    d = models.drifting("drift", 0.01, pair_sd=0.0).pairs(np.random.default_rng(1), 2000, (0.0,))

    assert pytest.approx(0.01) == np.abs(d).min()
    assert pytest.approx(0.01) == np.abs(d).max()
    assert abs(d.mean()) < 5 * 0.01 / d.size**0.5


def test_orders_that_may_be_all_alike_break_the_rates() -> None:
    """With free coins a steep drift blocks more often than declared, and far more is missed than by the plan."""
    free = np.random.default_rng(3).random((models.ORDERS, models.PAIRS)) < 0.5
    with mock.patch.object(models, "orders", return_value=free):
        blocked, missed = (
            rates.simulate(BY_NAME["steep drift"], 1, case, rates.TIGHT, 20_000) for case in ("ignorable", "must_catch")
        )

    assert blocked.least > blocked.declared
    assert missed.wrong / missed.runs > 0.035


# --- the declared rates


@pytest.mark.parametrize("gates", [1, 8])
@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].claims])
@pytest.mark.parametrize(("case", "margins"), rates.SECTIONS[1:], ids=str)
def test_claims(case: str, margins: Any, name: str, gates: int) -> None:
    """The simulated rate of the declared error is compatible with the declaration under every model that claims it."""
    row = rates.simulate(BY_NAME[name], gates, case, margins, RUNS)

    assert row.least <= row.declared


def test_no_claim() -> None:
    """A head that is slow only in some restarts passes far more often than beta: why nothing is claimed for it."""
    row = rates.simulate(BY_NAME["slow in some"], 1, "must_catch", rates.WIDE, RUNS)

    assert row.least > row.declared
    assert rates.cells(row)[-1] == "none made"


def test_seeded() -> None:
    """A row is the same every time, whatever was simulated before it."""
    first = rates.simulate(BY_NAME["spiky"], 3, "ignorable", rates.TIGHT, 300)
    rates.simulate(BY_NAME["drift"], 1, "ignorable", rates.TIGHT, 300)

    assert first == rates.simulate(BY_NAME["spiky"], 3, "ignorable", rates.TIGHT, 300)


# --- what is known imperfectly


@pytest.mark.parametrize("number", range(len(instrument.CLAIMS)))
def test_ties_and_floors_keep_the_rates(number: int) -> None:
    """Where values are ties, or a slowdown is exactly the floor, neither error is more frequent than declared."""
    row = instrument.CLAIMS[number](RUNS)

    assert row.least <= row.declared


def test_ties_and_floors_taken_as_exact_do_not() -> None:
    """The rule that takes a timer's values and the first look's base as exact errs many times as often."""
    assert instrument.ties(0.003, 0.0, "must_catch", RUNS).exact > 5 * rates.BETA * RUNS
    assert instrument.at_the_floor(0.2, 0.02, "ignorable", RUNS).exact > 5 * rates.ALPHA * RUNS


@pytest.mark.parametrize("place", instrument.PROMISES)
def test_detectable_is_blocked_as_promised(place: tuple[int, int, float]) -> None:
    """In 95 of 100, and less often where the spread of few pairs is taken as known."""
    row = instrument.promise(*place, RUNS)

    low, high = scipy_stats.binom.interval(0.999, RUNS, 0.95)
    assert low <= row.wrong <= high
    assert row.exact < low


# --- dropped pairs


def test_a_head_that_throttles_itself() -> None:
    """With a cap a visit nearly every resumed run of such a head passed; over the whole record one in seven does."""
    row = drops.simulate(drops.DropModel("the head throttles itself in half", 0.0, 0.5), RUNS)

    assert row.resumed / RUNS > 0.9
    assert 0.12 < row.ended / RUNS < 0.18


@pytest.mark.parametrize("model", [model for model in drops.MODELS if model.base == model.head], ids=str)
def test_a_fair_machine_is_not_called_one_sided(model: Any) -> None:
    """The binomial test ends at most 1 % of the runs of a machine that fails on either side alike."""
    assert drops.simulate(model, RUNS).one_sided / RUNS <= 0.01


def test_failures_follow_the_order() -> None:
    """The side that runs first fails first where both do, so half of the drops of a fair machine are on each side."""
    first = drops.failures(drops.DropModel("all", 0.999, 0.999), np.random.default_rng(1), 400)

    assert 0.49 < (first == 2).mean() < 0.51


# --- several heads


@pytest.mark.parametrize("place", heads.PLACES, ids=str)
def test_several_heads_keep_the_rates(place: Any) -> None:
    """At most 1 % of runs block a head that is fine and at most 5 % pass a slow one, whatever the others are like."""
    row = heads.simulate(*place, RUNS)

    assert row.least <= row.declared
    assert row.trials < row.apart


# --- the page and the picture


# --- pairs of a CSV


@pytest.mark.parametrize("case", orders.CASES)
@pytest.mark.parametrize("drift", orders.DRIFTS)
@pytest.mark.parametrize("order", orders.ORDERS)
def test_orders_keep_the_rates(order: str, drift: str, case: str) -> None:
    """Whatever drifts, a CSV blocks what is fine, and passes what is not, no more often than declared."""
    row = orders.simulate(order, drift, 12, case, RUNS)

    assert row.standing == "none made" or row.least <= row.declared
    assert not (order.startswith("unknown") and case == "ignorable" and row.wrong), "an unknown order blocks nothing"


@pytest.mark.parametrize("drift", ["linear", "falling"])
def test_an_order_that_is_believed_does_not(drift: str) -> None:
    """Where the base is always first and a machine drifts, the test of a drawn order errs in most tables."""
    way = "ignorable" if drift == "linear" else "must_catch"
    base, head, first = orders.values(("unknown, base first", drift, 12, way), RUNS)

    assert orders.wrong_tables("stated", way, base, head, first) > 0.8 * RUNS


def test_refuted_claim_is_said() -> None:
    """A row whose error is more frequent than declared is refuted, in the table and at the top of the page."""
    good = rates.Row(models.normal(), 1, "ignorable", rates.WIDE, 1000, 10, 900, 900, 6000)
    bad = rates.Row(models.normal(), 8, "ignorable", rates.TIGHT, 1000, 40, 900, 900, 6000)

    text = rates.page([good, bad])

    assert "**0 of 2 claims are shown, 1 are refuted.**" in text
    assert "The most falsely blocked: 4.00 % of runs (declared 1 %), normal, 0.07 %, 8 gates." in text
    assert "- Refuted: ignorable (0.15 %), normal, 0.07 %, 8 gates: 4.00 % against 1 %." in text
    assert "| normal, 0.07 % | 8 | 4.00 % | 90.00 % | 6.00 % | 6.0 | 2.69 % | 5.68 % | **refuted** |" in text
    assert "| normal, 0.07 % | 1 | 1.00 % | 90.00 % | 9.00 % | 6.0 | 0.41 % | 2.00 % | not refuted |" in text


def test_committed_page() -> None:
    """The committed page holds a row for every model, number of gates and section, and no refuted claim unexplained."""
    text = (ROOT / "docs" / "error-rates.txt").read_text()

    standings = tuple(f"| {words} |" for words in ("shown", "not refuted", "**refuted**", "none made", "advisory"))
    rows = [line for line in text.splitlines() if line.endswith(standings)]
    paired = sum(len(rates.models_for(case)) for case, _ in rates.SECTIONS) * len(rates.GATES)
    within = len({(one.model, one.source, one.margins) for one in states.PLACES if one.part == "claims"}) * len(
        states.GATES
    )
    nights = len(changes.MODELS) + len(changes.NIGHTLY) + len(changes.FOUND)
    apart = len(heads.PLACES) + len(visits.PLACES) + len(instrument.CLAIMS) + nights
    searched = len(searches.SIZES) * len(searches.WAYS)
    divided = len(shards.CASES) * len(shards.LAYOUTS)
    shaped = len(importlib.import_module("state_rates").SHAPES) + 1  # two levels, with further looks
    assert paired + apart + within + shaped + searched + divided + orders.ROWS == len(rows)
    assert sum("**refuted**" in row for row in rows) == text.count("- Refuted:")
    assert all(f"| {model.name} | {model.cap} | " in text for model in drops.MODELS)


def test_picture() -> None:
    """The picture is well-formed, with a curve of each kind a panel, and its curves end where they must."""
    panels = rates.panels(60)

    root = ET.fromstring(picture.draw(panels))  # noqa: S314 (our own)

    space = "{http://www.w3.org/2000/svg}"
    curves = [path for path in root.iter(f"{space}path") if "," in path.attrib["d"]]
    assert len(panels) * 3 == len(curves)
    assert all(panel.points[0].passed > 0.9 and panel.points[-1].blocked > 0.9 for panel in panels)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(0.008, [0, 0.002, 0.004, 0.006, 0.008]), (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.35, [0, 0.1, 0.2, 0.3])],
)
def test_ticks(largest: float, expected: list[float]) -> None:
    """Ticks are round numbers that do not go beyond the axis."""
    assert pytest.approx(expected) == picture.ticks(largest)
