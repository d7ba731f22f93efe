"""When warm-up has come to rest."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.load.steady import agree, is_steady

DRAW = random.Random(1)  # noqa: S311 (no secret)


def noisy(mean: float, count: int) -> list[float]:
    """Times around a mean."""
    return [DRAW.gauss(mean, mean / 10) for _ in range(count)]


@pytest.mark.parametrize(
    ("windows", "steady"),
    [
        ([noisy(10, 60)], True),
        ([[*noisy(30, 30), *noisy(10, 30)]], False),
        ([noisy(30, 40), noisy(10, 40), noisy(10, 40)], True),  # what was before the last two does not matter
        ([noisy(10, 40), noisy(10, 40), noisy(12, 40)], False),
        ([[1.0 + n for n in range(60)]], False),  # requests pile up
        ([[1.0] * 60], True),
        ([noisy(10, 39)], None),
        ([noisy(10, 60), noisy(10, 19)], None),
        ([], None),
    ],
)
def test_the_last_two_stretches_are_compared(windows: list[list[float]], steady: bool | None) -> None:  # noqa: FBT001
    """Those are the last two windows, or the halves of a single one; a few requests tell nothing."""
    assert is_steady(windows) is steady


@given(st.lists(st.floats(0.5, 2), min_size=40, max_size=60), st.integers(1, 100))
def test_the_unit_of_time_does_not_matter(times: list[float], factor: int) -> None:
    """Powers of two leave every digit as it is."""
    scaled = [2.0**factor * time for time in times]
    assert agree(scaled[:20], scaled[20:]) is agree(times[:20], times[20:])


def test_a_server_at_rest_is_rarely_called_restless() -> None:
    """Of a thousand pairs of stretches of independent times some 2 % are held up for more warm-up."""
    draw = random.Random(2)  # noqa: S311 (no secret)
    pairs = ([draw.lognormvariate(0, 0.5) for _ in range(60)] for _ in range(1000))
    assert sum(agree(pair[:30], pair[30:]) is False for pair in pairs) < 30
