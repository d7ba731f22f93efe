"""States of a machine from marks beside each iteration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.estimate import Floats
from perfgate.stats.two_states import CUT, FAST, SLOW, sign_test, states

GAP = 1.033
NOISE = 0.001


def marks(letters: str, level: float = 5.0, seed: int = 0) -> Floats:
    """Marks of a trial: ``s`` slow, ``f`` fast, ``t`` slow before and fast after."""
    rng = np.random.default_rng([seed, len(letters), *map(ord, letters)])
    ratios = [{"s": (GAP, GAP), "f": (1.0, 1.0), "t": (GAP, 1.0)}[letter] for letter in letters]
    return level * np.array(ratios) * np.exp(rng.normal(0, NOISE, (len(letters), 2)))


def in_pairs(trials: list[str], head: float = 1.0) -> Floats:
    """The marks of trials, base and head by turns, the head's so many times as long."""
    return np.stack([marks(own, 5.0 * (head if n % 2 else 1.0), seed=n) for n, own in enumerate(trials)])


def told(trials: Floats, least_gap: float = 0.0) -> list[str] | None:
    """What is told of trials in pairs, with letters as :func:`marks` takes them, ``t`` for what was cut."""
    found = states(trials, least_gap)
    if np.isnan(found.gap):
        assert (found.labels == CUT).all()
        return None
    assert found.gap == pytest.approx(math.log(GAP), abs=3 * NOISE)
    return ["".join({SLOW: "s", FAST: "f", CUT: "t"}[label] for label in own) for own in found.labels.tolist()]


LASTING = [own * 8 for own in "ssffsfssfffs"]


@pytest.mark.parametrize("head", [1.0, GAP, 1.08, 0.9])
@pytest.mark.parametrize(
    "trials",
    [
        ["ssssssss", "sstfffff", "ssssssff", "ffffffff", "ffffffff", "sstfffff"],
        ["ssssffff", "tfffffff", "ssssssst", "ffffssss"],
        LASTING,
        ["ssssssss", "ssssssss", *["ffffffff"] * 8],
        ["ssss"] * 2 + ["tfff"] * 8 + ["ttff"] * 4,
        ["sss"] * 2 + ["tff"] * 12,
    ],
)
def test_each_build_is_told_by_its_own_levels(trials: list[str], head: float) -> None:
    """Trials that jump or stay have their states, an iteration with a jump has none, however much slower the head."""
    assert told(in_pairs(trials, head)) == trials


def in_tails(seed: int) -> Floats:
    """Marks of twelve trials of two iterations that have no levels, and tails as heavy as a run on a CPU may show."""
    draw = np.random.default_rng(seed)
    return np.exp(0.03 * sum(much * draw.standard_t(2, shape) for much, shape in
                             ((1.0, (12, 1, 1)), (0.5, (12, 2, 1)), (0.3, (12, 2, 2)))))  # fmt: skip


@pytest.mark.parametrize(
    "trials",
    [
        in_tails(2408),
        in_pairs(["ffffffff", "ssssssss"] * 6),
        in_pairs(["ffffffff", "sstfffff"] * 6),
        in_pairs(["ssssssss", "ffffffff", *["ffffffff"] * 8]),
        in_pairs(["ffff"] * 12),
        np.stack([marks("ssssffff", seed=n) ** (1.0 if n % 2 else 2.0) for n in range(6)]),
    ],
    ids=["tails", "the head is slower", "the head alone jumps", "the base alone", "one level", "two gaps"],
)
def test_what_is_not_the_machines_is_no_state(trials: Floats) -> None:
    """Levels that one build alone has may be its doing, and two gaps are not one machine's."""
    assert told(trials) is None


@pytest.mark.parametrize("spike", [1.01, 1.05, 2.0])
def test_a_disturbed_iteration_is_not_a_state(spike: float) -> None:
    """One slow iteration of either build, or two of one, makes no states."""
    trials = in_pairs(["f" * 8] * 8)
    trials[3, 4] *= spike
    trials[6, 1] *= spike
    trials[5, 1] *= spike
    assert told(trials) is None


def test_a_small_gap_is_not_a_state() -> None:
    """Levels nearer than five standard deviations are one, and so are those of a probe below the least gap."""
    near = in_pairs(["f" * 8] * 16)
    near[:, 4:] *= math.exp(3 * NOISE)
    assert told(near) is None
    fine = in_pairs(["sssfffff", "ffffffff", "ssssffff", "ssssffff"])
    assert told(fine, 0.9 * math.log(GAP)) is not None
    assert told(fine, 1.1 * math.log(GAP)) is None


@given(
    st.lists(st.sampled_from(["ssssssss", "sstfffff", "ffffffff", "ssssssff"]), min_size=8, max_size=16),
    st.booleans(),
)
def test_labels_do_not_know_the_sides(trials: list[str], odd: bool) -> None:  # noqa: FBT001 (drawn)
    """Which build is called base changes no label."""
    measured = in_pairs(trials[: len(trials) // 2 * 2], 1.02 if odd else 1.0)
    order = np.arange(len(measured)) ^ 1
    before, after = states(measured), states(measured[order])
    assert np.array_equal(after.labels, before.labels[order])


def test_runs_are_told_apart() -> None:
    """Many runs at once have the labels and gaps that each has alone, those without states too."""
    kinds = [["ssssssss", "ssstffff", "ssffffff", "ssssffff"], ["ffffffff"] * 4, ["ssssffff", "sstfffff"] * 2]
    runs = np.stack([in_pairs(own) for own in kinds])
    together, alone = states(runs), [states(one) for one in runs]
    assert np.array_equal(together.labels, np.stack([one.labels for one in alone]))
    assert np.array_equal(together.gap, np.array([one.gap for one in alone]), equal_nan=True)
    assert np.isnan(together.gap).tolist() == [False, True, False]


def test_sign_test() -> None:
    """One-sided exact p of discordant pairs, as scipy's binomial test has it; 1 without any."""
    from scipy.stats import binomtest  # noqa: PLC0415

    assert sign_test(0, 0) == 1.0
    assert sign_test(8, 0) == pytest.approx(2**-8)
    for more, less in ((5, 2), (9, 3), (0, 4), (12, 12)):
        assert sign_test(more, less) == pytest.approx(binomtest(more, more + less, alternative="greater").pvalue)
