"""The benchmark that shows whether hidden imports move what is measured."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

hidden: Any = importlib.import_module("hidden_imports")


@pytest.mark.parametrize(("own", "beside"), [(0.01, 0.0), (0.0, -0.02), (0.003, 0.004)])
def test_both_effects_are_told_apart(own: float, beside: float) -> None:
    """A block tells what being parked does from what a parked neighbour does, whatever the level is."""
    parked = [*hidden.PARKED, hidden.PARKED[0]]
    logs = [math.log(44.0) + own * parked[n] + beside * parked[n + 1] for n in range(hidden.BLOCK)]

    assert hidden.contrasts(logs) == pytest.approx(
        {"parked itself": own, "one parked beside": beside, "both": own + beside}
    )


def test_rates_of_the_equivalence_test() -> None:
    """An effect as large as the bound is called equivalent in at most 5 % of runs, none at all in nearly all."""
    random = np.random.default_rng(20261122)
    bound, sd, blocks, runs = 0.0005, 0.0005, 24, 4000
    for shift, least, most in ((bound, 0.0, 0.057), (0.0, 0.97, 1.0)):
        known = [hidden.effect(list(random.normal(shift, sd, blocks))) for _ in range(runs)]
        share = sum(one is not None and one.within(bound) for one in known) / runs
        assert least <= share <= most


def test_one_block_tells_nothing() -> None:
    """An interval needs two blocks."""
    assert hidden.effect([0.001]) is None
