"""The benchmark that shows whether hidden imports move what is measured."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_collector import FakeCollector
from hand_made import BASE, iteration, trial

from perfgate.capture.job import Job
from perfgate.metrics.trial import Probes, Startup, Trial
from perfgate.scenario.plan import Cell

hidden: Any = importlib.import_module("hidden_imports")


@pytest.mark.parametrize(("own", "beside"), [(0.01, 0.0), (0.0, -0.02), (0.003, 0.004)])
def test_both_effects_are_told_apart(own: float, beside: float) -> None:
    """A block tells what being parked does from what a parked neighbour does, whatever the level is."""
    parked = [*hidden.PARKED, hidden.PARKED[0]]
    logs = [math.log(44.0) + own * parked[n] + beside * parked[n + 1] for n in range(hidden.BLOCK)]

    assert hidden.contrasts(logs) == pytest.approx(
        {"parked itself": own, "one parked beside": beside, "both": own + beside}
    )


def test_rates_of_the_equivalence_test() -> None:
    """An effect as large as the bound is called equivalent in at most 5 % of runs, none at all in nearly all."""
    random = np.random.default_rng(20261122)
    bound, sd, blocks, runs = 0.0005, 0.0005, 24, 4000
    for shift, least, most in ((bound, 0.0, 0.057), (0.0, 0.97, 1.0)):
        known = [hidden.effect(list(random.normal(shift, sd, blocks))) for _ in range(runs)]
        share = sum(one is not None and one.within(bound) for one in known) / runs
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


def test_one_block_tells_nothing() -> None:
    """An interval needs two blocks."""
    assert hidden.effect([0.001]) is None


def in_states(states: str, number: int) -> Any:
    """A trial on a GPU that is slow (s) or fast (f) iteration by iteration, parked as the plan of blocks has it."""
    own = [(5.3e-3, 215_000) if state == "s" else (5.13e-3, 179_000) for state in states]
    parked_ns = 10**9 if hidden.PARKED[number] else 0
    startup = Startup(import_ns=10**9, engine_ns=10**9, ready_ns=3 * 10**9, parked_ns=parked_ns)
    iterations = tuple(iteration(s, probe_ns=Probes(before=(ns,), after=(ns,))) for s, ns in own)
    return trial(number, number, "base", startup=startup, iterations=iterations, gpus=("GPU-0",))


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (["s" * 8 + "f" * 16, "s" * 24, "s" * 24, "s" * 10 + "f" * 14], 8),
        (["f" * 24, "ss" + "f" * 22, "f" * 24, "f" * 24], 22),
        (["f" * 24, "s" * 24, "f" * 24, "f" * 24], 0),
    ],
)
def test_a_block_counts_in_one_state(states: list[str], kept: int) -> None:
    """All trials by as many iterations of the state that they share; a jump of 3 % is no effect of imports."""
    block = [in_states(own, number) for number, own in enumerate(states)]
    alike = hidden._in_one_state(block, (179_000,))
    assert [len(one.iterations) for one in alike] == [kept] * (hidden.BLOCK if kept else 0)
    assert len({one.itl_ns for own in alike for one in own.iterations}) <= 1
