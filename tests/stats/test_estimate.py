"""The arithmetic of the decision rule, against scipy, statsmodels' figures, simulation and figures by hand."""

from __future__ import annotations

import importlib.util
import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from perfgate import stats
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats import modes

EARLY = stats.EARLY_SCHEDULE
WHOLE = stats.Schedule((6,), (1.0,), (1.0,))
IGNORABLE, MUST_CATCH = 0.001, 0.005

EXAMPLE = [0.0021, 0.0035, 0.0012, 0.0029, 0.0044, 0.0017, 0.0030, 0.0026, 0.0008, 0.0038, 0.0023, 0.0031]
"""Log ratios of twelve pairs, drawn by hand."""

MICRO = st.integers(-50_000, 50_000).map(lambda n: n * 1e-6)
"""Log ratios in millionths, so that spread is either none or far above rounding."""
D12 = st.lists(MICRO, min_size=12, max_size=12)
P_VALUE = st.floats(0, 1) | st.sampled_from([0.0, 0.0025, 0.005, 0.01, 1.0])
P_VALUES = st.lists(P_VALUE, min_size=1, max_size=8)


# --- one look


@pytest.mark.parametrize("pairs", [2, 3, 4, 6, 12])
@pytest.mark.parametrize("bound", [0.0, 0.001, 0.003, 0.01])
def test_p_against_scipy(pairs: int, bound: float) -> None:
    """One-sided p in both directions is that of scipy.stats.ttest_1samp."""
    estimate = stats.mean_estimate(EXAMPLE[:pairs])
    assert estimate.df == pairs - 1

    above = scipy_stats.ttest_1samp(EXAMPLE[:pairs], bound, alternative="greater").pvalue
    below = scipy_stats.ttest_1samp(EXAMPLE[:pairs], bound, alternative="less").pvalue

    assert pytest.approx(above, rel=1e-9) == estimate.p_above(bound)
    assert pytest.approx(below, rel=1e-9) == estimate.p_below(bound)


@pytest.mark.parametrize("level", [1e-5, 0.0016, 0.05, 0.5])
def test_bounds_against_scipy(level: float) -> None:
    """Bounds are those of scipy's two-sided interval at twice the level, where p is the level; 0 bounds nothing."""
    estimate = stats.mean_estimate(EXAMPLE)

    interval = scipy_stats.ttest_1samp(EXAMPLE, 0.0).confidence_interval(1 - 2 * level)

    assert pytest.approx((interval.low, interval.high)) == (estimate.lower(level), estimate.upper(level))
    assert pytest.approx(level) == estimate.p_above(estimate.lower(level))
    assert pytest.approx(level) == estimate.p_below(estimate.upper(level))
    assert (-math.inf, math.inf) == (estimate.lower(0.0), estimate.upper(0.0))


@pytest.mark.parametrize("sign", [1, -1])
def test_welch(sign: int) -> None:
    """The unpaired difference has mean, p, bounds and degrees of freedom of Welch in scipy."""
    base, head = EXAMPLE[:5], EXAMPLE[5:]

    estimate = stats.difference_estimate(base, head, sign)

    scipy_welch = scipy_stats.ttest_ind(head, base, equal_var=False, alternative="greater" if sign > 0 else "less")
    assert pytest.approx(sign * (np.mean(head) - np.mean(base))) == estimate.mean
    assert pytest.approx(scipy_welch.df) == estimate.df
    assert pytest.approx(scipy_welch.pvalue) == estimate.p_above(0.0)
    low, high = scipy_stats.ttest_ind(head, base, equal_var=False).confidence_interval(0.9)
    assert pytest.approx(sorted([sign * low, sign * high])) == [estimate.lower(0.05), estimate.upper(0.05)]


# --- zero spread


@pytest.mark.parametrize(
    ("d", "p", "q"), [(0.0, 1.0, 0.0), (math.log1p(IGNORABLE), 1.0, 0.0), (0.002, 0.0, 0.0), (0.01, 0.0, 1.0)]
)
def test_zero_spread(d: float, p: float, q: float) -> None:
    """Equal observations decide by their place alone: p is 0 above the bound and 1 at or below it, q likewise."""
    (look,) = stats.interim_looks([d] * 6, WHOLE, IGNORABLE, MUST_CATCH)

    assert look.estimate.standard_error == 0
    assert (p, q) == (look.p_slower, look.p_equivalent)


def test_rounding_is_no_spread() -> None:
    """Counts that are equal on a side have no spread, though their mean may be off by rounding."""
    for count in range(2, 13):
        for value in (16e9, 65536.0, 0.1, 3.3e-3):
            assert stats.mean_estimate(stats.logs([value] * count)).standard_error == 0


def test_zero_spread_unpaired() -> None:
    """Two sides of equal counts have a difference without error, on the degrees of freedom of both."""
    assert stats.difference_estimate([1.0] * 3, [1.5] * 4, -1) == stats.Estimate(-0.5, 0.0, 5)


# --- looks


def test_looks_by_hand() -> None:
    """Running p and q over looks at 4, 6, 8 and 12 are the smallest of scipy's p divided by the look's weight."""
    found = stats.interim_looks(EXAMPLE, EARLY, IGNORABLE, MUST_CATCH)

    p = q = 1.0
    expected = []
    for pairs, block, passing in ((4, 0.0, 0.16), (6, 0.16, 0.16), (8, 0.24, 0.16), (12, 0.40, 0.32)):
        p_k = float(scipy_stats.ttest_1samp(EXAMPLE[:pairs], math.log1p(0.001), alternative="greater").pvalue)
        q_k = float(scipy_stats.ttest_1samp(EXAMPLE[:pairs], math.log1p(0.005), alternative="less").pvalue)
        p, q = min(p, p_k / block if block else 1.0), min(q, q_k / passing)
        expected.append((pairs, p, q))
    for wanted, look in zip(expected, found, strict=True):
        assert pytest.approx(wanted) == (look.pairs, look.p_slower, look.p_equivalent)
    assert found[0].p_slower == 1.0
    assert [look.p_equivalent for look in found] == sorted((look.p_equivalent for look in found), reverse=True)


def test_running_values_never_grow() -> None:
    """What a look has shown stays shown: later pairs that say the contrary raise neither p nor q."""
    slow, same = (stats.interim_looks([*first, *[0.05, -0.05] * 3], EARLY, IGNORABLE, MUST_CATCH)
                  for first in (EXAMPLE[:6], [0.0001, -0.0001] * 3))  # fmt: skip

    assert slow[1].p_slower < 1
    assert [look.p_slower for look in slow[1:]] == [slow[1].p_slower] * 3
    assert [look.p_equivalent for look in same[1:]] == [same[1].p_equivalent] * 3
    assert same[1].p_equivalent < BETA


@pytest.mark.parametrize(
    ("pairs", "reached"), [(0, ()), (3, ()), (4, (4,)), (7, (4, 6)), (8, (4, 6, 8)), (12, (4, 6, 8, 12))]
)
def test_looks_reached(pairs: int, reached: tuple[int, ...]) -> None:
    """A look happens when its pairs are there; pairs beyond it wait for the next one."""
    found = stats.interim_looks(EXAMPLE[:pairs], EARLY, IGNORABLE, MUST_CATCH)

    assert reached == tuple(look.pairs for look in found)
    assert found == stats.interim_looks(EXAMPLE, EARLY, IGNORABLE, MUST_CATCH)[: len(found)]


def test_single_look() -> None:
    """The one look at what was not taken in pairs spends as much of both rates as it is given."""
    estimate = stats.difference_estimate(EXAMPLE[:6], [x + 0.02 for x in EXAMPLE[6:]], 1)
    over, under = (replace(estimate, mean=estimate.mean - math.log1p(m)) for m in (IGNORABLE, MUST_CATCH))

    whole, none = (stats.look_at(6, estimate, [over], [under], weights) for weights in ((1.0, 1.0), (0.0, 0.0)))

    assert whole.p_slower == pytest.approx(estimate.p_above(math.log1p(IGNORABLE)))
    assert whole.p_equivalent == pytest.approx(estimate.p_below(math.log1p(MUST_CATCH)))
    assert (none.p_slower, none.p_equivalent) == (1.0, 1.0)


# --- schedules


def test_one_look() -> None:
    """One look passes from four pairs on and blocks from six on."""
    assert stats.one_look(3) == stats.Schedule((3,), (0.0,), (0.0,))
    assert stats.one_look(4) == stats.Schedule((4,), (0.0,), (1.0,))
    assert stats.one_look(5) == stats.Schedule((5,), (0.0,), (1.0,))
    assert stats.one_look(6) == stats.Schedule((6,), (1.0,), (1.0,))


def test_extended() -> None:
    """A further look takes half of what either error rate has left, and the next one half of the rest."""
    first = EARLY.extended(16)
    second = first.extended(20)

    assert second.looks == (4, 6, 8, 12, 16, 20)
    assert pytest.approx([0.1, 0.05]) == second.block[-2:]
    assert pytest.approx([0.1, 0.05]) == second.pass_[-2:]


def test_places_of_further_looks_are_fixed() -> None:
    """A place has its weight, whenever it is chosen and whichever was left out; three quarters stay unspent."""
    assert [EARLY.place(pairs) for pairs in (13, 16, 17, 24, 25, 40, 41)] == [16, 16, 24, 24, 40, 40, 72]
    assert pytest.approx([0.025, 0.0125, 0.00625]) == EARLY.further((16, 24, 40)).block[-3:]
    assert pytest.approx([0.00625]) == EARLY.further((40,)).block[-1:]
    assert EARLY.further(()) == EARLY


def test_looks_of_earlier_versions_keep_their_weights() -> None:
    """At other places a record is judged as it was: each look has half of what is left."""
    assert EARLY.further((16, 22)) == EARLY.extended(16).extended(22)
    assert EARLY.further((16, 20, 24)) == EARLY.extended(16).extended(20).extended(24)


def test_extension_too_soon() -> None:
    """A further look comes at least four pairs after the last one."""
    with pytest.raises(ValueError, match="at least 4 pairs after 12"):
        EARLY.extended(15)


@pytest.mark.parametrize(
    ("looks", "block", "pass_", "words"),
    [
        ((), (), (), "looks must increase"),
        ((1,), (0.0,), (1.0,), "at least 2"),
        ((4, 4), (0.5, 0.5), (0.5, 0.5), "looks must increase"),
        ((6, 4), (0.5, 0.5), (0.5, 0.5), "looks must increase"),
        ((4, 6), (1.0,), (0.5, 0.5), "one a look"),
        ((4, 6), (0.5, 0.5), (0.5, 0.6), "at most 1"),
        ((4, 6), (-0.1, 0.5), (0.5, 0.5), "one a look"),
        ((3, 6), (0.0, 0.5), (0.1, 0.5), "no look passes below 4 pairs"),
    ],
)
def test_impossible_schedule(
    looks: tuple[int, ...], block: tuple[float, ...], pass_: tuple[float, ...], words: str
) -> None:
    """Looks that do not increase and weights that do not fit are refused."""
    with pytest.raises(ValueError, match=words):
        stats.Schedule(looks, block, pass_)


# --- Holm


@pytest.mark.parametrize(
    ("p", "rejected"),
    [
        ((), ()),
        ((0.01,), (True,)),
        ((0.011,), (False,)),
        ((0.005, 0.01), (True, True)),
        ((0.006, 0.006), (False, False)),
        ((0.02, 0.001, 0.004), (False, True, True)),
    ],
)
def test_holm_by_hand(p: tuple[float, ...], rejected: tuple[bool, ...]) -> None:
    """The smallest p meets alpha/m, the next one alpha/(m-1), and the first that fails ends it."""
    assert rejected == tuple(stats.holm(p, 0.01))


@pytest.mark.parametrize(
    ("p", "rejected"),
    [
        ((0.0024, 0.05, 0.0005), "x.x"),
        ((0.0015, 0.0024, 0.0049), "xxx"),
        ((0.0033, 0.0005, 0.0049, 0.0033, 0.011), ".x..."),
        ((0.0026, 0.0033, 0.009, 0.0005, 0.0024), "xxxxx"),
        ((0.0051, 0.011, 0.05, 0.0051, 0.0026, 0.0015), ".....x"),
        ((0.05, 0.0024, 0.0005, 0.0005, 0.0024, 0.0033), ".xxxxx"),
        ((0.0051, 0.0015, 0.0005, 0.0033, 0.0005, 0.0015), "xxxxxx"),
    ],
)
def test_holm_as_in_statsmodels(p: tuple[float, ...], rejected: str) -> None:
    """Holm rejects what multipletests of statsmodels 0.15 rejects at 0.0101, written down: importing it is slow."""
    assert tuple(stats.holm(p, 0.0101)) == tuple(mark == "x" for mark in rejected)


@given(p=P_VALUES)
def test_holm_level(p: list[float]) -> None:
    """Holm rejects a hypothesis exactly when its p does not exceed its level given the others."""
    assert tuple(value <= stats.holm_level(p, i, 0.01) for i, value in enumerate(p)) == tuple(stats.holm(p, 0.01))


# --- many runs at once

FEW = st.sampled_from([-0.001, 0.0, 0.0001, 0.001, 0.004, 0.006])
"""Few values, so that ties and rows without any spread occur."""
ROWS = st.lists(st.lists(FEW, min_size=12, max_size=12) | FEW.map(lambda d: [d] * 12), min_size=2, max_size=4)


@given(d=ROWS, resolution=st.sampled_from([0.0, 1e-5, 0.003]), carried=st.sampled_from([0.0, 1e-6]), data=st.data())
def test_many_runs_are_each_a_run_alone(d: Any, resolution: float, carried: float, data: st.DataObject) -> None:
    """Every figure of every look is that of the row by itself, also where two margins bind in some runs."""
    floors = np.array(data.draw(st.lists(ROWS.map(lambda rows: rows[0]), min_size=len(d), max_size=len(d)))) + 0.001
    over, under = (np.stack([margin + 0 * floors, floors]) for margin in (IGNORABLE, MUST_CATCH))

    together = stats.interim_looks(d, EARLY, over, under, resolution, carried)

    for n, row in enumerate(d):
        alone = stats.interim_looks(row, EARLY, over[:, n], under[:, n], resolution, carried)
        assert [_figures(look, n) for look in together] == [_figures(look) for look in alone]


def _figures(look: stats.Look, *run: int) -> list[float]:
    figures = [look.block_weight, look.pass_weight, look.p_slower, look.p_equivalent]
    for one in (look.estimate, look.over_ignorable, look.over_must_catch):
        figures += [one.mean, one.standard_error, one.df]
    return [float(np.asarray(figure)[run] if np.ndim(figure) else figure) for figure in figures]


@given(rows=st.lists(st.tuples(st.lists(P_VALUE, min_size=3, max_size=3), st.integers(1, 3)), min_size=1, max_size=6))
def test_holm_of_many_families_is_that_of_each(rows: list[tuple[list[float], int]]) -> None:
    """Row by row, with weights and without."""
    p = np.array([row for row, _ in rows])
    for weights in (None, [Fraction(1, share) for _, share in rows]):
        found, first = stats.holm(p, 0.01, weights), np.asarray(stats.holm_level(p, 0, 0.01, weights))
        for n, family in enumerate(p.T):
            assert [*found[:, n]] == [*stats.holm(family, 0.01, weights)]
            assert float(first[n]) == stats.holm_level(family, 0, 0.01, weights)


def test_regressed_is_tested_before_pass() -> None:
    """Neither is inconclusive; a q that is beta itself passes."""
    found = stats.decided(np.array([True, True, False, False]), np.array([0.01, 1.0, 0.05, 0.0501]), 0.05)

    assert found.tolist() == [stats.REGRESSED, stats.REGRESSED, stats.PASS, stats.INCONCLUSIVE]


# --- robust centre, power, modes


@given(d=st.lists(MICRO, min_size=1, max_size=13))
def test_hodges_lehmann(d: list[float]) -> None:
    """The Hodges-Lehmann estimate is the median of all averages of two, each with itself included."""
    averages = sorted((d[i] + d[j]) / 2 for i in range(len(d)) for j in range(i, len(d)))
    middle = (averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]) / 2

    assert pytest.approx(middle, abs=1e-15) == modes.hodges_lehmann(d)


@given(d=st.lists(MICRO, min_size=1, max_size=13), every=st.integers(2, 4))
def test_hodges_lehmann_of_more_than_are_averaged(d: list[float], every: int) -> None:
    """Of too many observations the middle one of every few enters, in order of size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modes, "MOST_AVERAGED", len(d))
        repeated = [value for value in d for _ in range(every)]
        assert modes.hodges_lehmann(repeated) == modes.hodges_lehmann(d)


def test_hodges_lehmann_of_many_pairs_takes_little_memory() -> None:
    """20,000 pairs, whose averages would fill gigabytes, take a few megabytes; symmetric ones have centre 0."""
    d = np.arange(-10_000, 10_001) * 1e-6
    tracemalloc.start()
    try:
        found = modes.hodges_lehmann(d)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert abs(found) < 1e-18
    assert peak < 30e6


@pytest.mark.parametrize("spread_df", [3, 5, 11, math.inf])
@pytest.mark.parametrize("level", [0.0016, 1e-5])
def test_detectable_against_scipy(spread_df: float, level: float) -> None:
    """The power is that of scipy.stats.nct, with a spread from few pairs its mean over scipy.stats.chi2."""
    slowdown = stats.detectable(stats.Estimate(0.0, 4e-4, 5), level, IGNORABLE, 0.95, spread_df)

    assert slowdown is not None
    shift = (math.log1p(slowdown) - math.log1p(IGNORABLE)) / 4e-4
    threshold = scipy_stats.t.isf(level, 5)
    quantiles = (np.arange(2000) + 0.5) / 2000
    seen = np.sqrt(scipy_stats.chi2.ppf(quantiles, spread_df) / spread_df) if spread_df < math.inf else 1.0
    assert pytest.approx(0.95, abs=5e-4) == np.mean(scipy_stats.nct.sf(threshold, 5, shift * seen))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(4, 6), (6, 6), (12, 12)])
def test_detectable_keeps_its_promise(first: int, second: int) -> None:
    """Of seeded pairs of runs, the second blocks what the first called detectable as often as declared."""
    runs, sd, level = 4000, 7e-4, 0.0024
    rng = np.random.default_rng([first, second])
    blocked = 0
    for row in rng.normal(0.0, sd, (runs, first)):
        seen = stats.mean_estimate(row).with_pairs(first, second)
        slowdown = stats.detectable(seen, level, IGNORABLE, 0.95, first - 1)
        assert slowdown is not None
        again = stats.mean_estimate(rng.normal(math.log1p(slowdown), sd, second))
        blocked += float(again.p_above(math.log1p(IGNORABLE))) <= level

    low, high = scipy_stats.binom.interval(0.999, runs, 0.95)
    assert low <= blocked <= high


def test_detectable_edges() -> None:
    """A look without a blocking level detects nothing, one without spread everything above the margin."""
    assert stats.detectable(stats.Estimate(0.0, 1e-3, 5), 0.0, IGNORABLE, 0.95) is None
    assert pytest.approx(IGNORABLE) == stats.detectable(stats.Estimate(0.0, 0.0, 5), 0.01, IGNORABLE, 0.95)


# --- resolution


def test_resolution_by_hand() -> None:
    """Equal values on a step of 1 % have the spread of rounding, and every bound lies a step further out."""
    estimate = stats.mean_estimate([0.02] * 4, 0.01)

    assert pytest.approx(0.01 / math.sqrt(6) / 2) == estimate.standard_error
    assert pytest.approx(0.02 - 0.01 - scipy_stats.t.isf(0.05, 3) * 0.01 / math.sqrt(24)) == estimate.lower(0.05)
    assert pytest.approx(0.05) == estimate.p_above(estimate.lower(0.05))
    assert pytest.approx(0.05) == estimate.p_below(estimate.upper(0.05))


def test_one_step_in_every_pair_blocks_nothing() -> None:
    """Six pairs that all lie one step of 0.3 % above the base are not above 0.1 %, and four are not below 0.5 %."""
    looks = stats.interim_looks([0.003] * 6, EARLY, IGNORABLE, MUST_CATCH, 0.003)

    assert [look.p_slower > ALPHA for look in looks] == [True, True]
    assert [look.p_equivalent > BETA for look in looks] == [True, True]


def test_margins_much_wider_than_the_resolution_decide_as_ever() -> None:
    """Identical values pass, and a clear slowdown of identical values blocks, where a step is a tenth of a margin."""
    same, slow = (stats.interim_looks([d] * 6, EARLY, IGNORABLE, MUST_CATCH, 0.0005)[-1] for d in (0.0, 0.006))

    assert same.p_equivalent <= BETA
    assert slow.p_slower <= ALPHA


@given(d=D12, step=st.floats(0, 0.01))
def test_a_coarser_instrument_never_decides_more(d: list[float], step: float) -> None:
    """Neither p nor q is smaller with a resolution than without."""
    for exact, coarse in zip(
        stats.interim_looks(d, EARLY, IGNORABLE, MUST_CATCH),
        stats.interim_looks(d, EARLY, IGNORABLE, MUST_CATCH, step),
        strict=True,
    ):
        assert coarse.p_slower >= exact.p_slower - 1e-12
        assert coarse.p_equivalent >= exact.p_equivalent - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [4, 6, 12])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_rounded_values_keep_the_level(pairs: int, spread: float) -> None:
    """Whatever the truth's place between two steps, the level holds: 500 places, spread in steps (seeded)."""
    rng = np.random.default_rng([pairs, int(100 * spread)])
    level, step, wrong, runs = 0.008, 0.003, 0, 2000
    for place in rng.random((runs, 2)):
        true = 1.0 + step * place + np.array([0.0, IGNORABLE])
        values = true[:, None] + spread * step * rng.standard_normal((2, pairs))
        base, head = step * np.round(values / step)
        estimate = stats.mean_estimate(stats.log_ratios(base, head, 1), step)
        wrong += float(estimate.p_above(math.log(true[1] / true[0]))) <= level

    assert wrong <= scipy_stats.binom.ppf(0.99, runs, level)


def test_exact_counts_are_taken_as_they_are() -> None:
    """Equal exact counts have no error: beyond a margin is beyond it, and exactly at it is not, rounding or no."""
    at, beyond = (stats.log_ratios([1000.0] * 6, [head] * 6, 1) for head in (1001.0, 1002.0))

    assert stats.interim_looks(at, EARLY, IGNORABLE, MUST_CATCH)[-1].p_slower == 1.0
    assert stats.interim_looks(beyond, EARLY, IGNORABLE, MUST_CATCH)[-1].p_slower == 0.0


def test_margins_by_pair() -> None:
    """A margin that differs by pair is taken off each pair's own log ratio before the test."""
    d, margins = EXAMPLE[:6], np.linspace(0.0, 0.001, 6)

    (look,) = stats.interim_looks(d, WHOLE, margins, MUST_CATCH)

    expected = scipy_stats.ttest_1samp(np.array(d) - np.log1p(margins), 0.0, alternative="greater").pvalue
    assert pytest.approx(expected) == look.p_slower


def test_of_two_margins_both_must_be_exceeded_and_either_has_half_of_beta() -> None:
    """The larger p counts for a block; for a pass the smaller one does, at half the weight."""
    d = np.array(EXAMPLE[:6])
    rows = np.array([np.linspace(0.0, 0.001, 6), np.linspace(0.002, 0.0, 6)])
    far = rows + 0.02

    (look,) = stats.interim_looks(d, WHOLE, rows, far)

    over = [scipy_stats.ttest_1samp(d - np.log1p(row), 0.0, alternative="greater").pvalue for row in rows]
    under = [scipy_stats.ttest_1samp(d - np.log1p(row), 0.0, alternative="less").pvalue for row in far]
    assert look.p_slower == pytest.approx(max(over))
    assert look.p_equivalent == pytest.approx(2 * min(under))
    assert look.pass_weight == WHOLE.pass_[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 6, 12, 24])
def test_modes_in_normal_samples(size: int) -> None:
    """About one in a hundred normal samples is called split."""
    rng = np.random.default_rng(size)

    split = sum(modes.two_modes(rng.standard_normal(size)) is not None for _ in range(2000))

    low, high = scipy_stats.binom.interval(0.999, 2000, 0.01)
    assert low <= split <= high


@given(order=st.permutations([0.0, 0.001, 0.0005, 0.0008, 0.0202, 0.0204, 0.0199]))
def test_clear_split(order: list[float]) -> None:
    """Two tight groups far apart are found in any order, with the upper group's size and the distance."""
    found = modes.two_modes(order)

    assert pytest.approx((3, 0.0201667 - 0.000575), abs=1e-6) == found


@pytest.mark.parametrize("size", [6, 7, 12, 24])
@pytest.mark.parametrize("value", [16e9, 65536.0, 0.1, 5.3e-3, 89.96])
def test_equal_values_have_no_modes(size: int, value: float) -> None:
    """Values that are all equal are one group, whatever rounding makes of their mean."""
    assert modes.two_modes(stats.logs([value] * size)) is None


@pytest.mark.parametrize(("size", "said"), [(3, False), (4, True), (24, True), (25, False)])
def test_modes_by_size(size: int, *, said: bool) -> None:
    """Modes are sought among four to 24 observations, so that the first look has the caution too."""
    assert said == (modes.two_modes([0.0] * (size - 2) + [1.0] * 2) is not None)


def test_mode_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed 99 % points agree with a fresh, smaller simulation of research/mode_table.py."""
    benchmark: Any = _load(Path(__file__).parents[2] / "research" / "mode_table.py")
    monkeypatch.setattr(benchmark, "SAMPLES", 20_000)
    rng = np.random.default_rng(5)

    fresh = {n: benchmark.percentile_99(n, rng) for n in (4, 6, 9, 14, 24)}

    assert list(range(4, 25)) == list(modes.MODE_SPLIT_99)
    assert pytest.approx(fresh, rel=0.1) == {n: modes.MODE_SPLIT_99[n] for n in fresh}


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- properties of a whole sequence


def sequence(d: list[float], scale: float = 1.0) -> list[tuple[float, float]]:
    """(p, q) at every look for pairs with these log ratios."""
    base = [scale * (1 + n / 7) for n in range(len(d))]
    head = [b * math.exp(x) for b, x in zip(base, d, strict=True)]
    found = stats.interim_looks(stats.log_ratios(base, head, 1), EARLY, IGNORABLE, MUST_CATCH)
    return [(float(look.p_slower), float(look.p_equivalent)) for look in found]


@given(d=D12, scale=st.floats(1e-6, 1e6))
def test_scale(d: list[float], scale: float) -> None:
    """Multiplying every value of both sides changes nothing: units do not matter."""
    for one, other in zip(sequence(d), sequence(d, scale), strict=True):
        assert pytest.approx(one, abs=1e-6) == other


@given(d=D12, sign=st.sampled_from([1, -1]))
def test_swapped_roles(d: list[float], sign: int) -> None:
    """Swapping base and head flips the sign of every log ratio and of the estimates, and exchanges the tails."""
    base, head = [1.0] * 12, [math.exp(x) for x in d]

    there, back = stats.log_ratios(base, head, sign), stats.log_ratios(head, base, sign)

    assert there.tolist() == (-back).tolist()
    one, other = stats.mean_estimate(there), stats.mean_estimate(back)
    assert one.mean == -other.mean
    assert one.p_above(0.004) == other.p_below(-0.004)
    assert stats.difference_estimate([0.0, 1.0], d, 1).mean == -stats.difference_estimate(d, [0.0, 1.0], 1).mean


@given(d=D12, slower=st.integers(1, 20_000).map(lambda n: n * 1e-6))
def test_monotone(d: list[float], slower: float) -> None:
    """A head that is slower in every pair by one factor has no larger p and no smaller q at any look."""
    for (p, q), (p_slower, q_slower) in zip(sequence(d), sequence([x + slower for x in d]), strict=True):
        assert p_slower <= p + 1e-9
        assert q_slower >= q - 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_no_ratio(bad: float) -> None:
    """A value that is not positive and finite has no logarithm on either side."""
    for base, head in (([1.0, bad], [1.0, 1.0]), ([1.0, 1.0], [1.0, bad])):
        with pytest.raises(ValueError, match="positive finite"):
            stats.log_ratios(base, head, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_nothing_non_finite_passes(bad: float, place: int) -> None:
    """A log ratio that is not finite is refused by everything that takes a row of them."""
    d = [*EXAMPLE[:place], bad, *EXAMPLE[place + 1 :]]
    takers = (stats.mean_estimate, modes.hodges_lehmann, modes.two_modes)

    for take in takers:
        with pytest.raises(ValueError, match="finite"):
            take(d)
    with pytest.raises(ValueError, match="finite"):
        stats.interim_looks(d, EARLY, IGNORABLE, MUST_CATCH)
    with pytest.raises(ValueError, match="finite"):
        stats.difference_estimate(EXAMPLE, d, 1)


@pytest.mark.parametrize(
    ("base", "head"), [([1.0, 2.0], [1.0]), ([[1.0], [2.0]], [[1.0], [2.0]])], ids=["lengths", "shape"]
)
def test_unmatched_sides(base: Any, head: Any) -> None:
    """Sides of different length, or of more than one dimension, make no pairs."""
    with pytest.raises(ValueError, match="one value a pair"):
        stats.log_ratios(base, head, 1)


def test_too_few() -> None:
    """One observation has no spread, none has no centre."""
    with pytest.raises(ValueError, match="at least two"):
        stats.mean_estimate([0.1])
    with pytest.raises(ValueError, match="at least one"):
        modes.hodges_lehmann([])


@pytest.mark.parametrize(
    ("log_ratio", "ratio"), [(0.0, 0.0), (math.log(1.5), 0.5), (-math.inf, -1.0), (800.0, math.inf)]
)
def test_to_ratio(log_ratio: float, ratio: float) -> None:
    """A log ratio becomes a ratio minus one, and one beyond what a float holds becomes infinite."""
    assert pytest.approx(ratio) == stats.to_ratio(log_ratio)


# --- the declared error rates


def verdicts(slowdown: float, runs: int, seed: int) -> list[str]:
    """What one gate decides over the default looks in seeded runs with pairs of sd 0.07 %."""
    d = np.random.default_rng(seed).normal(math.log1p(slowdown), 7e-4, (runs, EARLY.looks[-1]))
    return [_decide(stats.interim_looks(row, EARLY, IGNORABLE, MUST_CATCH)) for row in d]


def _decide(found: tuple[stats.Look, ...]) -> str:
    for look in found:
        if look.p_slower <= ALPHA:
            return "regressed"
        if look.p_equivalent <= BETA:
            return "pass"
    return "inconclusive"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slowdown", "wrong", "rate"), [(IGNORABLE, "regressed", ALPHA), (MUST_CATCH, "pass", BETA)], ids=["alpha", "beta"]
)
def test_error_rates(slowdown: float, wrong: str, rate: float) -> None:
    """At the margins of normal data the wrong verdict is no more frequent than declared (one-sided 99 % bound)."""
    runs = 4000

    wrongs = verdicts(slowdown, runs, seed=2026).count(wrong)

    assert wrongs <= scipy_stats.binom.ppf(0.99, runs, rate)


def test_usual_ends() -> None:
    """Of unchanged builds nearly all pass, of builds slower by must_catch nearly all are blocked."""
    assert verdicts(0.0, 300, seed=1).count("pass") >= 297
    assert verdicts(MUST_CATCH, 300, seed=2).count("regressed") >= 290


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-1, 1)), min_size=3, max_size=8),
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-1, 1)), min_size=3, max_size=8),
    st.floats(-3, 3),
    st.floats(-10, 10),
)
def test_adjusted_difference_takes_the_covariate_out(
    base: list[tuple[float, float]], head: list[tuple[float, float]], slope: float, shift: float
) -> None:
    """Whatever multiple of the covariate is added to both sides, and whatever to the head, only the latter is seen."""
    covariates = [[z for z, _ in side] for side in (base, head)]
    assume(all(max(side) - min(side) > 0.1 for side in covariates))
    noise = [[e for _, e in side] for side in (base, head)]
    plain = stats.adjusted_difference(*noise, *covariates)
    moved = [[e + slope * z for z, e in zip(*side, strict=True)] for side in zip(covariates, noise, strict=True)]

    found = stats.adjusted_difference(moved[0], [y + shift for y in moved[1]], *covariates)

    assert found.mean == pytest.approx(plain.mean + shift, abs=1e-6)
    assert found.standard_error == pytest.approx(plain.standard_error, abs=1e-6)
    assert found.df == len(base) + len(head) - 3


def test_adjusted_difference_keeps_its_level() -> None:
    """Without a difference its 1 % bound lies above zero in about one run of a hundred (seeded, 4 a side)."""
    draw = np.random.default_rng(7)
    above = 0
    for _ in range(4000):
        z = draw.normal(0.54, 0.03, 8)
        y = 1.1 + 2.5 * z + draw.normal(0, 0.02, 8)
        above += stats.adjusted_difference(*(part.tolist() for part in (y[:4], y[4:], z[:4], z[4:]))).lower(0.01) > 0
    assert 20 <= above <= 62


def test_adjusted_difference_without_a_covariate_is_a_difference_of_means() -> None:
    """A covariate without spread costs no degree of freedom: Student's two-sample test, figures by hand."""
    found = stats.adjusted_difference([1.0, 3.0], [4.0, 6.0], [7.0, 7.0], [7.0, 7.0])
    assert [found.mean, found.standard_error, found.df] == pytest.approx([3.0, math.sqrt(2), 2])
