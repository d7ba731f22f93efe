"""Which rank holds the others up: two steps on paper, and any ranks collective by collective."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import ExportBuilder

from perfgate.trace.nsys import read_nsys
from perfgate.trace.rank_waits import Rank, compare_ranks, ranks_of
from perfgate.trace.selection import select

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
    with tempfile.TemporaryDirectory() as folder:
        return ranks_of(select(read_nsys(made.write(Path(folder) / "export.sqlite"))), label)


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


DURATIONS = st.lists(st.lists(st.integers(1, 20), min_size=3, max_size=3), min_size=1, max_size=6)


@given(DURATIONS)
def test_waits_are_those_of_each_collective(durations: list[list[int]]) -> None:
    """Each rank waits for what is beyond the shortest; the last holds up by what the last but one waits."""
    ranks = [one for r in range(3) for one in rank(str(r), [[(REDUCE, row[r]) for row in durations]])]
    found = compare_ranks(ranks)
    for r, waits in enumerate(found.ranks):
        assert waits.waiting_ns == sum(row[r] - min(row) for row in durations)
        alone = [row for row in durations if row[r] == min(row) and row.count(min(row)) == 1]
        assert waits.last == len(alone)
        assert waits.holds_up_ns == sum(sorted(row)[1] - min(row) for row in alone)
