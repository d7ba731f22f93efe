"""A gate's error holds what two compilations of one build differ by, unless both sides ran the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hand_made import cell, gate, judged, only, spread, trial, trials
from stored import lineage

from perfgate.baseline.foresight import ways
from perfgate.baseline.visit_series import VisitSeries
from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.judge.power import cell_power, promised_block
from perfgate.metrics.trial import Fill, Startup, Trial
from perfgate.report.power_report import power_document
from perfgate.report.story import cell_story
from perfgate.stats import DEFAULT_SCHEDULE, mean_estimate

BASE_FILL, HEAD_FILL = (Fill(draw=name * 12, filled_utc="2026-01-01T08:00:00+00:00") for name in "ab")


def with_fills(taken: tuple[Trial, ...], head: Fill | None) -> tuple[Trial, ...]:
    """Trials whose sides found these fills in their caches."""
    fills = {"base": BASE_FILL, "head": head}
    started = Startup(import_ns=1, engine_ns=1, ready_ns=3, cache_files=213)
    return tuple(one.model_copy(update={"fill": fills[one.subject], "startup": started}) for one in taken)


def decided(slowdown: float, draw_sd: str, head: Fill | None = HEAD_FILL) -> GateOutcome:
    """Six pairs that spread by 0.02 %, of a gate with margins of 0.1 and 0.5 %."""
    gated = cell(gates=[gate(draw_sd=draw_sd)])
    return only(judged(with_fills(trials(spread(slowdown, 0.0003, 6)), head), gated))


def test_a_carried_variance_is_added_and_stays() -> None:
    """The error is the root of both variances, and more pairs lessen that of the pairs alone."""
    own = mean_estimate([0.001, 0.002, 0.003, 0.002])
    estimate = own.carrying(4e-6)

    assert estimate.standard_error == pytest.approx(math.sqrt(own.standard_error**2 + 4e-6))
    assert (estimate.mean, estimate.df) == (own.mean, own.df)
    assert estimate.with_pairs(4, 16).standard_error == pytest.approx(math.sqrt(own.standard_error**2 / 4 + 4e-6))
    assert own.carrying(0.0) == own


def test_a_slowdown_within_what_compilations_differ_by_does_not_block() -> None:
    """+0.4 % is blocked where compilations are alike, and not where they differ by 0.2 % a side."""
    assert decided(0.004, "0%").verdict == "regressed"
    assert decided(0.004, "0.2%").verdict == "inconclusive"


def test_a_pass_needs_margins_wider_than_the_draws() -> None:
    """An unchanged build passes at once where compilations are alike, and not where they differ by as much."""
    assert decided(0.0, "0%").verdict == "pass"
    assert decided(0.0, "0.3%").verdict == "inconclusive"


def test_one_draw_of_both_sides_is_in_no_error() -> None:
    """Sides that ran what was compiled once, together, do not differ by it; of unknown caches nobody knows."""
    alike, unknown = decided(0.004, "0.2%", BASE_FILL), decided(0.004, "0.2%", None)

    assert (alike.verdict, unknown.verdict) == ("regressed", "inconclusive")
    assert alike.carried_sd == 0
    assert unknown.carried_sd == pytest.approx(0.002 * math.sqrt(2))


def test_a_gate_without_draws_writes_none() -> None:
    """Plans and verdicts of gates that declare nothing stay as they are."""
    assert "draw_sd" not in gate().gate.model_dump()
    assert gate(draw_sd="0.02%").gate.model_dump()["draw_sd"] == "0.02%"
    assert "carried_sd" not in decided(0.0, "0%").model_dump()


def test_an_error_of_compilations_is_said() -> None:
    """A gate whose margin is narrower than the draws is promised no decision with so many pairs more."""
    gated = cell(gates=[gate(draw_sd="0.3%")])
    (found,) = judged(with_fills(trials(spread(0.0, 0.0003, 6)), HEAD_FILL), gated).cells

    told = cell_story(found).gates[0].steps

    assert told.count("0.424 %") == 2


@pytest.mark.parametrize("draw_sd", ["0%", "0.05%"])
def test_a_spread_that_would_decide_does(draw_sd: str) -> None:
    """The spread that is told, of pairs alone, is where the same look begins to pass."""

    def found(half_width: float) -> CellOutcome:
        gated = cell(gates=[gate(draw_sd=draw_sd)])
        return judged(with_fills(trials(spread(0.001, half_width, 6)), HEAD_FILL), gated).cells[0]

    told = cell_story(found(0.004)).gates[0].steps
    share = float(told.split("if pairs spread by ")[1].split(" %")[0]) / 100

    assert 0.2 < share < 0.9
    assert found(0.004 * (share + 0.02)).gates[0].verdict == "inconclusive"
    assert found(0.004 * (share - 0.02)).gates[0].verdict == "pass"


def test_caches_that_grew_are_no_common_draw() -> None:
    """Sides that were filled together, and then compiled more on their own, differ by what they drew there."""

    def grown(taken: Sequence[Trial], at_first: int) -> list[Trial]:
        files = [at_first, *[213] * (len(taken) - 1)]
        return [
            one.model_copy(update={"startup": Startup(import_ns=1, engine_ns=1, ready_ns=3, cache_files=many)})
            for one, many in zip(taken, files, strict=True)
        ]

    taken = with_fills(trials(spread(0.004, 0.0003, 6)), BASE_FILL)
    gated = cell(gates=[gate(draw_sd="0.2%")])

    assert only(judged(grown(taken, 213), gated)).verdict == "regressed"
    assert only(judged(grown(taken, 180), gated)).verdict == "inconclusive"


def test_a_plan_reckons_with_the_draws() -> None:
    """Before a run, what it can block and how often it passes hold the draws, and say so."""
    expected = {"trial_s": 10, "pair_sd": "0.1%"}
    plain, drawn = (cell(gates=[gate(draw_sd=sd)], expect=expected) for sd in ("0%", "0.1%"))
    power = {name: cell_power(one, {}, 1).gates[0] for name, one in (("plain", plain), ("drawn", drawn))}

    assert all(b > a for a, b in zip(power["plain"].detectable, power["drawn"].detectable, strict=True) if a and b)
    assert (power["drawn"].passes[0] or 0) < (power["plain"].passes[0] or 0)
    told = str(power_document(drawn, cell_power(drawn, {}, 1)))
    assert "pair spread 0.1 % (from measure.expect) and of one side's compilations 0.1 %" in told
    promised = [promised_block(DEFAULT_SCHEDULE, (0.001, 0.005), 0.001, 0.004, alpha=0.01, draw_sd=sd)
                for sd in (0.0, 0.001)]  # fmt: skip
    assert promised[1] < promised[0]


def test_a_warm_up_that_fills_the_caches_is_no_draw_of_its_own() -> None:
    """On the first visit the base's warm-up finds empty caches, and what it leaves there both sides run."""
    taken = [
        one.model_copy(update={"index": one.index + 1})
        for one in with_fills(trials(spread(0.004, 0.0003, 6)), BASE_FILL)
    ]
    cold = Startup(import_ns=1, engine_ns=1, ready_ns=3)
    warm_up = trial(0, None, "base", startup=cold)

    found = judged([warm_up, *taken], cell(gates=[gate(draw_sd="0.2%")]))

    assert only(found).carried_sd == 0


def test_beside_an_anchor_four_compilations_are_in_the_error() -> None:
    """The anchor may have been compiled once more since the visits, so that a ratio to it has draws of its own."""
    gated = gate(draw_sd="0.05%")

    alone, beside = (VisitSeries(gated, beside_anchor=anchored).carried for anchored in (False, True))

    assert alone == pytest.approx(2 * 0.0005**2)
    assert beside == pytest.approx(4 * 0.0005**2)


def test_what_a_baseline_could_detect_holds_the_draws() -> None:
    """``check`` promises no more against a baseline than the verdict can show."""
    visits = [[mean + 0.001 * (-1) ** n for n in range(6)] for mean in (0.0, 0.002, -0.002, 0.001, 0.0)]
    found = {}
    for draw_sd in ("0%", "0.5%"):
        gated = cell(gates=[gate(draw_sd=draw_sd)])
        (way,) = ways(lineage(visits), gated, cell_power(gated, {}, 1), 1)
        found[draw_sd] = way.detectable["itl_median"] or math.nan

    assert found["0.5%"] > 1.2 * found["0%"]
