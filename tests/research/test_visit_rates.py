"""The simulation of stored baselines behind docs/error-rates.md, smaller: its claims hold."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgate.baseline.visit_series import VisitSeries
from perfgate.judge.rule import judge_series
from perfgate.stats.rates import rate_bounds

ROOT = Path(__file__).parents[2]
rates: Any = importlib.import_module("visit_rates")

pytestmark = pytest.mark.slow

BY_NAME = {model.name: model for model in rates.MODELS}
CLAIMED = [model.name for model in rates.MODELS if model.claim == "kept"]


@pytest.mark.parametrize("name", CLAIMED)
@pytest.mark.parametrize("case", rates.CASES)
def test_claims(case: str, name: str) -> None:
    """Blocked at ignorable at most alpha, passed at must_catch at most beta, however visits differ (95 % bounds)."""
    for visits in rates.VISITS:
        row = rates.simulate(BY_NAME[name], visits, 1, case, 20_000)
        assert rate_bounds(row.wrong, row.runs, 0.95)[1] <= row.declared


@pytest.mark.parametrize(
    "name",
    ["nights, 0.05 %", "anchored", "anchored, jumps", "anchored, blind", "blind after still visits", "re-anchored"],
)
@pytest.mark.parametrize("slow", [0.001, 0.003])
def test_it_decides_as_perfgate_does(name: str, slow: float) -> None:
    """Every simulated run ends as the rule itself ends it, gate by gate."""
    model, runs, gates = BY_NAME[name], 60, 3
    drawn = model.simulate(np.random.default_rng(7), runs, gates, 9)
    head = drawn.expected + drawn.chance + slow
    decided = rates.decide_all(drawn, head, anchored=model.anchored)

    for run in range(runs):
        pairs = [[]] * gates if drawn.pairs is None else np.exp(head[run][:, None] + drawn.pairs[run]).tolist()
        others = [[]] * gates if drawn.others is None else [[one] for one in drawn.others[run]]
        series = [
            VisitSeries(
                rates.MARGINS.plan,
                tuple(np.exp(means).tolist()),
                (math.exp(new),),
                visits=tuple((math.exp(mean),) for mean in means),
                others=tuple(tuple((math.exp(mean),) for mean in rows) for rows in more),
                beside_anchor=model.anchored,
                pairs=tuple(own),
            )
            for means, more, new, own in zip(drawn.means[run], others, head[run], pairs, strict=True)
        ]
        verdicts = [gate.verdict for gate in judge_series(series, rates.ALPHA, rates.BETA)]
        assert ("regressed" in verdicts) == decided.told[run]
        for gate, (verdict, own) in enumerate(zip(verdicts, series, strict=True)):
            if verdict != "regressed":
                assert (verdict in ("pass", "improved") and own.may_pass) == decided.gates_passed[run, gate]


def test_three_of_six_pairs_move_a_median() -> None:
    """Where no probe tells states, a median alone would tell of many unchanged builds, and pass as many slow ones."""
    blind = BY_NAME["blind after still visits"]

    def alone(*drawn: Any) -> Any:
        return blind.simulate(*drawn)._replace(pairs=None)

    model = rates.VisitModel("median", "", alone)
    told, passed = (rates.simulate(model, 8, 1, case, 8000) for case in rates.CASES)

    assert told.told > 10 * rates.ALPHA * told.runs
    assert passed.least > 3 * rates.BETA


def test_pairs_at_the_margin_itself_agree_by_a_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the way to the other margin tells of few heads at ignorable; pairs that must only be above it do not."""
    blind = BY_NAME["blind after still visits"]
    kept = rates.simulate(blind, 10, 1, "ignorable")
    monkeypatch.setattr("perfgate.baseline.visit_series.HALFWAY", 0.0)
    broken = rates.simulate(blind, 10, 1, "ignorable")

    assert kept.told < rates.ALPHA * kept.runs < broken.told


def test_a_pass_that_is_not_repaired_breaks_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of beta, and without the doubled variance, more than 5 % of heads at must_catch would pass."""
    monkeypatch.setattr("perfgate.stats.prediction.RAISED", 1.0)
    monkeypatch.setattr(rates, "PASS_SHARE", 1.0)

    assert rates.simulate(BY_NAME["fast outliers"], 8, 1, "must_catch", 8000).least > rates.BETA


def test_four_visits_on_two_levels_cannot_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one visit in ten is fast, four slow ones and a fast head are too frequent for any rule."""
    monkeypatch.setattr("perfgate.stats.prediction.FIRST_PASSING_VISITS", 4)

    assert rates.simulate(BY_NAME["a rare fast level"], 4, 1, "must_catch", 8000).least > rates.BETA


@pytest.mark.parametrize("name", ["exponential", "slow outliers", "clusters of four"])
def test_visits_alone_would_block_too_often(name: str) -> None:
    """Four visits say of more than 1 % of the heads at ignorable that they would regress; pairs block next to none."""
    row = rates.simulate(BY_NAME[name], 4, 1, "ignorable", 8000)

    assert rate_bounds(row.told, row.runs, 0.99)[0] > rates.ALPHA
    assert row.most < rates.ALPHA


def test_seeded() -> None:
    """A row is the same every time, whatever was simulated before it."""
    model = BY_NAME["nights, 0.2 %"]
    first = rates.simulate(model, 4, 3, "ignorable", 40)
    rates.simulate(model, 8, 1, "ignorable", 10)

    assert first == rates.simulate(model, 4, 3, "ignorable", 40)


def test_gates_of_a_visit_go_together() -> None:
    """Two gates of one visit are correlated by one half, and as far spread as the model says."""
    drawn = BY_NAME["nights, 0.2 %"].simulate(np.random.default_rng(8), 20_000, 2, 4)

    assert drawn.means.std() == pytest.approx(2e-3, rel=0.02)
    assert np.corrcoef(drawn.means[:, 0, 0], drawn.means[:, 1, 0])[0, 1] == pytest.approx(0.5, abs=0.03)


def test_section_says_what_is_refuted() -> None:
    """A row whose error is more frequent than declared is refuted; one without a claim is not."""
    good, bad = (rates.VisitRow(rates.MODELS[0], 4, 1, "ignorable", 1000, 60, count, 900, 900) for count in (10, 60))
    unclaimed = rates.VisitRow(BY_NAME["another card"], 4, 1, "ignorable", 1000, 60, 60, 900, 900)

    text = rates.section([good, bad, unclaimed])

    ends = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if " | 4 | 1 | " in line]
    assert ends == ["not refuted", "**refuted**", "advisory"]
