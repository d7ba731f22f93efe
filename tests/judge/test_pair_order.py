"""Pairs of a CSV: who ran first in them is a column, was drawn, or nobody knows, and a drift is no regression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perfgate import gate, stats
from perfgate.cli.main import main
from perfgate.errors import UsageError
from perfgate.judge.outcome import GateOutcome, Outcome
from perfgate.judge.pair_order import ONE_LOOK, why_unknown
from perfgate.scenario.margins import Gate
from perfgate.scenario.plan import GatePlan

GATE = gate.parse_gate("itl_median:0.1%:0.5%")
TABLES = 200
Sides = tuple[list[float], list[float]]
NOISE = (0.0, 1e-4, -1e-4, 5e-5, -5e-5, 2e-5, -2e-5, 8e-5, -8e-5, 3e-5, -3e-5, 0.0)
"""Logarithms by which the twelve pairs of a table differ besides."""


def write(folder: Path, base: Sequence[float], head: Sequence[float], head_first: Sequence[bool] = ()) -> Path:
    """A CSV of step times in milliseconds, with a column ``order`` where that is given."""
    lines = ["pair,order,subject,metric,unit,value" if head_first else "pair,subject,metric,unit,value"]
    for n, values in enumerate(zip(base, head, strict=True)):
        for side, value in zip(("base", "head"), values, strict=True):
            place = f"{1 + ((side == 'head') != head_first[n])}," if head_first else ""
            lines.append(f"{n},{place}{side},itl_median,ms,{value:.9f}")
    file = folder / "t.csv"
    file.write_text("\n".join(lines))
    return file


def trials(head_first: Sequence[bool], drift: Sequence[float], slower: float = 0.0, place: float = 0.0) -> Sides:
    """Step times of base and head whose trials were taken one after the other.

    Args:
        head_first: Of each pair.
        drift: Logarithm of the machine's speed at each trial, two a pair.
        slower: Logarithm of the head's slowdown.
        place: Logarithm of what being second costs.
    """
    sides: Sides = ([], [])
    for n, first in enumerate(head_first):
        for side, values in enumerate(sides):
            second = (side == 1) != first
            noise = NOISE[n % 12] * (1 if side else -1)
            values.append(10 * math.exp(drift[2 * n + second] + slower * side + place * second + noise))
    return sides


def only(outcome: Outcome) -> GateOutcome:
    """Its only gate."""
    ((found,),) = (cell.gates for cell in outcome.cells)
    return found


BASE_FIRST = (False,) * 12
EVEN = (False, True, True, False, False, True, True, False, True, False, False, True)
UPWARDS = [0.016 * n for n in range(24)]
STILL = [0.0] * 24


def test_a_drift_blocks_no_unchanged_build(tmp_path: Path) -> None:
    """One build on both sides, the base always first, both slower from trial to trial: the order is what is missing."""
    file = write(tmp_path, *trials(BASE_FIRST, UPWARDS))

    found = only(outcome := gate.compare_table(file, [GATE]))

    assert (found.verdict, outcome.exit_status) == ("inconclusive", 20)
    (reason,) = found.reasons
    assert reason.code == "advisory-unpaired"
    assert reason.text == (
        "would be regressed, but no column 'order' says which side of a pair ran first, and both sides moved by "
        "+42.2 % from the first pair to the last, +1.61 % from one trial to the next"
    )
    assert (found.p, found.detectable) == (1.0, None)
    assert found.change_low is not None
    assert found.change_high is not None
    assert found.change_low < 0 < found.change_high, "the interval holds what the drift may be"


def test_a_drift_hides_no_regression(tmp_path: Path) -> None:
    """A head slower by as much as the machine becomes faster between trials seems the same, and does not pass."""
    file = write(tmp_path, *trials(BASE_FIRST, UPWARDS[::-1], slower=0.016))

    found = only(gate.compare_table(file, [GATE]))

    assert found.change == pytest.approx(0, abs=1e-4)
    assert (found.verdict, [reason.code for reason in found.reasons]) == ("inconclusive", ["advisory-unpaired"])
    assert found.reasons[0].text.startswith("would pass, but no column")


def test_without_a_drift_a_pass_stands(tmp_path: Path) -> None:
    """Where both sides stand still an unknown order takes no pass away, and the caution says what was not seen."""
    found = only(outcome := gate.compare_table(write(tmp_path, *trials(BASE_FIRST, STILL)), [GATE]))

    assert (found.verdict, outcome.exit_status) == ("pass", 0)
    (caution,) = found.cautions
    assert caution.code == "advisory-unpaired"
    assert caution.text.endswith("which side of a pair ran first; what the place in a pair costs would not be seen")


def test_an_unknown_order_shows_no_improvement(tmp_path: Path) -> None:
    """A head that is faster passes, and is not called improved: it may have had the faster place."""
    values = trials(BASE_FIRST, STILL, slower=-0.02)

    unknown = only(gate.compare_table(write(tmp_path, *values), [GATE]))
    drawn = only(gate.compare_table(write(tmp_path, *values), [GATE], "randomised"))

    assert (unknown.verdict, drawn.verdict) == ("pass", "improved")


@pytest.mark.parametrize("drift", [STILL, UPWARDS, UPWARDS[::-1], [0.0] * 7 + [0.05] * 17], ids=str)
@pytest.mark.parametrize("place", [0.0, 0.01, -0.01])
def test_a_known_order_blocks_what_is_slower_and_nothing_else(tmp_path: Path, drift: list[float], place: float) -> None:
    """With both orders as often, a head that is slower is blocked whatever drifts, and an unchanged one never."""
    slow = only(gate.compare_table(write(tmp_path, *trials(EVEN, drift, 0.05, place), EVEN), [GATE]))
    same = only(gate.compare_table(write(tmp_path, *trials(EVEN, drift, 0.0, place), EVEN), [GATE]))

    assert slow.verdict == "regressed"
    assert same.verdict in ("pass", "inconclusive")
    codes = [note.code for found in (slow, same) for note in (*found.reasons, *found.cautions)]
    assert "advisory-unpaired" not in codes


def test_a_block_needs_the_order_as_a_covariate_too(tmp_path: Path) -> None:
    """Eight pairs whose paired test just blocks do not with their order known: that costs a degree of freedom."""
    head_first = (False, True) * 4
    d = math.log1p(0.001) + 0.003 * (1.25 + np.array([1.0, 1.0, -1.0, -1.0] * 2))
    values = [10.0] * 8, [10 * math.exp(one) for one in d]

    stated = only(gate.compare_table(write(tmp_path, *values), [GATE], "randomised"))
    known = only(gate.compare_table(write(tmp_path, *values, head_first), [GATE]))

    over = d - math.log1p(0.001)
    paired, adjusted = stats.mean_estimate(over).p_above(0.0), stats.order_adjusted(over, head_first).p_above(0.0)
    assert paired < 0.01 * ONE_LOOK < adjusted
    assert pytest.approx((paired / ONE_LOOK, adjusted / ONE_LOOK), rel=1e-4) == (stated.p, known.p)
    assert (stated.verdict, known.verdict) == ("regressed", "inconclusive")
    assert [reason.code for reason in known.reasons] == ["undecided"]


@pytest.mark.parametrize(
    ("head_first", "said"),
    [
        ([False] * 8, "the base ran first in all 8 pairs"),
        ([True] * 8, "the head ran first in all 8 pairs"),
        ([True, False, False, False, False, False, True, False], "the base ran first in 6 of 8 pairs, not in half"),
        ([False] * 6 + [True] * 6, "the base ran first in 5 of the first 5 pairs, and in 6 of all"),
        ([True] * 7 + [False] * 6, "the base ran first in 0 of the first 5 pairs, and in 6 of all"),
        ([False, True] * 6, ""),
        ([False, True] * 6 + [True], ""),
        ([False, True, True, False], ""),
        ([True, True, True, False, False, False], ""),
    ],
)
def test_which_orders_are_even(tmp_path: Path, head_first: list[bool], said: str) -> None:
    """Both orders, balanced within one, and neither early: anything else blocks nothing, and says what is wrong."""
    assert why_unknown(head_first, drawn=False).startswith(said)
    assert bool(why_unknown(head_first, drawn=False)) == bool(said)
    slower = [10 * math.exp(0.02 + NOISE[n % 12]) for n in range(len(head_first))]

    found = only(gate.compare_table(write(tmp_path, [10.0] * len(slower), slower, head_first), [GATE]))

    assert (found.verdict == "regressed") == (not said and len(slower) >= 7)


def test_all_of_one_order_is_no_coin(tmp_path: Path) -> None:
    """A column that says that the base was always first weighs more than the word that the order was drawn."""
    file = write(tmp_path, *trials(BASE_FIRST, UPWARDS), BASE_FIRST)

    found = only(gate.compare_table(file, [GATE], "randomised"))

    assert found.reasons[0].text.startswith("would be regressed, but the base ran first in all 12 pairs, and")


def test_a_drawn_order_need_not_be_balanced(tmp_path: Path) -> None:
    """Of twelve coins four and eight are alike now and then: with the word that they were drawn the test holds."""
    uneven = (False,) * 2 + (True, False) * 3 + (False,) * 4
    file = write(tmp_path, *trials(uneven, STILL, slower=0.02), uneven)

    assert only(gate.compare_table(file, [GATE])).verdict == "inconclusive"
    assert only(gate.compare_table(file, [GATE], "randomised")).verdict == "regressed"


def test_one_unknown_gate_loosens_no_other(tmp_path: Path) -> None:
    """Holm's levels are those of a family in which what has no order rejects nothing."""
    file = write(tmp_path, *trials(EVEN, STILL, slower=0.02), EVEN)
    more = [f"{n},{1 + side},{name},ttft_median,ms,{50 + 5 * side + n / 1000}"
            for n in range(20, 28) for side, name in enumerate(("base", "head"))]  # fmt: skip
    file.write_text("\n".join([file.read_text(), *more]))

    (cell,) = gate.compare_table(file, [GATE, gate.parse_gate("ttft_median:1%:5%")]).cells

    assert [found.verdict for found in cell.gates] == ["regressed", "inconclusive"]
    assert cell.gates[0].block_level == pytest.approx(0.005)
    assert cell.gates[1].reasons[0].code == "advisory-unpaired"


def test_the_adjusted_mean_is_that_of_least_squares() -> None:
    """Mean and error agree with the textbook's regression on the order, at unequal numbers of both."""
    head_first = np.array([True, False, False, True, False, False, False])
    d = np.array([0.3, 0.1, -0.2, 0.5, 0.0, 0.4, 0.2])
    design = np.stack([np.ones(7), np.where(head_first, -0.5, 0.5)], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    fitted = inverse @ design.T @ d
    variance = float(((d - design @ fitted) ** 2).sum()) / 5

    found = stats.order_adjusted(d, head_first.tolist())

    assert found.mean == pytest.approx(fitted[0])
    assert found.df == 5
    assert found.standard_error == pytest.approx(math.sqrt(variance * inverse[0, 0]))


def test_metrics_without_a_gate_are_shown(tmp_path: Path) -> None:
    """What a CSV holds beside its gates is below them: a metric that doubled is not left out."""
    file = write(tmp_path, *trials(EVEN, STILL), EVEN)
    more = [f"{n},{place},{side},ttft_median,ms,{(50 if side == 'base' else 100) + n / 10}"
            for n, first in enumerate(EVEN) for side, place in
            (("base", 2 if first else 1), ("head", 1 if first else 2))]  # fmt: skip
    file.write_text("\n".join([file.read_text(), *more]))

    result = CliRunner().invoke(main, ["compare", str(file), "--gate", "itl_median:0.1%:0.5%", "--format", "text"])

    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "not gated" in line]
    assert "ttft_median" in line
    assert "+98.9 %" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--order", "alternated"], "'alternated' is not 'randomised'"),
        (["--order", "randomised", "a", "b"], "--scenario, --gate and --order are for a CSV"),
    ],
)
def test_an_order_that_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    """Only a coin can be stated, and only of a CSV."""
    file = write(tmp_path, *trials(EVEN, STILL), EVEN)
    files = [] if "a" in words else [str(file), "--gate", "itl_median:0.1%:0.5%"]

    result = CliRunner().invoke(main, ["compare", *words, *files])

    assert result.exit_code == 2
    assert said in result.stderr


def test_an_order_of_no_pairs(tmp_path: Path) -> None:
    """Trials that were not taken in pairs have no order in them."""
    (tmp_path / "t.csv").write_text("subject,metric,unit,value\nbase,itl_median,s,1.0\nhead,itl_median,s,1.1\n")

    result = CliRunner().invoke(
        main, ["compare", str(tmp_path / "t.csv"), "--gate", "itl_median:1%:5%", "--order", "randomised"]
    )

    assert result.exit_code == 2
    assert "has no column 'pair'" in result.stderr


@given(st.lists(st.sampled_from([-0.3, -0.1, 0.0, 0.05, 0.2, 1.0]), min_size=1, max_size=10))
def test_flipped_signs_are_counted(d: list[float]) -> None:
    """The p value is the share of all ways to sign the observations whose sum is at least theirs."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(d))))
    sums = (signs * np.abs(d)).sum(axis=1)

    proved = stats.FlippedEstimate(1.0, 0.0, 5, d=tuple(d))  # by Student's t beyond doubt
    refuted = stats.FlippedEstimate(-1.0, 0.0, 5, d=tuple(d))

    assert proved.p_above(0.0) == pytest.approx((sums >= sum(d) - 1e-12).mean())
    assert refuted.p_below(0.0) == pytest.approx((sums <= sum(d) + 1e-12).mean())
    assert (refuted.p_above(0.0), proved.p_below(0.0)) == (1.0, 1.0)


@given(
    d=st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=9),
    level=st.sampled_from([0.008, 0.04, 0.2]),
    resolution=st.sampled_from([0.0, 1e-3]),
)
def test_bounds_are_where_the_p_values_cross_their_level(d: list[float], level: float, resolution: float) -> None:
    """Below the lower bound both tests reject, above it one does not; so for the upper. Few pairs have no bound."""
    found, step = stats.flipped_estimate(d, resolution), 1e-9

    low, high = found.lower(level), found.upper(level)

    assert math.isfinite(low) == math.isfinite(high) == (2.0 ** -len(d) <= level)
    if math.isfinite(low):
        assert found.p_above(low - step) <= level < found.p_above(low + step)
        assert found.p_below(high + step) <= level < found.p_below(high - step)


def test_signs_of_many_are_drawn() -> None:
    """Of forty equal observations no drawn way to sign them has their sum."""
    equal = stats.FlippedEstimate(1.0, 0.0, 39, d=(0.1,) * 40)

    assert equal.p_above(0.0) == 2.0**-16
    assert equal.p_above(0.2) == 1.0


def test_stated_coins_are_held_against_all_others(tmp_path: Path) -> None:
    """Ten pairs of twelve on one side of a large drift block nothing: coins fall so in one table of fifty."""
    head_first = [False] * 10 + [True] * 2
    base, head = trials(head_first, STILL, place=0.01)

    found = only(
        gate.compare_table(write(tmp_path, base, head), [gate.parse_gate("itl_median:0.02%:0.5%")], "randomised")
    )

    by_t = stats.mean_estimate(np.log(head) - np.log(base) - math.log1p(0.0002))
    assert by_t.p_above(0.0) < 0.01 * ONE_LOOK, "the t test alone rejects"
    assert (found.verdict, [reason.code for reason in found.reasons]) == ("inconclusive", ["undecided"])
    assert found.p == pytest.approx(79 / 4096 / ONE_LOOK, rel=0.01)
    assert found.change_low is not None
    assert found.change_low < 0.0002, "the interval shows it, too"


@pytest.mark.parametrize(("pairs", "gates", "verdict"), [(6, 1, "inconclusive"), (7, 1, "regressed"),
                                                        (8, 3, "inconclusive"), (9, 3, "regressed")])  # fmt: skip
def test_how_many_pairs_can_block(tmp_path: Path, pairs: int, gates: int, verdict: str) -> None:
    """A table blocks once its pairs are all on the slower of two levels seldom enough; gates share alpha."""
    file = write(tmp_path, *([10.0] * pairs, [10.2 + n / 1e4 for n in range(pairs)]))
    lines = file.read_text().splitlines()
    for name in ("ttft_median", "tpot_mean"):
        lines += [line.replace("itl_median", name) for line in lines[1 : 2 * pairs + 1]]
    file.write_text("\n".join(lines))
    names = ["itl_median", "ttft_median", "tpot_mean"][:gates]

    (cell,) = gate.compare_table(file, [gate.parse_gate(f"{name}:0.1%:0.5%") for name in names], "randomised").cells

    assert [found.verdict for found in cell.gates] == [verdict] * gates
    at_least = {found.detectable_at for found in cell.gates}
    assert at_least == ({None} if verdict == "regressed" else {pairs + 1})


@pytest.mark.parametrize(("pairs", "slow", "verdict"), [(7, 6, "inconclusive"), (10, 9, "inconclusive"),
                                                       (10, 10, "regressed")])  # fmt: skip
def test_a_head_on_two_levels_does_not_block(tmp_path: Path, pairs: int, slow: int, verdict: str) -> None:
    """Restarts on two levels whose mean is ignorable lie nine of ten on the slower one in one table of a hundred."""
    d = [math.log1p(0.001) + (0.05 if n < slow else -0.05) for n in range(pairs)]
    file = write(tmp_path, [10.0] * pairs, [10 * math.exp(one) for one in d])

    assert only(gate.compare_table(file, [GATE], "randomised")).verdict == verdict


@pytest.mark.parametrize(("pairs", "fast", "verdict"), [(4, 4, "inconclusive"), (5, 5, "improved"),
                                                       (10, 8, "inconclusive"), (10, 9, "improved")])  # fmt: skip
def test_a_head_on_two_levels_does_not_pass(tmp_path: Path, pairs: int, fast: int, verdict: str) -> None:
    """Nor do they pass a mean that must be caught, eight of ten on the faster level: one table of eighteen is so."""
    d = [math.log1p(0.005) - (0.05 if n < fast else -0.05) for n in range(pairs)]
    file = write(tmp_path, [10.0] * pairs, [10 * math.exp(one) for one in d])

    assert only(gate.compare_table(file, [GATE], "randomised")).verdict == verdict


@pytest.mark.parametrize(("pairs", "gates"), [(7, 1), (9, 3), (10, 8), (24, 1)])
def test_a_table_blocks_what_it_can_detect_as_promised(pairs: int, gates: int) -> None:
    """What the signs cost is in the figure: 95 of 100 normal tables with that slowdown block."""
    rng, level = np.random.default_rng(pairs), 0.01 * ONE_LOOK / gates
    blocked = 0
    for _ in range(TABLES):
        slower = stats.detectable(stats.flipped_estimate(0.001 * rng.standard_normal(pairs)), level, 0.0, 0.95)
        assert slower is not None
        table = stats.flipped_estimate(0.001 * rng.standard_normal(pairs) + math.log1p(slower))
        blocked += bool(table.p_above(0.0) <= level)

    assert blocked >= 0.92 * TABLES, "95 less what 200 tables may differ by"


def test_two_margins_that_bind_need_a_pair_more(tmp_path: Path) -> None:
    """A pass below one of two margins has half of beta: six pairs pass where five of a single margin do."""
    limits = {"ignorable": "0.1%", "must_catch": "0.5%", "floor": "40us"}
    both = GatePlan(gate=Gate.model_validate({"metric": "itl_median", **limits}), where="scenario")

    found = only(
        gate.compare_table(write(tmp_path, [7.0, 8.5] * 2 + [7.0], [7.0, 8.5] * 2 + [7.0]), [both], "randomised")
    )

    assert found.verdict == "inconclusive"
    assert "no look passes before 6 pairs" in found.reasons[0].text


def test_more_gates_than_can_block_are_refused(tmp_path: Path) -> None:
    """The level of each of 525 gates is below the smallest p that signs can have."""
    file = write(tmp_path, *trials(EVEN, STILL), EVEN)

    with pytest.raises(UsageError, match="525 gates of one table: of more than 524 none could block"):
        gate.compare_table(file, [GATE] * 525)


def test_ungated_metrics_of_few_pairs_are_not_judged(tmp_path: Path) -> None:
    """All six pairs are slower; that one of several metrics is so in six pairs happens by levels of restarts alone."""
    file = write(tmp_path, [10.0] * 6, [10.2 + n / 1e4 for n in range(6)], EVEN[:6])
    more = [line.replace("itl_median", "tpot_mean") for line in file.read_text().splitlines()[1:]]
    file.write_text("\n".join([file.read_text(), *more]))

    (cell,) = gate.compare_table(file, [GATE]).cells

    assert [(row.metric, row.change_low) for row in cell.ungated] == [("tpot_mean", None)]


def test_in_an_unknown_order_no_number_of_pairs_blocks(tmp_path: Path) -> None:
    """Of too few pairs without an order both are said."""
    found = only(gate.compare_table(write(tmp_path, *trials(BASE_FIRST[:6], STILL, slower=0.02)), [GATE]))

    assert [reason.code for reason in found.reasons] == ["undecided", "advisory-unpaired"]
    assert found.reasons[1].text.endswith("which side of a pair ran first, so no number of pairs blocks")
