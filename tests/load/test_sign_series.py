"""Values that can be zero: the largest changes there are block, and nothing passes because a ratio is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hand_made import BOTH, cell, codes, gate, judged, only, trial

from perfgate.judge.outcome import GateOutcome
from perfgate.judge.rule import Series, judge_series
from perfgate.judge.sign_series import by_sign
from perfgate.report.story import cell_story
from perfgate.stats import EARLY_SCHEDULE

ALPHA, BETA = 0.01, 0.05


def found(metric: str, base: Sequence[float], head: Sequence[float], **more: str | dict[str, str]) -> GateOutcome:
    """What a gate with margins of 10 and 50 % makes of these values, at the default looks."""
    plan = gate(metric, "10%", "50%", **more)
    series = by_sign(Series(plan, tuple(map(float, base)), tuple(map(float, head)), EARLY_SCHEDULE))
    (outcome,) = judge_series([series], ALPHA, BETA)
    return outcome


GOODPUT = {"slo": {"ttft": "200ms"}}


@pytest.mark.parametrize(
    ("metric", "base", "head", "more"),
    [
        ("preemptions", [0] * 12, [40, 50, 60] * 4, {}),
        ("prefix_hit_share", [0.5, 0.51] * 6, [0] * 12, {}),
        ("goodput", [4.0, 4.1] * 6, [0] * 12, GOODPUT),
        ("goodput", [4.0, 4.1] * 6, [0, *[1.0, 1.1] * 5, 0], GOODPUT),
        ("preemptions", [0] * 12, [9] * 12, {"floor": "5count"}),
    ],
)
def test_a_loss_to_zero_blocks(metric: str, base: list[float], head: list[float], more: dict[str, str]) -> None:
    """A head that preempts where the base never does, or loses all of its hits or goodput, has regressed."""
    gated = found(metric, base, head, **more)

    assert (gated.verdict, codes(gated.cautions)) == ("regressed", ["counted-by-sign"])
    assert gated.p == pytest.approx(2**-12 / 0.4)
    assert gated.change is None
    assert [gated.base, gated.head] == pytest.approx([np.mean(base), np.mean(head)])
    assert "slower by more than ignorable in 12 of 12 pairs" in gated.cautions[0].text


@pytest.mark.parametrize(
    ("metric", "base", "head", "more", "verdict"),
    [
        ("preemptions", [0] * 8, [0] * 8, {}, "pass"),  # the healthy state
        ("preemptions", [0] * 8, [1] * 8, {"floor": "5count"}, "pass"),
        ("preemptions", [40] * 8, [0] * 8, {}, "improved"),
        ("goodput", [0] * 8, [4] * 8, GOODPUT, "improved"),
        ("preemptions", [0] * 6, [0] * 6, {}, "inconclusive"),  # 2^-6 is above what the look at six may spend
        ("preemptions", [0] * 6, [40] * 6, {}, "inconclusive"),
        ("preemptions", [0] * 12, [*[0] * 11, 1], {}, "inconclusive"),  # one that is worse hides in no median
        ("goodput", [4] * 12, [*[4] * 11, 0], GOODPUT, "inconclusive"),
        ("goodput", [*[4] * 11, 0], [*[4] * 11, 0], GOODPUT, "inconclusive"),  # the last shows nothing
    ],
)
def test_what_is_no_loss(metric: str, base: list[float], head: list[float], more: dict[str, str], verdict: str) -> None:
    """It passes where every pair is within must_catch, and where that is too few or one is not, nothing is decided."""
    gated = found(metric, base, head, **more)

    assert gated.verdict == verdict
    assert codes(gated.reasons if verdict == "inconclusive" else gated.cautions) == ["counted-by-sign"]


def test_a_pass_does_not_outlive_a_loss() -> None:
    """Eight pairs of zeros pass, and a ninth to twelfth in which the head preempts take that back."""
    assert found("preemptions", [0] * 12, [*[0] * 8, 30, 30, 30, 30]).verdict == "inconclusive"


def test_no_goodput_on_either_side_is_not_measured() -> None:
    """Where no request of any trial met the objective nothing could be lost, and the reason says so."""
    gated = found("goodput", [0] * 12, [0] * 12, **GOODPUT)

    assert (gated.verdict, codes(gated.reasons)) == ("not-measured", ["metric-unusable"])
    assert gated.reasons[0].text == (
        "goodput[ttft<=200ms] is 0 in 12 of 12 trials of the base and in 12 of 12 trials of the head, "
        "and zero has no ratio"
    )


def test_apart_or_drawn_once_it_is_not_measured() -> None:
    """Trials of different runs make no pairs, and pairs that share one compilation of a build do not tell of others."""
    apart = Series(gate("preemptions", "10%", "50%"), (0.0,) * 12, (9.0,) * 12)
    drawn = Series(gate("preemptions", "10%", "50%", draw_sd="1%"), (0.0,) * 12, (9.0,) * 12, EARLY_SCHEDULE)

    for series in (apart, drawn):
        (gated,) = judge_series([by_sign(series)], ALPHA, BETA)
        assert (gated.verdict, codes(gated.reasons)) == ("not-measured", ["metric-unusable"])


def test_a_time_of_zero_stays_broken() -> None:
    """A time or a size is never zero, whatever the metric beside it may be."""
    assert codes(found("itl_median", [1.0] * 12, [0.0] * 12).reasons) == ["metric-unusable"]
    assert codes(found("preemptions", [0.0] * 12, [-1.0] * 12).reasons) == ["metric-unusable"]


def test_it_is_told_of_a_run() -> None:
    """Records of a server that starts to preempt end as a regression, and the explanation names the sign test."""
    counts = {"base": 0, "head": 25}
    taken = [
        trial(2 * n + place, n, side, figures={"preemptions": counts[side]})
        for n in range(12)
        for place, side in enumerate(BOTH)
    ]

    outcome = judged(taken, cell(gates=[gate("preemptions", "10%", "50%")]))

    assert (outcome.verdict, only(outcome).verdict) == ("regressed", "regressed")
    assert [gate.steps.split(":")[1] for gate in cell_story(outcome.cells[0]).gates] == [" a sign test over 12 pairs"]


@pytest.mark.slow
@pytest.mark.parametrize(("base_mean", "floor"), [(0.3, None), (2.0, None), (0.3, "2count"), (2.0, "2count")])
def test_error_rates_hold(base_mean: float, floor: str | None) -> None:
    """Of heads slower by exactly ignorable, or exactly the floor, at most 1 % block; of those at must_catch 5 % pass.

    Restarts differ by a lot, as they do near saturation: their means are log-normal, and counts are Poisson.
    """
    rng, runs, blocked, passed = np.random.default_rng(11), 400, 0, 0
    more = {"floor": floor} if floor else {}
    added = 2 if floor else 0
    for margin in ("ignorable", "must_catch"):
        by = 1.1 if margin == "ignorable" else 1.5
        for _ in range(runs):
            means = base_mean * rng.lognormal(0, 0.5, (2, 12))
            base, same = rng.poisson(means)
            head = np.maximum(same * by, same + added)
            verdict = found("preemptions", base, head, **more).verdict
            blocked += margin == "ignorable" and verdict == "regressed"
            passed += margin == "must_catch" and verdict in ("pass", "improved")

    assert blocked <= ALPHA * runs
    assert passed <= BETA * runs
