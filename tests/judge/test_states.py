"""Cells whose machine had two states: what is compared, what blocks and what passes."""

from __future__ import annotations

import csv
import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hand_made import MACHINE, cell, codes, gate, iteration, record, run, trial
from numpy.typing import NDArray
from probed_runs import FIXTURES, PROBED, probed
from scipy.stats import binom

from perfgate import stats
from perfgate.github.github_markdown import annotate
from perfgate.judge.cell_verdict import judge
from perfgate.judge.machine_states import STATES, Labeller, follows_states
from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome
from perfgate.judge.rule import Series, decide
from perfgate.machine.fingerprint import Gpu
from perfgate.metrics.catalogue import KEYED_METRICS
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import PROBED_GPUS, Iteration, Probes, Trial
from perfgate.record.run_record import Visit
from perfgate.report.closing_sentence import closing
from perfgate.report.junit import render_junit
from perfgate.report.outcome_charts import drawable
from perfgate.report.outcome_document import gates_section
from perfgate.report.outcome_lines import gate_name, states_line
from perfgate.report.story import cell_story
from perfgate.scenario.plan import GatePlan

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
        "slow": "pass", "fast": "pass", "both": "pass", "slow_state_share": "pass",
    }  # fmt: skip
    assert found.verdict == "pass"
    assert all(0 < (gates[state].pair_sd or 0) < 0.002 for state in ("slow", "fast"))
    assert found.states is not None
    assert found.states.told_by == "steps"
    assert found.states.gap == pytest.approx(GAP - 1, abs=0.001)
    assert codes(found.cautions) == ["two-states"]


def served(trials: Sequence[Trial]) -> list[Trial]:
    """The same figures as windows of a server have them."""
    return [changed(one, range(8), output_tokens=0, lengths=(3,)) for one in trials]


def test_windows_of_a_server_tell_no_states_by_themselves() -> None:
    """Their gaps are kept in order of size: halves of them are no early and late ones, whatever they look like."""
    trials = pairs(BOTH_STATES * 2)
    assert judged(trials).states is not None
    found = judged(served(trials))
    assert found.states is None
    assert {one.state for one in found.gates} == {""}


def test_the_ranks_of_a_server_tell_the_states_of_its_windows() -> None:
    """As those of any engine do: a window has the state that its ranks read before and after it."""
    found = judged_on_gpu(served(with_readings(BOTH_STATES)))
    assert found.states is not None
    assert found.states.told_by == "probe"
    assert found.states.gap == pytest.approx(GAP - 1, abs=0.002)
    assert {"slow", "fast"} <= set(by_state(found))


def test_windows_of_a_server_are_compared_with_the_same_windows() -> None:
    """Their loads differ: a window counts in a state where both trials were in that."""
    fast, both = "ffffffff", "ssssffff"
    trials = served(with_readings([(both, fast), (fast, both)] * 3))
    longer = [changed(one, range(4), itl_ns=tuple(2 * own for own in one.iterations[0].itl_ns)) for one in trials]
    (found,) = (gate for gate in judged_on_gpu(longer).gates if gate.state == "fast")
    assert found.change == pytest.approx(0, abs=0.002)
    assert found.pair_sd is not None
    assert found.pair_sd < 0.002


def test_iterations_of_an_engine_are_compared_with_the_same_iterations() -> None:
    """Its prompts choose how long a step of an iteration takes: a trial half in a state is compared by that half.

    Where two trials were in one state in different iterations they are compared as they are.
    """
    fast, both, after = "ffffffff", "ssssffff", "ffffssss"
    trials = with_readings([(both, fast), (fast, both)] * 3)
    longer = [changed(one, range(4), itl_ns=tuple(2 * own for own in one.iterations[0].itl_ns)) for one in trials]
    for measured in (longer, with_readings([(after, both)] * 6)):
        (found,) = (gate for gate in judged_on_gpu(measured).gates if gate.state == "fast")
        assert found.change == pytest.approx(0, abs=0.002)
        assert (found.pairs, (found.pair_sd or 1) < 0.002) == (6, True)


@pytest.mark.parametrize(("windows", "common"), [(False, {"slow": 6, "fast": 6}), (True, {"slow": 0, "fast": 0})])
def test_windows_that_no_pair_has_in_common(common: dict[str, int], *, windows: bool) -> None:
    """Where one trial was slow in the windows in which the other was fast there is nothing to compare."""
    trials = with_readings([("ffffssss", "ssssffff")] * 6)
    own = served(trials) if windows else trials
    labeller = Labeller([(own[n], own[n + 1]) for n in range(0, 12, 2)], PROBED_GPUS[:1])
    found = labeller.at(6)
    assert found is not None
    assert {state: found.pairs(state) for state in STATES} == common
    assert found.unplaced == (6 if windows else 0)


def test_quantiles_of_a_server_follow_the_states() -> None:
    """All of them but the time to the first token, which is prefill."""
    follow = {name: follows_states(own.of("p99")) for name, own in KEYED_METRICS.items() if name != "goodput"}
    assert follow == {"ttft_quantile": False, "itl_quantile": True, "tpot_quantile": True, "e2e_quantile": True}


def in_the_fast_state(in_it: int, ratio: float) -> list[Trial]:
    """Eight pairs, the last few in the fast state, where alone the head is slower by a ratio."""
    others = 8 - in_it
    return with_readings([(KEEPS, KEEPS)] * others) + [
        one.model_copy(update={"index": one.index + 2 * others, "pair": (one.pair or 0) + others})
        for one in with_readings([(FASTER, FASTER)] * in_it, ratio)
    ]


@pytest.mark.parametrize("in_it", [1, 2])
def test_of_a_state_with_few_pairs_nothing_is_said(in_it: int) -> None:
    """It has no row of its own, and the headline and a caution name the state in which the head passes."""
    found = judged_on_gpu(in_the_fast_state(in_it, 1.0))
    assert {name: own.verdict for name, own in by_state(found).items()} == {
        "slow": "pass", "both": "pass", "slow_state_share": "pass",
    }  # fmt: skip
    whole = Outcome(run="r", perfgate="1", verdict="pass", exit_status=0, alpha=0.01, beta=0.05, cells=(found,))
    assert "must_catch margin in the slow state of the machine alone (alpha" in closing(whole)
    (caution,) = (note.text for note in found.cautions if note.code == "two-states")
    many = "1 pair" if in_it == 1 else "2 pairs"
    assert caution.startswith(
        f"unchanged in the slow state alone; of the fast one nothing is said ({many} in common); by being slow"
    )
    two = whole.model_copy(update={"cells": (found, found.model_copy(update={"name": "other", "states": None}))})
    assert "must_catch margin, of cell in the slow state of the machine alone (alpha" in closing(two)
    faster = whole.model_copy(update={"verdict": "improved"})
    assert "beyond its ignorable margin in the slow state of the machine alone (alpha" in closing(faster)


@pytest.mark.parametrize("in_it", [1, 2])
def test_nothing_passes_beside_few_pairs_that_are_slower(in_it: int) -> None:
    """What one or two pairs say of a head that is slower in their state establishes nothing, and nothing passes."""
    found = judged_on_gpu(in_the_fast_state(in_it, 1.02), [gate(must_catch="1.5%")])
    (why,) = by_state(found)["slow"].reasons
    verb = "1 pair in the fast state is" if in_it == 1 else "2 pairs in the fast state are"
    assert (found.verdict, why.code) == ("inconclusive", "slower-apart")
    assert re.fullmatch(rf"pairs with a state in common exclude 1.5 %; the {verb} slower by (1.9|2.0)\d* %", why.text)


def test_no_state_passes_where_each_has_few_pairs() -> None:
    """Two pairs in each state are four, and say nothing of either."""
    found = judged_on_gpu(with_readings([(KEEPS, KEEPS), (FASTER, FASTER)] * 2))
    both = by_state(found)["both"]
    assert {own.state for own in found.gates} == {"both", ""}
    assert (both.verdict, both.pairs, [own.text for own in both.reasons]) == (
        "inconclusive", 4, ["4 pairs in common in either state: a pass takes 4, of one state 3"],
    )  # fmt: skip


def test_a_state_tells_how_its_pairs_spread() -> None:
    """Three pairs that spread by half a per cent do not pass by the spread of five quiet ones in the other state."""
    apart = [1.005, 0.995, 1.001]
    quiet = with_readings([(KEEPS, KEEPS)] * 5)
    for n, ratio in enumerate(apart):
        noisy = with_readings([(FASTER, FASTER)], ratio)
        quiet += [one.model_copy(update={"index": 10 + 2 * n + one.index, "pair": 5 + n}) for one in noisy]
    gates = by_state(judged_on_gpu(quiet))
    assert (gates["slow"].verdict, gates["fast"].verdict, gates["fast"].pairs) == ("pass", "inconclusive", 3)


def test_a_slowdown_in_both_states_is_blocked_by_their_mean() -> None:
    """Six pairs, three in each state, are too few to block in either, and enough over both."""
    found = judged(pairs([(KEEPS, KEEPS), ("stffffff", "stffffff")] * 3, 1.01))
    gates = by_state(found)
    assert {name: (gate.verdict, gate.pairs) for name, gate in gates.items()} == {
        "slow": ("inconclusive", 3), "fast": ("inconclusive", 3), "both": ("regressed", 6),
        "slow_state_share": ("pass", 0),
    }  # fmt: skip
    assert gates["both"].change == pytest.approx(0.01, abs=0.001)
    assert gate_name(gates["both"]) == "itl_median, both states"
    assert found.verdict == "regressed"


# --- margins that ignore as much as states are apart

WIDE = ("itl_median", "4%", "12%")
"""The states of these trials are 3.3 % apart."""
MIXED = [(KEEPS, FASTER), (FASTER, KEEPS), (KEEPS, KEEPS), (JUMPS, FASTER), (FASTER, JUMPS), (FASTER, FASTER)]


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "pass"), (1.2, "regressed")])
def test_margins_that_ignore_the_gap_compare_all_that_was_measured(ratio: float, verdict: str) -> None:
    """Six pairs decide, of which two are in one state on both sides: within states too few would be left.

    What tells the states is a fifth apart; what counts is by how much steps are.
    """
    trials = with_readings(MIXED, ratio)
    found = judged_on_gpu(trials, [gate(*WIDE)])
    assert found.verdict == verdict
    assert found.states is None
    assert [(one.metric, one.state, one.pairs) for one in found.gates] == [("itl_median", "", 6)]
    (note,) = [note.text for note in found.cautions if note.code == "two-states"]
    assert re.fullmatch(
        r"3\.[0-4]\d* % apart, so all is compared as it is; base 38.1 % of the time slow, head 38.1 %; .*", note
    )
    assert note.endswith("; the head more often in 2 pairs, less often in 2")
    assert judged_on_gpu(trials, [gate("itl_median", "1%", "12%")]).states is not None


def test_a_floor_is_ignored_as_well() -> None:
    """Half a millisecond is a tenth of these steps, and more than their states are apart."""
    found = judged_on_gpu(with_readings(MIXED), [gate("itl_median", "1%", "4%", floor="0.5ms")])
    assert found.states is None
    assert found.verdict == "pass"


def test_a_head_that_is_slow_more_often_is_told_where_margins_ignore_it() -> None:
    """It passes, as it is slower by less than is ignored; and in how many pairs that was so is said."""
    found = judged_on_gpu(with_readings([(JUMPS, "ssssstff")] * 12), [gate(*WIDE)])
    assert found.verdict == "pass"
    (note,) = [note.text for note in found.cautions if "apart, so all" in note.text]
    assert note.endswith("head 71.4 %; the head more often in 12 pairs, less often in 0")


@pytest.mark.parametrize(("floor", "split"), [("0.155ms", True), ("0.17ms", False)])
def test_a_gate_that_was_split_ignores_no_states(floor: str, *, split: bool) -> None:
    """Though its floor is a larger share of what is left in the fast state, in which the head mostly was."""
    states = [(KEEPS, "ssssffff"), *[(JUMPS, FASTER), (KEEPS, FASTER)] * 5]
    found = judged_on_gpu(with_readings(states), [gate("itl_median", "1%", "12%", floor=floor)])
    assert ({one.state for one in found.gates} != {""}) is split
    assert any("compared as it is" in note.text for note in found.cautions) is not split


@pytest.mark.parametrize(("count", "gates"), [(3, [gate("itl_median", "4%", "12%")]), (6, [gate("ttft_median")]),
                                              (6, [gate("mbu", "0.1%", "0.5%")]),
                                              (6, [gate("itl_median", "4%", "12%"), gate("itl_p95")])])  # fmt: skip
def test_no_word_of_states_where_none_were_ignored(count: int, gates: list[GatePlan]) -> None:
    """Nothing was compared before the first look, or it follows no states, could not be judged, or was split."""
    found = judged_on_gpu(with_readings(MIXED[:count]), gates)
    assert not any("compared as it is" in note.text for note in found.cautions)


def test_another_gate_of_the_cell_is_compared_within_states() -> None:
    """Each gate by its own margins; the slow state's share comes with the one that is split."""
    found = judged(pairs(BOTH_STATES * 2), gates=[gate(*WIDE), gate("itl_p95")])
    assert {(one.metric, one.state) for one in found.gates} == {
        ("itl_median", ""), ("itl_p95", "slow"), ("itl_p95", "fast"), ("itl_p95", "both"), ("slow_state_share", ""),
    }  # fmt: skip
    assert found.verdict == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0.1, 0.5])
@pytest.mark.parametrize("spread", [0.0002, 0.01])
def test_states_that_a_margin_ignores_keep_the_rates(slow: float, spread: float) -> None:
    """Though they are as far apart as it ignores: 1 % are blocked, and 5 % pass, at most; without a change none are."""
    gated, runs, rng = gate("tpot_mean", "3%", "9%"), 1000, np.random.default_rng(20261127)
    schedule = stats.Schedule((4, 6, 8), block=(0.0, 0.5, 0.5), pass_=(0.4, 0.3, 0.3))
    states = math.log(1.03) * (rng.random((2, runs, 8)) < slow)
    noise = states[1] - states[0] + rng.normal(0, spread, (runs, 8))

    def share(slower: float, verdict: str) -> float:
        rows = np.exp(noise + math.log1p(slower))
        series = (Series(gated, (1.0,) * 8, tuple(row), schedule) for row in rows.tolist())
        return sum(decide([one], 0.01, 0.05)[0].verdict == verdict for one in series) / runs

    assert share(0.0, "regressed") == 0
    assert share(0.03, "regressed") <= binom.ppf(0.999, runs, 0.01) / runs
    assert share(0.09, "pass") <= binom.ppf(0.999, runs, 0.05) / runs


def test_a_slowdown_above_the_gap_is_measured_in_each_state() -> None:
    """Eight per cent moves no state: each side is compared with its like."""
    gates = by_state(judged(pairs([(JUMPS, JUMPS)] * 6, 1.08)))
    assert [gates[state].verdict for state in ("slow", "fast")] == ["regressed"] * 2
    assert gates["fast"].change == pytest.approx(0.08, abs=0.001)


SLOWING = [(FASTER, "fffftsss")]


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        (SLOWING * 4, "inconclusive"),
        (SLOWING * 12, "regressed"),
        ([(KEEPS, FASTER), (JUMPS, FASTER)] * 2, "inconclusive"),
        ([(FASTER, KEEPS)] * 8, "regressed"),
    ],
)
def test_levels_of_one_build_alone_are_no_states(states: list[tuple[str, str]], verdict: str) -> None:
    """A head that slows down within each trial, or is always slow, passes nowhere: all is compared as it is."""
    for found in (judged(pairs(states)), judged_on_gpu(with_readings(states))):
        assert (found.verdict, found.states) == (verdict, None)


def test_a_head_that_is_slow_more_often_is_blocked() -> None:
    """Twelve pairs in which the head is slow for longer block by the share of the slow state, and six let none pass."""
    few, many = (judged(pairs([("ssffffff", "sssstfff")] * count)) for count in (6, 12))
    assert (few.verdict, many.verdict, few.next_look) == ("inconclusive", "regressed", 8)
    share = by_state(many)["slow_state_share"]
    assert (share.verdict, share.pairs) == ("regressed", 12)
    assert share.p <= share.block_level


def disturbed(rng: np.random.Generator, count: int, share: float) -> list[Trial]:
    """Trials of one build, of which a share has step times that spread by 2 % in place of 0.03 %."""
    taken = []
    for pair, sds in enumerate(np.where(rng.random((count, 2)) < share, 0.02, 0.0003)):
        for n, (side, sd) in enumerate(zip(SIDES, sds, strict=True)):
            step_s = STEP_S * math.exp(rng.normal(0, sd))
            times = step_s * np.exp(rng.normal(0, 0.0003, (4, 8)))
            iterations = tuple(iteration(step_s, itl_ns=tuple((1e9 * row).astype(int).tolist())) for row in times)
            taken.append(trial(2 * pair + n, pair, side, iterations=iterations))
    return taken


@pytest.mark.parametrize(("share", "runs"), [(1 / 6, 20), pytest.param(0.3, 400, marks=pytest.mark.slow)])
def test_disturbed_trials_are_no_states(share: float, runs: int) -> None:
    """Of one build nothing blocks where some trials spread: most of either side were on another level of its own."""
    measured = cell()
    measured = measured.model_copy(update={"measure": measured.measure.model_copy(update={"iterations": 4})})
    rng = np.random.default_rng(1)
    records = [record(measured, disturbed(rng, 72, share), orders="coins", further_looks=(72,)) for _ in range(runs)]
    verdicts = [judge(run([measured]), {measured.cell_id: kept}).verdict for kept in records]
    assert "regressed" not in verdicts


def test_the_sentence() -> None:
    """What was seen is said in a sentence, with restarts of each side."""
    line = states_line(judged(pairs(BOTH_STATES * 2)))
    assert line == (
        "two states 3.3 % apart, told by the steps' own times; 4 of 12 restarts of base and 4 of 12 restarts of head "
        "slow; compared within states, 10 pairs in the slow one and 8 pairs in the fast one; "
        "being slow more often blocks from 15 one-way pairs on"
    )


def test_each_state_is_named_wherever_gates_are() -> None:
    """A report of one metric in two states tells them apart: in its sentence, its notes, JUnit and annotations."""
    slower = judged(pairs([(JUMPS, JUMPS)] * 6, 1.08))
    few = judged_on_gpu(with_readings([(KEEPS, KEEPS)] * 3 + [(FASTER, FASTER), (KEEPS, FASTER), (FASTER, KEEPS)]))
    causing = judged(pairs([("ssffffff", "sssstfff")] * 12))
    whole = [Outcome(run="r", perfgate="1", verdict=own.verdict, exit_status=10, alpha=0.01, beta=0.05, cells=(own,))
             for own in (slower, few, causing)]  # fmt: skip
    assert closing(whole[0]).startswith("REGRESSED: itl_median, slow state +8")
    assert "itl_median, fast state +7.99 %" in closing(whole[0])
    apart = [note.about for note in cell_story(few).notes if "no state in common" in note.text]
    assert apart == ["itl_median, both states"]
    cases = list(ET.fromstring(render_junit(whole[1])).iter("testcase"))  # noqa: S314 (perfgate's own)
    assert {case.attrib["name"] for case in cases} == {
        "itl_median, slow state", "itl_median, both states", "slow_state_share",
    }  # fmt: skip
    assert "slow_state_share 25.00 % to 57.14 %" in closing(whole[2])
    assert [(told.title, told.text) for told in annotate(whole[2])] == [
        ("cell: slow_state_share regressed", "25.00 % to 57.14 %")
    ]


def test_a_metric_has_one_row_whatever_its_states() -> None:
    """Its row is of what needs reading first, of two alike the mean; the others are in a line, and JSON keeps each."""
    cell = judged_on_gpu(in_the_fast_state(4, 1.03), [gate(), gate("tpot_mean", "1%", "5%")])
    section = gates_section(cell_story(cell))
    assert [row[0] for row in section.rows] == [
        "metric", "itl_median, both states", "tpot_mean, both states", "slow_state_share",
    ]  # fmt: skip
    assert section.lines == (
        "itl_median: fast state +3.00 % inconclusive, slow state +0.00 % pass",
        "tpot_mean: slow state +0.00 % pass, fast state +0.00 % pass",
    )
    assert len(cell.gates) == 7
    assert [one.state for one in drawable(judged(pairs([(JUMPS, JUMPS)] * 6, 1.08)))] == ["both"]


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
    ("run_name", "slow", "both", "most_sd"),
    [("block-size-64", -0.0013, -0.0013, 0.0015), ("tp2-other-all-reduce", 0.0810, 0.0846, 0.0075)],
)
def test_recordings_are_compared_within_states(run_name: str, slow: float, both: float, most_sd: float) -> None:
    """Recorded runs give an estimate with a spread far below the gap, and too few pairs block nothing.

    Of the fast state, which two pairs have in common, nothing is said but in the mean over both.
    """
    found = recorded("h200-x4-states.csv", run_name)
    gates = by_state(found)
    for state, change in (("slow", slow), ("both", both)):
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


SETTLED, SLOW_STARTS = "h200-x4-settled.csv", "h200-x2-slow-starts.csv"
H100, TIGHT = "h100-probe.csv", "h100-tight.csv"


def judged_on_gpu(
    trials: Sequence[Trial], gates: Sequence[GatePlan] | None = None, card: str = PROBED_GPUS[0], **changes: Any
) -> CellOutcome:
    """A cell measured where the probe is trusted."""
    gpu = Gpu(name=card, uuid="GPU-1", memory_bytes=1)
    visit = Visit(machine=MACHINE.model_copy(update={"gpus": (gpu,)}), t0_utc="2026-01-01T00:00:00+00:00")
    measured = cell(gates=gates)
    kept = record(measured, trials, **{"orders": "coins", "visits": (visit,), **changes})
    return judge(run([measured]), {measured.cell_id: kept}).cells[0]


def test_the_probe_tells_what_the_steps_show() -> None:
    """The probe's label is that of the side's own step times in at least 99 of 100 recorded iterations of each kind."""
    h200, h100 = PROBED_GPUS
    assert _agreement(h200, PROBED, SLOW_STARTS) == (2106, 2113)
    assert _agreement(h100, H100) == (612, 614)


def _agreement(card: str, *files: str) -> tuple[int, int]:
    """In how many iterations the probe tells what the steps show, of how many that are wholly in one state."""
    agree = known = 0
    rows = {file: csv.DictReader((FIXTURES / file).read_text().splitlines()) for file in files}
    for file, name in dict.fromkeys((file, row["run"]) for file, own in rows.items() for row in own):
        whole = record(cell(), probed(name, file)).pairs()
        labeller = Labeller(whole, [card])
        assert labeller.source == "probe"
        found = labeller.at(len(whole))
        for side, trials in enumerate(zip(*whole, strict=True)):
            steps = np.log([[np.median(own.itl_ns) for own in one.iterations] for one in trials])
            fast, slow = _levels(steps)
            if found is None or slow - fast < math.log(1.015):  # one level tells nothing of the probe
                continue
            labels = found.labels[:, side]
            agree += int(((steps > (fast + slow) / 2) == (labels == 1))[labels >= 0].sum())
            known += int((labels >= 0).sum())
    return agree, known


def _levels(values: NDArray[np.float64]) -> tuple[float, float]:
    """The means of the two groups with the least sum of squares within (Fisher 1958)."""
    row = np.sort(values.ravel())
    within = [row[:cut].var() * cut + row[cut:].var() * (len(row) - cut) for cut in range(1, len(row))]
    cut = int(np.argmin(within)) + 1
    return float(row[:cut].mean()), float(row[cut:].mean())


def test_what_a_probe_repeats_exactly_is_no_state() -> None:
    """On an H100 its readings had levels 0.35 % apart within either state, and trials jump from one to the other."""
    found = judged_on_gpu(probed("same-build-3", H100), card=PROBED_GPUS[1])
    assert found.states is not None
    assert found.states.told_by == "probe"
    assert found.states.gap == pytest.approx(0.0253, abs=0.0005)
    assert found.states.slow == {"base": 9, "head": 9}
    assert by_state(found)["slow"].verdict == "pass"


H200, ON_H100 = PROBED_GPUS
USUAL, WIDER, CLOSE = ("0.1%", "0.5%"), ("0.3%", "1%"), ("0.02%", "0.15%")
RECORDED = [
    ("h100-moe.csv moe-same", ON_H100, WIDER, "pass", 10),
    ("h100-moe.csv moe-plant", ON_H100, WIDER, "regressed", 6),
    ("h100-fp8.csv fp8-same", ON_H100, WIDER, "inconclusive", 6),
    ("h100-fp8.csv two-ranks-same", ON_H100, WIDER, "inconclusive", 4),
    ("h100-verdicts.csv fp8-same", ON_H100, WIDER, "pass", 5),
    ("h100-verdicts.csv fp8-plant", ON_H100, WIDER, "regressed", 6),
    ("h100-verdicts.csv two-ranks-same", ON_H100, WIDER, "pass", 6),
    ("h100-verdicts.csv two-ranks-all-reduce", ON_H100, WIDER, "regressed", 6),
    (f"{H100} same-build-1", ON_H100, USUAL, "inconclusive", 4),
    (f"{H100} same-build-2", ON_H100, USUAL, "inconclusive", 4),
    (f"{H100} same-build-4", ON_H100, USUAL, "pass", 4),
    (f"{PROBED} same-build-2", H200, USUAL, "pass", 8),
    (f"{PROBED} same-build-3", H200, USUAL, "inconclusive", 8),
    (f"{PROBED} same-build-4", H200, USUAL, "pass", 11),
    (f"{PROBED} extra_kernel-1", H200, USUAL, "regressed", 9),
    (f"{PROBED} attention_fallback", H200, USUAL, "regressed", 6),
    (f"{SETTLED} extra_kernel-3", H200, CLOSE, "regressed", 6),
    *((f"{SETTLED} same-build-{n}", H200, USUAL, "pass", pairs) for n, pairs in enumerate((4, 6, 4, 6, 6, 4, 4, 4), 1)),
]
"""Runs in which the probe was read: file and run, the card, margins, the verdict, and the pairs that it rests on."""


@pytest.mark.parametrize(("name", "card", "margins", "verdict", "pairs"), RECORDED, ids=[row[0] for row in RECORDED])
def test_recorded_runs(name: str, card: str, margins: tuple[str, str], verdict: str, pairs: int) -> None:
    """One build is never blocked; a plant of 0.34 to 65 % is, in states, as all was measured, or where none jumped."""
    file, run_name = name.split()
    found = judged_on_gpu(probed(run_name, file), [gate("itl_median", *margins)], card=card)
    assert (found.verdict, max(own.pairs for own in found.gates)) == (verdict, pairs)
    assert found.states is None or found.states.told_by == "probe"


def test_a_trial_that_stayed_slow_is_set_apart_where_warm_up_waited() -> None:
    """The warm-up trials of both sides were slow and later ones fast: so the one pair with a slow trial is left out.

    The head moves the probe, and its levels are as far apart as those of the base.
    """
    found = judged_on_gpu(probed("attention_fallback", SETTLED))
    fast = by_state(found)["fast"]
    assert found.states is not None
    assert (found.states.slow, found.states.common) == ({"base": 0, "head": 1}, {"slow": 0, "fast": 11})
    assert fast.change == pytest.approx(-0.0095, abs=0.0005)
    whole = judged_on_gpu([one for one in probed("attention_fallback", SETTLED) if one.pair is not None])
    assert whole.states is None


def test_warm_up_trials_of_more_iterations_tell_as_well() -> None:
    """Theirs is the declared number, where that of the others was chosen."""
    whole = probed("attention_fallback", SETTLED)
    other = [one.model_copy(update={"iterations": one.iterations * 3}) if one.pair is None else one for one in whole]
    expected, found = judged_on_gpu(whole), judged_on_gpu(other)
    assert expected.states is not None
    assert found.states is not None
    assert found.states.common == expected.states.common
    assert [gate.change for gate in found.gates] == [gate.change for gate in expected.gates]


@pytest.mark.parametrize(("number", "slow"), [(4, 2), (4, 3), (8, 5), (8, 9), (8, 18)])
def test_a_slow_beginning_of_warm_up_tells_the_states(number: int, slow: int) -> None:
    """Warm-up trials have twenty iterations, of which the first few are slow; later ones have fewer, as was chosen.

    A head's trial that stayed slow is set apart then; without the states it would be 3 % slower in one of six pairs.
    """
    own = [one.model_copy(update={"iterations": one.iterations[:number]})
           for one in with_readings([(FASTER, FASTER)] * 3 + [(FASTER, KEEPS)] + [(FASTER, FASTER)] * 3)]  # fmt: skip
    warm = [readings(one.model_copy(update={"iterations": (one.iterations * 20)[:20], "pair": None}),
                     "s" * slow + "f" * (20 - slow)) for one in own[:2]]  # fmt: skip
    for n, one in enumerate(warm):
        own[n] = one
    found = judged_on_gpu(own, [gate("itl_median", "1%", "3%")])
    assert found.states is not None
    assert (found.verdict, found.states.common) == ("pass", {"slow": 0, "fast": 5})


def test_warm_up_trials_of_fewer_iterations_cost_those_of_others_nothing() -> None:
    """As where the first visit had the declared number, and later ones have more, which was chosen then."""
    kept = record(cell(), probed("attention_fallback", SETTLED))
    own, ((base, head),) = kept.pairs(), kept.warmed_up()
    short = tuple(one.model_copy(update={"iterations": one.iterations[:4]}) for one in (base, head))
    alone, beside, none = (
        Labeller(own, PROBED_GPUS[:1], before=before).at(len(own))
        for before in ([(base, head)], [(short[0], short[1]), (base, head)], [(short[0], short[1])])
    )
    assert none is None
    assert alone is not None
    assert beside is not None
    assert beside.labels.tolist() == alone.labels.tolist()


@pytest.mark.parametrize(("number", "at"), [(2, 0), (2, 1), (8, 0), (8, 1), (20, 0), (20, 3)])
def test_a_disturbed_reading_in_warm_up_is_no_level(number: int, at: int) -> None:
    """Both builds are in one state, and the head moves the probe; however many iterations warm-up trials have."""
    trials = [readings(one, FASTER) for one in pairs([(FASTER, FASTER)] * 13)]
    moved = Probes((204_000,), (204_000,))
    own = [changed(one, range(8), probe_ns=moved) if one.subject == "head" else one for one in trials]
    first = (own[0].iterations * 3)[:number]
    warm = [own[0].model_copy(update={"iterations": first, "pair": None}),
            own[1].model_copy(update={"iterations": (own[1].iterations * 3)[:number], "pair": None})]  # fmt: skip
    for disturbed in (Probes((204_000,), (179_000,)), moved):
        begun = [changed(warm[0], [at], probe_ns=disturbed), warm[1]]
        found = judged_on_gpu([*begun, *own[2:]], [gate("itl_median", "1%", "4%")])
        assert found.states is None
        assert found.verdict == "pass"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_quarter_of_a_percent_is_blocked(number: int) -> None:
    """Each recorded run of a plant of 0.44 % blocks it at six pairs, and one of 0.25 % with the same noise as well."""
    tight = [gate("itl_median", "0.02%", "0.15%")]
    measured = probed(f"tight-{number}", TIGHT)
    (whole,), (part,) = (judged_on_gpu(own, tight, card=PROBED_GPUS[1]).gates for own in (measured, smaller(measured)))
    assert [(own.verdict, own.pairs) for own in (whole, part)] == [("regressed", 6)] * 2
    assert whole.change is not None
    assert part.change is not None
    assert whole.pair_sd is not None
    assert whole.change - part.change == pytest.approx(0.0019, abs=0.0001)
    assert whole.pair_sd < 0.00101


@pytest.mark.parametrize(("name", "own"), [("same-build-3", 0.0), ("extra_kernel-3-1", 0.00118)])
def test_a_quarter_of_a_percent_is_blocked_while_states_jump(name: str, own: float) -> None:
    """Both recorded runs of twelve pairs on H100s that jump block it, with what the head cost by itself taken out."""
    tight = [gate("itl_median", "0.02%", "0.15%")]
    found = judged_on_gpu(slower(probed(name, H100), 1.0025 / (1 + own)), tight, card=PROBED_GPUS[1])
    both = max((own for own in found.gates if own.state), key=lambda own: own.pairs)
    assert found.verdict == both.verdict == "regressed"
    assert both.change == pytest.approx(0.0025, abs=0.0003)
    assert both.pair_sd is not None
    assert both.pair_sd < 0.0008


def smaller(trials: Sequence[Trial]) -> list[Trial]:
    """What the head's steps would have been for 0.25 % in place of 0.443 %, the mean of the four runs."""
    return slower(trials, 1.0025 / 1.00443)


def slower(trials: Sequence[Trial], factor: float) -> list[Trial]:
    """The same with every step of the head so many times as long."""

    def longer(own: Iteration) -> Iteration:
        return own.model_copy(update={"itl_ns": tuple(round(step * factor) for step in own.itl_ns)})

    return [
        one if one.subject == "base"
        else one.model_copy(update={"iterations": tuple(map(longer, one.iterations))})
        for one in trials
    ]  # fmt: skip


@pytest.mark.parametrize("left", ["wwwwwwww", "fwwwwwww"])
def test_a_trial_that_is_in_no_state_lets_nothing_pass(left: str) -> None:
    """A head that is now and then on neither level, or in one iteration alone, does not pass by being left out."""
    trials = with_readings([(JUMPS, JUMPS)] * 8)
    for at in (5, 13):
        trials[at] = readings(trials[at], left)
    found = judged_on_gpu(trials)
    share = by_state(found)["slow_state_share"]
    assert (found.verdict, codes(share.reasons)) == ("inconclusive", ["states-undecided"])


def test_a_rarer_state_passes_by_itself() -> None:
    """A state that four pairs have passes by them alone, and does not block by the other."""
    states = [(JUMPS, JUMPS)] * 4 + [(FASTER, FASTER)] * 4
    same, slower = by_state(judged(pairs(states))), by_state(judged(pairs(states, 1.01)))
    assert (same["slow"].pairs, same["slow"].verdict, same["fast"].verdict) == (4, "pass", "pass")
    assert (slower["slow"].verdict, slower["fast"].verdict) == ("inconclusive", "regressed")


@pytest.mark.parametrize(
    ("late", "common"), [([("sssstfff", FASTER), (FASTER, "sssstfff")], 0), ([("ssstffff", "ssstffff")] * 2, 2)]
)
def test_states_that_show_at_a_later_look(late: list[tuple[str, str]], common: int) -> None:
    """Pairs are counted in the states as the last look knows them, also where an earlier one knew of none."""
    found = judged(pairs([(FASTER, FASTER)] * 4 + late))
    assert {own.state: own.pairs for own in found.gates if own.state} == {
        "fast": 6, **({"both": 6} if common else {}),
    }  # fmt: skip
    assert found.states is not None
    assert found.states.common == {"slow": common, "fast": 6}
    assert found.verdict == "pass"


def readings(taken: Trial, states: str) -> Trial:
    """A trial with the probe's readings in these states; ``w`` leaves the fast one for neither."""
    both = {"s": (215_000, 215_000), "f": (179_000, 179_000), "t": (215_000, 179_000), "w": (190_000, 197_000)}
    probed = [Probes((before,), (after,)) for before, after in (both[state] for state in states)]
    own = zip(taken.iterations, probed, strict=True)
    return taken.model_copy(update={"iterations": tuple(i.model_copy(update={"probe_ns": p}) for i, p in own)})


def with_readings(states: Sequence[tuple[str, str]], ratio: float = 1.0) -> list[Trial]:
    """Pairs in these states, with the probe's readings, the head slower by a ratio."""
    names = itertools.chain.from_iterable(states)
    return [readings(taken, own) for taken, own in zip(pairs(states, ratio), names, strict=True)]


def changed(taken: Trial, at: Sequence[int], **fields: Any) -> Trial:
    """A trial with other fields in the iterations of these numbers."""
    its = (own.model_copy(update=fields if n in at else {}) for n, own in enumerate(taken.iterations))
    return taken.model_copy(update={"iterations": tuple(its)})


APART = [(FASTER, KEEPS), (KEEPS, FASTER), (KEEPS, KEEPS), (FASTER, KEEPS), (KEEPS, FASTER), (JUMPS, KEEPS)]
"""Six pairs, of which two have the slow state in common and four none."""


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "inconclusive"), (1.02, "inconclusive"), (1.5, "regressed")])
@pytest.mark.parametrize("states", [APART, [(KEEPS, FASTER), (FASTER, KEEPS)] * 3])
def test_a_slowdown_beyond_the_states_needs_no_state_in_common(
    states: list[tuple[str, str]], ratio: float, verdict: str
) -> None:
    """As long as few pairs have one, all block as they were measured, and let nothing pass."""
    found = judged_on_gpu(with_readings(states, ratio), [gate(must_catch="6%")])
    mean, blocks, common = found.gates[0], verdict == "regressed", 2 if states is APART else 0

    shown = blocks or not common
    assert (found.verdict, mean.verdict, mean.pairs) == (verdict, verdict, 6 if shown else common)
    assert mean.state == ("" if shown else "slow")
    assert mean.change == pytest.approx(ratio - 1, abs=0.02)
    does = "block" if blocks else "could only block"
    told = f"{6 - common} of 6 pairs have no state in common: all 6 {does}, as they were measured"
    assert told in [note.text for note in mean.cautions]


def test_pairs_without_a_common_state_are_in_no_figure() -> None:
    """One build passes by five pairs in one state; seven more whose head alone was fast, or slow, move no figure."""
    rows = []
    for fast, slow in ((5, 2), (2, 5)):
        states = [(JUMPS, KEEPS), *[(KEEPS, KEEPS)] * 4, *[(KEEPS, FASTER)] * fast, *[(FASTER, KEEPS)] * slow]
        found = by_state(judged_on_gpu(with_readings(states), [gate("itl_median", "0.02%", "6%")]))
        rows.append(found["slow"])
        assert "both" not in found

    first, second = rows
    figures = ("base", "head", "change", "change_high", "pair_sd", "detectable")
    assert [getattr(first, name) for name in figures] == pytest.approx([getattr(second, name) for name in figures])
    assert (first.verdict, first.pairs) == ("pass", 5)
    assert codes(first.cautions) == ["near-margins", "two-states"]
    assert first.change == pytest.approx(0, abs=0.0006)
    assert first.pair_sd is not None
    assert (first.change_low, first.pair_sd < 0.002) == (None, True)


def test_pairs_with_a_common_state_count_alone_once_they_can_block() -> None:
    """With six pairs that have a state in common the others are left out of the mean: they only take from it."""
    found = judged_on_gpu(with_readings([*APART[:2], *[(KEEPS, KEEPS)] * 5, (JUMPS, KEEPS)], 1.02))
    slow = by_state(found)["slow"]

    assert (slow.verdict, slow.pairs, codes(slow.cautions)) == ("regressed", 6, [])


def test_nothing_passes_that_all_pairs_together_say_is_slower() -> None:
    """Five pairs with a state in common exclude 6 %, and three that have none are slower by half beyond the states."""
    states = [("ssssffff", JUMPS), *[(KEEPS, KEEPS)] * 4, *[(FASTER, KEEPS)] * 3]
    same = with_readings(states)
    late = [*same[:10], *slower(same[10:], 1.5)]
    gates = [gate("itl_median", "0.1%", "6%")]
    cell = judged_on_gpu(late, gates)
    mean, never = by_state(cell)["slow"], by_state(judged_on_gpu(same, gates))["slow"]

    told = [gate.steps for gate in cell_story(cell).gates if "those that have none" in gate.steps]
    assert told
    assert not any("is not below must_catch" in line for line in told)
    assert (mean.verdict, never.verdict) == ("inconclusive", "pass")
    (why,) = mean.reasons
    assert why.code == "slower-apart"
    assert (mean.change_high, mean.passed_at, mean.q) == (None, None, 1.0)
    assert why.text.startswith("pairs with a state in common exclude 6 %; with those that have none all 8 are slower")


def test_a_recorded_plant_of_half_a_step_is_blocked_at_six_pairs() -> None:
    """On an H100 casts to FP8 that fall back cost 50 to 69 % in each pair; three of six had a state in common."""
    trials = [one for one in probed("fp8-plant", "h100-fp8.csv") if one.pair is not None and one.pair < 6]
    found = judged_on_gpu(trials, [gate(ignorable="0.3%", must_catch="1%")], card=PROBED_GPUS[1])
    mean = found.gates[0]

    assert (found.verdict, mean.verdict, mean.pairs) == ("regressed", "regressed", 6)
    assert mean.change_low is not None
    assert mean.change_low > 0.35


def test_a_state_whose_steps_took_no_time() -> None:
    """Steps of zero in one state alone have no ratio there: nothing is measured, and nothing passes."""
    trials = with_readings([(JUMPS, JUMPS)] * 6)
    trials[3] = changed(trials[3], (0, 1), itl_ns=(0,) * 8)
    found = judged_on_gpu(trials)
    assert found.verdict == "not-measured"
    assert [(gate.verdict, codes(gate.reasons)) for gate in found.gates] == [("not-measured", ["metric-unusable"])]


@pytest.mark.parametrize("probe", [None, Probes((0,), (179_000,))])
def test_an_iteration_without_a_reading(probe: Probes | None) -> None:
    """One reading that is not there, or says nothing, leaves the steps' own times to tell the states."""
    trials = with_readings(BOTH_STATES)
    trials[5] = changed(trials[5], (4,), probe_ns=probe)
    found = judged_on_gpu(trials).states
    assert found is not None
    assert found.told_by == "steps"


def test_what_a_slow_head_could_lose_where_steps_tell_nothing() -> None:
    """Where steps are too few to be split the probe's own gap bounds what being slow more often could cost."""
    few = [changed(one, range(8), itl_ns=one.iterations[0].itl_ns[:3]) for one in with_readings(BOTH_STATES)]
    found = judged_on_gpu(few).states
    assert found is not None
    assert found.gap == pytest.approx(215 / 179 - 1)
    assert (found.at_most > 0.005, found.everywhere) == (True, False)


def test_the_base_says_how_far_the_states_are_apart() -> None:
    """A head that waits for its host is slower in the fast state: the machine's gap is what the base's steps show."""
    trials = with_readings(BOTH_STATES)
    for n, states in enumerate(itertools.chain.from_iterable(BOTH_STATES)):
        for at in (at for at, state in enumerate(states) if n % 2 and state == "f"):
            waited = tuple(round(1.1 * step) for step in trials[n].iterations[at].itl_ns)
            trials[n] = changed(trials[n], (at,), itl_ns=waited)
    found = judged_on_gpu(trials).states
    assert found is not None
    assert found.gap == pytest.approx(GAP - 1, abs=0.001)


def test_states_need_iterations_that_can_be_split() -> None:
    """Iterations of fewer than four decode steps tell no states."""
    few = [one.model_copy(update={"iterations": tuple(own.model_copy(update={"itl_ns": own.itl_ns[:3]})
                                                      for own in one.iterations)})
           for one in pairs(BOTH_STATES)]  # fmt: skip
    assert judged(few).states is None
    assert list(itertools.islice(few, 1))


def on_cards(levels: Sequence[float], states: Sequence[str]) -> list[tuple[Trial, Trial]]:
    """A pair on each card, both trials in one state: the probe reads that much more there, and a fifth more if slow."""
    rng = np.random.default_rng(5)

    def one(index: int, pair: int, side: Side, level: float, states_of: str) -> Trial:
        readings = [
            [
                (round(180_000 * level * (1.2 if state == "s" else 1.0) * np.exp(rng.normal(0, 0.0005))),)
                for _ in range(2)
            ]
            for state in states_of
        ]
        iterations = tuple(iteration(probe_ns=Probes(*own)) for own in readings)
        return trial(index, pair, side, iterations=iterations, gpus=(f"GPU-{pair}",))

    return [
        (one(2 * n, n, "base", level, state), one(2 * n + 1, n, "head", level, state))
        for n, (level, state) in enumerate(zip(levels, states, strict=True))
    ]


def test_cards_are_no_states() -> None:
    """Cards of one kind read 1.5 % apart: that is not taken for a state; a state on one of them still is."""
    levels = [1.0, 1.015, 1.0, 1.012]
    assert Labeller(on_cards(levels, [FASTER] * 4), ["NVIDIA H200"]).at(4) is None
    found = Labeller(on_cards(levels, [FASTER, FASTER, KEEPS, JUMPS.replace("t", "s")]), ["NVIDIA H200"]).at(4)
    assert found is not None
    slow = found.labels == 1
    assert slow[:, 0].sum(axis=-1).tolist() == [0, 0, 8, 3]
