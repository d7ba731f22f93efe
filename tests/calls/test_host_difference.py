"""Sampled stacks: sums by function, the tree, and which functions are said to differ, with the error rates of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.calls import host_profile
from perfgate.calls.host_difference import changed_functions
from perfgate.calls.host_profile import FIGURES, HostProfile, Path, Spent, speedscope, summed, tree_of

PERIOD_NS = 250_000
STEPS = 1200
STACKS = st.dictionaries(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=6).map(tuple),
    st.builds(Spent, st.integers(1, 9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**15)),
    min_size=1,
)


def profile(stacks: Mapping[Path, Spent], steps: int = STEPS) -> HostProfile:
    """A profile of these stacks."""
    return HostProfile(
        steps=steps, period_ns=PERIOD_NS, figures=dict.fromkeys(FIGURES, 0), cpus=(0,), allowed=1, threads={},
        functions=summed(stacks), tree=tree_of(stacks),
    )  # fmt: skip


@given(STACKS)
def test_nothing_is_lost_between_stacks_functions_and_tree(stacks: dict[Path, Spent]) -> None:
    """The own work of all functions, the roots of the tree and the weights of the file are the work of all stacks."""
    work_ns = sum(spent.work_ns for spent in stacks.values())
    seen = profile(stacks)

    assert sum(own.work_ns for own in seen.functions.values()) == work_ns
    assert sum(node.work_ns for node in seen.tree if not node.parent) == work_ns
    written: Any = speedscope("x", stacks)["profiles"]
    assert sum(written[0]["weights"]) == written[0]["endValue"] == work_ns


def test_a_tree_keeps_what_takes_most_and_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few nodes are kept, a node's parent is one of them."""
    monkeypatch.setattr(host_profile, "MOST_NODES", 3)

    tree = tree_of({("a", "b", "c"): Spent(1, 50), ("a", "d"): Spent(1, 9), ("a", "b"): Spent(1, 7)})

    assert tree == ((0, "a", 66), (1, "b", 57), (2, "c", 50))


def drawn(rng: np.random.Generator, own_us: Mapping[str, float], steps: int = STEPS) -> HostProfile:
    """An engine whose functions take so long, each within a tenth, hit by ticks that come by chance."""
    stacks: dict[Path, Spent] = {}
    for name, us in own_us.items():
        expected = us * rng.lognormal(0, 0.1) * 1000 * steps / PERIOD_NS
        hits = int(rng.poisson(expected))
        stacks[("step", name)] = Spent(hits, hits * PERIOD_NS, 0, hits * PERIOD_NS**2)
    return profile(stacks, steps)


def usual(rng: np.random.Generator) -> dict[str, float]:
    """A step of 400 functions of 0.1 us to some milliseconds, like vLLM's."""
    return {f"f{n}": float(us) for n, us in enumerate(np.exp(rng.normal(1.5, 2.0, 400)))}


@pytest.mark.slow
def test_one_build_is_not_said_to_differ() -> None:
    """In 400 comparisons of two engines of one build at most one names any function."""
    rng = np.random.default_rng(20261122)
    named = 0
    for _ in range(400):
        build = usual(rng)
        named += bool(changed_functions(drawn(rng, build), drawn(rng, build)))

    assert named <= 1


@pytest.mark.parametrize("own_us", [0.0, 20.0])
def test_fifty_microseconds_are_named(own_us: float) -> None:
    """In a function that takes up to 20 us itself they are found in at least 95 of 100 pairs, and first of all."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(100):
        build = {"f": 5000.0, "schedule": own_us}
        head = {**build, "schedule": own_us + 50.0}
        changes = changed_functions(drawn(rng, build), drawn(rng, head))
        found += bool(changes) and changes[0].function == "schedule"

    assert found >= 95


def test_a_function_that_moved_is_one() -> None:
    """The only function of its own name on either side is the same, wherever it is defined."""
    base = profile({("step", "vllm.Scheduler.schedule"): Spent(40, 20_000_000, 0, 10**13)})
    head = profile({("step", "plant.schedule"): Spent(200, 100_000_000, 0, 5 * 10**13)})

    (change,) = changed_functions(base, head)

    assert (change.function, change.was) == ("plant.schedule", "vllm.Scheduler.schedule")
    assert change.more_s == pytest.approx(66.7e-6, abs=1e-6)
