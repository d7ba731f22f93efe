"""Models of a machine with two states: seeded draws of what both trials of each pair measured, pure arrays.

A trial has eight iterations, and each two marks: what its decode steps took early and late. A mark is a level times
exp(state + restart + noise); an iteration's values of further gates have the state and noise of their own, and restarts
that are correlated by one half. Orders within pairs are drawn pair by pair. All figures are natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from restart_models import ORDERS, orders

from perfgate.stats.sequential import DEFAULT_SCHEDULE

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PAIRS = DEFAULT_SCHEDULE.looks[-1]
ITERATIONS, HALVES = 8, 2
MOMENTS = ITERATIONS * HALVES
"""Of a trial: at each the machine is in one state."""
GAP = math.log(1.033)
"""Slow over fast decode steps, as recorded on hosts with H200s."""
RESTART_SD, ITERATION_SD, MARK_SD = 0.0011, 0.001, 0.0005
"""As recorded on H200s: pairs then spread by 0.16 %."""
CORRELATION = 0.5
"""Between the restart effects of two gates of one trial."""
STEP_NS, E2E_NS = 5e6, 7e8
PROBE_NS, PROBE_GAP, PROBE_SD = 1e5, 0.2, 0.01
"""A probe is mostly gaps between kernels, which are what the states differ in."""

STAYS_SLOW, TURNS_SLOW = 0.83, 0.60
"""How often a trial begins slow after one that ended slow, and after one that ended fast: 78 of 94 and 40 of 67 in the
recordings of tests/fixtures (``h200-x4-states.csv``, ``drills-h200-x4.csv``, ``h200-llama-8b-two-states.csv``)."""
LEAVES_SLOW = 0.014
"""Of a moment, to the next: 31 jumps in 1100 iterations there; none of 565 went back within a trial."""

T = TypeVar("T", bound=np.generic)
States = Callable[[np.random.Generator, Bools], Bools]
"""Draws which moments are slow, (runs, 1 + pairs, 2, moments), given where the head ran first, (runs, 1 + pairs); the
warm-up trials are in front of the pairs."""
Restarts = Callable[[np.random.Generator, int, Bools], Floats]
"""Draws restart effects, (gates, runs, pairs, 2), given gates and where the head ran first."""


@dataclass(frozen=True)
class Drawn:
    """What simulated runs measured without a slowdown.

    Args:
        marks: Decode steps early and late in each iteration in ns, (runs, pairs, 2, iterations, 2).
        probes: Readings before and after each iteration in ns, of the same shape; in front of the pairs those of the
            warm-up trials, (runs, 1 + pairs, 2, iterations, 2).
        values: Of further gates, a value an iteration in ns, (gates - 1, runs, pairs, 2, iterations).
    """

    marks: Floats
    probes: Floats
    values: Floats


# --- the machine's state


def no_states(rng: np.random.Generator, head_first: Bools) -> Bools:
    """The machine is as fast all the time."""
    del rng
    return np.zeros((*head_first.shape, 2, MOMENTS), bool)


def shared(rng: np.random.Generator, head_first: Bools) -> Bools:
    """Both trials of a pair are in one state, slow in every second pair."""
    return np.broadcast_to(rng.random((*head_first.shape, 1, 1)) < 1 / 2, (*head_first.shape, 2, MOMENTS))


def chained(stays_slow: float, turns_slow: float, leaves_slow: float) -> States:
    """A trial begins slow with a probability that depends on how the one before it ended, and jumps at most once.

    Args:
        stays_slow: After one that ended slow.
        turns_slow: After one that ended fast.
        leaves_slow: Probability of a jump from slow to fast, from each moment to the next.
    """

    def states(rng: np.random.Generator, head_first: Bools) -> Bools:
        runs, pairs = head_first.shape
        slow = np.empty((runs, 2 * pairs, MOMENTS), bool)
        ended = np.asarray(rng.random(runs) < turns_slow / (turns_slow + 1 - stays_slow))
        for trial in range(2 * pairs):
            begins = rng.random(runs) < np.where(ended, stays_slow, turns_slow)
            moments = np.asarray(rng.geometric(leaves_slow, runs) if leaves_slow else np.full(runs, MOMENTS))
            slow[:, trial] = begins[:, None] & (np.arange(MOMENTS) < moments[:, None])
            ended = slow[:, trial, -1]
        return by_side(slow, head_first)

    return states


def caused(base: float, head: float) -> States:
    """Each trial is slow throughout or not at all, the head's more often."""

    def states(rng: np.random.Generator, head_first: Bools) -> Bools:
        slow = rng.random((*head_first.shape, 2, 1)) < np.array([base, head])[:, None]
        return np.broadcast_to(slow, (*head_first.shape, 2, MOMENTS))

    return states


def settled(begins: float, stays: float) -> States:
    """Warm-up goes on until a GPU is fast, which the first trial of each side cannot know.

    Args:
        begins: Probability that a first trial is slow.
        stays: Probability that a later one is, since the wait was in vain.
    """

    def states(rng: np.random.Generator, head_first: Bools) -> Bools:
        share = np.full(head_first.shape[1], stays)
        share[0] = begins
        slow = rng.random((*head_first.shape, 2, 1)) < share[:, None, None]
        return np.broadcast_to(slow, (*head_first.shape, 2, MOMENTS))

    return states


def head_tires(rng: np.random.Generator, head_first: Bools) -> Bools:
    """The head becomes slow in the middle of each trial, and the base never."""
    slow = no_states(rng, head_first)
    slow[:, :, 1, MOMENTS // 2 :] = True
    return slow


RECORDED = chained(STAYS_SLOW, TURNS_SLOW, LEAVES_SLOW)
STICKY = chained(0.8, 0.2, 0.0)


def by_side(in_time: NDArray[T], head_first: Bools) -> NDArray[T]:
    """What two trials a pair have in order of time, (runs, 2 pairs, ...), as (runs, pairs, 2, ...) of base and head."""
    rows = in_time.reshape(*head_first.shape, 2, *in_time.shape[2:])
    swap = head_first.reshape(*head_first.shape, *(1,) * (rows.ndim - 2))
    return np.where(swap, rows[:, :, ::-1], rows)


# --- how restarts differ


def normal(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
    """Independent and normal."""
    shape = (*head_first.shape, 2)
    own, common = rng.standard_normal((gates, *shape)), rng.standard_normal((1, *shape))
    return RESTART_SD * (math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * own)


def autoregressive(rho: float) -> Restarts:
    """Each trial takes over ``rho`` of the one before it, whichever side that was."""

    def restarts(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        fresh = normal(rng, gates, head_first).reshape(gates, len(head_first), -1)
        for trial in range(1, fresh.shape[-1]):
            fresh[..., trial] = rho * fresh[..., trial - 1] + math.sqrt(1 - rho**2) * fresh[..., trial]
        return np.stack([by_side(own, head_first) for own in fresh])

    return restarts


def quiet(restarts: Restarts, share: float) -> Restarts:
    """Restart effects of a machine on which they are smaller."""

    def smaller(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        return share * restarts(rng, gates, head_first)

    return smaller


def second_slower(by: float) -> Restarts:
    """The second trial of each pair is slower."""

    def restarts(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        return normal(rng, gates, head_first) + by * np.stack([head_first, ~head_first], axis=-1)

    return restarts


def shaped(draw: Callable[[np.random.Generator, tuple[int, ...]], Floats], *sides: int) -> Restarts:
    """Effects of another shape on some sides: a gate takes its trial's common draw with probability sqrt(1/2).

    Args:
        draw: Numbers of about one in size, centred on their mean where they have one.
        sides: Those that draw so; all, where none is named. The others are normal.
    """

    def restarts(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        effects = normal(rng, gates, head_first)
        chosen = effects[..., sides or (0, 1)]
        common = rng.random(chosen.shape) < math.sqrt(CORRELATION)
        effects[..., sides or (0, 1)] = RESTART_SD * np.where(
            common, draw(rng, (1, *chosen.shape[1:])), draw(rng, chosen.shape)
        )
        return effects

    return restarts


def student(df: int) -> Restarts:
    """Student's t with few degrees of freedom, as it is: with two it has no variance."""
    return shaped(lambda rng, shape: rng.standard_t(df, shape))


def contaminated(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Normal, and one in ten spreads by five times as much."""
    wide: Floats = rng.choice([1.0, 5.0], shape, p=[0.9, 0.1])
    return rng.standard_normal(shape) * wide


def on_two_levels(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """On one of two levels, as often on either, with a fifth of that beside."""
    return np.where(rng.random(shape) < 1 / 2, 1.0, -1.0) + 0.2 * rng.standard_normal(shape)


def exponential(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """With its tail towards slow, mean zero."""
    return rng.exponential(1.0, shape) - 1


def spiky(share: float, mean: float) -> Restarts:
    """Normal, and some trials of either side are much slower in every gate (exponential)."""

    def restarts(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        shape = (*head_first.shape, 2)
        return normal(rng, gates, head_first) + np.where(rng.random(shape) < share, rng.exponential(mean, shape), 0.0)

    return restarts


def compiled(sd: float) -> Restarts:
    """Normal, and each side has one draw of what a compiler makes of it for the whole run."""

    def restarts(rng: np.random.Generator, gates: int, head_first: Bools) -> Floats:
        return normal(rng, gates, head_first) + sd * rng.standard_normal((1, len(head_first), 1, 2))

    return restarts


# --- both


@dataclass(frozen=True)
class StateModel:
    """A machine, and how restarts on it differ.

    Args:
        name: For the tables.
        about: A sentence, with the figures.
        states: Which moments are slow.
        restarts: Restart effects.
        mislabelled: Share of iterations whose readings of the probe are those of the other state.
        claims: Whether the declared error rates are claimed under this model.
        carried: Standard deviation of a subject that the error is to carry.
        slower: Share of its time that the head is in the slow state more than the base.
        moved: By what the head moves the probe, a natural logarithm.
        prompts: Standard deviation of iterations by their prompts, which are the same in all trials.
        fast_noise: Standard deviation of a restart's further effect on what is measured in the fast state.
    """

    name: str
    about: str
    states: States = field(compare=False)
    restarts: Restarts = field(default=normal, compare=False)
    mislabelled: float = 0.0
    claims: bool = True
    carried: float = 0.0
    slower: float = 0.0
    moved: float = 0.0
    prompts: float = 0.0
    fast_noise: float = 0.0

    def draw(self, rng: np.random.Generator, runs: int, gates: int) -> Drawn:
        """Simulated runs without a slowdown."""
        head_first = orders()[rng.integers(0, ORDERS, runs)]
        warm_up = np.zeros((runs, 1), bool)
        seen = self.states(rng, np.concatenate([warm_up, head_first], axis=1))
        seen = seen.reshape(runs, 1 + PAIRS, 2, ITERATIONS, HALVES)
        slow = seen[:, 1:]
        restart = self.restarts(rng, gates, head_first)[..., None]
        noise = ITERATION_SD * rng.standard_normal((gates, *slow.shape[:-1]))
        level = restart + noise
        if self.prompts:
            level = level + self.prompts * rng.standard_normal((1, runs, 1, 1, ITERATIONS))
        own_state = GAP * slow + np.zeros((gates, *slow.shape))
        if self.fast_noise:
            further = self.fast_noise * rng.standard_normal((gates, *slow.shape[:3], 1, 1))
            own_state = own_state + np.where(slow, 0.0, further)
        halves = own_state[0] + level[0][..., None] + MARK_SD * rng.standard_normal(slow.shape)
        others = own_state[1:].mean(axis=-1) + level[1:]
        read = seen ^ (rng.random((*seen.shape[:-1], 1)) < self.mislabelled)
        probes = PROBE_GAP * read + self.moved * np.array([0.0, 1.0])[:, None, None]
        probes = probes + PROBE_SD * rng.standard_normal(seen.shape)
        scale = np.array([E2E_NS, STEP_NS])[: gates - 1].reshape(-1, 1, 1, 1, 1)
        return Drawn(np.round(STEP_NS * np.exp(halves)), np.round(PROBE_NS * np.exp(probes)),
                     np.round(scale * np.exp(others)))  # fmt: skip
