"""Recorded pairs are resampled whole, and the rule that judges runs decides them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hand_made import gate

from perfgate import stats
from perfgate.drill.recordings import STEP, Recording, read_recordings
from perfgate.drill.replay import Declared, Pool, Replay, Share, Truth
from perfgate.errors import RecordError
from perfgate.record.csv_table import Values
from perfgate.scenario.declaration import load

ROOT = Path(__file__).parents[2]
QUIET = read_recordings(ROOT / "tests/fixtures/h200-llama-8b-iterations.csv")
LLAMA = Declared.of(load(ROOT / "scenarios/llama-8b-decode.yaml"))
ONE_GATE = Declared("one", (gate(),), stats.DEFAULT_SCHEDULE)


def recording(name: str, d: Mapping[str, Sequence[float]], kind: str = "h200", *, same: bool = True) -> Recording:
    """Pairs with these log ratios by metric; the base of pair n is n + 1."""
    metrics = {
        metric: Values(tuple(n + 1.0 for n in range(len(row))), tuple((n + 1) * np.exp(x) for n, x in enumerate(row)))
        for metric, row in d.items()
    }
    return Recording(name, kind, same, metrics, (0,) * len(next(iter(d.values()))))


def test_draws_take_whole_visits_of_one_kind() -> None:
    """A draw has each pair once, begins with a whole visit and goes on with others of the same kind of machine."""
    sizes = {"a": (5, "h200"), "b": (9, "h200"), "c": (3, "h200"), "d": (12, "h100")}
    recordings = [recording(name, {STEP: [0.0] * size}, kind) for name, (size, kind) in sizes.items()]

    drawn = Pool.of(recordings, 12).draw(np.random.default_rng(0), 400)

    owner = np.repeat(list(sizes), [size for size, _ in sizes.values()])[drawn.pairs]
    assert all(len(set(row)) == 12 for row in drawn.pairs.tolist())
    for row in owner.tolist():
        names = list(dict.fromkeys(row))
        assert row == [name for name in names for _ in range(row.count(name))]
        assert len({sizes[name][1] for name in names}) == 1
        assert all(row.count(name) == sizes[name][0] for name in names[:-1])
    assert {row[0] for row in owner.tolist()} == {"a", "b", "c", "d"}
    assert 0.45 < drawn.swapped.mean() < 0.55


def test_visits_too_few_for_the_last_look_are_left_out_and_named() -> None:
    """Five pairs of another kind of machine are not put in one sequence with twelve of this one."""
    many, few = recording("many", {STEP: [0.0] * 12}), recording("few", {STEP: [0.0] * 5}, "cpu")

    pool = Pool.of([many, few], 12)

    assert pool.recordings == (many,)
    assert pool.left_out == ("few: 5 pairs of cpu, and the last look is at 12",)
    with pytest.raises(RecordError, match="too few pairs"):
        Pool.of([few], 12)


def test_sides_are_swapped_pair_by_pair_over_all_metrics() -> None:
    """Swapping gives each log ratio its other sign, in every metric of the pair at once."""
    d = {STEP: [0.001 * (n + 1) for n in range(12)], "ttft_median": [0.01 * (n + 1) for n in range(12)]}
    pool = Pool.of([recording("r", d)], 12)
    drawn = pool.draw(np.random.default_rng(1), 50)

    step, ttft = (stats.logs(head.ravel()) - stats.logs(base.ravel()) for base, head in
                  (pool.sides(metric, drawn) for metric in d))  # fmt: skip

    assert ttft == pytest.approx(10 * step)
    assert np.abs(step) == pytest.approx(0.001 * (drawn.pairs.ravel() + 1))
    assert (step < 0).tolist() == drawn.swapped.ravel().tolist()


def test_the_effect_of_a_plant_is_taken_out() -> None:
    """The head of different builds is divided by the median of its ratios, in iterations as in medians."""
    plants = tuple(one for one in QUIET if not one.same_build)
    pool = Pool.of(plants, 12)
    drawn = pool.draw(np.random.default_rng(2), 20)
    iterations = pool.iterations(drawn)

    assert [round(float(np.median(one.log_ratios(STEP))), 4) for one in plants] == [0.0089, 0.0025, 0.0023]
    assert pool.pair_sd(STEP) == pytest.approx(0.0008, abs=0.0001)
    assert iterations is not None
    for side, values in zip(iterations, pool.sides(STEP, drawn), strict=True):
        assert np.median(side, axis=2) == pytest.approx(values)


def test_the_same_seed_gives_the_same_rows() -> None:
    """Draws are exact by their seed."""
    truth = Truth("slower", {STEP: 0.004}, STEP)
    rows = [Replay.of(QUIET, ONE_GATE, 60, seed).row(truth) for seed in (3, 3, 4)]

    assert rows[0] == rows[1] != rows[2]


def test_real_pairs_of_a_quiet_gpu() -> None:
    """The same build passes at six pairs, half a percent is blocked at eight, and nothing declared is broken."""
    replay = Replay.of(QUIET, LLAMA, 100, 5)

    rows = {row.truth: row for row in map(replay.row, replay.truths())}

    assert [plan.gate.metric for plan in replay.gates] == ["itl_median", "ttft_median"]
    nothing, half = rows["nothing slower"], rows["itl_median slower by 0.5 %"]
    assert nothing.passed.value > 0.95
    assert nothing.regressed.events == 0
    assert nothing.regressed.at_most == pytest.approx(1 - 0.05 ** (1 / 100))
    assert half.regressed.value > 0.95
    assert 7 < half.pairs <= 8
    assert half.promised == pytest.approx(0.984, abs=0.002)
    assert [row.error for row in rows.values()] == ["false-blocks", "false-blocks", "false-passes", "false-passes"]
    assert not [row.broken for row in rows.values() if row.broken]


def test_gates_without_recorded_values_stay_in_the_family() -> None:
    """A gate whose metric was not recorded decides nothing, and its share of alpha is not given to the others."""
    once = stats.Schedule((12,), (1.0,), (0.0,))
    gates = tuple(gate(metric) for metric in (STEP, "itl_p95", "itl_p99", "tpot_mean"))
    recorded, truth = [recording("r", {STEP: [0.0005] * 12})], Truth("slower", {STEP: 0.0014}, STEP)

    alone, among = (
        Replay.of(recorded, Declared("d", family, once), 300, 0).row(truth) for family in (gates[:1], gates)
    )

    assert alone.regressed.events > 1.5 * among.regressed.events > 0
    assert alone.promised is not None
    assert among.promised is not None
    assert alone.promised > among.promised


def test_the_functions_of_the_rule_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another Holm, or another test, a replay ends differently: there is no copy of the rule in it."""
    replay, truth = Replay.of(QUIET, ONE_GATE, 30, 0), Truth("slower", {STEP: 0.01}, STEP)
    blocked = [replay.row(truth).regressed.events]
    monkeypatch.setattr("perfgate.stats.holm", lambda p, *_: tuple(False for _ in p))
    blocked.append(replay.row(truth).regressed.events)
    monkeypatch.undo()
    monkeypatch.setattr("perfgate.stats.Estimate.p_above", lambda *_: 1.0)
    blocked.append(replay.row(truth).regressed.events)

    assert blocked == [30, 0, 0]


def test_throughput_is_slowed_downwards() -> None:
    """Where more is better, a slower head has less."""
    d = {"output_throughput": [0.0005 * (-1) ** n for n in range(12)]}
    declared = Declared("one", (gate("output_throughput"),), stats.DEFAULT_SCHEDULE)

    row = Replay.of([recording("r", d)], declared, 40, 0).row(
        Truth("slower", {"output_throughput": 0.01}, "output_throughput")
    )

    assert row.regressed.events == 40


def test_a_metric_that_a_recording_lacks_is_refused_where_no_gate_is_left() -> None:
    """A gate on what was not recorded cannot be replayed at all."""
    declared = Declared("one", (gate("tpot_mean"),), stats.DEFAULT_SCHEDULE)

    with pytest.raises(RecordError, match="no gate of one has its metric in every recording: tpot_mean"):
        Replay.of(QUIET, declared, 10)


@pytest.mark.parametrize(
    ("events", "flag"), [(4, ""), (60, "broken: false-blocks 6 % (at least 4.8 %) against 1 % declared")]
)
def test_what_is_broken_is_said_with_its_bound(events: int, flag: str) -> None:
    """A rate is flagged where its exact lower bound is above the declared one."""
    row = Replay.of(QUIET, ONE_GATE, 4, 0).row(Truth("nothing slower"))

    assert row.model_copy(update={"regressed": Share.counted(events, 1000)}).broken == flag
