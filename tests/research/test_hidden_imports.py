"""The benchmark that shows whether hidden imports move what is measured."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_collector import FakeCollector
from hand_made import BASE, cell, iteration, record, trial

from perfgate.capture.job import Job
from perfgate.metrics.trial import Probes, Startup, Trial
from perfgate.scenario.plan import Cell

hidden: Any = importlib.import_module("hidden_imports")

pytestmark = pytest.mark.slow


def restarts(own: float, beside: float, levels: list[str], noise: Any = (0.0,)) -> list[Any]:
    """Restarts as the plan of blocks has them, each at the level of its card and state, with some noise."""
    parked = [hidden.PARKED[n % hidden.BLOCK] for n in range(len(levels) + 1)]
    height = {level: math.log(44.0) + 0.03 * n for n, level in enumerate(sorted(set(levels)))}
    noises = itertools.cycle(noise)
    return [
        hidden.Restart(level, parked[n], parked[n + 1], {
            "itl_median": height[level] + own * parked[n] + beside * parked[n + 1] + next(noises)
        })
        for n, level in enumerate(levels)
    ]  # fmt: skip


@pytest.mark.parametrize(("own", "beside"), [(0.01, 0.0), (0.0, -0.02), (0.003, 0.004)])
@pytest.mark.parametrize("levels", ["aaaa" * 2, "aabbbabb", "abab" * 2 + "ccca"])
def test_both_effects_are_told_apart(own: float, beside: float, levels: str) -> None:
    """What being parked does from what a parked neighbour does, whatever the levels of cards and states are."""
    found = hidden.effects(restarts(own, beside, [*levels]), "itl_median")

    assert {name: one.mean for name, one in found.items()} == pytest.approx(
        {"parked itself": own, "one parked beside": beside, "both": own + beside}
    )
    assert {one.restarts for one in found.values()} == {len(levels)}


@pytest.mark.parametrize("effect", ["parked itself", "one parked beside", "both"])
def test_rates_of_the_equivalence_test(effect: str) -> None:
    """An effect as large as the bound is called equivalent in at most 5 % of runs, none at all in nearly all."""
    random = np.random.default_rng(20261122)
    bound, sd, blocks, runs = 0.0005, 0.0004, 24, 1000
    levels = [*"aaaabbbb" * (blocks // 2)]
    parts = {"parked itself": (1.0, 0.0), "one parked beside": (0.0, 1.0), "both": (0.5, 0.5)}[effect]
    for shift, least, most in ((bound, 0.0, 0.064), (0.0, 0.97, 1.0)):
        own, beside = (shift * part for part in parts)
        known = [
            hidden.effects(restarts(own, beside, levels, random.normal(0, sd, len(levels))), "itl_median")[effect]
            for _ in range(runs)
        ]
        share = sum(one.within(bound) for one in known) / runs
        assert least <= share <= most


class Seen(FakeCollector):
    """Says of each trial how many are to be started ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[int] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Note it."""
        self.ahead.append(len(job.ahead))
        return super().collect(job, progress)


def test_only_trials_that_the_plan_parks_are_started_ahead(
    make_job: Callable[..., Job], make_cell: Callable[..., Cell]
) -> None:
    """Two trials are foreseen; beside the second of a block, whose next is not parked, none imports."""
    made = make_job(make_cell(), BASE)
    collector = Seen()
    alternating = hidden.Alternating(collector)

    for pair in (None, 0, 1, 2, 3, 4):
        alternating.collect(replace(made, pair=pair, ahead=(made, made)), lambda _: None)

    parked = [*hidden.PARKED * 3]
    expected = [2 if parked[n] and parked[n + 1] else 1 if parked[n] else 0 for n in range(6)]
    assert collector.ahead == expected


@pytest.mark.parametrize("levels", ["", "aaaa"[:3], "abcd"])
def test_too_few_restarts_tell_nothing(levels: str) -> None:
    """Two effects and a level for each card and state need more restarts than they are."""
    assert hidden.effects(restarts(0.01, 0.0, [*levels]), "itl_median") == {}


@pytest.mark.parametrize("effect", ["parked itself", "one parked beside", "both"])
def test_intervals_cover_what_is_true(effect: str) -> None:
    """Nine of ten do, with few restarts as well."""
    random, runs, levels = np.random.default_rng(20261127), 2000, [*"aaaabbbb"]
    true = {"parked itself": 0.002, "one parked beside": -0.001, "both": 0.001}[effect]

    found = [
        hidden.effects(restarts(0.002, -0.001, levels, random.normal(0, 0.001, len(levels))), "itl_median")[effect]
        for _ in range(runs)
    ]

    assert 0.88 < sum(one.low < true < one.high for one in found) / runs < 0.92


def in_states(states: str, number: int, *, parked: bool = True, probed: bool = True) -> Trial:
    """A trial on a GPU that is slow (s) or fast (f) iteration by iteration."""
    own = [(5.3e-3, 215_000) if state == "s" else (5.13e-3, 179_000) for state in states]
    startup = Startup(import_ns=10**9, engine_ns=10**9, ready_ns=3 * 10**9, parked_ns=10**9 if parked else 0)
    probes = [Probes(before=(ns,), after=(ns,)) if probed else None for _, ns in own]
    iterations = tuple(iteration(s, probe_ns=probe) for (s, _), probe in zip(own, probes, strict=True))
    return trial(number, number, "base", startup=startup, iterations=iterations, gpus=("GPU-0",))


@pytest.mark.parametrize(("states", "state", "kept"), [
    ("s" * 8 + "f" * 16, "fast", 16), ("s" * 24, "slow", 24),
    ("s" * 5 + "f" * 6, "fast", 6), ("s" * 5 + "f" * 5, "", 0),
])  # fmt: skip
def test_a_restart_counts_in_the_state_that_it_has_most_of(states: str, state: str, kept: int) -> None:
    """A jump of 3 % is no effect of imports."""
    found = [*hidden._in_one_state(in_states(states, 0), (179_000,))]

    assert [(name, len(alike.iterations)) for name, alike in found] == ([(state, kept)] if kept else [])
    assert len({one.itl_ns for _, alike in found for one in alike.iterations}) <= 1


def test_a_restart_whose_state_nobody_knows_does_not_count() -> None:
    """A GPU without a reading may have jumped."""
    assert [*hidden._in_one_state(in_states("f" * 24, 0, probed=False), ())] == []


def test_restarts_of_a_record() -> None:
    """Those parked as planned, each beside what the next one was; the last of a visit, and one that was not, do not."""
    parked = [True, False, False, False, True, True, False]  # the second was to be parked
    states = ["f", "f", "f", "s", "f", "f", "f"]
    taken = [in_states(state * 24, n, parked=own) for n, (state, own) in enumerate(zip(states, parked, strict=True))]

    found = [*hidden.restarts_of(record(cell(), taken), "gpu-0")]

    assert [(one.parked, one.beside) for one in found] == [
        (True, False), (False, False), (False, True), (True, True), (True, False),
    ]  # fmt: skip
    cut = [own.model_copy(update={"visit": int(own.index > 3)}) for own in taken]
    one_visit = record(cell(), taken)
    two_visits = one_visit.model_copy(update={"trials": tuple(cut), "visits": one_visit.visits * 2})
    assert len([*hidden.restarts_of(two_visits, "gpu-0")]) == len(found) - 1
    steps = [math.exp(one.logs["itl_median"]) for one in found]
    assert steps == pytest.approx([5.13e-3, 5.13e-3, 5.3e-3, 5.13e-3, 5.13e-3])
    assert [one.level == found[0].level for one in found] == [True, True, False, True, True]
    assert {one.level for one in found} == {f"gpu-0 ('GPU-0',) {state}" for state in ("fast", "slow")}
    assert set(found[0].logs) == set(hidden.BOUNDS)
