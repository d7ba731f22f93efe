"""What a verdict says of the machine's states beside its gates, and what it concludes from before they showed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hand_made import codes, gate, trials
from test_states import (
    BOTH_STATES,
    FASTER,
    JUMPS,
    KEEPS,
    by_state,
    changed,
    judged_on_gpu,
    pairs,
    readings,
    taken,
    with_readings,
)

from perfgate.judge.outcome import CellOutcome, Outcome
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import PROBED_GPUS, SETTLED, Probes, Trial, tells_states
from perfgate.report.closing_sentence import closing
from perfgate.report.outcome_lines import states_line


def waited(taken: Sequence[Trial], labels: str) -> list[Trial]:
    """Trials that began on a slow GPU: by pair those of ``h`` the head, ``b`` the base, ``x`` both, ``-`` neither."""
    sides = {"h": ["head"], "b": ["base"], "x": SIDES, "-": []}
    return [
        one.model_copy(update={"figures": {SETTLED: 9 * 10**9}}) if one.label in sides[labels[one.pair or 0]] else one
        for one in taken
    ]


@pytest.mark.parametrize(
    ("labels", "said"),
    [("hhhhxx", "for the head alone in 4 pairs, for the other in 0"), ("bbbb--", "for the base alone in 4 pairs"),
     ("hhhb--", ""), ("hhh-xx", ""), ("xxxxxx", "")],
)  # fmt: skip
def test_a_build_whose_engines_begin_slow_is_named(labels: str, said: str) -> None:
    """Waiting for the fast state hides that from every iteration that is judged, so where it leans is said."""
    found = judged_on_gpu(waited(with_readings([(FASTER, FASTER)] * 6), labels))
    assert found.verdict == "pass"
    leaning = [own.text for own in found.cautions if own.code == "two-states"]
    assert len(leaning) == bool(said)
    assert all(said in text for text in leaning)
    found = judged_on_gpu(waited(with_readings([(FASTER, FASTER)] * 6), labels), orders="blocks")
    assert "two-states" not in codes(found.cautions)


def test_a_build_beside_which_the_probe_is_always_slow_is_named() -> None:
    """A head that is slow in all its trials is blocked as it is; that the probe is slow beside it is said."""
    found = judged_on_gpu(with_readings([(FASTER, KEEPS)] * 6))
    assert (found.verdict, found.states) == ("regressed", None)
    (caution,) = (own for own in found.cautions if own.code == "two-states")
    took = "the probe takes 215.0 us beside each trial of the head, and 179.0 us beside the other"
    assert caution.text == f"{took}: all is compared as it is"
    for few in ([(FASTER, FASTER)] * 6, [(FASTER, KEEPS)] * 3):
        assert "two-states" not in codes(judged_on_gpu(with_readings(few)).cautions)


def on_levels(levels: Sequence[tuple[int, int]]) -> list[Trial]:
    """Trials of one state each, with a reading of the probe for base and head of each pair, in microseconds."""
    taken = with_readings([(FASTER, FASTER)] * len(levels))
    readings = itertools.chain.from_iterable(levels)
    return [changed(one, range(8), probe_ns=Probes((1000 * us,), (1000 * us,)))
            for one, us in zip(taken, readings, strict=True)]  # fmt: skip


@pytest.mark.parametrize("third", [185, 197, 232, 260])
def test_three_levels_of_the_probe_are_named(third: int) -> None:
    """Where they are, how many trials have each, and beside which build; however far from the other two it is."""
    levels = [(179, 179), (215, 215), (third, third), (179, 215), (215, third), (third, 179)]
    found = judged_on_gpu(on_levels(levels))
    (text,) = (own.text for own in found.cautions if "levels" in own.text)
    each = ", ".join(f"{us}.0 us in 2 trials" for us in sorted((179, 215, third)))
    assert text == f"of 6 pairs the probe reads 3 levels beside the base: {each}; 3 levels beside the head: {each}"


@pytest.mark.parametrize(
    "levels",
    [
        [(179, 179), (215, 215), (215, 179)] * 2,
        [(179, 193), (215, 229), (215, 193)] * 2,  # the head moves the probe
        [(179, 179), (180, 181), (215, 214)] * 2,
        [(179, 179)] * 6,
    ],
)
def test_two_levels_a_build_are_no_three(levels: list[tuple[int, int]]) -> None:
    """Readings of one state differ a little, and a build may move the probe: beside either there are two levels."""
    assert not any("levels" in own.text for own in judged_on_gpu(on_levels(levels)).cautions)


def test_readings_between_levels_are_no_level() -> None:
    """Two disturbed iterations of a trial, and jumps within a reading, are named nowhere."""
    taken = on_levels([(179, 179), (215, 215)] * 3)
    taken[3] = changed(taken[3], [2, 5], probe_ns=Probes((250_000,), (250_000,)))
    taken[4] = changed(taken[4], [0], probe_ns=Probes((179_000,), (197_000,)))
    assert not any("levels" in own.text for own in judged_on_gpu(taken).cautions)


def test_what_was_measured_before_a_state_was_seen_lets_it_not_pass() -> None:
    """Four fast pairs pass as they are, and say nothing of a head that is 5 % slower in the slow state."""
    apart = itertools.cycle([0.9, 1.1])
    both = list[Trial]()
    for n, (states, ratio) in enumerate([(FASTER, 1.0)] * 4 + [(KEEPS, 1.05)] * 4):
        for side in SIDES:
            one = readings(taken(len(both), n, side, states, ratio if side == "head" else 1.0), states)
            noisy = [own.model_copy(update={"ttft_ns": (round(2e7 * next(apart)),) * 4}) for own in one.iterations]
            both.append(one.model_copy(update={"iterations": tuple(noisy)}))
    gates = [gate(), gate("ttft_median", "2%", "8%")]
    found = {pairs: judged_on_gpu(both[: 2 * pairs], gates) for pairs in (4, 8)}

    assert next(own.verdict for own in found[4].gates if own.metric == "itl_median") == "pass"
    slow = next(own for own in found[8].gates if own.state == "slow")
    assert slow.change == pytest.approx(0.05, abs=0.002)
    assert slow.verdict == "inconclusive"


def test_a_single_iteration_is_a_value_where_trials_have_no_more() -> None:
    """A cell of one iteration a trial is decided within states, too."""
    states = [(KEEPS, KEEPS), (FASTER, FASTER)] * 6
    for ratio, verdict in ((1.0, "pass"), (1.5, "regressed")):
        single = [
            one.model_copy(update={"iterations": one.iterations[:1]})
            for one in itertools.starmap(readings, zip(pairs(states, ratio), itertools.chain(*states), strict=True))
        ]
        assert judged_on_gpu(single).verdict == verdict


@pytest.mark.parametrize(("taken", "leaning", "then", "further"), [(8, 8, 12, ()), (40, 8, 72, (40, 72))])
def test_the_pairs_from_which_the_slow_state_blocks_are_said(
    taken: int, leaning: int, then: int, further: tuple[int, ...]
) -> None:
    """As many pairs that all lean to the head block at a later look as a report says, and one less do not."""

    def judged_with(count: int, pairs: int) -> CellOutcome:
        first, more = (leaning, taken - leaning), (count - leaning, pairs - taken - (count - leaning))
        states = [
            own for lean, other in (first, more) for own in [(JUMPS, "ssssstff")] * lean + [(JUMPS, JUMPS)] * other
        ]
        return judged_on_gpu(with_readings(states), further_looks=tuple(look for look in further if look <= pairs))

    told = judged_with(leaning, taken)
    assert told.states is not None
    least = told.states.blocks_from
    assert least is not None
    assert f"blocks from {least} one-way pairs on" in states_line(told)
    verdicts = [by_state(judged_with(count, then))["slow_state_share"].verdict for count in (least - 1, least)]
    assert verdicts == ["inconclusive", "regressed"]


def test_a_pass_says_that_it_holds_in_each_state() -> None:
    """Until a head can lose little by being slow more often, a pass claims no more than it tested."""
    found = judged_on_gpu(with_readings(BOTH_STATES * 2))
    whole = Outcome(run="r", perfgate="1", verdict="pass", exit_status=0, alpha=0.01, beta=0.05, cells=(found,))
    assert found.states is not None
    assert not found.states.everywhere
    assert "excludes a slowdown of its must_catch margin in each state of the machine (alpha" in closing(whole)
    one_state = whole.model_copy(update={"cells": (judged_on_gpu(trials([0.0] * 6)),)})
    assert "must_catch margin (alpha" in closing(one_state)
    everywhere = found.model_copy(update={"states": found.states.model_copy(update={"everywhere": True})})
    assert "it costs 2" in states_line(everywhere)
    assert "must_catch margin (alpha" in closing(whole.model_copy(update={"cells": (everywhere,)}))


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H100 PCIe"])
def test_cards_of_another_kind_are_not_trusted(name: str) -> None:
    """A name that begins as that of a card on which the probe was held against steps is another card."""
    assert tells_states([PROBED_GPUS[0]])
    assert not tells_states([PROBED_GPUS[0], name])
