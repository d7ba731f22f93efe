"""The decisions of a search: from what was measured to the next comparison, or to the answer. Pure.

First the good and the bad commit are compared by the gate's own rule. Then those pairs are taken that are expected to
tell most about the commit, for what they cost. Once one commit, or several that cannot be told apart, hold all but the
declared error, the builds before and after are compared by the gate's own rule, which is evidence as well; if the
probability holds, the search is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfgate.bisect.commit_posterior import Evidence, Posterior

# Pairs of a step: at fewer nothing is decided in this house (docs/design.md), and a step can be taken again
STEP_PAIRS = 4
LEAST_TOLD = 0.005  # nats; where no step is expected to tell more, the answer would not change in reasonable time

MOST_CANDIDATES = 32  # commits that are held against each other as the next one to measure

Why = Literal["one", "inseparable", "exhausted", "limit"]


@dataclass(frozen=True)
class Limits:
    """When a search ends."""

    error: float = 0.05  # probability of naming a wrong commit, or a set that does not hold it, over the whole search
    pairs: int = 400  # no step is begun after so many

    @property
    def enough(self) -> float:
        """How probable the answer must be.

        Where nothing was lost, the first comparison says so but for its own error, alpha, which is smaller. So the two
        errors, of which a search can meet only one, are not added.
        """
        return 1 - self.error


@dataclass(frozen=True)
class Step:
    """What is to be measured."""

    base: int  # number of the commit on the base's side
    head: int  # number of the other
    pairs: int | None  # how many; `None` for as many as the gate's own rule takes to decide
    purpose: Literal["reproduce", "search", "confirm"]  # `reproduce`, `search` or `confirm`


@dataclass(frozen=True)
class Answer:
    """Where a search ended."""

    commits: tuple[int, ...]  # those that hold the loss, in order
    probability: float  # that it is one of them
    # `one` commit; several that are `inseparable` because those between cannot be measured; several because further
    # pairs tell too little (`exhausted`), or were not to be taken (`limit`)
    why: Why


def next_step(evidence: Evidence, limits: Limits, confirmed: frozenset[tuple[int, int]]) -> Step | Answer:
    """What is to be done with what is known.

    ``confirmed`` are base and head of the confirmations that were measured to their end.
    """
    last = evidence.last
    if not any((comparison.base, comparison.head) == (0, last) for comparison in evidence.compared):
        return Step(0, last, None, "reproduce")
    posterior = Posterior(evidence)
    group, probability = posterior.by_group[0]
    spent = evidence.pairs >= limits.pairs
    if probability >= limits.enough:
        around = bounds(evidence, group)
        if around == (0, last) or around in confirmed or spent:
            return Answer(group, probability, "one" if len(group) == 1 else "inseparable")
        return Step(*around, None, "confirm")
    if spent:
        return _smallest(posterior, limits, "limit")
    heads = _candidates(evidence, posterior)
    information = posterior.expected_to_tell(heads, STEP_PAIRS)
    if information.max() < LEAST_TOLD:
        return _smallest(posterior, limits, "exhausted")
    return Step(0, heads[int(np.argmax(information))], STEP_PAIRS, "search")


def bounds(evidence: Evidence, commits: tuple[int, ...]) -> tuple[int, int]:
    """The last commit before these that can be measured, and the first that has all of them."""
    numbers = {0, *evidence.measurable}
    return max(n for n in numbers if n < commits[0]), min(n for n in numbers if n >= commits[-1])


def _candidates(evidence: Evidence, posterior: Posterior) -> list[int]:
    """Commits that may be measured next: all, or of a long line some at even steps of number and of probability."""
    commits = np.array(evidence.measurable)
    if len(commits) <= MOST_CANDIDATES:
        return evidence.measurable
    steps = np.linspace(0, 1, MOST_CANDIDATES // 2)
    reached = np.cumsum(posterior.by_commit)[commits - 1]
    by_probability = np.searchsorted(reached, steps * reached[-1])
    by_number = np.round(steps * (len(commits) - 1)).astype(int)
    return [evidence.measurable[n] for n in sorted({*by_probability, *by_number})]


def _smallest(posterior: Posterior, limits: Limits, why: Why) -> Answer:
    """The fewest commits that hold all but the error."""
    commits: list[int] = []
    total = 0.0
    for group, probability in posterior.by_group:
        commits += group
        total += probability
        if total >= limits.enough:
            break
    return Answer(tuple(sorted(commits)), total, why)
