"""A head beside an anchor on GPUs that change their state: pairs are compared in the states that both trials had."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hand_made import BASE, HEAD, MACHINE, STEP_S, codes, gate, iteration, only, run, trial
from probed_runs import FIXTURES, probed
from stored import measured, visit

from perfgate.baseline.lineage import Baseline, Entry, draft
from perfgate.baseline.pairs_in_states import PairsInStates
from perfgate.baseline.store import read
from perfgate.baseline.visit_comparison import judge_against
from perfgate.history.points import points_of_baseline
from perfgate.judge.outcome import Outcome
from perfgate.machine.fingerprint import Gpu
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import PROBED_GPUS, Probes, Side, Trial
from perfgate.record.run_record import Record, Run, Visit

H100 = PROBED_GPUS[1]
GATES = [gate("itl_median", "0.1%", "0.5%")]
GAP, READINGS_NS = 1.025, {"s": 232_000, "f": 197_000}
"""Steps of the slow state by those of the fast one, and what the probe takes in either."""
FF, SS, FS, SF = ("f", "f"), ("s", "s"), ("f", "s"), ("s", "f")
"""The states of a pair, anchor and head."""
ALIKE = (FF, SS, FF, FF, SS, FF)
APART = (FS, SS, SF, FF, FS, FF)


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


def lineage(records: Sequence[Record]) -> Baseline:
    """A baseline of these visits."""
    entries: list[Entry] = []
    for one in records:
        entry = draft(one, "head", "salt", anchored=True)
        follows: dict[str, Any] = {"kind": "equivalent", "cell": None, "machine": None, "salt": ""}
        entries.append(entry.model_copy(update=follows) if entries else entry)
    return Baseline(entries=tuple(entries))


def visits(states: Sequence[tuple[str, str]], model: str = H100) -> Baseline:
    """Visits on four cards, all in these states."""
    return lineage([record(states, card=card, model=model) for card in "ABCD"])


def held(side: Record, baseline: Baseline) -> Outcome:
    """The verdict of a head beside its anchor."""
    manifest: Run = run([side.cell], subjects=side.subjects).model_copy(update={"against": {}})
    return judge_against(manifest, {side.cell.cell_id: side}, {side.cell.cell_id: (baseline,)})


@pytest.mark.parametrize(("slower", "verdict"), [(0.0, "pass"), (0.009, "regressed")])
def test_pairs_in_two_states_say_what_pairs_in_one_do(slower: float, verdict: str) -> None:
    """Half of the pairs of visits and head are off by the gap of 2.5 %: what both trials had in common is not."""
    still, jumping = (held(record(states, slower, "E"), visits(states)) for states in (ALIKE, APART))

    assert (still.verdict, jumping.verdict) == (verdict, verdict)
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
    (jumping,) = lineage([record(APART)]).visits
    still = lineage([record([FF] * 6)])

    assert jumping.anchor is not None
    assert [len(jumping.anchor.in_states["itl_median"]), len(jumping.anchor.values["itl_median"])] == [3, 6]
    assert "start_time" not in jumping.anchor.in_states
    assert jumping.ratios("itl_median", jumping.anchor.build) == jumping.anchor.in_states["itl_median"]
    assert "in_states" not in still.text


def test_no_pair_with_a_common_state_is_inconclusive() -> None:
    """Nothing says how head and anchor compare, and nothing is made up from pairs in two states."""
    outcome = held(record([FS, SF] * 3, card="E"), visits(ALIKE))

    assert outcome.verdict == "inconclusive"
    assert codes(only(outcome).reasons) == ["no-common-state"]


def test_visits_without_a_common_state_do_not_count() -> None:
    """Of four visits one says nothing of the ratio, so that the verdict advises."""
    apart = record([FS, SF] * 3, card="D")
    baseline = lineage([*(record(ALIKE, card=card) for card in "ABC"), apart])

    outcome = held(record(ALIKE, card="E"), baseline)

    assert (outcome.verdict, outcome.would_be) == ("advisory", "pass")


def test_a_head_that_is_slow_more_often_does_not_pass() -> None:
    """Within states it is as fast as the visits: that it causes the slow one shows in the pairs that differ."""
    outcome = held(record([FS, FS, FS, FS, FF, SS], card="E"), visits(ALIKE))

    assert (only(outcome).verdict, outcome.verdict) == ("pass", "inconclusive")
    (reason,) = outcome.cells[0].reasons
    assert (reason.code, "in 4 pairs and less often in 0" in reason.text) == ("slow-state-leans", True)


def test_an_order_that_was_not_drawn_leans_to_nobody() -> None:
    """Where sides took turns, chance alone does not explain who is slow; the head passes with the caution."""
    outcome = held(record([FS, FS, FS, FS, FF, SS], card="E", orders="blocks"), visits(ALIKE))

    assert outcome.verdict == "pass"
    assert "within-states" in codes(outcome.cells[0].cautions)


def test_where_no_probe_tells_states_all_pairs_must_agree_to_block() -> None:
    """Four of six pairs are off by the gap, which no visit was: unchanged, it would be blocked by their median."""
    untold = "NVIDIA X1"
    states = [FS, FS, FS, FS, FF, FF]

    unchanged = held(record(states, card="E", model=untold), visits(ALIKE, untold))
    slower = held(record(ALIKE, 0.009, "E", untold), visits(ALIKE, untold))

    assert unchanged.verdict == "inconclusive"
    assert only(unchanged).change == pytest.approx(GAP - 1, abs=2e-3)
    assert [(one.code, one.text) for one in only(unchanged).reasons] == [
        ("pairs-disagree", "2 of 6 pairs of head and anchor speak against a regression")
    ]
    assert slower.verdict == "regressed"


def test_a_history_shows_the_ratio_within_states() -> None:
    """A night on a GPU that jumped is no outlier, and one whose pairs had nothing in common has no ratio."""
    jumping, apart = (lineage([record(states, 0.009)]) for states in (APART, [FS, SF] * 3))

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


def test_recorded_visits_on_four_cards_pass_their_build_and_block_a_plant() -> None:
    """Two hosts jumped and one did not; the head's host jumps: pairs in one state tell 46 kernels from none."""
    baseline = lineage([recorded(f"visit-{number}", card) for number, card in enumerate("ABCD", 1)])

    same, plant = (held(recorded(name, name), baseline) for name in ("same", "plant"))

    assert (same.verdict, plant.verdict) == ("pass", "regressed")
    steps = plant.cells[0].gates[0]
    assert (steps.metric, steps.verdict) == ("itl_median", "regressed")
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
    again = lineage([recorded(f"visit-{number}", card) for number, card in enumerate("ABCD", 1)])
    assert ratios(baseline) == pytest.approx(ratios(again), abs=1e-4)
