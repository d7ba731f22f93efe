"""Cautions of the judge, and its judgement of trials that were not taken in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hand_made import (
    BASE,
    STEP_S,
    cell,
    codes,
    failed,
    gate,
    iteration,
    judged,
    only,
    record,
    run,
    spread,
    trial,
    trials,
)

from perfgate.judge.cell_verdict import compare_sides, judge, judge_advisory
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.trial import Failure, Fill, Iteration, Trial
from perfgate.models import Note
from perfgate.reasons import REASONS
from perfgate.record.run_record import Record, record_digest
from perfgate.report.closing_sentence import closing
from perfgate.scenario.plan import Plan

# --- cautions


def test_slower_than_ignorable() -> None:
    """A pass whose estimate lies between the margins carries a caution with the estimate."""
    found = only(judged(trials(spread(0.003, 0.0002, 4))))

    assert codes(found.cautions) == ["near-margins"]
    assert "+0.3 %" in found.cautions[0].text


def test_improved_is_said_at_the_level_of_its_look() -> None:
    """Four pairs that are 0.13 % faster leave 0.07 % possible at their part of beta, which is within ignorable."""
    near, far = (only(judged(trials(spread(-gain, 0.0002, 4)))).verdict for gain in (0.0013, 0.002))

    assert (near, far) == ("pass", "improved")


def test_estimates_disagree() -> None:
    """One pair of eight that is 1.6 % off parts mean and Hodges-Lehmann estimate by 0.2 %, half of the margins' gap."""
    even, uneven = (only(judged(trials([*spread(0.0, 0.0001, 7), last]))) for last in (0.0155, 0.0165))

    assert "times-uneven" not in codes(even.cautions)
    assert "times-uneven" in codes(uneven.cautions)


@pytest.mark.parametrize("side", ["base", "head"])
def test_mode_share(side: str) -> None:
    """Restarts of one side in two groups are named with that side and the upper group's size."""
    modes = [0.0, 0.0, 0.01, 0.0, 0.01, 0.0, 0.0, 0.01]
    steps = [STEP_S * math.exp(m + 0.0001 * (n % 3)) for n, m in enumerate(modes)]
    slowdowns = [math.log(STEP_S / s) for s in steps] if side == "base" else [math.log(s / STEP_S) for s in steps]

    found = only(judged(trials(slowdowns, steps if side == "base" else ())))

    (caution,) = (note for note in found.cautions if note.code == "times-uneven")
    assert caution.text.startswith(f"3 of 8 restarts of {side} lie +")


def test_equal_restarts_have_no_modes() -> None:
    """A metric that every restart repeats exactly passes without a caution."""
    taken = [one.model_copy(update={"startup": _startup(16_000_000_001)}) for one in trials(spread(0.0, 0.0002, 8))]

    found = only(judged(taken, cell(gates=[gate("model_memory", "1%", "5%")])))

    assert (found.verdict, found.cautions, found.change) == ("pass", (), 0.0)


def _startup(model_memory_bytes: int) -> Any:
    blank = trial(0, 0, "base").startup
    assert blank is not None
    return blank.model_copy(update={"model_memory_bytes": model_memory_bytes})


def with_tokens(tokens: dict[str, Sequence[str]]) -> list[Trial]:
    """Four pairs of one iteration each, whose trials generated these tokens in turn."""
    return [
        one.model_copy(update={"iterations": (iteration(tokens=tokens[one.subject][(one.pair or 0)]),)})
        for one in trials([0.0] * 4)
    ]


@pytest.mark.parametrize(
    ("base", "head", "cautions"),
    [
        ("xxxx", "xxxx", []),
        ("xxxx", "yyyy", ["outputs-differ"]),
        ("xxxx", "xxxy", ["outputs-unstable"]),
        ("xxxy", "yyyy", ["outputs-unstable"]),
        ("xxxx", "yyyz", ["outputs-differ", "outputs-unstable"]),
        ("xxxy", "xyxy", ["outputs-unstable", "outputs-unstable"]),
    ],
)
def test_outputs(base: str, head: str, cautions: list[str]) -> None:
    """Outputs differ where no head trial repeats a base trial, and are unstable where a side disagrees with itself."""
    (found,) = judged(with_tokens({"base": base, "head": head})).cells

    assert cautions == codes(found.cautions)


def test_dropped_pair_is_dropped_whole() -> None:
    """The valid trial of a dropped pair counts nowhere: not in the gates, the other metrics or the outputs."""
    odd = trial(8, 4, "base", 9 * STEP_S, iterations=(iteration(9 * STEP_S, tokens="other"),))
    whole = trials(spread(0.0, 0.0002, 4))

    with_drop = judged([*whole, odd, failed(9, 4, "head")]).cells[0]

    without = judged(whole).cells[0]
    assert (without.gates, without.ungated) == (with_drop.gates, with_drop.ungated)
    assert codes(with_drop.cautions) == ["dropped-pairs"]


def test_dropped_pairs_in_order() -> None:
    """Dropped pairs are counted and their failures listed in the order they were measured."""
    taken = [failed(0, 0, "head"), failed(1, 1, "base", "preempted"), *trials([])]

    (caution,) = judged(taken).cells[0].cautions

    assert caution.text == "2 dropped: engine-failed: died (head, trial 0); preempted: died (base, trial 1)"


def test_dropped_pairs_in_the_engines_words() -> None:
    """A caution carries the engine's own sentence, once, and how often chance puts all failures on one side."""
    words = "ValueError: Available memory on node 0 (16.81/23.54 GiB) is less than desired\nengine.log: and more"
    taken = [failed(n, n, "head", "engine-start-failed", words) for n in range(2)]

    (caution,) = judged([*taken, *trials([])]).cells[0].cautions

    assert caution.text == (
        "2 dropped: engine-start-failed: ValueError: Available memory on node 0 (16.81/23.54 GiB) is less than desired "
        "(head, trials 0, 1); 2 on head: chance alone does that in 50 % of runs"
    )


@pytest.mark.parametrize("code", ["multi-token-deliveries", "preemptions-unknown"])
def test_trial_cautions(code: str) -> None:
    """A caution of trials is shown once, with how many carry it."""
    taken = [one.model_copy(update={"cautions": (code,)}) if one.index < 3 else one for one in trials([0.0] * 4)]

    text = f"{code.replace('-', ' ')}, in 3 of 8 trials"
    assert [Note(code="engine-tells-less", text=text)] == list(judged(taken).cells[0].cautions)


def test_same_subject() -> None:
    """An A/A run says that it is one."""
    found = judged(trials(spread(0.0, 0.0002, 4)), subjects={"base": BASE, "head": BASE}).cells[0]

    assert codes(found.cautions) == ["same-subject"]


# --- unpaired


def two_records(base: Sequence[float], head: Sequence[float], **changes: Any) -> tuple[Record, Record, Plan]:
    """A one-sided record for each side with these steps, and the plan that compares them."""
    measured = cell(gates=[gate("itl_median", "1%", "5%")])
    sides = [
        record(measured, [trial(n, n, "base", s, **changes) for n, s in enumerate(steps)], subjects={"base": BASE})
        for steps in (base, head)
    ]
    return sides[0], sides[1], Plan(cells=(measured,), seed=0)


def compared(base: Sequence[float], head: Sequence[float]) -> CellOutcome:
    """One side against another."""
    one, other, plan = two_records(base, head)
    return compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan)


STEADY = [0.00500, 0.00501, 0.00499, 0.00500, 0.00501, 0.00499]


@pytest.mark.parametrize(
    ("factor", "count", "verdict"),
    [
        (1.1, 6, "regressed"),
        (1.1, 5, "inconclusive"),  # no block below six a side
        (1.0, 6, "pass"),
        (0.9, 6, "improved"),
        (1.0, 4, "pass"),
        (1.0, 3, "inconclusive"),  # no pass below four
        (1.0, 1, "inconclusive"),
    ],
)
def test_compare(factor: float, count: int, verdict: str) -> None:
    """Two one-sided records are judged by one look at Welch's test; as an advisory outcome nothing blocks."""
    found = compared(STEADY[:count], [factor * x for x in STEADY[:count]])
    note = Note(code="advisory-unpaired", text="a against b")

    outcome = judge_advisory("a b", Plan(cells=(), seed=0), (found,), note)

    assert verdict == found.verdict
    assert ("advisory", 20, verdict) == (outcome.verdict, outcome.exit_status, outcome.would_be)
    assert (note,) == outcome.reasons


def test_one_trial_a_side_reaches_no_look() -> None:
    """It has no spread; the reason says that two are looked at."""
    (note,) = compared(STEADY[:1], STEADY).gates[0].reasons

    assert (note.code, note.text) == ("too-few-pairs", "1 measured, the first look comes at 2")


def test_compare_names_both() -> None:
    """The comparison names both records by digest and side, and both sides' versions."""
    one, other, plan = two_records(STEADY, STEADY)

    found = compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan)

    assert found.record == f"{record_digest(one)}:base {record_digest(other)}:base"
    assert found.versions == {"base": {"vllm": "1.0"}, "head": {"vllm": "1.0"}}
    assert found.gates[0].pairs == 6


def test_compare_outputs() -> None:
    """Records whose tokens differ carry the caution, as the two sides of one run do."""
    one, _, plan = two_records(STEADY, STEADY)
    _, other, _ = two_records(STEADY, STEADY, iterations=(iteration(tokens="other"),))

    assert codes(compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan).cautions) == ["outputs-differ"]


def test_compare_without_the_metric() -> None:
    """A gate whose metric some trials lack is not measured, and then there is nothing to advise."""
    one, other, plan = two_records(STEADY, STEADY, iterations=())

    outcome = judge_advisory("a b", plan, (compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan),),
                             Note(code="advisory-unpaired", text="a against b"))  # fmt: skip

    assert (outcome.verdict, outcome.exit_status, outcome.would_be) == ("not-measured", 22, None)
    assert codes(outcome.cells[0].gates[0].reasons) == ["metric-missing"]


def test_an_unpaired_comparison_is_not_gone_on_with() -> None:
    """What is undecided there has a code of its own, whose advice is not to resume: no pair can be added."""
    noisy = [0.0050, 0.0054, 0.0047, 0.0052]
    one, other, plan = two_records(noisy, [step * 1.02 for step in noisy])
    note = Note(code="advisory-unpaired", text="a against b")

    (found,) = judge_advisory(
        "a b", plan, (compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan),), note
    ).cells

    assert codes(found.gates[0].reasons) == ["advisory-unpaired"]
    assert "--resume" not in REASONS["advisory-unpaired"].remedy


@pytest.mark.parametrize("empty", [0, 1])
def test_compare_without_trials(empty: int) -> None:
    """A record whose engine never ran is not measured, for the reason that stopped it."""
    one, other, plan = two_records(*([], STEADY) if empty == 0 else (STEADY, []))
    stop = Failure(code="engine-start-failed", text="base: words")
    one, other = ((r if r.trials else r.model_copy(update={"stopped": stop})) for r in (one, other))

    found = compare_sides(RecordSide(one, "base"), RecordSide(other, "base"), plan)

    assert found.verdict == "not-measured"
    assert [(note.code, note.text) for note in found.reasons] == [("engine-start-failed", "base: words")]


def test_an_uneven_trial_is_named() -> None:
    """A trial with one iteration of ten times the median says so, with its number; even ones say nothing."""
    uneven = (iteration(0.005), iteration(0.05), iteration(0.005))
    taken = list(trials(spread(0.0, 0.0002, 4)))
    taken[3] = taken[3].model_copy(update={"iterations": uneven})

    (found,) = judged(taken).cells

    (note,) = [note for note in found.cautions if note.code == "times-uneven"]
    assert note.text == "head: 1 of 4 trials; in trial 3 an iteration took 10 times as long as the median"
    assert "times-uneven" not in codes(judged(trials(spread(0.0, 0.0002, 4))).cells[0].cautions)


def _held_up(own: Trial, every: int, times: float = 3.0, **update: Any) -> Trial:
    """A trial on a GPU of which each so-manieth decode step takes so many times as long."""
    steps = tuple(round(5e6 * (times if n % every == every - 1 else 1)) for n in range(600))
    changed = iteration().model_copy(update={"itl_ns": steps, **update})
    return own.model_copy(update={"iterations": (changed,) * 3, "gpus": ("GPU-1",)})


@pytest.mark.parametrize(
    ("base", "head", "update", "said"),
    [
        ({"every": 100}, {"every": 150}, {}, True),
        ({"every": 100, "times": 1.4}, {"every": 100, "times": 1.4}, {}, False),
        ({"every": 300}, {"every": 50}, {}, False),
        ({"every": 50}, {"every": 300}, {}, False),
        ({"every": 100}, {"every": 150}, {"multi_token": True}, False),
        ({"every": 100}, {"every": 150}, {"lengths": (3,), "output_tokens": 0}, False),
    ],
)
def test_steps_of_both_builds_that_were_held_up_are_named(
    base: dict[str, Any], head: dict[str, Any], update: dict[str, Any], *, said: bool
) -> None:
    """One build alone is held up by its own doing; steps of several tokens, or of requests that come and go, differ."""
    own = {"base": base, "head": head}
    taken = [_held_up(one, **own[one.subject], **update) for one in trials(spread(0.0, 0.0002, 4))]

    texts = [note.text for note in judged(taken).cells[0].cautions if note.code == "times-uneven"]

    assert texts == ["steps of 1.5 times the median and more cost base 1.96 % and head 1.32 % of their time"][:said]


def _odd(number: int, own: Trial, usual: Iteration, odd: Iteration) -> Trial:
    return own.model_copy(update={"iterations": (odd if own.index == number else usual,) * 3})


@pytest.mark.parametrize(
    "taken",
    [
        [_held_up(one, 100).model_copy(update={"gpus": ()}) for one in trials(spread(0.0, 0.0002, 4))],
        [_held_up(one, 100).model_copy(update={"kind": "traced"}) for one in trials(spread(0.0, 0.0002, 4))],
        [_held_up(one, 100, itl_ns=(0,) * 15 + (5_000_000,) * 5) for one in trials(spread(0.0, 0.0002, 4))],
        [
            _odd(5, one, iteration().model_copy(update={"elapsed_ns": 0}), iteration())
            for one in trials(spread(0.0, 0.0002, 4))
        ],
        trials([0.0, 1.0]),
    ],
    ids=["on the CPU", "beside a profiler", "steps of no time", "trials of no time", "two trials"],
)
def test_no_word_of_uneven_times_where_they_tell_nothing(taken: Sequence[Trial]) -> None:
    """Long steps are common there, or nothing has a usual length, or nobody can say which of two is the odd one."""
    assert "times-uneven" not in codes(judged(taken).cells[0].cautions)


@pytest.mark.parametrize(("times", "said"), [(2.0, True), (1.4, False), (0.5, False)])
def test_a_trial_that_was_slow_throughout_is_named(times: float, *, said: bool) -> None:
    """Every iteration of one trial is slow, so that none is uneven: its side's other trials tell, and it counts."""
    taken = list(trials(spread(0.0, 0.0002, 4)))
    taken[5] = taken[5].model_copy(update={"iterations": (iteration(STEP_S * times),) * 3})

    (found,) = judged(taken).cells

    texts = [note.text for note in found.cautions if note.code == "times-uneven"]
    assert (
        texts
        == ["head: 1 of 4 timed trials; trial 5 took 2 times as long (220.0 ms an iteration, 110.0 ms in the others)"][
            :said
        ]
    )
    assert found.gates[0].pairs == 4


@pytest.mark.parametrize(("slowdown", "said"), [(-2.4, True), (0.1, False), (-38.0, True)])
def test_a_quick_run_says_what_is_implausible(slowdown: float, *, said: bool) -> None:
    """Two single trials of which one is ten times as fast are rather one that was disturbed."""
    measured = cell()
    manifest = run([measured], quick=True)

    outcome = judge(manifest, {measured.cell_id: record(measured, trials([slowdown], [1e8]))})

    (reason,) = outcome.reasons
    assert reason.code == "quick-run"
    assert ("which a disturbed trial explains as well as a build" in reason.text) == said


def test_a_pass_says_what_it_could_not_have_blocked() -> None:
    """Where detectable is above must_catch, the closing sentence names the slowdowns that would end inconclusive."""
    blunt, sharp = (judged(trials(spread(0.0, width, 4))) for width in (0.0008, 0.0001))

    assert (blunt.verdict, sharp.verdict) == ("pass", "pass")
    assert "Between must_catch and detectable a slowdown may end inconclusive: itl_median 0.5 % to 0." in closing(blunt)
    assert "may end inconclusive" not in closing(sharp)


def _filled(side: str, draw: str, filled_utc: str, taken: Sequence[Trial]) -> tuple[Trial, ...]:
    fill = Fill(draw=draw * 12, filled_utc=filled_utc)
    return tuple(trial.model_copy(update={"fill": fill}) if trial.subject == side else trial for trial in taken)


@pytest.mark.parametrize(
    ("draw", "filled_utc", "cautions"),
    [
        ("b", "2026-01-03T08:00:00+00:00", ["fills-differ"]),
        ("b", "2026-01-01T09:00:00+00:00", []),
        ("a", "2026-01-01T08:00:00+00:00", []),
    ],
    ids=["days apart", "of one visit", "one draw"],
)
def test_fills_differ(draw: str, filled_utc: str, cautions: list[str]) -> None:
    """Caches that were filled on different days keep different draws; those of one visit are what a visit is."""
    taken = _filled("base", "a", "2026-01-01T08:00:00+00:00", trials(spread(0.0, 0.0002, 4)))
    found = judged(_filled("head", draw, filled_utc, taken)).cells[0].cautions

    assert codes(found) == cautions
    if cautions:
        assert found[0].text == "base 2026-01-01 08:00, head 2026-01-03 08:00 UTC"
