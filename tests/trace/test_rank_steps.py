"""Decode steps of several ranks: matched by number and time, and what each rank does and waits for in them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import ExportBuilder
from rank_traces import NUMBERED, REDUCE, SEND, STEP_NS, Work, add_rank, reduced, traced_ranks

from perfgate.errors import NotMeasuredError
from perfgate.trace.rank_steps import pool_ranks, summarise_ranks
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_two_ranks_by_hand() -> None:
    """Rank 1 begins 500 ns later and computes for longer; rank 0 waits for it, and hides some of its communication."""
    first = [("nvjet", 1000, 5000), (REDUCE, 6000, 7000), ("silu_and_mul", 7001, 2000)]
    second = [("nvjet", 1500, 9500), (REDUCE, 11_000, 2000)]
    every, (one, two) = traced_ranks({0: first, 1: first, 2: first}, {0: second, 1: second, 2: second}, expected=2)

    assert (one.label, two.label) == ("rank 0", "rank 1")
    assert (one.waiting_ns, two.waiting_ns) == ((5000,) * 3, (0,) * 3)
    assert (one.communication_ns, one.hidden_ns, two.hidden_ns) == ((7000,) * 3, (2000,) * 3, (0,) * 3)
    assert (one.begins_ns, two.begins_ns, one.ends_ns, two.ends_ns) == ((0,) * 3, (500,) * 3, (0,) * 3, (0,) * 3)
    assert (one.slowest, two.slowest, one.last, two.last, two.collectives) == (0, 3, 0, 3, 3)
    assert every.span_ns == (12_000,) * 3
    assert every.step_ns == (STEP_NS, STEP_NS, None)
    assert every.role_ns["communication"] == (2000,) * 3, "of the slowest rank"
    assert every.busy_ns == two.decode.busy_ns
    assert every.steps == 6, "patterns count each rank's steps"
    assert one.decode.steps == two.decode.steps == 3


def test_waiting_beside_computation_makes_no_rank_faster() -> None:
    """Rank 0 computes for longer, and its collective waits beneath; busy time is a union and holds it once."""
    first = [("nvjet", 1000, 50_000), (REDUCE, 5001, 40_000)]
    second = [("nvjet", 1000, 40_000), (REDUCE, 41_001, 4000)]
    every, (one, two) = traced_ranks({0: first, 1: first}, {0: second, 1: second}, expected=2)

    assert (one.waiting_ns, one.slowest, two.slowest) == ((36_000,) * 2, 2, 0)
    assert every.busy_ns == one.decode.busy_ns


@given(st.lists(st.lists(st.integers(1000, 30_000), min_size=1, max_size=5), min_size=2, max_size=5))
def test_any_number_of_ranks(rows: list[list[int]]) -> None:
    """The one that computes for longest is the slowest and waits for nobody; each other one waits for it."""
    count = min(map(len, rows))
    compute = [[row[step] for row in rows] for step in range(count)]
    works = [reduced(own) for own in compute]
    every, ranks = traced_ranks(*({step: works[step][rank] for step in range(count)} for rank in range(len(rows))))

    for step, own in enumerate(compute):
        assert [rank.waiting_ns[step] for rank in ranks] == [max(own) - mine for mine in own]
        assert every.span_ns[step] == max(own) + 2000
        assert every.busy_ns[step] == max(own) + 2000
        assert every.role_ns["communication"][step] == 2000
    assert sum(rank.slowest for rank in ranks) == count
    assert len(ranks) == len(rows)


@pytest.mark.parametrize("name", [NUMBERED, "execute_context_0(0)_generation_8(8)"])
def test_a_rank_that_lost_a_step(name: str) -> None:
    """Steps are matched by number or time, never by their order alone; what not all show is left out and said."""
    works = {step: reduced([5000 + 1000 * step, 9000]) for step in range(8)}
    first, second = ({step: works[step][rank] for step in works} for rank in range(2))
    del second[3]
    every, (one, two) = traced_ranks(first, second, name=name)

    kept = [step for step in works if step != 3][: len(one.begins_ns)]
    assert one.waiting_ns == tuple(max(9000 - 5000 - 1000 * step, 0) for step in kept)
    assert one.decode.steps == two.decode.steps == len(kept) >= 6
    (told,) = (text for code, text in every.cautions if code == "trace-damaged")
    assert f"rank 1 {len(kept)}" in told
    assert every.step_ns[2] is None, "its successor is not one of these"


def test_a_rank_that_is_missing() -> None:
    """An engine of three ranks whose trace shows two is not measured."""
    works = reduced([1000, 2000])
    with pytest.raises(NotMeasuredError, match="decode steps of 2 ranks, and the engine has 3") as raised:
        traced_ranks({0: works[0]}, {0: works[1]}, expected=3)
    assert raised.value.code == "trace-damaged"


def test_ranks_without_a_common_step_or_clock() -> None:
    """Nothing is held beside each other that was not one step."""
    works = reduced([1000, 2000])
    with pytest.raises(NotMeasuredError, match="no decode step is of all ranks: rank 0 1, rank 1 1") as raised:
        traced_ranks({0: works[0]}, {1: works[1]})
    assert raised.value.code == "trace-damaged"
    builder = ExportBuilder()
    add_rank(builder, 0, dict.fromkeys(range(4), works[0]))
    add_rank(builder, 1, dict.fromkeys(range(4), works[1]), late_ns=1_000_000)
    with pytest.raises(NotMeasuredError, match=r"begin a step 1\.\d* ms apart, and a step takes 100\.\d us"):
        summarise_ranks([builder.read()])


def test_a_pipeline() -> None:
    """Its step is what all stages do, and the later stage waits for what the earlier one sends."""
    first = {step: [("nvjet", 1000, 20_000), (SEND, 21_000, 1000)] for step in range(3)}
    second = {step: [(SEND, 500, 21_500), ("flash_fwd_kernel", 22_000, 10_000)] for step in range(3)}
    every, (one, two) = traced_ranks(first, second)

    assert every.span_ns == (31_500,) * 3
    assert (one.slowest, two.slowest) == (3, 0)
    assert (one.waiting_ns, two.waiting_ns) == ((0,) * 3, (20_500,) * 3)
    assert one.ends_ns == (10_000,) * 3


BROADCAST = "ncclDevKernel_Broadcast_RING_LL"


def stages(first_ns: int, second_ns: int) -> list[list[Work]]:
    """A step of two stages: the first sends, and waits in the broadcast of the tokens that the second has found."""
    sent = 1000 + first_ns
    early = [("nvjet", 1000, first_ns), (SEND, sent, 1000), (BROADCAST, sent + 1000, second_ns + 1000)]
    late = [(SEND, 500, sent + 500), ("nvjet", sent + 1000, second_ns), (BROADCAST, sent + 1000 + second_ns, 1000)]
    return [early, late]


def pairs_of_stages(first_ns: int, second_ns: int) -> list[list[Work]]:
    """Two stages of two ranks each, of which the second receives in both ranks at once."""
    sent = 4000 + first_ns
    early = [("nvjet", 1000, first_ns), (REDUCE, 1000 + first_ns, 2000), (SEND, 3000 + first_ns, 1000)]
    late = [(SEND, 500, sent - 500), ("nvjet", sent, second_ns), (REDUCE, sent + second_ns, 2000)]
    return [early, early, late, late]


def three_stages(first_ns: int, second_ns: int) -> list[list[Work]]:
    """Three stages, of which the middle one receives and sends; the last is as long as the second."""
    sent, passed = 2000 + first_ns, 3001 + first_ns + second_ns
    middle = [(SEND, 500, sent - 500), ("nvjet", sent, second_ns), (SEND, sent + second_ns, 1001)]
    last = [(SEND, 500, passed - 500), ("nvjet", passed, second_ns)]
    return [[("nvjet", 1000, first_ns), (SEND, 1000 + first_ns, 1000)], middle, last]


@pytest.mark.parametrize(("works", "slowest"), [
    (stages(5000, 40_000), 1), (stages(40_000, 5000), 0), (pairs_of_stages(40_000, 5000), 0),
    (pairs_of_stages(5000, 40_000), 2), (three_stages(40_000, 5000), 0), (three_stages(5000, 40_000), 1),
])  # fmt: skip
def test_a_stage_that_waits_is_not_the_slowest(works: list[list[Work]], slowest: int) -> None:
    """Whatever a stage waits in, a broadcast or a receive: the step is told by the one that computes for longest."""
    every, ranks = traced_ranks(*(dict.fromkeys(range(3), own) for own in works))
    assert [rank.slowest for rank in ranks] == [3 * (number == slowest) for number in range(len(works))]
    assert every.role_ns["gemm"] == (40_000,) * 3


def test_a_collective_of_one_rank_alone() -> None:
    """Waiting is not known in that step, and the rank that computes for longest still tells it."""
    first, second = reduced([20_000, 30_000])
    more = [*first, ("ncclDevKernel_AllGather_RING_LL", 34_001, 500)]
    every, (one, two) = traced_ranks({0: first, 1: more, 2: first}, dict.fromkeys(range(3), second))
    assert (one.waiting_ns, one.slowest, two.slowest) == ((10_000, None, 10_000), 0, 3)
    told = "waiting is not told from transfer in some of 3 steps: 1 of rank 0, 1 of rank 1"
    assert dict(every.cautions)["not-recorded"] == told
    assert every.role_ns["gemm"] == (30_000,) * 3


def test_groups_of_ranks_are_held_against_their_own() -> None:
    """Two stages of two ranks run all-reduces of one name; a stage does not wait for those of the other one."""
    early, late = reduced([5000, 8000]), reduced([30_000, 24_000])
    steps = [*early, *([(name, after + 40_000, ns) for name, after, ns in own] for own in late)]
    _, ranks = traced_ranks(*(dict.fromkeys(range(3), own) for own in steps))
    assert [rank.waiting_ns[0] for rank in ranks] == [3000, 0, 0, 6000]


def test_devices_of_one_process_are_ranks() -> None:
    """One process that drives several devices has one range a step, and a rank a device."""
    builder = ExportBuilder()
    for step in range(3):
        builder.span(NUMBERED.format(step), step * STEP_NS, (step + 1) * STEP_NS - 1)
        for device, own in enumerate(reduced([4000, 9000, 6000])):
            for kernel, after, length in own:
                at = step * STEP_NS + after
                builder.launch(kernel, step * STEP_NS + 10, at, at + length, device=device)
    every, ranks = summarise_ranks([builder.read()], 3)
    assert [rank.waiting_ns for rank in ranks] == [(5000,) * 3, (0,) * 3, (3000,) * 3]
    assert [rank.decode.steps for rank in ranks] == [3, 3, 3]
    assert every.patterns[0].steps == 9


def test_one_rank_is_the_steps_themselves() -> None:
    """An engine of one rank has no ranks to tell apart, and every figure of before."""
    every, ranks = traced_ranks({0: [("nvjet", 1000, 500)], 1: [("nvjet", 1000, 500)]})
    assert ranks == ()
    assert every.span_ns == (500, 500)


def test_ranks_that_run_no_collective_together() -> None:
    """Waiting is then not told from transfer, which is said."""
    every, ranks = traced_ranks({0: [(REDUCE, 1000, 500)]}, {0: [("ncclDevKernel_AllGather", 1000, 500)]})
    assert [rank.waiting_ns for rank in ranks] == [(), ()]
    assert "rank 0, rank 1: no collectives that other ranks ran with it" in dict(every.cautions)["not-recorded"]


def test_two_ranks_of_a_real_engine() -> None:
    """VLLM on the CPU with two ranks: each opened its own ranges, and they leave every collective together."""
    files = [FIXTURES / f"cpu-tiny-tp2-rank{rank}.torch-2.13.json.gz" for rank in range(2)]
    traces = [read_trace(file) for file in files]
    assert all(trace.steps.own.all() for trace in traces)
    every, ranks = summarise_ranks(traces, 2)

    assert [rank.decode.steps for rank in ranks] == [6, 6]
    assert [rank.collectives for rank in ranks] == [60, 60]
    assert sum(rank.slowest for rank in ranks) == 6
    for rank in ranks:
        waited = [ns for ns in rank.waiting_ns if ns is not None]
        assert all(0 <= wait <= talk for wait, talk in zip(waited, rank.communication_ns, strict=True))
        assert statistics.median(rank.begins_ns) < 1e6
    assert all(span >= max(own) for span, *own in zip(every.span_ns, *(r.decode.span_ns for r in ranks), strict=True))
    assert every.cautions == ()


def test_two_ranks_of_two_gpus() -> None:
    """Of a real engine: the rank that answers has a thread that waits for outputs; its host works as the other's."""
    every, ranks = summarise_ranks([read_trace(FIXTURES / "h200-x2-ranks.sqlite.gz")], 2)

    assert [rank.decode.work_ns for rank in ranks] == [
        (5028806, 5028317, 5552376, 5376198, 4881216, 4810398),
        (5337600, 5269300, 5054662, 4156871, 4120059, 4024662),
    ]
    assert [rank.decode.waits for rank in ranks] == [0, 0]
    assert [rank.decode.gap_ns["synchronise"] for rank in ranks] == [(0,) * 6] * 2
    assert [sum(pattern.steps for pattern in rank.decode.patterns) for rank in ranks] == [6, 6]
    assert {len(pattern.kernels) for rank in ranks for pattern in rank.decode.patterns} == {507}
    assert [rank.collectives for rank in ranks] == [396, 396]
    assert [rank.slowest for rank in ranks] == [1, 5]
    # Rank 1 launches late, so rank 0 waits in its collectives; what transfer takes is alike.
    assert [statistics.median(ns or 0 for ns in rank.waiting_ns) for rank in ranks] == [1232587.0, 12321.0]
    assert every.cautions == ()


def test_trials_are_pooled_rank_by_rank() -> None:
    """Ranks of several trials are those of one, step after step."""
    works = reduced([5000, 9000])
    ranks = traced_ranks({0: works[0], 1: works[0]}, {0: works[1], 1: works[1]})[1]
    one, two = pool_ranks([ranks, ranks])
    assert (one.waiting_ns, two.slowest, one.decode.steps) == ((4000,) * 4, 4, 4)
    assert pool_ranks([]) == ()


def test_a_trial_that_knows_no_waiting_is_pooled_with_one_that_does() -> None:
    """Its steps have no known waiting, and every column still holds an entry a step."""
    works = [{0: [("nvjet", 0, own), (REDUCE, own, 9000 - own)]} for own in (4000, 6000)]
    _, known = traced_ranks(*works)
    unknown = [rank.model_copy(update={"waiting_ns": (), "collectives": 0, "last": 0}) for rank in known]
    one, two = pool_ranks([known, unknown])
    assert (one.waiting_ns, two.waiting_ns) == ((2000, None), (0, None))
    assert len(one.begins_ns) == len(one.waiting_ns)
