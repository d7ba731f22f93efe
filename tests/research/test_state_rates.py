"""The simulation of machines with two states behind docs/error-rates.md, smaller: the declared rates hold there."""

from __future__ import annotations

import csv
import importlib
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import PASS, REGRESSED

ROOT = Path(__file__).parents[2]
rates: Any = importlib.import_module("state_rates")
places: Any = importlib.import_module("state_places")
models: Any = importlib.import_module("state_models")
moderated: Any = importlib.import_module("moderated_rates")
summary: Any = importlib.import_module("state_summary")
prompts: Any = importlib.import_module("prompt_rates")
simpler: Any = importlib.import_module("simpler_states")

pytestmark = pytest.mark.slow

RUNS = 200
CLAIMED = [place for place in places.PLACES if place.part == "claims" and place.model.claims]


def str_of(one: Any) -> str:
    """A place in words."""
    return f"{one.model.name}, {one.source}, {one.case}, {one.margins.must_catch:.2%}"


def place(part: str, name: str, source: str, case: str = "no change") -> Any:
    """The first such place."""
    named = [
        one for one in places.PLACES if (one.part, one.model.name, one.source, one.case) == (part, name, source, case)
    ]
    return named[0]


@pytest.mark.parametrize("case", places.CASES)
def test_iterations_that_differ_by_their_prompts(case: str) -> None:
    """Where they do by 3 % the declared rates are kept, and most runs are decided rightly."""
    blocked, passed, _ = prompts.rates(0.03, case, runs=1000)
    assert blocked <= ALPHA or case == "must_catch"
    assert passed <= BETA or case != "must_catch"
    assert (blocked if case == "must_catch" else passed) >= 0.5


@pytest.mark.parametrize("case", places.CASES[1:])
@pytest.mark.parametrize("model", places.SHAPES, ids=lambda model: model.name)
def test_restarts_of_other_shapes_keep_the_rates(model: Any, case: str) -> None:
    """Within states as well."""
    for row in rates.simulate(place("claims", model.name, "probe", case), 200):
        assert row.wrong / row.runs <= row.declared


@pytest.mark.parametrize(
    ("name", "further"), [*((name, ()) for name in rates.SHAPES), ("on two levels", rates.FURTHER)]
)
def test_what_is_claimed_of_the_shapes_of_pairs(name: str, further: tuple[int, ...]) -> None:
    """Both rates are kept where a claim is made; of one-sided shapes one is not, or the tail helps."""
    runs = rates.SHAPE_RUNS
    over, under = rates.of_pairs(name, runs, further)
    blocked, passed = int((over.runs == REGRESSED).sum()), int((under.runs == PASS).sum())
    kept = rate_bounds(blocked, runs, 0.95)[1] <= ALPHA and rate_bounds(passed, runs, 0.95)[1] <= BETA
    assert kept or not rates.SHAPES[name][1]
    if name in {"one in ten slow", "exponential, tail towards slow"}:
        assert rate_bounds(passed, runs, 0.95)[0] > BETA


@pytest.mark.parametrize("one", CLAIMED, ids=str_of)
def test_claims(one: Any) -> None:
    """The simulated rate of the declared error is compatible with the declaration on every machine that claims it."""
    for row in rates.simulate(one, RUNS):
        assert row.least <= row.declared


@pytest.mark.parametrize("part", simpler.PARTS)
def test_what_is_not_simpler_costs_power(part: str) -> None:
    """Without a part of the rule a head slower by ``must_catch`` is blocked in five points of the runs less or more."""
    whole, without = (simpler.blocked(own, part, RUNS) for own in (False, True))
    assert whole - without > 0.05


def test_a_head_that_causes_the_state() -> None:
    """A head that is always slow is blocked; one that is so more often may pass within states, with a caution."""
    always = rates.simulate(place("caused", "never to always", "probe"), RUNS)
    tiring = rates.simulate(place("caused", "from the middle on", "probe"), RUNS)
    often = rates.simulate(place("caused", "in 20 % and 45 %", "probe"), RUNS)

    assert all(row.blocked == RUNS for row in (*always, *tiring))
    assert all(row.passed_within / RUNS > BETA for row in often)
    assert all(row.too_low / RUNS <= BETA for row in often)


def test_subjects_that_differ_are_not_claimed() -> None:
    """A compiler's draw of 0.1 % a side breaks both rates, and an error that carries it keeps them."""
    for case, declared in (("ignorable", ALPHA), ("must_catch", BETA)):
        alone = rates.simulate(place("claims", "none, subjects 0.1 %", "steps", case), 1000)
        carried = rates.simulate(place("claims", "none, subjects 0.1 % carried", "steps", case), 1000)
        assert all(row.least > declared for row in alone)
        assert all(row.least <= declared for row in carried)


def test_jumps_are_as_recorded() -> None:
    """How often trials begin slow, and jump, is what the recordings show."""
    begins: Counter[tuple[str, str]] = Counter()
    slow = jumps = returns = 0
    for name in ("h200-x4-states.csv", "drills-h200-x4.csv", "h200-llama-8b-two-states.csv"):
        for trials in recorded(name):
            last = ""
            for states in trials:
                begins.update([(last, states[0])] if last and states else [])
                slow += states[:-1].count("s")
                jumps += sum(step == ("s", "f") for step in pairwise(states))
                returns += sum(step == ("f", "s") for step in pairwise(states))
                last = states[-1:]
    after = {last: begins[last, "s"] / (begins[last, "s"] + begins[last, "f"]) for last in "sf"}

    assert after == pytest.approx({"s": models.STAYS_SLOW, "f": models.TURNS_SLOW}, abs=0.005)
    assert jumps / slow == pytest.approx(1 - (1 - models.LEAVES_SLOW) ** 2, abs=0.001)
    assert returns == 0


def recorded(name: str) -> list[list[str]]:
    """The states of each run's trials, a letter an iteration; none of sides that showed one level."""
    runs: dict[str, dict[tuple[int, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    with (ROOT / "tests" / "fixtures" / name).open() as file:
        for row in csv.DictReader(file):
            if not row["run"].startswith(("host_loop", "uncovered", "no_async")):  # their steps wander by more
                runs[row["run"]][int(float(row["trial"])), row["subject"]].append(float(row["itl_ns"]))
    found = []
    for trials in runs.values():
        sides = {side for _, side in trials}
        edges = {side: summary.boundary(np.concatenate([np.array(own) for (_, mine), own in trials.items()
                                                        if mine == side])) for side in sides}  # fmt: skip
        found.append(["".join("s" if step > edges[side] else "f" for step in own) if edges[side] else ""
                      for (_, side), own in sorted(trials.items())])  # fmt: skip
    return found


@pytest.mark.parametrize("ratio", moderated.RATIOS)
def test_moderated_variance_errs_where_the_head_spreads_more(ratio: float) -> None:
    """With history's variance the rates hold for a head like history, not for one that spreads half as much more."""
    row = moderated.simulate(6, 10, ratio, 20_000)

    assert row.blocks[0] == pytest.approx(ALPHA, abs=0.003)
    assert row.passes[0] == pytest.approx(BETA, abs=0.006)
    if ratio >= 1.5:
        assert min(row.blocks[1:]) > 1.15 * ALPHA
        assert row.passes[1] > 1.25 * BETA


def test_orders_and_sides() -> None:
    """Trials in order of time come back as base and head, whichever ran first."""
    head_first = np.array([[False, True]])
    assert models.by_side(np.arange(4)[None], head_first).tolist() == [[[0, 1], [3, 2]]]


def test_seeded() -> None:
    """A row is the same every time, whatever was simulated before it."""
    one = place("claims", "jumping", "steps", "ignorable")
    first = rates.simulate(one, 50)
    rates.simulate(place("claims", "sticky", "probe"), 20)

    assert rates.simulate(one, 50) == first


def test_section_says_what_is_refuted() -> None:
    """A machine whose error is more frequent than declared is refuted; one without a claim is not."""
    rows = []
    for name, wrong in (("jumping", 1), ("sticky", 60), ("none, subjects 0.1 %", 60)):
        # Without the case in which nothing is slower: it is simulated of the main machines alone.
        rows += [places.Row(place("claims", name, "steps", case), 1, 1000, wrong, 0, 900, 0, 0, 1, 8000)
                 for case in places.CASES[1:]]  # fmt: skip

    text = rates.section(rows, "")

    ends = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if " | steps | 1 | " in line]
    assert ends == ["not refuted", "**refuted**", "none made"]
    assert "**2 of 4 claims are shown, 1 are refuted.**" in text
