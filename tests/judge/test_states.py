"""Cells whose machine had two states: what is compared, what blocks and what passes."""

from __future__ import annotations

import csv
import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made import cell, codes, gate, iteration, record, run, trial

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.metrics.trial import Side, Trial
from perfgate.report.outcome_lines import states_line

FIXTURES = Path(__file__).parents[1] / "fixtures"
STEP_S, GAP = 0.005, 1.033
KEEPS, JUMPS, FASTER = "ssssssss", "sstfffff", "ffffffff"


def taken(index: int, pair: int, side: Side, states: str, ratio: float = 1.0) -> Trial:
    """A trial of eight iterations with a step for each half, slow, fast, or jumping within."""
    rng = np.random.default_rng([index, pair])
    rows = [{"s": (GAP, GAP), "f": (1.0, 1.0), "t": (GAP, 1.0)}[state] for state in states]
    restart = ratio * float(np.exp(rng.normal(0, 0.0005)))
    steps = [
        np.round(np.repeat(row, 4) * STEP_S * restart * 1e9 * np.exp(rng.normal(0, 0.001, 8))).astype(int)
        for row in rows
    ]
    return trial(index, pair, side, iterations=tuple(iteration(itl_ns=tuple(own.tolist())) for own in steps))


def pairs(states: Sequence[tuple[str, str]], ratio: float = 1.0) -> list[Trial]:
    """Pairs of base and head in these states, the head slower by a ratio."""
    both: list[Trial] = []
    for n, (base, head) in enumerate(states):
        both += [taken(2 * n, n, "base", base), taken(2 * n + 1, n, "head", head, ratio)]
    return both


def judged(trials: Sequence[Trial], **measure: Any) -> CellOutcome:
    """The cell of a run whose pairs' orders were each drawn."""
    measured = cell(**measure)
    return judge(run([measured]), {measured.cell_id: record(measured, trials, orders="coins")}).cells[0]


def by_state(found: CellOutcome) -> dict[str, GateOutcome]:
    """Gates by the state they were compared in; the share under its own name."""
    return {gate.state or gate.metric: gate for gate in found.gates}


BOTH_STATES = [
    (KEEPS, JUMPS),
    (JUMPS, KEEPS),
    (JUMPS, JUMPS),
    (JUMPS, "ssssssff"),
    (FASTER, JUMPS),
    ("sssstfff", JUMPS),
]


def test_a_build_that_is_not_slower_passes_in_each_state() -> None:
    """Pairs whose steps spread by the gap pass within states, though not as they are."""
    found = judged(pairs(BOTH_STATES * 2))
    gates = by_state(found)
    assert {name: gate.verdict for name, gate in gates.items()} == {
        "slow": "pass", "fast": "pass", "slow_state_share": "pass",
    }  # fmt: skip
    assert found.verdict == "pass"
    assert all(0 < (gates[state].pair_sd or 0) < 0.002 for state in ("slow", "fast"))
    assert found.states is not None
    assert found.states.told_by == "steps"
    assert found.states.gap == pytest.approx(GAP - 1, abs=0.001)
    assert codes(found.cautions) == ["within-states"]


def test_a_small_slowdown_is_blocked_within_a_state() -> None:
    """One per cent, a third of the gap, is blocked in the states that enough pairs have."""
    found = judged(pairs(BOTH_STATES * 2, 1.01))
    gates = by_state(found)
    assert found.verdict == "regressed"
    assert gates["slow"].verdict == "regressed"
    assert gates["slow"].change == pytest.approx(0.01, abs=0.001)


def test_a_slowdown_above_the_gap_is_measured_in_each_state() -> None:
    """Eight per cent moves no state: each side is compared with its like."""
    gates = by_state(judged(pairs([(JUMPS, JUMPS)] * 6, 1.08)))
    assert [gates[state].verdict for state in ("slow", "fast")] == ["regressed"] * 2
    assert gates["fast"].change == pytest.approx(0.08, abs=0.001)


def test_a_head_that_is_slow_from_the_middle_on_does_not_pass() -> None:
    """A head that slows down within each trial passes nowhere, though its first iterations are as fast as the base."""
    slowing = "fffftsss"
    for count in (4, 6):
        found = judged(pairs([(FASTER, slowing)] * count))
        assert found.verdict == "inconclusive"
        assert by_state(found)["slow_state_share"].verdict == "inconclusive"
        assert found.next_look == {4: 6, 6: 8}[count]


def test_the_slow_state_of_the_head_alone_is_blocked() -> None:
    """Twelve pairs in which only the head becomes slow block by the share of the slow state."""
    found = judged(pairs([(FASTER, "fffftsss")] * 12))
    assert found.verdict == "regressed"
    share = by_state(found)["slow_state_share"]
    assert (share.verdict, share.pairs) == ("regressed", 12)
    assert share.p <= share.block_level


def test_no_common_state() -> None:
    """Sides that were in one state each are not compared, and the report says so."""
    states = [(KEEPS, FASTER), (JUMPS, FASTER), (KEEPS, FASTER), (JUMPS, FASTER)]
    found = judged(pairs(states))
    assert found.verdict == "inconclusive"
    assert found.states is not None
    assert found.states.common == {"slow": 0, "fast": 2}


def test_the_sentence() -> None:
    """What was seen is said in a sentence, with restarts of each side."""
    line = states_line(judged(pairs(BOTH_STATES * 2)))
    assert line == (
        "two states 3.29 % apart, told by the steps' own times; 4 of 12 restarts of base and 4 of 12 restarts of head "
        "slow; compared within states, 10 pairs in the slow one and 8 pairs in the fast one"
    )


# --- recorded on hosts whose GPUs jump


def recorded(name: str, run_name: str) -> CellOutcome:
    """A recorded run as it is judged now; an iteration is known by its median step."""
    rows = defaultdict(list)
    with (FIXTURES / name).open() as file:
        for row in csv.DictReader(file):
            if row["run"] == run_name and row["pair"]:
                rows[int(row["trial"]), int(float(row["pair"])), row["subject"]].append(int(row["itl_ns"]))
    trials = []
    for (index, pair, side), steps in sorted(rows.items()):
        iterations = tuple(iteration(itl_ns=(step,) * 8) for step in steps)
        trials.append(trial(index, pair, "base" if side == "base" else "head", iterations=iterations))
    looks = (4, 5, 6, 8, 12)
    spend = {"block": [0, 0, 0.16, 0.24, 0.4], "pass": [0.16, 0.08, 0.08, 0.16, 0.32]}
    measured = cell(gates=[gate()], looks=looks, spend=spend)
    return judge(run([measured]), {measured.cell_id: record(measured, trials)}).cells[0]


@pytest.mark.parametrize(
    ("run_name", "slow", "fast", "most_sd"),
    [("block-size-64", -0.0013, -0.0009, 0.0015), ("tp2-other-all-reduce", 0.0809, 0.0967, 0.0035)],
)
def test_recordings_are_compared_within_states(run_name: str, slow: float, fast: float, most_sd: float) -> None:
    """Recorded runs give an estimate in each state with a spread far below the gap, and too few pairs block nothing."""
    found = recorded("h200-x4-states.csv", run_name)
    gates = by_state(found)
    for state, change in (("slow", slow), ("fast", fast)):
        assert gates[state].verdict != "regressed"
        ratio = (gates[state].head or 0) / (gates[state].base or 1) - 1
        assert ratio == pytest.approx(change, abs=0.0005)
        assert (gates[state].pair_sd or 1) < most_sd


def test_a_recorded_host_with_one_state_is_judged_as_it_is() -> None:
    """A card that never jumped has one gate and no states."""
    found = recorded("h200-x4-states.csv", "same-build-card-1")
    assert found.states is None
    assert [gate.state for gate in found.gates] == [""]


def test_recorded_runs_of_one_build_are_never_blocked() -> None:
    """No recorded run of one build, on hosts that jump or not, is blocked by the new rule."""
    files = {"h200-llama-8b-two-states.csv", "drills-h200-x4.csv", "h200-llama-8b-iterations.csv"}
    names = {(file, row["run"]) for file in files for row in csv.DictReader((FIXTURES / file).read_text().splitlines())}
    same = sorted(pair for pair in names if "same" in pair[1])
    assert len(same) >= 8
    assert not [pair for pair in same if recorded(*pair).verdict == "regressed"]


def test_states_need_iterations_that_can_be_split() -> None:
    """Iterations of fewer than four decode steps tell no states."""
    few = [one.model_copy(update={"iterations": tuple(own.model_copy(update={"itl_ns": own.itl_ns[:3]})
                                                      for own in one.iterations)})
           for one in pairs(BOTH_STATES)]  # fmt: skip
    assert judged(few).states is None
    assert list(itertools.islice(few, 1))
