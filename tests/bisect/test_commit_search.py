"""What is measured next, and when it is enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perfgate.bisect.commit_posterior import Comparison, Evidence
from perfgate.bisect.commit_search import MOST_CANDIDATES, STEP_PAIRS, Answer, Limits, Step, bounds, next_step

PAIR_SD = 0.001
USUAL = Limits()


def searched(
    levels: Sequence[float], *, skipped: Sequence[int] = (), limits: Limits = USUAL, seed: int = 1
) -> tuple[Answer, list[Step]]:
    """A search among builds of these levels, with noisy pairs; commits turn out to be unfit when they are asked for."""
    rng = np.random.default_rng(seed)
    last, known, steps = len(levels) - 1, set[int](), list[Step]()
    compared: list[Comparison] = []
    while True:
        confirmed = frozenset((one.base, one.head) for one in steps if one.purpose == "confirm")
        found = next_step(Evidence(last, tuple(compared), frozenset(known)), limits, confirmed)
        if isinstance(found, Answer):
            return found, steps
        if unfit := {found.base, found.head} & {*skipped}:
            known |= unfit
            continue
        steps.append(found)
        d = levels[found.head] - levels[found.base] + PAIR_SD * rng.standard_normal(found.pairs or 6)
        compared.append(Comparison(found.base, found.head, tuple(d.tolist())))


def stepped(last: int, lost_at: int, loss: float = 0.01) -> list[float]:
    """Levels with one loss."""
    return [loss * (number >= lost_at) for number in range(last + 1)]


def test_the_ends_come_first_and_the_neighbours_last() -> None:
    """The difference is reproduced, half of the line is asked for, and the answer is compared with its parent."""
    answer, steps = searched(stepped(64, 41))

    assert (answer.commits, answer.why) == ((41,), "one")
    assert answer.probability > 0.95
    assert steps[0] == Step(0, 64, None, "reproduce")
    assert (steps[1].base, steps[1].pairs, steps[1].purpose) == (0, STEP_PAIRS, "search")
    assert steps[1].head == pytest.approx(32, abs=4)
    assert steps[-1] == Step(40, 41, None, "confirm")
    assert len(steps) < 12


@pytest.mark.parametrize("lost_at", [1, 2, 64])
def test_the_ends_of_a_line_are_found(lost_at: int) -> None:
    """The first commit after the good one and the bad one itself are commits like others."""
    answer, _ = searched(stepped(64, lost_at))
    assert answer.commits == (lost_at,)


def test_neighbours_need_no_search() -> None:
    """Where there is one commit between good and bad, comparing these is the search."""
    answer, steps = searched([0.0, 0.01])
    assert (answer.commits, answer.why) == ((1,), "one")
    assert [step.purpose for step in steps] == ["reproduce"]


def test_commits_that_cannot_be_measured_are_told_together() -> None:
    """They are not asked for again, and the answer names all that no build separates."""
    answer, steps = searched(stepped(32, 12), skipped=[11, 12, 16])

    assert answer.commits == (11, 12, 13)
    assert answer.why == "inseparable"
    assert not {step.head for step in steps} & {11, 12, 16}
    assert (steps[-1].base, steps[-1].head) == (10, 13)


def test_all_between_may_be_unfit() -> None:
    """Then nothing is left to measure, and any of them may be it."""
    answer, steps = searched(stepped(4, 2), skipped=[1, 2, 3])
    assert (answer.commits, answer.why) == ((1, 2, 3, 4), "inseparable")
    assert len(steps) == 1


def test_a_build_between_the_levels_leaves_several() -> None:
    """Where a build is half as slow nobody can tell whether it has the loss: both are named, and it ends."""
    levels = stepped(16, 9, 0.005)
    levels[9] = 0.0025
    answer, _ = searched(levels)

    assert answer.why == "exhausted"
    assert {9, 10} <= {*answer.commits}
    assert len(answer.commits) <= 4


def test_it_ends_where_it_may_take_no_more() -> None:
    """What is known then is told, with more commits."""
    answer, steps = searched(stepped(64, 41), limits=Limits(pairs=10))
    assert answer.why == "limit"
    assert 41 in answer.commits
    assert len(answer.commits) > 5
    assert len(steps) <= 3


def test_a_smaller_error_asks_for_more() -> None:
    """The answer of a search that may rarely be wrong is more probable."""
    assert Limits(0.001).enough == 0.999
    answer, _ = searched(stepped(32, 20, 0.02), limits=Limits(0.001))
    assert answer.probability >= 0.999


def test_a_confirmation_that_disagrees_is_evidence() -> None:
    """Builds before and after that turn out alike send the search back, instead of ending it."""
    near = (Comparison(0, 16, (0.0104, 0.0096) * 3), Comparison(0, 8, (0.0004, -0.0004) * 2),
            Comparison(0, 9, (0.0104, 0.0096) * 2))  # fmt: skip
    first = next_step(Evidence(16, near), Limits(), frozenset())
    assert first == Step(8, 9, None, "confirm")

    against = Comparison(8, 9, (0.0004, -0.0004) * 4)
    then = next_step(Evidence(16, (*near, against)), Limits(), frozenset({(8, 9)}))
    assert then != first
    assert not (isinstance(then, Answer) and then.why == "one")


def test_a_long_line_is_searched_as_well() -> None:
    """Not every commit is weighed then, but whichever is near what is probable."""
    answer, steps = searched(stepped(20 * MOST_CANDIDATES, 333))
    assert answer.commits == (333,)
    assert len(steps) < 20


def test_the_builds_around_an_answer() -> None:
    """They are the nearest that can be measured."""
    evidence = Evidence(9, (), frozenset({4, 6}))
    assert bounds(evidence, (5,)) == (3, 5)
    assert bounds(evidence, (6, 7)) == (5, 7)
