"""What tells the state of a machine: readings of the probe beside each iteration, or its own decode steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from perfgate import stats
from perfgate.metrics.trial import Iteration, Trial

LEAST_STEPS = 4
"""Decode steps that an iteration needs to be split into an early and a late half."""

Pairs = Sequence[tuple[Trial, Trial]]
Marks = tuple[float, float]


def marks_of(pairs: Pairs, of: Callable[[Iteration], Marks | None]) -> stats.Floats | None:
    """The marks of each pair's base and head, shape (pairs, 2, iterations, 2).

    ``None`` where some iteration has none, or trials differ in how many they have.
    """
    rows = [[[of(iteration) for iteration in trial.iterations] for trial in pair] for pair in pairs]
    trials = [marks for pair in rows for marks in pair]
    if not trials or not all(map(all, trials)) or {*map(len, trials)} != {len(trials[0])} or not trials[0]:
        return None
    return np.array(rows, dtype=np.float64)


def around_the_jump(trial: Trial, number: int) -> Trial:
    """A trial with that many of its iterations that follow each other, around where its readings change most.

    A warm-up trial before a number was chosen has the declared one, which may be more. Evenly picked iterations would
    leave a single one of a slow beginning, and one is too little for a level. No iteration counts twice: a
    reading that was disturbed would look like a level.

    Args:
        trial: It has at least so many iterations.
        number: How many are wanted.
    """
    read = [probe_marks(iteration) for iteration in trial.iterations]
    logs = np.log([marks or (1.0, 1.0) for marks in read]).mean(axis=-1)
    before = np.arange(1, len(logs))
    sums = np.cumsum(logs - logs.mean())[:-1]
    between = sums**2 / (before * (len(logs) - before))  # of the two parts, as a split in time (Fisher 1958)
    jump = int(between.argmax()) + 1 if len(between) else 0
    begin = min(max(jump - (number + 1) // 2, 0), len(logs) - number)
    return trial.model_copy(update={"iterations": trial.iterations[begin : begin + number]})


def as_on_one_card(marks: stats.Floats, cards: Sequence[Hashable], apart: float) -> stats.Floats:
    """The marks of pairs as the fastest card would show them.

    Each is put on that one's level by its own shortest mark; what is further away than cards are is left: it is a card
    that was slow throughout.

    Args:
        marks: Of each pair, shape (pairs, ...).
        cards: On which card each pair was taken.
        apart: How far cards may be apart, a ratio.
    """
    least = {card: min(float(pair_marks.min()) for pair_marks, other in zip(marks, cards, strict=True) if other == card)
             for card in dict.fromkeys(cards)}  # fmt: skip
    fastest = min(least.values())
    scale = np.array([fastest / least[card] if least[card] <= apart * fastest else 1.0 for card in cards])
    scaled: stats.Floats = marks * scale.reshape(-1, *[1] * (marks.ndim - 1))
    return scaled


def step_marks(iteration: Iteration) -> Marks | None:
    """Median decode step of the early and the late half, in nanoseconds; those of a window of load have no order."""
    steps = iteration.itl_ns
    half = len(steps) // 2
    if len(steps) < LEAST_STEPS or iteration.lengths:
        return None
    early, late = float(np.median(steps[:half])), float(np.median(steps[half:]))
    return (early, late) if early and late else None


def window_marks(window: Iteration) -> Marks | None:
    """The median gap between tokens of a window of load, twice."""
    middle = float(np.median(window.itl_ns)) if window.itl_ns else 0.0
    return (middle, middle) if middle else None


def probe_marks(iteration: Iteration) -> Marks | None:
    """The slowest rank's reading before and after, in nanoseconds: a step waits for all ranks."""
    before, after = map(max, iteration.probe_ns or ((0,), (0,)))
    return (float(before), float(after)) if before and after else None
