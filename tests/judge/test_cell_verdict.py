"""The decision rule on records made by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hand_made import BASE, BOTH, STEP_S, cell, codes, gate, iteration, judged, only, record, run, spread, trial, trials
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from perfgate import stats
from perfgate.errors import ExitStatus
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import verdict_json
from perfgate.judge.rule import Series, decide, judge_series
from perfgate.metrics.trial import Failure
from perfgate.models import Note
from perfgate.reasons import REASONS
from perfgate.report.outcome_lines import HEADINGS, gate_row
from perfgate.scenario.plan import ALPHA, BETA, GatePlan

DEFAULT = stats.DEFAULT_SCHEDULE
MICRO = st.integers(-20_000, 20_000).map(lambda n: n * 1e-6)


def series(d: Sequence[float], gated: GatePlan | None = None, **changes: Any) -> Series:
    """A paired series with these log ratios, slower where positive."""
    gated = gated or gate()
    one = Series(gated, tuple(1.0 for _ in d), tuple(math.exp(x) for x in d), DEFAULT, **changes)
    if one.metric.better == "higher":
        return Series(gated, one.head, one.base, DEFAULT)
    return one


# --- the rule


@pytest.mark.parametrize(
    ("slowdowns", "verdict", "status"),
    [
        (spread(0.01, 0.0002, 6), "regressed", 10),
        (spread(0.003, 0.0002, 6), "regressed", 10),  # both established: regressed is tested before pass
        (spread(0.01, 0.0002, 4), "inconclusive", 20),  # a look at 4 never blocks
        (spread(0.0, 0.0002, 4), "pass", 0),
        (spread(0.003, 0.0002, 4), "pass", 0),
        (spread(-0.01, 0.0002, 4), "improved", 0),
        (spread(-0.0005, 0.0001, 4), "pass", 0),  # faster, but not beyond ignorable
        (spread(0.003, 0.004, 12), "inconclusive", 20),
        (spread(0.0, 0.05, 12), "inconclusive", 20),  # not significant is no pass
        (spread(0.0, 0.0002, 3), "inconclusive", 20),
        ([], "inconclusive", 20),
    ],
)
def test_rule(slowdowns: list[float], verdict: str, status: int) -> None:
    """A regression above ignorable blocks from six pairs on, an excluded must_catch passes, and nothing else does."""
    outcome = judged(trials(slowdowns))

    assert (verdict, verdict, status) == (outcome.verdict, only(outcome).verdict, outcome.exit_status)


@pytest.mark.parametrize(
    ("slowdowns", "next_look"),
    [
        (spread(0.01, 0.0002, 3), 4),
        (spread(0.01, 0.0002, 4), 6),
        (spread(0.0, 0.05, 6), 8),
        (spread(0.0, 0.05, 12), None),
        (spread(0.0, 0.0002, 4), None),
        (spread(0.01, 0.0002, 6), None),
    ],
)
def test_next_look(slowdowns: list[float], next_look: int | None) -> None:
    """The next look is due while nothing is decided and looks are left; a decided sequence is closed."""
    assert next_look == judged(trials(slowdowns)).cells[0].next_look


def test_a_gate_without_data_does_not_end_the_search() -> None:
    """A clear slowdown beside a metric that is missing goes on to the look that blocks it, and ends regressed."""
    gates = [gate(), gate("model_memory", "1%", "2%")]

    early = judged(trials(spread(0.02, 0.0002, 4)), cell(gates=gates))
    late = judged(trials(spread(0.02, 0.0002, 6)), cell(gates=gates))

    assert (early.verdict, early.cells[0].next_look) == ("not-measured", 6)
    assert (late.verdict, late.cells[0].next_look) == ("regressed", None)


def test_detectable_where_nothing_blocks_is_that_of_the_first_look_that_can() -> None:
    """Four pairs name what six would block by their spread: more than six pairs do, which know it better."""
    slowdowns = spread(0.0, 0.0002, 4)
    early = only(judged(trials(slowdowns)))
    late = only(judged(trials(spread(0.0, 0.0002 * math.sqrt(4 / 3) * math.sqrt(5 / 6), 6))))
    four, six = early.detectable, late.detectable

    assert (early.detectable_at, late.detectable_at) == (6, None)
    assert "detectable_at" not in late.model_dump()
    assert gate_row(early)[HEADINGS.index("detectable")].endswith(" % at 6 pairs")
    assert gate_row(late)[HEADINGS.index("detectable")].endswith(" %")
    seen = stats.mean_estimate(slowdowns, 1e-9 / STEP_S).with_pairs(4, 6)
    assert four == pytest.approx(stats.detectable(seen, ALPHA * 0.16, 0.001, 0.95, 3), rel=1e-3)
    assert four is not None
    assert six is not None
    assert six < four
    table = judge_series([Series(gate(), (1.0, 1.1), (1.0, 1.1), stats.one_look(2))], ALPHA, 0.05)
    assert (table[0].detectable, table[0].detectable_at) == (None, None)


def test_figures() -> None:
    """A gate shows geometric means, their change, the pairs' spread, p, q and its level."""
    slowdowns = spread(0.01, 0.0002, 6)
    found = only(judged(trials(slowdowns)))

    assert found.base == pytest.approx(STEP_S)
    assert found.head == pytest.approx(STEP_S * math.exp(0.01), rel=1e-6)
    assert found.change == pytest.approx(math.expm1(0.01), rel=1e-4)
    assert found.pair_sd == pytest.approx(0.0002 * math.sqrt(6 / 5), rel=1e-2)
    p = scipy_stats.ttest_1samp(slowdowns, math.log1p(0.001), alternative="greater").pvalue / 0.16
    assert found.p == pytest.approx(p, rel=0.05)
    assert found.block_level == ALPHA
    assert found.q == 1.0
    assert found.detectable is not None
    assert 0.001 < found.detectable < 0.01


def test_rows_rest_on_the_look() -> None:
    """Pairs beyond the last look reached are measured but not in the figures."""
    found = judged(trials([*spread(0.0, 0.05, 4), 0.3])).cells[0]

    assert (found.pairs, found.gates[0].pairs) == (5, 4)
    assert found.gates[0].change == pytest.approx(0.0, abs=1e-6)


def test_passed_stays_passed() -> None:
    """A gate that passed at four pairs passes at six whose upper bound is beyond must_catch."""
    slowdowns = [*spread(0.0, 0.0002, 4), 0.02, -0.02]

    found = only(judged(trials(slowdowns)))

    assert found.change_high is not None
    assert found.change_high > 0.005
    assert (found.verdict, found.passed_at, found.pairs) == ("pass", 4, 6)


@given(first=st.lists(MICRO, min_size=4, max_size=4), more=st.lists(MICRO, min_size=8, max_size=8),
       drift=st.floats(0.5, 2.0))  # fmt: skip
def test_q_never_grows(first: list[float], more: list[float], drift: float) -> None:
    """What a gate has passed it keeps, also where a floor makes the margin and the base drifts."""
    gated = gate(floor="0.2ms")
    base = [STEP_S] * 4 + [STEP_S * drift] * 8
    head = [b * math.exp(d) for b, d in zip(base, [*first, *more], strict=True)]

    q = [judge_series([Series(gated, tuple(base[:n]), tuple(head[:n]), DEFAULT)], ALPHA, BETA)[0].q for n in (4, 6, 12)]

    assert q == sorted(q, reverse=True)


# --- the floor


@pytest.mark.parametrize(
    ("slowdown", "verdict", "cautions"),
    [
        (0.03, "regressed", []),
        (0.01, "pass", ["near-margins"]),
        (0.0, "pass", []),
    ],
)
def test_floor(slowdown: float, verdict: str, cautions: list[str]) -> None:
    """Below a floor of 2 % of the base an established slowdown passes with a caution, above it it blocks."""
    slowdowns = [slowdown + x for x in (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.00005)]

    found = only(judged(trials(slowdowns), cell(gates=[gate(floor="0.1ms")])))

    assert (verdict, cautions) == (found.verdict, codes(found.cautions))


@pytest.mark.slow
@pytest.mark.parametrize("common", [0.0, 0.02])
def test_alpha_holds_at_the_floor(common: float) -> None:
    """Of 1,000 seeded runs at exactly the floor at most alpha block, also where base and head drift together by 2 %."""
    rng = np.random.default_rng(7)
    gated = gate("itl_median", "2%", "8%", floor="1ms")  # a fifth of the base
    blocked = 0
    for _ in range(1000):
        drift = np.exp(rng.normal(0, common, 12)) if common else np.ones(12)
        base = STEP_S * drift * np.exp(rng.normal(0, 0.0115 if not common else 0.001, 12))
        head = (STEP_S + 0.001) * drift * np.exp(rng.normal(0, 0.001 if common else 0.0, 12))
        one = Series(gated, tuple(base), tuple(head), DEFAULT)
        blocked += judge_series([one], ALPHA, BETA)[0].verdict == "regressed"

    assert scipy_stats.binomtest(blocked, 1000, ALPHA, alternative="greater").pvalue > 0.01


@pytest.mark.slow
def test_beta_holds_where_the_floor_is_must_catch() -> None:
    """Of 500 seeded runs slower by both at most beta pass, though in every pair one of the two is the larger margin."""
    rng = np.random.default_rng(7)
    gated = gate("itl_median", "2%", "8%", floor="400us")  # 8 % of the base
    passed = 0
    for _ in range(500):
        base, own = STEP_S * np.exp(rng.normal(0, 0.02, 12)), np.exp(rng.normal(0, 0.001, 12))
        one = Series(gated, tuple(base), tuple(1.08 * base * own), DEFAULT)
        passed += judge_series([one], ALPHA, BETA)[0].verdict == "pass"

    assert scipy_stats.binomtest(passed, 500, BETA, alternative="greater").pvalue > 0.01


def test_floor_is_the_pass_margin() -> None:
    """A spread that could not exclude must_catch excludes the floor where that is larger, and so passes."""
    taken = trials(spread(0.004, 0.002, 4))

    assert only(judged(taken)).verdict == "inconclusive"
    assert only(judged(taken, cell(gates=[gate(floor="0.1ms")]))).verdict == "pass"


@pytest.mark.parametrize(("floor", "margin"), [("1tok/s", 27.272727 / 26.272727 - 1), ("30tok/s", 999_999.0)])
def test_floor_of_throughput(floor: str, margin: float) -> None:
    """Where more is better the floor counts downwards, and a floor beyond the base leaves nothing to catch."""
    gated = gate("output_throughput", "1%", "2%", floor=floor)
    rate = 3 / (22 * STEP_S)

    assert pytest.approx(margin, rel=1e-6) == Series(gated, (rate,) * 4, (rate,) * 4, DEFAULT).must_catch


# --- Holm's family


def borderline(p: float) -> list[float]:
    """Six pairs whose weighted p against 0.1 % is ``p``; the clock's nanosecond is beside the margin."""
    half_width = 0.0002
    t = float(scipy_stats.t.isf(p * 0.16, 5))
    return spread(math.log1p(0.001) + 1e-9 / STEP_S + t * half_width / math.sqrt(5), half_width, 6)


@pytest.mark.parametrize(
    ("others", "level", "blocks"),
    [
        ([], 0.01, True),
        ([None], 0.005, False),  # a gate without data keeps its place
        ([spread(0.0, 0.0002, 6)], 0.005, False),
        ([spread(0.01, 0.0002, 6)], 0.01, True),  # once it is rejected, the next one has the whole level
        ([spread(0.01, 0.0002, 6), None], 0.005, False),
    ],
)
def test_holm_over_the_run(others: list[list[float] | None], level: float, *, blocks: bool) -> None:
    """A gate's level depends on all gates of the run, those of other cells and those without data included."""
    cells = [cell(f"cell-{n}") for n in range(1 + len(others))]
    records = {
        one.cell_id: record(one, trials(d))
        for one, d in zip(cells, [borderline(0.007), *others], strict=True)
        if d is not None
    }

    found = judge(run(cells), records).cells[0].gates[0]

    assert found.p == pytest.approx(0.007, rel=1e-3)
    assert found.block_level == pytest.approx(level)
    assert blocks == (found.verdict == "regressed")


def test_all_gates_of_a_cell() -> None:
    """Gates of one cell share the family, and the cell is as bad as its worst gate."""
    gates = [gate(), gate("ttft_median", "2%", "8%"), gate("model_memory", "1%", "5%")]

    (found,) = judged(trials(spread(0.01, 0.0002, 6)), cell(gates=gates)).cells

    assert [one.verdict for one in found.gates] == ["regressed", "pass", "not-measured"]
    assert found.gates[1].block_level == pytest.approx(ALPHA / 2)
    assert found.verdict == "regressed"


def test_gates_may_share_alpha_otherwise() -> None:
    """With three quarters of alpha a gate is blocked at a p that half of it leaves open; the other then has all."""
    looked: Any = [SimpleNamespace(interim_looks=lambda p=p: (SimpleNamespace(p_slower=p),)) for p in (0.006, 0.02)]

    alike = decide(looked, 0.01, 0.05)
    uneven = decide(looked, 0.01, 0.05, (Fraction(3, 4), Fraction(1, 4)))

    assert [(one.rejected, one.block_level) for one in alike] == [(False, 0.005)] * 2
    assert [one.rejected for one in uneven] == [True, False]
    assert [one.block_level for one in uneven] == pytest.approx([0.0075, 0.01])


# --- direction


def test_throughput() -> None:
    """A slower head has a lower throughput: shown as a fall, blocked as a slowdown; a faster one improves."""
    throughput = cell(gates=[gate("output_throughput")])
    slower = only(judged(trials(spread(0.01, 0.0002, 6)), throughput))
    faster = only(judged(trials(spread(-0.01, 0.0002, 6)), throughput))

    assert (slower.verdict, faster.verdict) == ("regressed", "improved")
    assert slower.change == pytest.approx(math.expm1(-0.01), rel=1e-3)
    for found in (slower, faster):
        assert found.change is not None
        assert found.change_low is not None
        assert found.change_high is not None
        assert found.change_low < found.change < found.change_high


@pytest.mark.parametrize("metric", ["itl_median", "output_throughput"])
@given(d=st.lists(MICRO, min_size=12, max_size=12))
def test_interval_shows_the_decision(metric: str, d: list[float]) -> None:
    """Until a look decides, blocked means the slow side's near end is beyond ignorable, passed its far end is not."""
    for pairs in DEFAULT.looks:
        (found,) = judge_series([series(d[:pairs], gate(metric))], ALPHA, BETA)
        if metric == "itl_median":
            near, far = found.change_low, found.change_high
        else:  # own direction: a throughput that falls to 1 / (1 + slowdown)
            near, far = (None if x is None else 1 / (1 + x) - 1 for x in (found.change_high, found.change_low))
        blocked = near is not None and near > 0.001
        passed = far is not None and far < 0.005
        assert blocked == (found.verdict == "regressed")
        assert (passed and not blocked) == (found.verdict in ("pass", "improved"))
        if found.verdict != "inconclusive":
            break


# --- reasons


def test_undecided_says_both_bounds() -> None:
    """An open gate says why it does not pass and why it does not block."""
    four, twelve = (only(judged(trials(spread(0.003, 0.004, n)))).reasons for n in (4, 12))

    assert codes(four) == ["undecided"]
    assert "no look blocks before 6 pairs" in four[0].text
    assert "is not below 0.5 %" in twelve[0].text
    assert "is not above 0.1 %" in twelve[0].text


def test_too_few_pairs() -> None:
    """Below the first look a gate says how many pairs there are and when the look comes."""
    (note,) = only(judged(trials(spread(0.0, 0.0002, 3)))).reasons

    assert (note.code, note.text) == ("too-few-pairs", "3 measured, the first look comes at 4")


def test_not_started() -> None:
    """A cell without a record is not measured, says so once, and outweighs cells that pass."""
    first, second = cell("first"), cell("second")

    outcome = judge(run([first, second]), {"first": record(first, trials(spread(0.0, 0.0002, 4)))})

    assert (outcome.verdict, outcome.exit_status) == ("not-measured", 22)
    assert [one.verdict for one in outcome.cells] == ["pass", "not-measured"]
    assert codes(outcome.cells[1].reasons) == ["not-started"]
    assert [(one.verdict, one.reasons) for one in outcome.cells[1].gates] == [("not-measured", ())]


def test_metric_missing() -> None:
    """A gated metric that some trials do not carry is not measured, though other pairs have it."""
    some = [
        one.model_copy(update={"startup": None}) if one.index == 3 else one for one in trials(spread(0.0, 0.0002, 6))
    ]

    found = only(judged(some, cell(gates=[gate("start_time", "10%", "50%")])))

    assert (found.verdict, codes(found.reasons)) == ("not-measured", ["metric-missing"])
    assert "1 of 6 pairs" in found.reasons[0].text


@pytest.mark.parametrize("side", ["base", "head"])
def test_non_finite(side: str) -> None:
    """A value of zero has no ratio, so its gate is not measured, at any number of pairs."""
    zero = iteration(itl_ns=(0,))
    taken = [
        one.model_copy(update={"iterations": (zero,)}) if one.pair == 2 and one.subject == side else one
        for one in trials(spread(0.0, 0.0002, 6))
    ]

    found = only(judged(taken))

    assert (found.verdict, codes(found.reasons)) == ("not-measured", ["metric-unusable"])
    assert found.reasons[0].text == f"{side} has the value 0.0"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_non_finite_series(bad: float) -> None:
    """No value that is not positive and finite is ever judged."""
    for base, head in (((1.0,) * 6, (*(1.0,) * 5, bad)), ((*(1.0,) * 5, bad), (1.0,) * 6)):
        (found,) = judge_series([Series(gate(), base, head, DEFAULT)], ALPHA, BETA)
        assert (found.verdict, codes(found.reasons)) == ("not-measured", ["metric-unusable"])


def test_wild_values() -> None:
    """Values apart by more than a float can hold the ratio of give an outcome without infinities, and no pass."""
    base, head = (1e-200, 1e200, 1e-200, 1e200, 1e-200, 1e200), (1e200, 1e-200) * 3

    (found,) = judge_series([Series(gate(), base, head, DEFAULT)], ALPHA, BETA)

    assert found.verdict == "inconclusive"
    assert found.change_high is None


def test_stopped() -> None:
    """A stopped record makes its cell not measured for the stop's reason; open gates have none of their own."""
    stop = Failure(code="one-sided-failures", text="3 dropped")

    outcome = judged(trials(spread(0.0, 0.0002, 2)), stopped=stop)

    assert (outcome.verdict, outcome.exit_status) == ("not-measured", 22)
    assert [Note(code="one-sided-failures", text="3 dropped")] == list(outcome.cells[0].reasons)
    assert (only(outcome).verdict, only(outcome).reasons) == ("not-measured", ())
    assert outcome.cells[0].next_look is None


def test_stopped_after_a_look() -> None:
    """A gate that was decided before the stop keeps its verdict; a regression outweighs the stop, a pass does not."""
    stop = Failure(code="dropped-pairs", text="3 dropped")

    slow, same = (judged(trials(spread(d, 0.0002, 6)), stopped=stop) for d in (0.01, 0.0))

    assert (only(slow).verdict, slow.verdict) == ("regressed", "regressed")
    assert (only(same).verdict, same.verdict) == ("pass", "not-measured")


def test_internal_error() -> None:
    """A cell stopped by an error of perfgate's own is an internal error: worse than not measured, less than slow."""
    names = ["broken", "slow", "absent"]
    broken, slow, absent = map(cell, names)
    stop = Failure(code="internal-error", text="ValueError: x\nTraceback ...")
    records = {"broken": record(broken, stopped=stop), "slow": record(slow, trials(spread(0.01, 0.0002, 6)))}

    two = judge(run([broken, absent]), records)
    three = judge(run([broken, slow, absent]), records)

    assert (two.verdict, two.exit_status) == ("internal-error", 1)
    assert [one.verdict for one in two.cells] == ["internal-error", "not-measured"]
    assert (three.verdict, three.exit_status) == ("regressed", 10)


def test_one_sided() -> None:
    """A run of one subject has nothing to compare with: 21, its values shown, no gate judged."""
    measured = cell()
    alone = record(measured, [trial(n, n, "base") for n in range(4)], subjects={"base": BASE})

    outcome = judge(run([measured], subjects={"base": BASE}), {"cell": alone})

    assert (outcome.verdict, outcome.exit_status) == ("not-comparable", 21)
    (found,) = outcome.cells
    assert codes(found.reasons) == ["no-counterpart"]
    assert "4 trials" in found.reasons[0].text
    assert found.gates == ()
    assert found.ungated[2].metric == "itl_median"
    assert found.ungated[2].base == pytest.approx(STEP_S)
    assert found.versions == {"base": {"vllm": "1.0"}}


@pytest.mark.parametrize(
    ("stop", "verdict"),
    [(None, "not-measured"), ("engine-start-failed", "not-measured"), ("internal-error", "internal-error")],
)
def test_one_sided_without_values(stop: str | None, verdict: str) -> None:
    """A run of one subject that failed is not measured rather than not comparable, with the failure's reason."""
    measured = cell()
    subjects = {"base": BASE}
    failure = Failure(code=stop, text="words") if stop else None
    records = {"cell": record(measured, subjects=subjects, stopped=failure)} if failure else {}

    outcome = judge(run([measured], subjects=subjects), records)

    assert verdict == outcome.verdict
    assert [stop or "not-started"] == codes(outcome.cells[0].reasons)


def test_quick() -> None:
    """A quick run is inconclusive and says once that it is quick, not gate by gate that more pairs are wanted."""
    measured = cell()

    outcome = judge(run([measured], quick=True), {"cell": record(measured, trials([0.5]))})

    assert (outcome.verdict, outcome.exit_status) == ("inconclusive", 20)
    assert codes(outcome.reasons) == ["quick-run"]
    assert [gate.reasons for gate in outcome.cells[0].gates] == [()]
    assert outcome.cells[0].next_look is None


def test_nothing_planned() -> None:
    """A run without cells is not measured."""
    outcome = judge(run([]), {})

    assert (outcome.verdict, outcome.exit_status) == ("not-measured", ExitStatus.NOT_MEASURED)


# --- determinism


@given(slowdowns=st.lists(st.lists(MICRO, min_size=6, max_size=6), min_size=3, max_size=3),
       order=st.permutations([0, 1, 2]))  # fmt: skip
def test_order_of_cells(slowdowns: list[list[float]], order: list[int]) -> None:
    """Judging twice gives the same bytes, whatever the order of records; permuted cells keep their outcomes."""
    cells = [cell(f"cell-{n}") for n in range(3)]
    records = {c.cell_id: record(c, trials(d)) for c, d in zip(cells, slowdowns, strict=True)}
    straight = judge(run(cells), records)

    again = judge(run(cells), dict(reversed(records.items())))
    permuted = judge(run([cells[n] for n in order]), records)

    assert verdict_json(straight) == verdict_json(again)
    assert [straight.cells[n] for n in order] == list(permuted.cells)
    assert straight.verdict == permuted.verdict


def test_every_code_is_known() -> None:
    """Every code that judging puts into an outcome has its page in the table of reasons."""
    outcomes = [
        judged(trials(spread(0.003, 0.004, n)), subjects=subjects, stopped=stop)
        for n, subjects, stop in itertools.product(
            (0, 4, 8), (BOTH, {"base": BASE, "head": BASE}), (None, Failure(code="process-left", text="x"))
        )
    ]

    found = {
        note.code
        for outcome in outcomes
        for one in outcome.cells
        for notes in (one.reasons, one.cautions, *(g.reasons for g in one.gates), *(g.cautions for g in one.gates))
        for note in notes
    }

    assert {"undecided", "too-few-pairs", "process-left", "same-subject"} <= found
    assert found <= set(REASONS)
