"""Pairs of a head and its anchor of which nothing tells the state of the GPU: a verdict is what they agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hand_made import codes, gate

from perfgate.baseline.visit_series import VisitSeries
from perfgate.judge.outcome import GateOutcome
from perfgate.judge.rule import judge_series
from perfgate.scenario.plan import ALPHA, BETA

STEP_S = 0.005
VISITS = (-0.0001, 0.0001, 0.00005, -0.00005)
"""The ln(build / anchor) of each visit, which is little beside the margins of 0.1 and 0.5 %."""


def judged(pairs: Sequence[float], metric: str = "itl_median", floor: str | None = None) -> GateOutcome:
    """The gate of a head whose pairs are so much slower than the visits, as logarithms; their median counts."""
    sign = -1 if metric == "output_throughput" else 1
    means = tuple(STEP_S * math.exp(sign * one) for one in VISITS)
    each = tuple(STEP_S * math.exp(sign * one) for one in pairs)
    middle = sorted(each)[(len(each) - 1) // 2 : len(each) // 2 + 1]
    plan = gate(metric, "0.1%", "0.5%", **({"floor": floor} if floor else {}))
    series = VisitSeries(
        plan, means, (math.prod(middle) ** (1 / len(middle)),), visits=tuple((mean,) for mean in means),
        beside_anchor=True, pairs=each,
    )  # fmt: skip
    (found,) = judge_series([series], ALPHA, BETA)
    return found


@pytest.mark.parametrize("metric", ["itl_median", "output_throughput"])
@pytest.mark.parametrize(("pairs", "verdict"), [
    ([0.009] * 6, "regressed"),
    ([0.009] * 5 + [0.0], "inconclusive"),
    ([0.009] * 5 + [0.0029], "inconclusive"),
    ([0.009] * 5 + [0.0035], "regressed"),
    ([0.0] * 6, "pass"),
    ([0.0] * 5 + [0.025], "pass"),
    ([0.0] * 4 + [0.025] * 2, "inconclusive"),
    ([-0.009] * 6, "improved"),
    ([-0.02] * 3 + [0.009] * 3, "inconclusive"),
])  # fmt: skip
def test_six_pairs(pairs: list[float], verdict: str, metric: str) -> None:
    """To block all are in the upper half between the margins, and to pass all but one are in the lower half."""
    found = judged(pairs, metric)

    assert found.verdict == verdict
    assert codes(found.reasons) == (["states-undecided"] if verdict == "inconclusive" else [])


@pytest.mark.parametrize(("pairs", "verdict"), [
    ([0.009] * 11 + [0.0], "regressed"),
    ([0.009] * 10 + [0.0] * 2, "inconclusive"),
    ([0.0] * 10 + [0.025] * 2, "pass"),
    ([0.0] * 9 + [0.025] * 3, "inconclusive"),
])  # fmt: skip
def test_twelve_pairs(pairs: list[float], verdict: str) -> None:
    """One may speak against a block, and two against a pass."""
    assert judged(pairs).verdict == verdict


def test_what_the_median_would_block_does_not_pass() -> None:
    """Slower than ignorable by less than must_catch: a pair that keeps it from being blocked makes it no pass."""
    blocked, disputed = judged([0.0032] * 6), judged([0.0032] * 5 + [0.0])

    assert (blocked.verdict, disputed.verdict) == ("regressed", "inconclusive")
    assert disputed.reasons[0].text == "the median of 6 pairs of head and anchor is slower; against it: 1"


def test_pairs_at_a_floor_agree_on_nothing() -> None:
    """Where one floor is both margins, pairs are above it by a coin, so to decide they are further off."""
    one_per_cent = "50us"

    near, above, below = (judged([by] * 6, floor=one_per_cent).verdict for by in (0.0108, 0.0125, 0.0075))

    assert (near, above, below) == ("inconclusive", "regressed", "pass")
