"""What a run would cost and could show."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode_steps import decode, traces
from fake_collector import FakeCollector
from hand_made import BOTH, MACHINE, cell, gate, record, scenario_file, spread, trial, trials
from scipy import stats as scipy_stats

from perfgate import gate as use_cases
from perfgate.judge.power import cell_power, promised_block
from perfgate.judge.rule import Series, decide
from perfgate.metrics.trial import Failure
from perfgate.record.cost import Earlier, newest_records
from perfgate.record.run_record import Visit, read_record, read_run, record_file, write_record
from perfgate.report.power_report import power_document
from perfgate.report.text import to_text
from perfgate.scenario.declaration import Expect
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.plan import ALPHA, BETA, Cell
from perfgate.stats.estimate import power_at
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import DEFAULT_SCHEDULE, Schedule

WRITTEN = {
    "itl_median": "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}",
    "gemm": "{metric: kernel_time_per_step, role: gemm, ignorable: 1%, must_catch: 5%}",
}
"""Gates as a scenario spells them."""


def expecting(trial_s: float = 30.0, pair_sd: str | dict[str, str] = "0.07%", **measure: Any) -> Cell:
    """A cell whose author has seen it."""
    text = json.dumps({"trial_s": trial_s, "pair_sd": pair_sd})
    return cell(expect=Expect.model_validate_json(text), **measure)


def with_kernels(*gates: str, **expected: Any) -> Cell:
    """A cell with a ``kernels:`` block and a timed gate, a traced one, or both."""
    plans = {"itl_median": gate(), "gemm": gate("kernel_time_per_step", "1%", "5%", role="gemm")}
    block = Expectation.model_validate({"traced": {"looks": [4, 6]}})
    return expecting(gates=[plans[name] for name in gates], **expected).model_copy(update={"kernels": block})


@pytest.mark.needs("calls", "kernels")
def test_a_step_of_the_instrument_is_in_the_price() -> None:
    """Where one step of the GPU's clock is more than must_catch no number of pairs passes, and the price says so."""
    steps = [decode([("gemm", "nvjet", 32 * 100 + 32 * n), ("norm", "rms", 32 * 77)]) for n in (0, 1, 0, 0, 1, 0)]
    plan = gate("kernel_time_per_step", "0.1%", "0.5%", role="gemm")
    measured = cell(gates=[plan]).model_copy(update={"kernels": Expectation()})

    (found,) = cell_power(
        measured, {"traced": Earlier("before", record(measured, traces(steps, steps[::-1])))}, 1
    ).gates

    assert set(found.passes) == {0.0}
    assert all(effect is None or effect > 2 / 100 for effect in found.detectable)
    assert "an unchanged build would pass in only 0 % of runs" in found.problem


def test_unknown_without_record_and_expectation() -> None:
    """Nothing is made up where nothing has been seen."""
    found = cell_power(cell(), {}, 1)

    assert [kind.minutes for kind in found.kinds] == [None]
    assert found.gates[0].pair_sd is None
    assert set(found.gates[0].detectable) == {None}
    assert "unknown" in to_text(power_document(cell(), found))


def test_minutes_from_an_expectation() -> None:
    """Two warm-up trials, then two trials a pair."""
    assert cell_power(expecting(), {}, 1).kinds[0].minutes == (5.0, 7.0, 9.0, 13.0)


def test_detectable_effect_is_that_of_the_noncentral_t() -> None:
    """At a blocking look the noncentral t of that effect exceeds the critical value in 95 % (scipy.stats.nct)."""
    found = cell_power(expecting(), {}, 3).gates[0]

    assert found.detectable[0] is None
    for effect, pairs, weight in zip(found.detectable[1:], (6, 8, 12), (0.16, 0.24, 0.40), strict=True):
        assert effect is not None
        critical = scipy_stats.t.isf(ALPHA * weight / 3, pairs - 1)
        shift = (math.log1p(effect) - math.log1p(0.001)) / (0.0007 / math.sqrt(pairs))
        assert scipy_stats.nct.sf(critical, pairs - 1, shift) == pytest.approx(1 - BETA, abs=1e-6)


TIMED = ((4, 6, 8, 12), (10, 14, 18, 26))


@pytest.mark.needs("calls", "kernels")
@pytest.mark.parametrize(
    ("planned", "kinds"),
    [
        (cell(), {"timed": TIMED}),
        (with_kernels("itl_median"), {"timed": TIMED, "traced": ((1,), (2,))}),
        (with_kernels("itl_median", "gemm"), {"timed": TIMED, "traced": ((4, 6), (8, 12))}),
        (with_kernels("gemm"), {"traced": ((4, 6), (8, 12))}),
    ],
    ids=["timed", "and-an-envelope", "both", "traced"],
)
def test_each_kind_of_pairs_has_its_own_looks(
    planned: Cell, kinds: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    """Timed pairs are taken for gates on times, after warm-up trials; traced ones for gates on kernels, else once."""
    assert {kind.kind: (kind.looks, kind.starts) for kind in cell_power(planned, {}, 2).kinds} == kinds


@pytest.mark.needs("calls", "kernels")
@pytest.mark.parametrize("gates", [("itl_median",), ("itl_median", "gemm"), ("gemm",)])
def test_a_run_takes_as_many_engine_starts_as_priced(tmp_path: Path, gates: tuple[str, ...]) -> None:
    """An unchanged build ends each kind of pairs at a look of it, after the engine starts named for that look."""
    scenario = scenario_file(tmp_path, gates=", ".join(WRITTEN[name] for name in gates),
                             more="kernels: {traced: {looks: [4, 6]}}")  # fmt: skip
    finished = use_cases.run([scenario], BOTH, runs=tmp_path, seed=1, collector=FakeCollector())
    (planned,) = read_run(finished.folder).plan.cells

    taken = Counter(one.kind for one in read_record(record_file(finished.folder, planned)).trials)

    assert taken == {kind.kind: kind.starts[0] for kind in cell_power(planned, {}, 2).kinds}


@pytest.mark.needs("calls", "kernels")
def test_each_kind_has_the_figures_of_its_own_trials() -> None:
    """Spread and minutes of traced pairs are those of traced trials, and those of timed pairs of timed ones."""
    measured = with_kernels("itl_median", "gemm")
    base, head = (
        [decode([("gemm", "nvjet", ns + 1000 * n), ("norm", "rms", 79)]) for n in range(2)]
        for ns in (10**6, 10**6 + 3000)
    )
    slow = [one.model_copy(update={"duration_ns": 60 * 10**9}) for one in traces(base, head, first=8)]
    history = record(measured, [*trials([0.0] * 4), *slow])

    found = cell_power(measured, {"timed": Earlier("before", history), "traced": Earlier("before", history)}, 2)

    kernels = found.gates[1]
    assert (kernels.metric, len(kernels.detectable)) == ("kernel_time_per_step[gemm]", 2)
    d = [math.log(1.003), math.log(1.004 / 1.001)]
    assert kernels.pair_sd == pytest.approx(abs(d[0] - d[1]) / math.sqrt(2), rel=1e-3)
    timed, traced = found.kinds
    assert timed.minutes == pytest.approx([starts / 60 for starts in timed.starts])
    assert traced.minutes == (8, 12)
    assert "detectable at 4, 6 traced pairs: cannot block, " in to_text(power_document(measured, found))


@pytest.mark.needs("calls", "kernels")
def test_what_is_expected_of_timed_trials_says_nothing_of_traced_ones() -> None:
    """A spread for all gates, and the seconds of a trial, are meant for timed ones; kernel times must be named."""
    planned = [with_kernels("itl_median", "gemm", pair_sd=sd) for sd in ("0.07%", {"kernel_time_per_step[gemm]": "1%"})]

    found = [cell_power(one, {}, 2) for one in planned]

    assert [[gate.pair_sd for gate in one.gates] for one in found] == [[0.0007, None], [None, 0.01]]
    assert [kind.minutes for kind in found[0].kinds] == [(5.0, 7.0, 9.0, 13.0), None]


@pytest.mark.needs("calls", "kernels")
def test_check_shows_each_kind_that_a_run_takes() -> None:
    """A scenario gated by kernels alone shows no timed pairs, and one traced pair for an envelope is no look."""
    gated, envelope = with_kernels("gemm"), with_kernels("itl_median")

    assert to_text(power_document(gated, cell_power(gated, {}, 1))).splitlines()[1:3] == [
        "  traced: looks at 4, 6 pairs; 8 to 12 engine starts of 1 + 2 iterations",
        "  traced: minutes until each look: unknown (no record of this cell with enough traced pairs)",
    ]
    assert to_text(power_document(envelope, cell_power(envelope, {}, 1))).splitlines()[1:5] == [
        "  timed: looks at 4, 6, 8, 12 pairs; 10 to 26 engine starts of 0 + 1 iterations",
        "  timed: minutes until each look: 5, 7, 9, 13 (from measure.expect)",
        "  traced: one pair, to see what the decode steps run; 2 engine starts of 1 + 2 iterations",
        "  traced: minutes: unknown (no record of this cell with enough traced pairs)",
    ]


@pytest.mark.needs("calls", "kernels")
@pytest.mark.parametrize(
    ("minutes", "enough"), [(4.9, "not enough for a look"), (9, "enough for the looks at 4, 6, 8 pairs")]
)
def test_check_says_what_a_budget_is_enough_for(minutes: float, enough: str) -> None:
    """Of each kind whose price is known; without a budget nothing is said."""
    envelope = with_kernels("itl_median", "gemm")
    price = cell_power(envelope, {}, 2)

    told = to_text(power_document(envelope, price, budget_s=minutes * 60))
    assert [line for line in told.splitlines() if "minutes are" in line] == [
        f"  timed: {minutes:g} minutes are {enough}"
    ]
    assert "minutes are" not in to_text(power_document(envelope, price))
    assert "  timed: 1 minute is not enough for a look" in to_text(power_document(envelope, price, budget_s=60))


@pytest.mark.parametrize(
    ("planned", "problem"),
    [
        (expecting(), ""),
        (expecting(looks=(4,)), "no look of this plan may block"),
        (
            expecting(pair_sd="0.3%"),
            "would often not be blocked: the least that these looks block as often as promised is 0.549 %; measure on",
        ),
        (
            expecting(pair_sd="2%"),
            "an unchanged build would pass in only 9 % of runs; a slowdown of 0.5 %, which must be caught, would",
        ),
    ],
    ids=["fine", "never-blocks", "blind", "hopeless"],
)
def test_a_gate_that_cannot_be_decided_is_named(planned: Cell, problem: str) -> None:
    """What the looks cannot do is said before anything runs."""
    found = cell_power(planned, {}, 1)

    assert problem in found.gates[0].problem
    assert bool(problem) == ("warning: itl_median" in to_text(power_document(planned, found)))


def test_figures_that_say_nothing_are_not_shown() -> None:
    """A slowdown by more than 100 %, and more than twice what must be caught, is shown as above that."""
    noisy = expecting(pair_sd="150%", gates=[gate("itl_median", "10%", "50%"), gate("ttft_median", "10%", "200%")])
    told = to_text(power_document(noisy, cell_power(noisy, {}, 2)))
    assert "detectable at 4, 6, 8, 12 pairs: cannot block, above 100 %, above 100 %, above 100 %" in told
    assert "the least that these looks block as often as promised is above 100 %; " in told
    assert "detectable at 4, 6, 8, 12 pairs: cannot block, above 400 %, above 400 %, above 400 %" in told


def test_a_record_beats_the_expectation() -> None:
    """Durations are medians of what was measured, spreads are those of the pairs; failed trials do not count."""
    planned = expecting()
    d = spread(0.0, 0.001, 4)
    measured = record(planned, [trial(0, None, "base"), *trials(d)])

    found = cell_power(planned, {"timed": Earlier("before", measured)}, 1)

    assert found.kinds[0].minutes == pytest.approx(
        [(2 * pairs + 2) * measured.trials[1].duration_ns / 60e9 for pairs in (4, 6, 8, 12)]
    )
    assert found.gates[0].pair_sd == pytest.approx(0.001 * math.sqrt(4 / 3), rel=1e-3)
    told = to_text(power_document(planned, found))
    assert "(from the record of run before)" in next(line for line in told.splitlines() if "minutes" in line)
    assert "; pair spread 0.115 % (from the record of run before); " in told


@pytest.mark.needs("calls", "kernels")
def test_the_newest_records_of_the_same_cell(tmp_path: Path) -> None:
    """Each kind has the newest record with its pairs, two for a gate; what is no record of the cell is passed over."""
    planned = with_kernels("itl_median")
    pair = traces([decode([("gemm", "nvjet", 10**6)])], [decode([("gemm", "nvjet", 10**6)])])
    timed, one, empty = trials(spread(0.0, 0.001, 4)), trials([0.0]), ()
    stored = {
        n: record(planned, taken, visits=[Visit(machine=MACHINE, t0_utc=f"2026-01-0{n}")])
        for n, taken in enumerate((pair, timed, pair, (*timed, *pair), one, pair, empty), start=1)
    }
    for n, kept in stored.items():
        file = record_file(tmp_path / f"run-{9 - n}", planned)  # names of runs do not sort by their time
        file.parent.mkdir(parents=True)
        write_record(file, kept)
    for name in ("run-a", "run-b"):  # a record that no visit has written to has no time
        file = record_file(tmp_path / name, planned)
        file.parent.mkdir(parents=True)
        write_record(file, record(planned, (*timed, *pair), visits=()))
    broken = record_file(tmp_path / "broken", planned)
    broken.parent.mkdir(parents=True)
    broken.write_text("{")

    newest = newest_records(tmp_path, planned)
    assert newest == {"timed": Earlier("run-5", stored[4]), "traced": Earlier("run-3", stored[6])}
    assert newest_records(tmp_path, with_kernels("gemm")) == {}
    assert newest_records(tmp_path / "nowhere", planned) == {}


@pytest.mark.parametrize(
    ("ages", "told"),
    [
        ("good good good", "run-2"),
        ("good good slowed", "run-1"),
        ("good stopped slowed", "run-0"),
        ("slowed slowed slowed", "run-2"),
        ("stopped", "run-0"),
        ("good slowed slowed slowed", "run-3"),
    ],
    ids=["newest", "slowed", "two", "all alike", "alone", "too old"],
)
def test_a_run_that_was_disturbed_does_not_tell(tmp_path: Path, ages: str, told: str) -> None:
    """Of the newest three, one that was stopped, or whose base took much longer than another's, is passed over."""
    planned = expecting()
    for n, kind in enumerate(ages.split()):
        factor = 2 if kind == "slowed" else 1
        taken = [one.model_copy(update={"duration_ns": one.duration_ns * factor}) for one in trials([0.0] * 4)]
        stopped = Failure(code="start-failed", text="no more") if kind == "stopped" else None
        visit = Visit(machine=MACHINE, t0_utc=f"2026-01-0{n + 1}")
        file = record_file(tmp_path / f"run-{n}", planned)
        file.parent.mkdir(parents=True)
        write_record(file, record(planned, taken, visits=[visit]).model_copy(update={"stopped": stopped}))

    assert newest_records(tmp_path, planned)["timed"].run == told


@pytest.mark.parametrize("slowdown", [0.0012, 0.003, 0.005])
def test_promised_block_is_kept_by_normal_pairs(slowdown: float) -> None:
    """Normal pairs are blocked at least as often as promised, over all looks and with passes before them."""
    gated, schedule, sd, runs = gate(), DEFAULT_SCHEDULE, 0.0012, 300
    rng = np.random.default_rng(1)
    blocked = 0
    for d in rng.normal(math.log1p(slowdown), sd, (runs, 12)):
        for pairs in schedule.looks:
            series = Series(gated, (1.0,) * pairs, tuple(np.exp(d[:pairs]).tolist()), schedule)
            (decision,) = decide([series], 0.01, 0.05)
            if decision.verdict != "inconclusive":
                break
        blocked += decision.verdict == "regressed"

    promised = promised_block(schedule, (0.001, 0.005), sd, slowdown, alpha=0.01)

    assert promised <= rate_bounds(blocked, runs, 0.999)[1]
    assert promised > (0.5 if slowdown == 0.005 else -1)


def test_promised_block_of_one_look_is_its_power() -> None:
    """Where nothing can end a run before, the promise is the power of the t test."""
    schedule = Schedule((8,), (1.0,), (0.0,))

    promised = promised_block(schedule, (0.001, 0.005), 0.001, 0.002, alpha=0.01)

    shift = (math.log1p(0.002) - math.log1p(0.001)) / (0.001 / math.sqrt(8))
    assert promised == pytest.approx(power_at(shift, 0.01, 7))
    assert promised_block(schedule, (0.001, 0.005), 0.0, 0.5, alpha=0.01) == 1.0
