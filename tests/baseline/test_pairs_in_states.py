"""A head beside an anchor on GPUs that change their state: pairs are compared in the states that both trials had."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made import BASE, HEAD, MACHINE, STEP_S, codes, gate, iteration, only, run, trial
from probed_runs import FIXTURES, probed
from stored import held_beside, measured, said, visit, visits_beside

from perfgate.baseline import promotion
from perfgate.baseline.baseline_page import list_document
from perfgate.baseline.lineage import Baseline, draft
from perfgate.baseline.pairs_in_states import PairsInStates
from perfgate.baseline.store import Stored, read
from perfgate.history.points import points_of_baseline
from perfgate.judge.cell_verdict import judge
from perfgate.judge.evidence import RecordSide
from perfgate.judge.machine_states import Labeller
from perfgate.machine.fingerprint import Gpu
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import PROBED_GPUS, Probes, Trial
from perfgate.record.run_record import Record, Visit
from perfgate.report.story import tell
from perfgate.scenario.plan import Plan, orders_bound

H100 = PROBED_GPUS[1]
GATES = [gate("itl_median", "0.1%", "0.5%")]
GAP, READINGS_NS = 1.025, {"s": 232_000, "f": 197_000}
"""Steps of the slow state by those of the fast one, and what the probe takes in either."""
FF, SS, FS, SF = ("f", "f"), ("s", "s"), ("f", "s"), ("s", "f")
"""The states of a pair, anchor and head."""
ALIKE = (FF, SS, FF, FF, SS, FF)
APART = (FS, SS, SF, FF, FS, FF)
LEANING = (FS, FS, FS, FS, FF, SS)


def taken(index: int, pair: int | None, side: Side, state: str, slower: float = 0.0, **changes: Any) -> Trial:
    """A trial of eight iterations in one state, or of one state after the other."""
    rng = np.random.default_rng([index, side == "head"])
    restart = STEP_S * math.exp(slower + rng.normal(0, 0.0002))
    rows = []
    for own in (state * 8)[:8] if len(state) == 1 else state:
        level = round(restart * (GAP if own == "s" else 1.0) * 1e9)
        reading = READINGS_NS[own]
        rows.append(iteration(itl_ns=(level,) * 8, probe_ns=Probes((reading,), (reading,))))
    return trial(index, pair, side, iterations=tuple(rows), **changes)


def record(
    states: Sequence[tuple[str, str]], slower: float = 0.0, card: str = "A", model: str = H100, **changes: Any
) -> Record:
    """Pairs of an anchor and a head in these states, on a card of that model."""
    both: list[Trial] = []
    for n, (anchor, head) in enumerate(states):
        seed = 100 * sum(card.encode())
        both.append(taken(seed + 2 * n, n, "base", anchor, versions={"vllm": "0.8"}))
        both.append(taken(seed + 2 * n + 1, n, "head", head, slower))
    return of_trials(both, card, model, **changes)


def of_trials(both: Sequence[Trial], card: str, model: str = H100, **changes: Any) -> Record:
    """A record of these trials on that card."""
    gpu = Gpu(name=model, uuid=f"GPU-{card}")
    where = Visit(machine=MACHINE.model_copy(update={"gpus": (gpu,)}), t0_utc=visit(1).t0_utc)
    cell = measured("cell", changes.pop("gates", GATES))
    numbered = [one.model_copy(update={"index": n}) for n, one in enumerate(both)]
    about = {"cell": cell, "subjects": {"base": BASE, "head": HEAD}, "seed": 1, "orders": "coins"}
    return Record(**{**about, "visits": (where,), "trials": tuple(numbered), **changes})


def visits(states: Sequence[tuple[str, str]], model: str = H100, cards: str = "ABCD", **changes: Any) -> Baseline:
    """Visits on these cards, all in these states."""
    return visits_beside(record(states, card=card, model=model, **changes) for card in cards)


EIGHT = "ABCDFGHI"
"""Cards of as many visits as a pass needs."""


@pytest.mark.parametrize(("slower", "verdict"), [(0.0, "pass"), (0.009, "regressed")])
def test_pairs_in_two_states_say_what_pairs_in_one_do(slower: float, verdict: str) -> None:
    """Half of the pairs of visits and head are off by the gap of 2.5 %: what both trials had in common is not."""
    still, jumping = (held_beside(record(states, slower, "E"), visits(states)) for states in (ALIKE, APART))

    assert (said(still), said(jumping)) == (verdict, verdict)
    assert only(jumping).change == pytest.approx(math.expm1(slower), abs=6e-4)
    seen = jumping.cells[0].states
    assert seen is not None
    assert (seen.told_by, seen.common) == ("probe", {"slow": 1, "fast": 2})
    assert seen.gap == pytest.approx(GAP - 1, abs=1e-3)


def test_a_trial_that_jumps_counts_with_the_state_that_it_shares() -> None:
    """Iterations in the other state, and that in which it changed, are left out of both sides."""
    pairs = [taken(0, 0, "base", "ssssffff"), taken(1, 0, "head", "f", 0.009)]
    pairs += [one for n in range(1, 6) for one in (taken(2 * n, n, "base", "f"), taken(2 * n + 1, n, "head", "s"))]

    found = PairsInStates.of(of_trials(pairs, "A"))

    assert found is not None
    (ratio,) = found.ratios(METRICS["itl_median"]) or ()
    assert math.log(ratio) == pytest.approx(0.009, abs=0.002)
    assert found.ratios(METRICS["start_time"]) is None


def test_a_visit_keeps_what_its_pairs_had_in_common() -> None:
    """A baseline has one ratio for each such pair, and where no states were seen the file is what it was."""
    (jumping,) = visits_beside([record(APART)]).visits
    still = visits_beside([record([FF] * 6)])

    assert jumping.anchor is not None
    assert [len(jumping.anchor.in_states["itl_median"]), len(jumping.anchor.values["itl_median"])] == [3, 6]
    assert "start_time" not in jumping.anchor.in_states
    assert jumping.ratios("itl_median", jumping.anchor.build) == jumping.anchor.in_states["itl_median"]
    assert "in_states" not in still.text


def test_no_pair_with_a_common_state_is_inconclusive() -> None:
    """Nothing says how head and anchor compare, and nothing is made up from pairs in two states."""
    outcome = held_beside(record([FS, SF] * 3, card="E"), visits(ALIKE))

    assert outcome.verdict == "inconclusive"
    assert codes(only(outcome).reasons) == ["states-undecided"]


def test_visits_of_which_none_tells_the_ratio_are_no_baseline() -> None:
    """The reason is not that they lack the metric."""
    outcome = held_beside(record(ALIKE, card="E"), visits([FS, SF] * 3))

    (reason,) = only(outcome).reasons
    assert (outcome.verdict, reason.code) == ("not-comparable", "no-baseline")
    assert "has a pair in one state of the GPU to tell itl_median" in reason.text


def test_a_head_that_is_slow_more_often_does_not_pass() -> None:
    """Within states it is as fast as the visits: that it causes the slow one shows in the pairs that differ."""
    outcome = held_beside(record(LEANING, card="E"), visits(ALIKE, cards=EIGHT))
    advised = held_beside(record(LEANING, card="E"), visits(ALIKE, cards="AB"))

    assert (only(outcome).verdict, outcome.verdict) == ("pass", "inconclusive")
    assert (advised.verdict, advised.would_be) == ("advisory", "inconclusive")
    (reason,) = outcome.cells[0].reasons
    assert (reason.code, "in 4 pairs and less often in 0" in reason.text) == ("states-undecided", True)


def test_an_order_that_was_not_drawn_leans_to_nobody() -> None:
    """Where sides took turns, chance alone does not explain who is slow; the head passes with the caution."""
    outcome = held_beside(record(LEANING, card="E", orders="blocks"), visits(ALIKE))

    assert said(outcome) == "pass"
    assert "two-states" in codes(outcome.cells[0].cautions)


def test_a_regression_is_told_though_the_head_leans() -> None:
    """That it is in the slow state more often excuses nothing that it is slower by within states."""
    outcome = held_beside(record(LEANING, 0.009, "E"), visits(ALIKE))

    assert said(outcome) == "regressed"
    assert "states-undecided" in codes(outcome.cells[0].reasons)


def test_what_follows_no_states_leans_to_nobody() -> None:
    """A cell that gates start-up alone passes whatever state its GPU is in."""
    gates = [gate("start_time", "1%", "5%")]
    baseline = visits(ALIKE, gates=gates)

    outcome = held_beside(record(LEANING, card="E", gates=gates), baseline)

    assert (said(outcome), outcome.cells[0].states) == ("pass", None)


def test_a_trial_in_neither_state_keeps_from_passing() -> None:
    """It was compared with nothing, so that nobody knows what its build does then."""
    odd = Probes((214_000,), (214_000,))
    pairs = list(record(ALIKE, card="E").trials)
    pairs[1] = pairs[1].model_copy(update={
        "iterations": tuple(own.model_copy(update={"probe_ns": odd}) for own in pairs[1].iterations)
    })  # fmt: skip

    outcome = held_beside(of_trials(pairs, "E"), visits(ALIKE, cards=EIGHT))

    assert outcome.verdict == "inconclusive"
    assert codes(outcome.cells[0].reasons) == ["states-undecided"]


@pytest.mark.parametrize(("bound", "leans"), [(1, True), (3, False)])
def test_orders_of_several_heads_are_drawn_among_more(bound: int, leans: bool) -> None:  # noqa: FBT001 (parameter)
    """Four one-way pairs lean by fair coins, and not where they could have been drawn so three times as likely."""
    found = PairsInStates.of(record(LEANING))

    assert found is not None
    assert found.bound == pytest.approx(orders_bound(1))
    assert (replace(found, bound=bound).lean is not None) == leans


def test_each_visit_of_a_record_keeps_its_own_pairs() -> None:
    """A run that was resumed has two visits, whose states are told together."""
    one, two = record(APART), record([FF, FF, SS, FS, FF, FF], 0.009)
    later = [t.model_copy(update={"visit": 1, "index": 12 + t.index, "pair": 6 + (t.pair or 0)}) for t in two.trials]
    both = of_trials([*one.trials, *later], "A", visits=(*one.visits, *one.visits))

    first, second = (visit.anchor for visit in draft(both, "head", "salt", anchored=True).visits)

    assert first is not None
    assert second is not None
    assert [len(own.in_states["itl_median"]) for own in (first, second)] == [3, 5]
    assert min(second.in_states["itl_median"]) > 1.005 > max(first.in_states["itl_median"])


def without_tpot(side: Record) -> Record:
    """The same, of which a trial of the head generated one token a request."""
    cut = [one.model_copy(update={"output_tokens": 1}) for one in side.trials[1].iterations]
    taken = [side.trials[0], side.trials[1].model_copy(update={"iterations": tuple(cut)}), *side.trials[2:]]
    return side.model_copy(update={"trials": tuple(taken)})


@pytest.mark.parametrize("states", [APART, [FF] * 6, [FS, SF] * 3])
def test_a_metric_that_a_trial_lacks_is_missing_in_any_state(states: Sequence[tuple[str, str]]) -> None:
    """It is not taken for pairs without a common state, and no baseline keeps what others of its pairs say."""
    gates = [*GATES, gate("tpot_mean", "0.1%", "0.5%")]
    lacking = without_tpot(record(states, card="E", gates=gates))

    outcome = held_beside(lacking, visits(ALIKE, gates=gates))

    (missing,) = (found for found in outcome.cells[0].gates if found.metric == "tpot_mean")
    assert (missing.verdict, codes(missing.reasons)) == ("not-measured", ["metric-missing"])
    (kept,) = visits_beside([lacking]).visits
    assert kept.anchor is not None
    assert "tpot_mean" not in kept.values
    assert "tpot_mean" not in kept.anchor.in_states


def promoted(states: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """What becomes of another build in these states beside eight visits of the one before: kind and reason."""
    side = record(states, card="E")
    other = [
        one.model_copy(update={"versions": {"vllm": "9.9"}}) if one.subject == "head" else one for one in side.trials
    ]
    side = side.model_copy(update={"trials": tuple(other)})
    outcome = judge(run([side.cell], subjects=side.subjects), {side.cell.cell_id: side}).cells[0]
    candidate = promotion._Candidate(RecordSide(side, "head", fixed=True), outcome, Path("none"), None)
    entry = draft(side, "head", "salt", anchored=True)
    return promotion._compare(candidate, entry, visits(ALIKE, cards=EIGHT), Plan(cells=(side.cell,), seed=1))[:2]


def test_another_build_that_passes_within_states_is_not_equivalent() -> None:
    """How often it is in the slow state is open, so that promoting it takes a reason."""
    assert promoted([FF] * 6) == ("equivalent", "it passes every gate against the baseline")
    assert promoted([FS, FS, FS, FF, FF, SS])[0] == "changed"


UNTOLD = "NVIDIA X1"
"""No probe is trusted on it."""


def test_where_no_probe_tells_states_pairs_must_agree_to_block() -> None:
    """Four of six pairs are off by the gap, which no visit was: unchanged, it would be blocked by their median."""
    unchanged = held_beside(record([FS, FS, FS, FS, FF, FF], card="E", model=UNTOLD), visits(ALIKE, UNTOLD))
    slower = held_beside(record(ALIKE, 0.009, "E", UNTOLD), visits(ALIKE, UNTOLD))

    assert unchanged.verdict == "inconclusive"
    assert only(unchanged).change == pytest.approx(GAP - 1, abs=2e-3)
    assert [(one.code, one.text) for one in only(unchanged).reasons] == [
        ("states-undecided", "the median of 6 pairs of head and anchor is slower; against it: 2")
    ]
    assert said(slower) == "regressed"


@pytest.mark.parametrize("model", [UNTOLD, H100])
@pytest.mark.parametrize("slow", [3, 4])
def test_where_no_probe_tells_states_pairs_must_agree_to_pass(slow: int, model: str) -> None:
    """A head 0.9 % slower is no improvement where its anchor alone was slow in some trials, which shows no states."""
    states = [SF] * slow + [FF] * (6 - slow)

    outcome = held_beside(record(states, 0.009, "E", model), visits([FF] * 6, model))

    assert outcome.verdict == "inconclusive"
    assert codes(only(outcome).reasons) == ["states-undecided"]
    assert f"passes; against it: {6 - slow}" in only(outcome).reasons[0].text


def test_steps_tell_no_states_beside_an_anchor() -> None:
    """Few pairs show no levels of steps, so that all pairs count, and must agree."""
    taken = record(ALIKE, card="E", model=UNTOLD)

    assert Labeller(taken.pairs(), [UNTOLD]).at(6) is not None
    assert PairsInStates.of(taken) is None


@pytest.mark.parametrize(
    ("states", "model", "verdict"),
    [(ALIKE, H100, "regressed"), ((FF,) * 6, H100, "regressed"), ((FF,) * 6, UNTOLD, "inconclusive")],
)
def test_pairs_in_told_states_need_not_agree(states: Sequence[tuple[str, str]], model: str, verdict: str) -> None:
    """One start was as fast as the visits: what states explain is out of the pairs, or the probe saw one state."""
    pairs = list(record(states, 0.02, "E", model).trials)
    pairs[1] = taken(1, 0, "head", "f")

    assert said(held_beside(of_trials(pairs, "E", model), visits(states, model))) == verdict


def test_a_floor_is_a_margin_for_single_pairs_too() -> None:
    """Below 100 us nothing is a slowdown: a head 0.9 % slower is 45 us off, and passes."""
    gates = [gate("itl_median", "0.1%", "0.5%", floor="100us")]
    head = record([FF] * 6, 0.009, "E", UNTOLD, gates=gates)

    assert said(held_beside(head, visits([FF] * 6, UNTOLD, gates=gates))) == "pass"


def test_a_verdict_against_visits_says_so_in_words() -> None:
    """What counts is a visit, however many pairs it has."""
    *_, much, why = tell(held_beside(record(ALIKE, card="E"), visits(ALIKE, cards=EIGHT))).sentences

    assert "against 8 visits; " in much
    assert why.startswith("Each visit counts once, and ")


def test_a_baseline_says_how_many_visits_tell_of_the_anchor() -> None:
    """One whose pairs had no state in common does not count for ratios, and the verdict says why it advises."""
    baseline = visits_beside([*(record(ALIKE, card=card) for card in "ABC"), record([FS, SF] * 3, card="D")])

    outcome = held_beside(record(ALIKE, card="E"), baseline)

    assert "beside the anchor after 5 more" in str(list_document([Stored("", baseline)]))
    (reason,) = outcome.cells[0].reasons
    assert reason.text == "3 visits of the 8 that a pass needs; 1 more say nothing of itl_median"
    assert (outcome.verdict, outcome.would_be) == ("advisory", "pass")


def test_a_history_shows_the_ratio_within_states() -> None:
    """A night on a GPU that jumped is no outlier, and one whose pairs had nothing in common has no ratio."""
    jumping, apart = (visits_beside([record(states, 0.009)]) for states in (APART, [FS, SF] * 3))

    (shown,) = (point for point in points_of_baseline(jumping) if point.metric == "itl_median")
    (untold,) = (point for point in points_of_baseline(apart) if point.metric == "itl_median")

    assert shown.ratio == pytest.approx(0.009, abs=6e-4)
    assert (untold.ratio, untold.restarts) == (None, 6)


RECORDED_GATES = [
    gate("itl_median", "0.1%", "0.5%"), gate("tpot_mean", "0.5%", "2%"), gate("ttft_median", "2%", "8%")
]  # fmt: skip


def recorded(name: str, card: str) -> Record:
    """A run on an H100 beside an anchor, as it was recorded on 2026-11-26."""
    both = [
        one.model_copy(update={"versions": {"vllm": "0.8"}}) if one.subject == "base" else one
        for one in probed(name, "h100-anchors.csv")
    ]
    return of_trials(both, card, gates=RECORDED_GATES)


def test_recorded_visits_on_four_cards_pass_their_build_and_tell_a_plant() -> None:
    """Two hosts jumped and one did not; the head's host jumps: pairs in one state tell 46 kernels from none."""
    baseline = visits_beside([recorded(f"visit-{number}", card) for number, card in enumerate("ABCD", 1)])

    same, plant = (held_beside(recorded(name, name), baseline) for name in ("same", "plant"))

    steps = plant.cells[0].gates[0]
    assert (said(same.cells[0].gates[0]), said(steps)) == ("pass", "regressed")
    assert (steps.metric, codes(steps.reasons)) == ("itl_median", ["would-regress"])
    assert steps.change_low is not None
    assert 0.007 < steps.change_low < 0.0112 == pytest.approx(steps.change, abs=2e-4)
    assert np.std(ratios(baseline), ddof=1) < 4e-4


def ratios(baseline: Baseline) -> list[float]:
    """The ln(build / anchor) of each visit."""
    anchor = baseline.visits[0].anchor
    assert anchor is not None
    return [math.log(*one.values("itl_median", anchor.build)) for one in baseline.occupations]


def test_the_file_that_those_visits_made() -> None:
    """It is read and written as it is, and its visits say of the build what their recorded trials do."""
    (file,) = (FIXTURES / "baselines").glob("*/llama-8b-decode.json")

    baseline = read(file).baseline

    assert baseline.text == file.read_text()
    assert [len(visit.anchor.in_states) > 0 for visit in baseline.visits if visit.anchor] == [True, True, False, False]
    again = visits_beside([recorded(f"visit-{number}", card) for number, card in enumerate("ABCD", 1)])
    assert ratios(baseline) == pytest.approx(ratios(again), abs=1e-4)
