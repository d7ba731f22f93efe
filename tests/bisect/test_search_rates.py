"""How often a search names the commit, by simulation: the decisions are those of the command."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

searches: Any = importlib.import_module("bisect_rates")

PAGE = Path(__file__).parents[2] / "docs" / "error-rates.txt"
FEW, MANY = 12, 150


@pytest.mark.parametrize("size", searches.SIZES)
def test_a_few_searches(size: float) -> None:
    """Among 64 commits with small changes, builds that differ and some that do not build, the answer has the commit."""
    row = searches.count("perfgate bisect", size, FEW)
    assert row.runs >= FEW / 2
    assert row.wrong <= 1
    assert row.commits < 6 * row.runs
    assert row.pairs < 100 * row.runs


@pytest.mark.slow
@pytest.mark.parametrize("size", searches.SIZES)
def test_the_error_rate_is_kept(size: float) -> None:
    """At most 5 % of answers miss the commit, whereas plain halving, which believes each step, misses far more."""
    row, halving = (searches.count(way, size, MANY) for way in ("perfgate bisect", "plain halving"))
    assert row.least <= row.declared
    assert row.wrong / row.runs < 0.05
    assert halving.wrong / halving.runs > 0.1


def test_the_page_says_what_was_counted() -> None:
    """Its section is the one that the script writes, of a thousand searches a row."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(searches.TITLE) == 1
    assert f"{searches.SEARCHES:,} simulated searches a row" in text
    for size in searches.SIZES:
        for way in searches.WAYS:
            assert f"| {size * 100:g} % | {way} | " in text
