"""Which rank holds the others up: two steps on paper, and any ranks collective by collective."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import ExportBuilder
from rank_traces import NUMBERED, Work, add_rank, reduced, traced_ranks

from perfgate.trace.rank_waits import Rank, compare_ranks, ranks_of
from perfgate.trace.selection import as_one_step, select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"

REDUCE, GATHER = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_AllGather_RING_LL"
STEP_NS = 100_000


def rank(
    label: str, steps: list[list[tuple[str, int]]], builder: ExportBuilder | None = None, first: int = 0, pid: int = 1
) -> list[Rank]:
    """The ranks of a trace with steps from ``first`` on that run these kernels, one after the other."""
    made = builder or ExportBuilder()
    for number, kernels in enumerate(steps):
        at = number * STEP_NS
        made.span(f"perfgate.step.{number + first}", at, at + STEP_NS - 1, pid=pid)
        for name, length in kernels:
            made.launch(name, at, at + 1000, at + 1000 + length, pid=pid)
            at += 1000 + length
    return ranks_of(select(made.read()), label)


def test_two_ranks_by_hand() -> None:
    """The second computes for longer and arrives last: the first waits 4 us in one collective and 1 us in another.

    In the third the second waits. A broadcast, whose ranks do not leave together, is not compared.
    """
    one = rank("one", [[("gemm", 5000), (REDUCE, 6000), (GATHER, 3000), ("ncclDevKernel_Broadcast", 900)],
                       [("gemm", 5000), (REDUCE, 2000)]])  # fmt: skip
    two = rank("two", [[("gemm", 9000), (REDUCE, 2000), (GATHER, 2000), ("ncclDevKernel_Broadcast", 100)],
                       [("gemm", 1000), (REDUCE, 6000)]])  # fmt: skip

    found = compare_ranks([*one, *two])

    assert (found.steps, found.other_steps, found.collectives) == (2, 0, 3)
    first, second = found.ranks
    assert (first.waiting_ns, first.last, first.holds_up_ns) == ((4000 + 1000) / 2, 1, 4000 / 2)
    assert (second.waiting_ns, second.last, second.holds_up_ns) == (4000 / 2, 2, (4000 + 1000) / 2)
    assert (first.kernel_ns, first.communication_ns) == (5000, (6000 + 3000 + 900 + 2000) / 2)
    assert (first.step_ns, second.step_ns) == (STEP_NS, STEP_NS)


def test_ranks_of_one_file_are_told_apart() -> None:
    """Processes of one export are ranks of their own."""
    builder = ExportBuilder()
    rank("", [[(REDUCE, 3000)]], builder=builder, pid=10)
    ranks = rank("node", [[(REDUCE, 1000)]], builder=builder, pid=20)
    assert [one.label for one in ranks] == ["node process 10 device 0", "node process 20 device 0"]
    assert [one.last for one in compare_ranks(ranks).ranks] == [0, 1]


def test_only_steps_with_the_same_collectives_are_compared() -> None:
    """By their numbers: a step that one rank lacks, or in which it ran another collective, is left out."""
    one = rank("one", [[(REDUCE, 9000)], [(REDUCE, 2000)], [(GATHER, 7000)]])
    two = rank("two", [[(REDUCE, 1000)], [(REDUCE, 5000)]], first=1)
    found = compare_ranks([*one, *two])
    assert (found.steps, found.other_steps) == (1, 1)
    assert [each.waiting_ns for each in found.ranks] == [1000, 0]


def test_nothing_to_compare_is_no_zero() -> None:
    """Without a step that both ran, or without a collective in it, times are unknown."""
    one, two = rank("one", [[(REDUCE, 9000)]]), rank("two", [[(GATHER, 9000)]])
    for waits in compare_ranks([*one, *two]).ranks:
        assert (waits.kernel_ns, waits.communication_ns, waits.waiting_ns) == (None, None, None)
        assert (waits.last, waits.holds_up_ns) == (None, None)
    alone = compare_ranks([*rank("one", [[("gemm", 9000)]]), *rank("two", [[("gemm", 5000)]])]).ranks[0]
    assert (alone.kernel_ns, alone.communication_ns, alone.waiting_ns, alone.last) == (9000, 0, None, None)


def test_ranks_without_steps_are_compared_as_a_whole() -> None:
    """The traces are taken for one step."""
    ranks = []
    for length in (4000, 1000):
        builder = ExportBuilder()
        builder.launch(REDUCE, 0, 1000, 1000 + length)
        ranks += rank("", [], builder=builder)
    assert [each.waiting_ns for each in compare_ranks(ranks).ranks] == [3000, 0]


UNNUMBERED = "execute_context_0(0)_generation_8({})"
TURNS = [reduced([14_000, 9000]), reduced([9000, 14_000])]
"""Two steps of two ranks that take turns in computing for longer."""


def traced(
    *ranks: Mapping[int, Sequence[Work]], name: str = NUMBERED, late_ns: int = 0, whole: bool = False
) -> list[Rank]:
    """A rank of each trace, on one clock; the second one's is off by ``late_ns``."""
    found = []
    for number, steps in enumerate(ranks):
        builder = ExportBuilder()
        add_rank(builder, number, steps, name=name, late_ns=late_ns * (number == 1))
        trace = builder.read()
        found += ranks_of(select(as_one_step(trace) if whole else trace), f"rank {number}")
    return found


def in_turns(second: int) -> list[dict[int, list[Work]]]:
    """Eight steps of two ranks that take turns; the second one's trace begins with the step of this number."""
    return [{step: TURNS[step % 2][n] for step in range(first, first + 8)} for n, first in enumerate((0, second))]


def test_steps_without_numbers_belong_together_by_time() -> None:
    """A rank whose trace begins a step later waits for as long as one whose trace does not."""
    for second, steps in ((0, 7), (1, 6)):
        found = compare_ranks(traced(*in_turns(second), name=UNNUMBERED))
        assert (found.matched, found.grouped, found.steps) == ("time", True, steps)
        waits = {step % 2: 5000 for step in range(second, 7)}
        assert waits == {0: 5000, 1: 5000}
        assert [each.waiting_ns for each in found.ranks] == pytest.approx(
            [5000 * sum(step % 2 == n for step in range(second, second + steps)) / steps for n in (1, 0)]
        )


@pytest.mark.parametrize(("one_clock", "late_ns"), [(False, 0), (True, 5 * STEP_NS // 2)])
def test_steps_without_numbers_or_clock_are_compared_by_order(one_clock: bool, late_ns: int) -> None:  # noqa: FBT001
    """Where traces have no clock in common, as is known or as the ends of collectives show, order is all there is."""
    found = compare_ranks(traced(*in_turns(0), name=UNNUMBERED, late_ns=late_ns), one_clock=one_clock)
    assert (found.matched, found.steps) == ("order", 7)
    assert not found.grouped
    assert [each.waiting_ns for each in found.ranks] == [5000 * 3 / 7, 5000 * 4 / 7]


def on_a_clock_of_its_own(rank: Rank, late_ns: int) -> Rank:
    """The same rank, all of whose times are so much later."""
    collectives = {
        step: dataclasses.replace(one, start_ns=one.start_ns + late_ns) for step, one in rank.collectives.items()
    }
    begins = {step: at + late_ns for step, at in rank.begins_ns.items()}
    work = {step: (begin + late_ns, end + late_ns) for step, (begin, end) in rank.work_ns.items()}
    return dataclasses.replace(rank, collectives=collectives, begins_ns=begins, work_ns=work)


def two_stages(name: str = NUMBERED) -> list[Rank]:
    """Two stages of two ranks each, of which the second begins 40 us after the first; they share no collective."""
    first, last = reduced([5000, 8000]), reduced([30_000, 24_000], 9000)
    late = [[(kernel, at + 40_000, length) for kernel, at, length in own] for own in last]
    return traced(*(dict.fromkeys(range(6), own) for own in (*first, *late)), name=name)


@pytest.mark.parametrize("late_ns", [0, 3000, -40_000, 10**12])
@pytest.mark.parametrize("name", [NUMBERED, UNNUMBERED])
def test_stages_that_share_no_collective_wait_for_nobody_known(name: str, late_ns: int) -> None:
    """Whatever their clocks and numbers: one of each stage alone gives no wait, and each waits within its own stage."""
    ranks = two_stages(name)
    moved = [*ranks[:2], *(on_a_clock_of_its_own(rank, late_ns) for rank in ranks[2:])]
    alone = compare_ranks([moved[0], moved[2]])
    assert (alone.collectives, alone.grouped, alone.alone) == (0, False, ("rank 0", "rank 2"))
    assert [(one.waiting_ns, one.last, one.holds_up_ns) for one in alone.ranks] == [(None, None, None)] * 2
    assert [one.communication_ns for one in alone.ranks] == [5000, 9000]
    every = compare_ranks(moved)
    steps = every.steps
    assert [(one.waiting_ns, one.last, one.collectives) for one in every.ranks] == [
        (3000, 0, steps), (0, steps, steps), (0, steps, steps), (6000, 0, steps),
    ]  # fmt: skip
    assert every.alone == ()


def test_stages_of_several_batches_at_once_are_no_group() -> None:
    """Matched by time they work at once, on other batches: collectives of either end within 2 us of the other's."""
    stages = []
    for stage in range(2):
        steps = {}
        for step in range(8):
            late = stage * (1000 + 450 * (step % 3))
            steps[step] = [(REDUCE, 1000 + 5000 * layer + late, 400) for layer in range(4)]
        stages.append(steps)
    found = compare_ranks(traced(*stages, name=UNNUMBERED))
    assert (found.collectives, found.alone) == (0, ("rank 0", "rank 1"))
    numbered = compare_ranks(traced(*stages))
    assert (numbered.collectives, numbered.alone) == (0, ("rank 0", "rank 1"))


def test_a_short_stage_is_no_part_of_the_one_before() -> None:
    """Its collectives end 7 us after those of a stage of 60 us, an eighth of a step: nobody was in both."""
    long = [("nvjet", 1000, 58_000), (REDUCE, 59_000, 2000)]
    short = [("nvjet", 62_000, 4000), (REDUCE, 66_000, 2000)]
    for name in (NUMBERED, UNNUMBERED):
        found = compare_ranks(traced(dict.fromkeys(range(6), long), dict.fromkeys(range(6), short), name=name))
        assert (found.collectives, found.alone) == (0, ("rank 0", "rank 1"))
    _, ranks = traced_ranks(dict.fromkeys(range(6), long), dict.fromkeys(range(6), short))
    assert [(rank.waiting_ns, rank.collectives) for rank in ranks] == [((), 0)] * 2


@pytest.mark.parametrize("late_ns", [1_000_000, -7_654_321, 10**15])
def test_recorded_ranks_on_clocks_of_their_own(late_ns: int) -> None:
    """Two H200s whose hosts are up to 2.2 ms of a step of 5.4 ms apart: the waits are those on one clock."""
    one, other = ranks_of(select(read_trace(FIXTURES / "h200-x2-ranks.sqlite.gz")), "rank")
    together, apart = compare_ranks([one, other]), compare_ranks([one, on_a_clock_of_its_own(other, late_ns)])
    assert (together.grouped, apart.grouped) == (True, False)
    assert (together.collectives, apart.collectives) == (396, 396)
    assert apart.ranks == together.ranks


def test_one_stage_of_several_ranks_is_a_group() -> None:
    """Beside one of another stage."""
    ranks = two_stages()
    assert [one.collectives for one in compare_ranks([ranks[0], ranks[1], ranks[2]]).ranks] == [6, 6, 0]


def test_a_rank_that_leaves_with_no_other_waits_for_nobody_known() -> None:
    """A stage of one rank beside one of two has nothing to be compared with."""
    late = [(name, at + 40_000, length) for name, at, length in reduced([5000])[0]]
    found = compare_ranks(traced(*(dict.fromkeys(range(6), own) for own in (*reduced([5000, 8000]), late))))
    assert [(each.waiting_ns, each.last, each.collectives) for each in found.ranks] == [
        (3000, 0, 6), (0, 6, 6), (None, None, 0),
    ]  # fmt: skip
    assert found.ranks[2].communication_ns == 2000


def test_ends_that_meet_by_chance_are_no_common_clock() -> None:
    """A clock that is off by less than a part of a step: a rank would leave before the other one comes."""
    steps = dict.fromkeys(range(8), (("nvjet", 1000, 60_000), (REDUCE, 61_000, 3000)))
    for late_ns, matched in ((1000, "time"), (5000, "order")):
        assert compare_ranks(traced(steps, steps, name=UNNUMBERED, late_ns=late_ns)).matched == matched


def test_a_whole_trace_does_not_say_who_leaves_together() -> None:
    """The one step of it is as long as all: beside that, collectives of any two stages end at the same time."""
    found = compare_ranks(traced(*in_turns(0), whole=True))
    assert (found.grouped, found.steps) == (False, 1)


DURATIONS = st.lists(st.lists(st.integers(1, 20), min_size=3, max_size=3), min_size=1, max_size=6)


@given(DURATIONS)
def test_waits_are_those_of_each_collective(durations: list[list[int]]) -> None:
    """Each rank waits for what is beyond the shortest; the last holds up by what the last but one waits."""
    works = [[(REDUCE, 1000 * n - row[r], row[r]) for n, row in enumerate(durations, 1)] for r in range(3)]
    ranks = traced(*({0: [("nvjet", 500, 10), *own]} for own in works))
    found = compare_ranks(ranks)
    for r, waits in enumerate(found.ranks):
        assert waits.waiting_ns == sum(row[r] - min(row) for row in durations)
        alone = [row for row in durations if row[r] == min(row) and row.count(min(row)) == 1]
        assert waits.last == len(alone)
        assert waits.holds_up_ns == sum(sorted(row)[1] - min(row) for row in alone)
