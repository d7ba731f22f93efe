"""States of a machine from marks beside each iteration, with sides hidden."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.estimate import Floats
from perfgate.stats.two_states import CUT, FAST, SLOW, sign_test, states_by_probe, states_by_steps

GAP = 1.033
NOISE = 0.001


def marks(states: str, level: float = 5.0, seed: int = 0) -> Floats:
    """Marks of a trial: ``s`` slow, ``f`` fast, ``t`` slow before and fast after."""
    rng = np.random.default_rng([seed, len(states), *map(ord, states)])
    ratios = [{"s": (GAP, GAP), "f": (1.0, 1.0), "t": (GAP, 1.0)}[state] for state in states]
    return level * np.array(ratios) * np.exp(rng.normal(0, NOISE, (len(states), 2)))


def told(labels: np.ndarray) -> str:
    """Labels as :func:`marks` takes them, ``t`` for what was cut."""
    return "".join({SLOW: "s", FAST: "f", CUT: "t"}[label] for label in labels.tolist())


def by_steps(trials: Sequence[Floats]) -> list[str] | None:
    """What is told of trials that are in pairs, one after the other."""
    found = states_by_steps(np.stack(trials))
    return None if np.isnan(found.gap) else [told(labels) for labels in found.labels]


def test_trials_that_jump_are_labelled_and_the_jump_is_cut() -> None:
    """Trials with both levels tell the states of those that stay on one, and the iteration of the jump has none."""
    states = ["ssssssss", "sstfffff", "ssssssff", "ffffffff"]
    assert by_steps([marks(own, seed=n) for n, own in enumerate(states)]) == states


def test_a_slower_head_has_the_states_of_its_own_level() -> None:
    """Eight per cent between the sides, more than the gap, moves no label of what jumps on either side."""
    base = ["ssssssss", "sstfffff"]
    trials = [marks(own, 5.0 if n % 2 else 5.4, seed=n) for n, own in enumerate([*base, *base[::-1], *base])]
    assert by_steps(trials) == [*base, *base[::-1], *base]


def test_a_difference_of_the_sides_is_not_a_state() -> None:
    """Where each pair has one slow and one fast trial and none jumps, the builds differ and not the machine."""
    assert by_steps([marks("s" * 8 if n % 2 else "f" * 8, seed=n) for n in range(12)]) is None


def test_states_that_last_as_long_as_an_engine_does() -> None:
    """Two pairs that are slow on both sides and two that are fast on both show states; fewer do not."""
    pairs = ["ss", "ff", "sf", "ss", "ff", "fs"]
    trials = [marks(own * 8, seed=n) for n, own in enumerate("".join(pairs))]
    assert by_steps(trials) == [own * 8 for own in "".join(pairs)]
    assert by_steps(trials[:8]) is None


def test_a_trial_that_nobody_can_place_has_no_state() -> None:
    """A trial whose only level is the slow one of a build and the fast one of another is cut."""
    trials = [marks("ssssffff", seed=1), marks("ssssffff", 5.0 * GAP, seed=2), marks("ssssssss", seed=3),
              marks("ssssffff", seed=4), marks("ssssffff", 5.0 * GAP, seed=5), marks("ffffssss", seed=6)]  # fmt: skip
    found = by_steps(trials)
    assert found is not None
    assert found[2] == "t" * 8


def probed(*trials: tuple[str, float]) -> list[str] | None:
    """What a probe tells of trials that are in pairs: the states of each, and the probe's level."""
    found = states_by_probe(np.stack([marks(own * 8, level, seed=n) for n, (own, level) in enumerate(trials)]))
    return None if np.isnan(found.gap) else [told(labels)[0] for labels in found.labels]


def test_either_build_on_both_levels_shows_states() -> None:
    """Where no trial jumps, two builds that each have slow and fast trials do, also if one of them moves the probe."""
    warm_up, later = ["s", "s"], ["f", "f", "s", "f", "f", "f", "f", "f"]
    assert probed(*((own, 5.0) for own in (*warm_up, *later))) == [*warm_up, *later]
    moved = [(own, 5.5 if n % 2 else 5.0) for n, own in enumerate((*warm_up, *later))]
    assert probed(*moved) == [*warm_up, *later]


def test_one_build_on_both_levels_shows_no_states() -> None:
    """A build that alone is now and then slow may cause that, and two gaps are not one machine's."""
    assert probed(*((own, 5.0) for own in ("f", "s", *"ffffffff"))) is None
    assert probed(*((own, 5.0) for own in ("s", "f", *"ffffffff"))) is None
    assert probed(("s", 5.0), ("f", 5.4), *[("f", 5.0)] * 8) is None


@pytest.mark.parametrize("spike", [1.01, 1.05, 2.0])
def test_a_disturbed_iteration_is_not_a_state(spike: float) -> None:
    """One slow iteration in one trial, or in each of two, makes no states."""
    trials = [marks("f" * 8, seed=n) for n in range(8)]
    trials[3][4] *= spike
    trials[6][1] *= spike
    assert by_steps(trials) is None


def test_a_small_gap_is_not_a_state() -> None:
    """Levels nearer than six standard deviations are one."""
    near = math.exp(4 * NOISE)
    trials = [marks("f" * 4, seed=n) for n in range(16)]
    assert by_steps([np.concatenate([trial, near * trial]) for trial in trials]) is None


def test_a_probe_tells_states_whatever_the_builds_do() -> None:
    """Readings of the probe are cut in two once for all trials; one level of readings is no state."""
    states = ["ssssssss", "ffffffff", "sstfffff", "ffffffff"]
    found = states_by_probe(np.stack([marks(own, 100e3, seed=n) for n, own in enumerate(states)]))
    assert [told(labels) for labels in found.labels] == states
    assert found.gap == pytest.approx(math.log(GAP), abs=3 * NOISE)
    one_level = states_by_probe(np.stack([marks("ffff", 100e3, seed=n) for n in range(6)]))
    assert np.isnan(one_level.gap)
    assert (one_level.labels == CUT).all()


def test_an_iteration_in_which_a_trial_jumps_is_cut_wherever_it_is() -> None:
    """By the probe in the first and the last one, too, where a trial has too few marks on the other level to show both.

    A step that is longer once may be a disturbance, so by step times nothing is cut that could be one.
    """
    states = ["ssssffff", "tfffffff", "ssssssst", "ffffssss"]
    both = [np.stack([marks(own, seed=n) for n, own in enumerate(states)]) for _ in range(2)]
    assert [told(labels) for labels in states_by_probe(both[0]).labels] == states
    assert by_steps([*both[1]]) == ["ssssffff", "f" * 8, "s" * 8, "ffffssss"]


@pytest.mark.parametrize("states", [["ssss"] * 2 + ["tfff"] * 8 + ["ttff"] * 4, ["sss"] * 2 + ["tff"] * 12])
def test_a_jump_at_the_edge_of_each_trial_leaves_the_states_told(states: list[str]) -> None:
    """Where trials are short, a jump in each cuts more than a quarter of the iterations, and both levels still show."""
    found = states_by_probe(np.stack([marks(own, 100e3, seed=n) for n, own in enumerate(states)]))
    assert [told(labels) for labels in found.labels] == states
    assert found.gap == pytest.approx(math.log(GAP), abs=3 * NOISE)


def test_levels_of_a_probe_that_are_too_near_are_one_state() -> None:
    """However exact its readings are: what lies below the least gap is within a state, what lies above is not."""
    fine = [marks(own, 100e3, seed=n) for n, own in enumerate(["sssfffff", "ffffffff", "ssssffff", "sstfffff"])]
    assert not np.isnan(states_by_probe(np.stack(fine), 0.9 * math.log(GAP)).gap)
    assert np.isnan(states_by_probe(np.stack(fine), 1.1 * math.log(GAP)).gap)
    coarse = [1.2 * trial if n in {1, 2} else trial for n, trial in enumerate(fine)]
    coarse += coarse
    found = states_by_probe(np.stack(coarse), math.log(1.1))
    assert [told(labels) for labels in found.labels] == ["s" * 8 if n % 4 in {1, 2} else "f" * 8 for n in range(8)]


@given(st.lists(st.sampled_from(["ssssssss", "sstfffff", "ffffffff", "ssssssff"]), min_size=8, max_size=16),
       st.lists(st.booleans(), min_size=8, max_size=8))  # fmt: skip
def test_labels_do_not_know_the_sides(states: list[str], swapped: list[bool]) -> None:
    """Which trial of a pair is called base changes no label, whichever pairs are swapped."""
    states = states[: len(states) // 2 * 2]
    trials = [marks(own, seed=n) for n, own in enumerate(states)]
    order = [n ^ int(swapped[n // 2]) for n in range(len(trials))]
    before, after = by_steps(trials), by_steps([trials[n] for n in order])
    assert after == (before and [before[n] for n in order])


def test_runs_are_told_apart() -> None:
    """Many runs at once have the labels and gaps that each has alone, those without states too."""
    kinds = [["ssssssss", "sstfffff", "ssssssff", "ffffffff"], ["ffffffff"] * 4, ["ssssffff", "sstfffff"] * 2]
    runs = np.stack([np.stack([marks(own, seed=n) for n, own in enumerate(states)]) for states in kinds])
    for tell in (states_by_steps, states_by_probe):
        together, alone = tell(runs), [tell(one) for one in runs]
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
