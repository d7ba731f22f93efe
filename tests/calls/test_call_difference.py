"""Two builds' hosts held against each other: exact where counts repeat, by ranges where they do not, and priced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_hosts import IDLE, host_calls
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfgate.calls.call_difference import MOST_LINES, call_difference, figure_lines
from perfgate.calls.host_calls import FunctionCalls, HostCalls, pooled

TOTALS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair)))
FUNCTIONS = st.builds(
    FunctionCalls, calls=TOTALS, lines=TOTALS, c_calls=st.dictionaries(st.sampled_from(["dict.get", "len"]), TOTALS)
)
COUNTED = st.builds(
    lambda functions: host_calls(**functions), st.dictionaries(st.sampled_from(["a", "b", "c"]), FUNCTIONS)
)


def schedule(**counts: Any) -> HostCalls:
    """Ten steps of a scheduler, which calls once a step, runs 100 lines and asks a dictionary four times."""
    usual = {"calls": (10, 10), "lines": (1000, 1000), "c_calls": {"dict.get": (40, 40)}}
    return host_calls(schedule=FunctionCalls(**{**usual, **counts}))


def test_the_same_is_no_difference() -> None:
    """Equal counts cost nothing and have no line."""
    assert call_difference(schedule(), schedule(), "decode").changes == ()


@pytest.mark.parametrize(
    ("head", "line", "cost_ns"),
    [
        ({"lines": (37000, 37000)}, "+ schedule: 3600 lines a step (+54.00 us)", 54_000),
        ({"calls": (20, 20)}, "+ schedule: 1 call a step (+0.03 us)", 30),
        ({"c_calls": {"dict.get": (1000, 1000)}}, "+ schedule: 96 dict.get a step (+1.92 us)", 1920),
        ({"c_calls": {"dict.get": (40, 40), "zlib.crc32": (200, 200)}, "c_ps": {"zlib.crc32": 2_500_000}},
         "+ schedule: 20 zlib.crc32 a step (+50.00 us)", 50_000),
        ({"lines": (0, 0), "calls": (40, 40)}, "~ schedule: 100 lines, 3 calls a step (-1.41 us)", -1410),
        ({"c_calls": {}}, "- schedule: 4 dict.get a step (-0.08 us)", -80),
        ({"calls": (13, 13)}, "+ schedule: 0.3 calls a step (+0.01 us)", 9),
    ],
)  # fmt: skip
def test_what_differs_is_named_and_priced(head: dict[str, Any], line: str, cost_ns: float) -> None:
    """A line costs 15 ns, a call 30, a C call 20 or what it took: each change a step, with its sum."""
    difference = call_difference(schedule(), schedule(**head), "decode")

    assert difference.lines == [line]
    assert difference.cost_s * 1e9 == pytest.approx(cost_ns)


@pytest.mark.parametrize(
    ("base", "head", "lines_a_step"),
    [((100, 120), (110, 130), 0), ((100, 120), (130, 140), 0), ((100, 120), (200, 210), 8),
     ((100, 100), (101, 101), 0.1), ((100, 120), (0, 10), -9)],
)  # fmt: skip
def test_a_count_that_varies_differs_beyond_its_width(
    base: tuple[int, int], head: tuple[int, int], lines_a_step: float
) -> None:
    """Ranges that overlap, or are no further apart than either is wide, are the same."""
    difference = call_difference(schedule(lines=base), schedule(lines=head), "decode")

    assert [change.counts for change in difference.changes] == ([{"lines": lines_a_step}] if lines_a_step else [])


def test_functions_that_moved_are_compared_under_their_new_name() -> None:
    """A function that has another class or module is the same one, with all that is in it, unless there are two."""
    old = {"core.Scheduler.run": 100, "core.Scheduler.run.<locals>.<lambda>": 30, "one.get": 10, "two.get": 20}
    new = {"core.run": 400, "core.run.<locals>.<lambda>": 30, "three.get": 20}
    base, head = (
        host_calls(IDLE, **{name: FunctionCalls(lines=(lines, lines)) for name, lines in functions.items()})
        for functions in (old, new)
    )

    difference = call_difference(base, head, "decode")

    assert difference.lines == [
        "+ core.run (was core.Scheduler.run): 30 lines a step (+0.41 us)",
        "+ three.get: 2 lines a step (+0.03 us)",
        "- one.get: 1 line a step (+0.00 us)",
        "- two.get: 2 lines a step (+0.00 us)",
    ]


def test_work_that_moves_costs_nothing_however_it_was_timed() -> None:
    """A C function that another function calls as often is no more work, though two engines time it differently."""
    base = host_calls(old=FunctionCalls(c_calls={"mm": (100, 100)}, c_ps={"mm": 4_000_000_000}))
    head = host_calls(new=FunctionCalls(c_calls={"mm": (110, 110)}, c_ps={"mm": 8_000_000_000}))

    assert call_difference(base, host_calls(new=base.steps["decode"].functions["old"]), "decode").cost_s == 0
    assert call_difference(base, head, "decode").cost_s == pytest.approx(8e-3)


@pytest.mark.parametrize(("new_us", "cost_us"), [(100, 0), (140, 0), (60, -40), (170, 20), (300, 150)])
def test_c_work_that_replaces_other_is_told_by_what_is_certain(new_us: int, cost_us: float) -> None:
    """Another C function in the place of one of 100 us must take half as long again before it costs anything."""
    base = host_calls(step=FunctionCalls(c_calls={"old": (10, 10)}, c_ps={"old": 100_000_000}))
    head = host_calls(step=FunctionCalls(c_calls={"new": (10, 10)}, c_ps={"new": new_us * 1_000_000}))

    assert call_difference(base, head, "decode").cost_s * 1e6 == pytest.approx(cost_us, abs=1e-6)


@pytest.mark.parametrize(("new_us", "saved_us"), [(100, 0), (60, 10), (40, 40), (0, 100), (140, 0), (170, 0)])
def test_only_what_is_certain_is_saved(new_us: int, saved_us: float) -> None:
    """Where a C function takes the place of one of 100 us, half of what it takes itself is in doubt."""
    base = host_calls(step=FunctionCalls(c_calls={"old": (10, 10)}, c_ps={"old": 100_000_000}))
    new = FunctionCalls(c_calls={"new": (10, 10)}, c_ps={"new": new_us * 1_000_000}) if new_us else FunctionCalls()

    saved_s = call_difference(base, host_calls(step=new), "decode").saved_s

    assert saved_s * 1e6 == pytest.approx(saved_us, abs=1e-6)


def test_what_waits_is_named_first_in_whole_numbers() -> None:
    """What waits comes before what only costs, and its many rounds are counted as whole numbers."""
    spun = FunctionCalls(calls=(10, 10), lines=(107_004, 107_006), c_calls={"time.perf_counter": (53_501, 53_503)})
    dear = FunctionCalls(calls=(10, 10), c_calls={"load": (10, 10)}, c_ps={"load": 10**12})

    difference = call_difference(host_calls(), host_calls(spin=spun, dear=dear), "decode")

    assert [change.function for change in difference.changes] == ["spin", "dear"]
    assert difference.headline.startswith("spin waits for a time, which no count prices; apart from that +")
    assert difference.headline.endswith(": spin, dear")
    assert difference.lines[0] == ("+ spin: 10700 lines, 1 call, 5350 time.perf_counter a step (it waits for a time)")


@pytest.mark.parametrize(
    ("reads", "waiting"), [((900, 1000), ["spin"]), ((1000, 1000), []), ((20, 21), [])], ids=["spins", "exact", "few"]
)
@pytest.mark.parametrize("clock", ["time.perf_counter_ns", "time.clock_gettime", "datetime.now"])
def test_a_loop_until_a_time_is_told(reads: tuple[int, int], waiting: list[str], clock: str) -> None:
    """Counting makes its rounds few, so their price would be too low; an exact number of readings is none of that."""
    spun = FunctionCalls(calls=(10, 10), c_calls={clock: reads})

    difference = call_difference(host_calls(), host_calls(spin=spun), "decode")

    assert difference.waiting == waiting
    assert difference.lines[0].endswith("(it waits for a time)") is bool(waiting)


@pytest.mark.parametrize(
    ("base", "head", "lines"),
    [
        ((0, 69), (201, 518), ["+ blocks: 0 to 69 -> 201 to 518"]),
        ((201, 518), (0, 69), ["- blocks: 201 to 518 -> 0 to 69"]),
        ((100, 100), (220, 220), ["+ blocks: 100 -> 220"]),
        ((0, 69), (60, 90), []),
    ],
)
def test_figures_without_a_price_differ_where_ranges_do_not_overlap(
    base: tuple[int, int], head: tuple[int, int], lines: list[str]
) -> None:
    """What a leak adds varies by more than it is above what was added before, and is told all the same."""
    sides = (host_calls().model_copy(update={"figures": {"blocks": own, "modules": (9, 9)}}) for own in (base, head))

    assert figure_lines(*sides) == lines


def test_a_figure_that_one_side_lacks_was_not_read_there() -> None:
    """Root may count system calls, others may not; a package that is not listed has no modules."""
    base = host_calls().model_copy(update={"figures": {"modules": (9, 9)}})
    head = base.model_copy(update={"figures": {"system calls an iteration": (900, 999), "modules": (9, 9),
                                               "modules of xml.dom": (1, 1)}})  # fmt: skip

    assert figure_lines(base, head) == ["+ modules of xml.dom: 0 -> 1"]
    assert figure_lines(head, base) == ["- modules of xml.dom: 1 -> 0"]


def test_figures_that_one_trial_lacks_are_not_pooled() -> None:
    """A figure of 0 for it would hide all that others show; what a kernel counts does not travel in a profile."""
    one = host_calls().model_copy(update={"figures": {"modules": (9, 9), "system calls an iteration": (900, 999),
                                                      "blocks an iteration": (0, 5)}})  # fmt: skip
    other = one.model_copy(update={"figures": {"modules": (9, 9), "modules of xml.dom": (1, 1),
                                               "blocks an iteration": (3, 7)}})  # fmt: skip

    assert pooled([one, other]).figures == {
        "modules": (9, 9), "modules of xml.dom": (0, 1), "blocks an iteration": (0, 7),
    }  # fmt: skip
    assert [*one.anywhere().figures] == ["modules", "blocks an iteration"]


def test_many_changes_end_in_one_line() -> None:
    """The most expensive functions have a line each, the others one together."""
    names = {f"f{n:02}": FunctionCalls(calls=(10 * (n + 1),) * 2) for n in range(MOST_LINES + 5)}

    difference = call_difference(host_calls(), host_calls(IDLE, **names), "decode")

    assert len(difference.lines) == MOST_LINES + 1
    assert difference.lines[0] == "+ f24: 25 calls a step (+0.75 us)"
    assert difference.lines[-1] == "~ 5 more functions (+0.45 us)"
    assert difference.headline.endswith("f24, f23, f22 and 22 more functions")


@given(COUNTED, COUNTED)
def test_either_side_may_be_the_base(one: HostCalls, other: HostCalls) -> None:
    """What one side has more the other has less, at the same price but for the doubt, which only more work has."""
    there, back = call_difference(one, other, "decode"), call_difference(other, one, "decode")

    assert there.cost_s + there.doubt_s == pytest.approx(-(back.cost_s + back.doubt_s))
    assert {c.function for c in there.changes} == {c.function for c in back.changes}


@given(st.lists(COUNTED, min_size=1, max_size=4))
def test_pooled_trials_hold_each_of_them(trials: list[HostCalls]) -> None:
    """Every range of a trial is within the pooled one, so no trial differs from the whole that it belongs to."""
    whole = pooled(trials)

    assert all(call_difference(whole, trial, "decode").changes == () for trial in trials)
    assert whole.iterations == sum(trial.iterations for trial in trials)
    assert whole.many("decode") == trials[0].many("decode")


def test_a_function_that_only_one_trial_ran_varies() -> None:
    """Its range begins at zero, and the share of events that did not repeat knows it."""
    logged = host_calls(schedule=FunctionCalls(lines=(90, 90)), log=FunctionCalls(calls=(10, 10)))

    whole = pooled([host_calls(schedule=FunctionCalls(lines=(90, 90))), logged])

    assert whole.steps["decode"].varying() == {("log", "calls"): (0, 10)}
    assert whole.varying_share == 0.1


def test_trials_that_were_counted_otherwise_are_not_pooled() -> None:
    """Another minor version of Python calls and counts otherwise."""
    with pytest.raises(ValueError, match=r"Python 3\.11 by settrace in .* and Python 3\.12 by settrace in "):
        pooled([host_calls(), host_calls().model_copy(update={"python": "3.12"})])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"decode": {"calls": [1], "functions": {"f": {"lines": [9, 1]}}}}, "the least before the most, not 9 and 1"),
        ({"decode": {"calls": [1], "functions": {"f\x1b[2J": {}}}}, "should match pattern"),
        ({"decode": {"calls": [1], "functions": {"f\u2028": {}}}}, "should match pattern"),
        ({"decode": {"calls": [2**63], "functions": {"f": {}}}}, "less than"),
        ({"decode": {"calls": [1], "functions": {}}}, "at least 1"),
        ({"idle": {"calls": [1], "functions": {"f": {}}}}, "should be 'decode' or 'prefill'"),
        ({}, "at least 1"),
    ],
)
def test_counts_that_nobody_counted_are_refused(wrong: dict[str, Any], text: str) -> None:
    """Whoever edits a profile or a record by hand is told."""
    with pytest.raises(ValidationError, match=text):
        HostCalls.model_validate_json(json.dumps(host_calls().model_dump() | {"steps": wrong}))
