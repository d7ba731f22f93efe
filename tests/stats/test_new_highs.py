"""Growth told from chance by counting new highs, whatever the readings are like."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.new_highs import new_highs, p_grows

LEVEL = 0.005


def test_the_chance_is_that_of_all_orders() -> None:
    """Of every order of four readings the share with at least so many new highs is the p of one that has them."""
    orders = [*itertools.permutations(range(4))]
    highs = [new_highs(order) for order in orders]

    for order, seen in zip(orders, highs, strict=True):
        share = sum(other >= seen for other in highs) / len(orders)
        assert p_grows([order]) == pytest.approx(share)


def test_rows_add_up() -> None:
    """Two rows of three that both grow throughout are one case of 36."""
    assert p_grows([(1, 2, 3), (1, 2, 3)]) == pytest.approx(1 / 36)


@pytest.mark.parametrize("rows", [[], [()], [(7,)], [(7, 7, 7, 7)], [(9, 5, 3, 1), (7,)]])
def test_what_does_not_grow(rows: list[tuple[int, ...]]) -> None:
    """Without readings, without change, or falling: no evidence of growth at all."""
    assert p_grows(rows) == 1.0


@given(st.lists(st.lists(st.integers(0, 100), max_size=6), max_size=4))
def test_a_running_maximum_has_the_same_highs(rows: list[list[int]]) -> None:
    """Memory that an allocator keeps is the maximum of what was needed so far, and judged like the need itself."""
    kept = [[*itertools.accumulate(row, max)] for row in rows]

    assert p_grows(kept) == p_grows(rows)


Draw = Callable[[np.random.Generator], list[np.ndarray]]
NO_LEAK: dict[str, Draw] = {
    "normal": lambda rng: [*rng.standard_normal((4, 20))],
    "heavy tails": lambda rng: [*rng.standard_cauchy((4, 20))],
    "kept by the allocator": lambda rng: [*np.maximum.accumulate(rng.exponential(size=(6, 10)), axis=1)],
    "whole pages": lambda rng: [*np.round(3 * rng.exponential(size=(4, 20)))],
    "short trials": lambda rng: [*rng.standard_normal((4, 4))],
    "levels by restart": lambda rng: [*(rng.standard_normal((6, 4)) + 100 * rng.standard_normal((6, 1)))],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NO_LEAK)
def test_without_a_leak_the_error_rate_holds(case: str) -> None:
    """In 20,000 cells whose iterations are in no order it speaks in at most 0.5 %, by two standard errors."""
    rng = np.random.default_rng(1962)
    runs = 20_000

    spoken = sum(p_grows([row.tolist() for row in NO_LEAK[case](rng)]) <= LEVEL for _ in range(runs))

    assert spoken <= runs * LEVEL + 2 * (runs * LEVEL) ** 0.5


@pytest.mark.slow
def test_a_leak_of_one_standard_deviation_an_iteration() -> None:
    """Four trials of twenty iterations show it in every one of 500 cells; of a fifth of that, in nine of ten."""
    rng = np.random.default_rng(7)

    def shown(leak: float) -> int:
        rows = (rng.standard_normal((4, 20)) + leak * np.arange(20) for _ in range(500))
        return sum(p_grows(row.tolist()) <= LEVEL for row in rows)

    assert shown(1.0) == 500
    assert shown(0.2) >= 450


def test_a_leak_is_seen_in_four_short_trials() -> None:
    """Four trials of four iterations each, always higher: 1 in 331,776."""
    assert p_grows([(1, 2, 3, 4)] * 4) == pytest.approx(24**-4)
