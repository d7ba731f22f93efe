"""What the host calls decides a cell exactly: by what more of it costs, not by whether it differs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from fake_hosts import host_calls
from hand_made import BOTH, cell, codes, judged, record, run, trial, trials

from perfgate.calls.host_calls import FunctionCalls, HostCalls
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.catalogue import find_metric, trial_value
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import Trial
from perfgate.report.closing_sentence import closing
from perfgate.report.story import cell_story
from perfgate.scenario.schedule import CallTrials

USUAL = FunctionCalls(calls=(10, 10), lines=(10_000, 10_000))
CALLED = cell().model_copy(update={"calls": CallTrials()})
SAME = trials([0.0, 0.0001, 0.0, 0.0001])


def lines(least_us: int, most_us: int | None = None) -> FunctionCalls:
    """A function whose lines cost so much in an iteration; they are 15 ns each."""
    least, most = (us * 1000 // 15 for us in (least_us, least_us if most_us is None else most_us))
    return FunctionCalls(lines=(least, most))


def called(base: HostCalls, head: HostCalls) -> tuple[Trial, ...]:
    """A pair of called trials."""
    return tuple(
        trial(100 + n, 0, side, kind="called", calls=counted, iterations=(), startup=None)
        for n, (side, counted) in enumerate(zip(BOTH, (base, head), strict=True))
    )


def outcome(taken: Sequence[Trial]) -> CellOutcome:
    """The cell, whose timed pairs are those of an unchanged build."""
    (found,) = judged((*SAME, *taken), CALLED).cells
    return found


def test_the_same_calls_pass() -> None:
    """Nothing is said of it."""
    found = outcome(called(host_calls(schedule=USUAL), host_calls(schedule=USUAL)))

    assert (found.verdict, found.pairs_of("called"), found.reasons) == ("pass", 1, ())
    assert not {code for code in codes(found.cautions) if code.startswith("work-")}


def test_work_beyond_ignorable_blocks_in_one_pair() -> None:
    """One pair of trials suffices, while the steps' times are those of an unchanged build, and names the function."""
    found = outcome(
        called(host_calls(schedule=USUAL), host_calls(schedule=FunctionCalls(calls=(10, 10), lines=(46_000, 46_000))))
    )

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    headline, line = found.reasons[0].text.splitlines()
    assert headline.startswith("+54.00 us a step by what its calls and lines cost at least: schedule (more than ")
    assert line == "+ schedule: 3600 lines a step (+54.00 us)"
    assert [gate.verdict for gate in found.gates] == ["pass"]


def test_work_that_only_prefill_does_blocks_as_well() -> None:
    """A prefill step is priced by itself, in front of what the decode steps differ in."""
    more = FunctionCalls(lines=(10_300, 10_300), calls=(10, 10))
    base, head = (
        host_calls({"admit": FunctionCalls(lines=(lines, lines))}, schedule=own)
        for lines, own in ((1000, USUAL), (4600, more))
    )

    found = outcome(called(base, head))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    prefill, line, decode, _ = found.reasons[0].text.splitlines()
    assert prefill.startswith(
        "+54.00 us in a prefill step by what its calls and lines cost at least: admit (more than "
    )
    assert line == "+ admit: 3600 lines in a prefill step (+54.00 us)"
    assert decode.startswith("+0.45 us a step by what its calls and lines cost at least: schedule (within ")


def test_what_the_engine_holds_explains_no_step() -> None:
    """Modules and memory have no price: they are told, and not as what made a step slower."""
    base, head = (host_calls(schedule=USUAL).model_copy(update={"figures": {"modules": (n, n)}}) for n in (9, 10))

    found = outcome(called(base, head))

    assert "engine-state-changed" in codes(found.cautions)
    assert cell_story(found).causes == ()


def of_decode_steps_alone(counted: HostCalls) -> HostCalls:
    """Counts as a record of before prefill steps were counted holds them, read again."""
    told = json.loads(counted.model_dump_json(exclude={"steps", "figures"}))
    decode = counted.steps["decode"].model_dump(mode="json")
    older = {"step_calls": decode["calls"], "functions": decode["functions"]}
    return HostCalls.model_validate_json(json.dumps(told | older))


def test_counts_of_decode_steps_alone_are_still_judged() -> None:
    """Records of before prefill steps were counted are read as what they are, and judged as ever."""
    base, head = (host_calls(schedule=FunctionCalls(lines=(lines, lines))) for lines in (10_000, 46_000))
    old = of_decode_steps_alone(base)

    assert old.steps == {"decode": base.steps["decode"]}
    assert outcome(called(old, old)).verdict == "pass"
    assert outcome(called(old, of_decode_steps_alone(head))).verdict == "regressed"
    assert outcome(called(old, head)).verdict == "not-comparable"


@pytest.mark.parametrize(
    ("decode_us", "verdict", "meaning"),
    [
        (-6, "pass", "(within the 60.00 us that the decode steps after it save and the 10.00 us that are ignorable)"),
        (-3, "regressed", "(more than the 30.00 us that the decode steps after it save and the 10.00 us that "),
        (5, "regressed", "(more than the 10.00 us that are ignorable)"),
    ],
)
def test_work_may_move_to_where_it_is_done_once(decode_us: int, verdict: str, meaning: str) -> None:
    """What a prefill step does more may be as much as ten decode steps do less, and ignorable."""
    cached = host_calls({"admit": lines(45)}, schedule=lines(10 * (100 + decode_us)))

    found = outcome(called(host_calls({"admit": lines(0)}, schedule=lines(1000)), cached))

    assert found.verdict == verdict
    (note,) = [note for note in (*found.reasons, *found.cautions) if note.code.startswith("work-")]
    assert meaning in note.text


def test_a_faster_prefill_pays_for_no_slower_decode_step() -> None:
    """A decode step costs time whenever a token is waited for, so it is judged by itself."""
    head = host_calls({"admit": lines(100)}, schedule=lines(1150))

    found = outcome(called(host_calls({"admit": lines(1000)}, schedule=lines(1000)), head))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])


@pytest.mark.parametrize("prefill_us", [500, 300])
def test_a_decode_step_that_is_slower_at_times_is_judged_by_itself(prefill_us: int) -> None:
    """More than ignorable at times does not pass where prefill became cheaper."""
    base = host_calls({"admit": lines(500)}, schedule=lines(30_000))
    head = host_calls({"admit": lines(prefill_us)}, schedule=lines(30_000), wait=lines(0, 240))

    found = outcome(called(base, head))

    assert (found.verdict, codes(found.reasons)) == ("inconclusive", ["counts-vary"])
    assert found.reasons[0].text == (
        "what the head runs more at times would be 12.00 us a step, more than the 10.00 us that are ignorable: wait"
    )


@pytest.mark.parametrize(("most_us", "verdict"), [(15, "pass"), (75, "inconclusive")])
def test_decode_steps_do_not_dilute_what_prefill_does_at_times(most_us: int, verdict: str) -> None:
    """A prefill step that is slower at times is judged by itself, however many decode steps follow it."""
    base, head = ({"admit": lines(30_000), "log": lines(0, most)} for most in (0, most_us))

    found = outcome(called(host_calls(base, schedule=USUAL), host_calls(head, schedule=USUAL)))

    assert found.verdict == verdict
    assert [" us in a prefill step, more than the 10.00 us" in note.text for note in found.reasons] == (
        [True] if verdict == "inconclusive" else []
    )


def test_what_varies_in_prefill_is_not_hidden_by_many_decode_steps() -> None:
    """Nothing is judged where too much of one kind of step does not repeat, though it is little of all."""
    prefill = {"admit": lines(15), "poll": lines(0, 1)}
    varying = host_calls(prefill, schedule=lines(30_000))

    found = outcome(called(varying, varying))

    assert found.verdict == "inconclusive"


def spin(least: int, most: int) -> FunctionCalls:
    """A function that reads a clock until some time has passed."""
    return FunctionCalls(calls=(10, 10), c_calls={"time.perf_counter_ns": (least, most)})


@pytest.mark.parametrize(("least", "most"), [(190, 200), (1_150, 1_250), (120_000, 135_000)])
def test_a_wait_blocks_whatever_its_price(least: int, most: int) -> None:
    """A head that spins does few rounds while it is counted, or so many that most of all events do not repeat."""
    found = outcome(called(host_calls(schedule=USUAL), host_calls(schedule=USUAL, spin=spin(least, most))))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    headline, first, *_ = found.reasons[0].text.splitlines()
    assert headline.startswith("spin waits for a time, which no count prices; apart from that +")
    assert headline.endswith(" a step by what its calls and lines cost at least: spin (a wait blocks at any price)")
    assert first.startswith("+ spin: ")


@pytest.mark.parametrize(("least", "most", "verdict"), [(190, 200, "regressed"), (120_000, 135_000, "inconclusive")])
def test_a_wait_that_the_base_has_as_well_may_be_longer_by_chance(least: int, most: int, verdict: str) -> None:
    """Where too much of all events does not repeat, more of them are no evidence."""
    base, head = (host_calls(schedule=USUAL, spin=own) for own in (spin(90, 100), spin(least, most)))

    assert outcome(called(base, head)).verdict == verdict


@pytest.mark.parametrize(("least", "most"), [(900, 1_350), (90_000, 135_000)])
def test_a_wait_under_another_name_is_no_evidence(least: int, most: int) -> None:
    """The base reads a clock as often, in a function that the head does not have; a log line that is gone is none."""
    waits = spin(least, most)
    base = host_calls(schedule=USUAL, acquire=waits)

    assert outcome(called(base, host_calls(schedule=USUAL, wait=waits))).verdict == "inconclusive"
    logs = host_calls(schedule=USUAL, log=spin(0, 1))
    assert outcome(called(logs, host_calls(schedule=USUAL, wait=waits))).verdict == "regressed"


def test_a_refactoring_passes_with_its_difference() -> None:
    """Thirty calls more that cost 2 us are told and block nothing."""
    more = FunctionCalls(calls=(300, 300), lines=(600, 600))
    found = outcome(called(host_calls(schedule=USUAL), host_calls(schedule=USUAL, helper=more)))

    assert found.verdict == "pass"
    (note,) = [note for note in found.cautions if note.code == "work-changed"]
    assert "+ helper: 60 lines, 30 calls a step (+1.80 us)" in note.text


@pytest.mark.parametrize(("spread", "verdict"), [(150, "pass"), (250, "inconclusive")])
def test_what_varies_is_named_and_bounded(spread: int, verdict: str) -> None:
    """Up to 2 % of all events need not repeat; beyond that nothing is judged."""
    varying = host_calls(schedule=USUAL, poll=FunctionCalls(calls=(0, spread)))

    found = outcome(called(varying, varying))

    assert found.verdict == verdict
    notes = [note.text for note in (*found.cautions, *found.reasons) if note.code == "counts-vary"]
    assert notes
    assert all(text.endswith("% of all events vary: poll") for text in notes)


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ((0, 0), (0, 30), "inconclusive"),
        ((0, 0), (0, 3), "pass"),
        ((0, 30), (0, 30), "pass"),
        ((0, 3), (0, 100), "inconclusive"),
    ],
)
def test_work_at_times_does_not_pass_for_none(base: tuple[int, int], head: tuple[int, int], verdict: str) -> None:
    """A head that waits 20 us three times a step, but not in every iteration, shows no difference that repeats."""
    synchronised = [
        FunctionCalls(c_calls={"torch.cuda.synchronize": waits}, c_ps={"torch.cuda.synchronize": 20_000_000})
        for waits in (base, head)
    ]
    found = outcome(called(*(host_calls(schedule=USUAL, sample=sample) for sample in synchronised)))

    assert found.verdict == verdict
    if verdict == "inconclusive":
        assert codes(found.reasons) == ["counts-vary"]
        assert "a step, more than the 10.00 us that are ignorable: sample" in found.reasons[0].text


def test_another_python_is_not_comparable() -> None:
    """Its calls are counted otherwise."""
    head = host_calls(schedule=USUAL).model_copy(update={"python": "3.12", "instrument": "monitoring"})

    found = outcome(called(host_calls(schedule=USUAL), head))

    assert (found.verdict, codes(found.reasons)) == ("not-comparable", ["different-cells"])
    kinds = "in decode and prefill steps"
    sides = f"base: Python 3.11 by settrace {kinds}; head: Python 3.12 by monitoring {kinds}"
    assert found.reasons[0].text == f"calls were counted by {sides}"


def test_missing_counts_never_pass() -> None:
    """A scenario that asks for counts and has none is not measured."""
    found = outcome(())

    assert (found.verdict, codes(found.reasons)) == ("not-measured", ["evidence-missing"])


def test_what_was_not_called_for_is_not_said() -> None:
    """A verdict without called trials has none of their keys, so that those of before read the same."""
    (without,) = judged(SAME).cells

    assert not {key for key in without.model_dump(mode="json") if "called" in key}


def test_calls_of_a_workload_without_decode_steps_pass() -> None:
    """Nothing is said of decode steps where each request has one token, so that none was looked at."""
    counted = host_calls({"f": FunctionCalls(calls=(3, 3))})
    only_prefill = counted.model_copy(update={"steps": {"prefill": counted.steps["prefill"]}})
    measured = cell(gates=[]).model_copy(update={"calls": CallTrials()})
    taken = [trial(n, 0, side, kind="called", calls=only_prefill, iterations=(), startup=None)
             for n, side in enumerate(SIDES)]  # fmt: skip

    outcome = judge(run([measured], exact_only=True), {measured.cell_id: record(measured, taken)})

    assert closing(outcome) == "PASS: what repeats exactly is the same."


def test_the_metric_is_that_of_the_median_step() -> None:
    """A step at which a block of the cache begins calls more, and moves nothing."""
    counted = host_calls(schedule=USUAL)
    decode = counted.steps["decode"].model_copy(update={"calls": (2944, 2944, 3047, 2944, 4179)})
    steps = {"decode": decode, "prefill": counted.steps["prefill"].model_copy(update={"calls": (9000,)})}
    taken = trial(0, 0, "base", kind="called", calls=counted.model_copy(update={"steps": steps}))

    assert trial_value("host_calls_per_step", taken) == 2944
    assert find_metric("host_calls_per_step").resolution(taken) == 0.0
