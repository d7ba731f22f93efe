"""What the sides of dropped pairs tell."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hand_made import BASE, cell, failed, record, trial, trials
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfgate.metrics.trial import Failure
from perfgate.record.dropped_pairs import LEVEL, chance, overdrawn, reopened, unevenness


@given(st.integers(0, 60), st.integers(0, 60))
def test_chance_against_scipy(one: int, other: int) -> None:
    """The probability is that of scipy's exact two-sided binomial test; without a failure it is one."""
    expected = stats.binomtest(one, one + other).pvalue if one + other else 1.0

    assert chance(one, other) == pytest.approx(expected, rel=1e-9)


def test_looking_after_every_pair() -> None:
    """Counted over all ways that 24 fair drops can fall, looking after each refuses less than one run in a hundred."""
    going, refused = {(0, 0): 1.0}, 0.0
    for _ in range(24):
        fallen: defaultdict[tuple[int, int], float] = defaultdict(float)
        for (base, head), share in going.items():
            fallen[base + 1, head] += share / 2
            fallen[base, head + 1] += share / 2
        refused += sum(share for sides, share in fallen.items() if chance(*sides) <= LEVEL)
        going = {sides: share for sides, share in fallen.items() if chance(*sides) > LEVEL}

    assert 0.009 < refused < 0.01


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ("b", ""),
        ("bh", ""),
        ("hhb", ""),
        ("hh", "2 on head: chance alone does that in 50 % of runs"),
        ("hhhb", "1 on base, 3 on head: chance alone does that in 62 % of runs"),
    ],
)
def test_unevenness(sides: str, words: str) -> None:
    """The split is told with how often chance makes one like it, and not at all where chance always does."""
    dropped = [failed(n, n, "base" if side == "b" else "head") for n, side in enumerate(sides)]

    assert unevenness(dropped) == words


def test_what_a_later_visit_takes_up() -> None:
    """A stop for another reason is forgotten, one for dropped pairs is found again in the trials themselves."""
    stop = Failure(code="gpu-lost", text="gone")
    dropped = [failed(8 + n, 4 + n, "head") for n in range(3)]

    fine = reopened(record(cell(), trials([0.0] * 4), stopped=stop))
    over = reopened(record(cell(), [*trials([0.0] * 4), *dropped]))

    assert fine.stopped is None
    assert over.stopped == Failure(
        code="one-sided-failures",
        text="3 dropped, failing on head (3 on head: chance alone does that in 25 % of runs); the last in trial 10: "
        "engine-failed: died",
    )


def test_one_side_has_no_other() -> None:
    """Where one side alone is measured only the cap holds."""
    dropped = [failed(n, n, "base") for n in range(12)]
    alone = record(cell(max_dropped_pairs=20), dropped, subjects={"base": BASE})

    assert overdrawn(alone, "timed") is None


@pytest.mark.needs("calls", "kernels")
def test_each_kind_has_its_own() -> None:
    """Dropped traced pairs take nothing from the timed ones."""
    none = Failure(code="evidence-missing", text="none")
    dropped = [trial(n, n, "head", kind="traced", failure=none) for n in range(3)]
    taken = record(cell(), dropped)

    assert overdrawn(taken, "timed") is None
    assert overdrawn(taken, "traced") is not None


@pytest.mark.parametrize(
    ("late", "died", "cap", "code"),
    [
        ("hhh", "", 2, "client-late"),
        ("hbh", "", 2, "client-late"),
        ("hhhhhhhhh", "", 20, "client-late"),
        ("hhhhh", "hhhh", 20, "client-late"),
        ("h", "hhh", 2, "one-sided-failures"),
        ("b", "hhhhhhhhh", 20, "one-sided-failures"),
        ("h", "hb", 2, "dropped-pairs"),
        ("h", "hhhhhhhh", 24, "one-sided-failures"),
        ("h", "hhhh", 4, "one-sided-failures"),
        ("hh", "hhhhhhhh", 24, "one-sided-failures"),
        ("b", "hhhh", 4, "dropped-pairs"),
        ("hh", "", 2, None),
    ],
)
def test_no_subject_is_blamed_for_a_late_client(late: str, died: str, cap: int, code: str | None) -> None:
    """Such pairs count; a cell ends under the client's own code where most are such, and a few excuse no subject."""
    whose = [(side, "client-late") for side in late] + [(side, "engine-failed") for side in died]
    dropped = [
        trial(n, n, "base" if side == "b" else "head", failure=Failure(code=why, text="late"))
        for n, (side, why) in enumerate(whose)
    ]

    stop = overdrawn(record(cell(max_dropped_pairs=cap), dropped), "timed")

    assert (stop.code if stop else None) == code
