"""The simulation of stored baselines behind docs/error-rates.md, smaller: the declared rates hold for normal visits."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgate.stats.prediction import predict

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
rates: Any = importlib.import_module("visit_rates")

BY_NAME = {model.name: model for model in rates.MODELS}
CLAIMED = [model.name for model in rates.MODELS if model.claims]
RUNS = 600


@pytest.mark.slow
@pytest.mark.parametrize("visits", [4, 8])
@pytest.mark.parametrize("name", CLAIMED)
@pytest.mark.parametrize("case", rates.CASES)
def test_claims(case: str, name: str, visits: int) -> None:
    """Blocked at ignorable at most alpha, passed at must_catch at most beta, whatever the spread between visits."""
    row = rates.simulate(BY_NAME[name], visits, 1, case, RUNS)

    assert row.least <= row.declared


def test_ignoring_fewer_restarts_would_block_too_often() -> None:
    """The head's fewer restarts matter: held as if it had as many as the visits, it is blocked too often."""
    model = BY_NAME["restarts only"]
    rng = np.random.default_rng(5)
    blocked = 0
    for _ in range(RUNS):
        base = model.restarts_of(rng, 1, 16, model.restarts)[0]
        head = model.restarts_of(rng, 1, 1, rates.RESTARTS)[0, 0]
        as_many = head.mean() + np.zeros(model.restarts)
        blocked += predict(list(base), as_many, 1).estimate().p_above(0.0) <= rates.ALPHA

    assert blocked / RUNS > 2 * rates.ALPHA


def test_seeded() -> None:
    """A row is the same every time, whatever was simulated before it."""
    model = BY_NAME["normal, 0.2 %"]
    first = rates.simulate(model, 4, 3, "ignorable", 40)
    rates.simulate(model, 8, 1, "ignorable", 10)

    assert first == rates.simulate(model, 4, 3, "ignorable", 40)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_spread(name: str) -> None:
    """Visits spread as the model says, and gates of one visit go together by one half."""
    model = BY_NAME[name]

    rows = model.restarts_of(np.random.default_rng(8), 2, 20_000, 1)[:, :, 0]

    expected = np.hypot(model.visit_sd, model.restart_sd)
    assert rows[0].std() == pytest.approx(expected, rel=0.1)
    assert np.corrcoef(rows)[0, 1] == pytest.approx(0.5, abs=0.06)


def test_section_says_what_is_refuted() -> None:
    """A row whose error is more frequent than declared is refuted; one without a claim is not."""
    good, bad = (rates.VisitRow(rates.MODELS[0], 4, 1, "ignorable", 1000, count, 900, 900) for count in (10, 60))
    unclaimed = rates.VisitRow(BY_NAME["two modes, 0.2 %"], 4, 1, "ignorable", 1000, 60, 900, 900)

    text = rates.section([good, bad, unclaimed])

    ends = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if " | 4 | 1 | " in line]
    assert ends == ["not refuted", "**refuted**", "none made"]
