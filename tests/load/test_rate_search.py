"""The highest rate that a server holds is found, and no better than it can be known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.load.rate_search import RateSearch


@given(least=st.floats(0.01, 100), factor=st.floats(1.1, 1000), place=st.floats(0.01, 0.99), steps=st.integers(1, 16))
def test_the_rate_is_in_the_last_bracket(least: float, factor: float, place: float, steps: int) -> None:
    """Each step halves it as a ratio, whatever the server can do."""
    capacity = least * factor**place
    search = RateSearch(least, least * factor)
    for _ in range(steps):
        search.note(held=search.rate <= capacity)
    assert search.low <= capacity * (1 + 1e-9)
    assert search.high >= capacity * (1 - 1e-9)
    assert search.high / search.low == pytest.approx(factor ** (0.5**steps))
    assert search.low < search.rate < search.high


@pytest.mark.parametrize("held", [True, False])
def test_a_rate_that_is_not_between_the_bounds_is_not_found(held: bool) -> None:  # noqa: FBT001 (drawn)
    """The search tells that only one of the two was seen."""
    search = RateSearch(1, 16)
    for _ in range(4):
        search.note(held=held)
    assert (search.held, search.broke) == (held, not held)
