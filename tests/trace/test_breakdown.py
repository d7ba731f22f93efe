"""What a step is made of: a step drawn by hand, and any step counted nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import PID, ExportBuilder

from perfgate.trace.breakdown import StepFigures, figures
from perfgate.trace.idle_gaps import GAPS
from perfgate.trace.kernel_table import NO_TIME
from perfgate.trace.selection import by_step_and_kernel, select
from perfgate.trace.trace_file import read_trace


def gaps(found: StepFigures, row: int = 0) -> dict[str, int]:
    """Idle time of a step by what it goes with, zeros left out."""
    return {gap: int(ns) for gap, ns in zip(GAPS, found.gap_ns[row], strict=True) if ns}


def test_a_step_by_hand() -> None:
    """Two steps with every figure worked out on paper.

    Step 0, device time: gemm 10000-12000, copy 12000-12500, all-reduce 13000-16000 beside norm 15000-17000, then a
    graph of two, 20000-21000 and 21500-22000. Host: launches at 0, 1000 and 2000 (1000 each), the copy at 3000 (500), a
    wait 17500-19000, the graph at 19200 (2000).
    """
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 30_000)
    builder.launch("gemm", 0, 10_000, 12_000)
    builder.launch("ncclDevKernel_AllReduce", 1000, 13_000, 16_000, stream=9)
    builder.launch("norm_kernel_rms_norm", 2000, 15_000, 17_000)
    builder.copy(1, 3000, 12_000, 12_500, 256)
    builder.call("cudaStreamSynchronize_v3020", 17_500, 19_000)
    builder.call("cudaEventQuery_v3020", 19_000, 19_100)
    builder.graph(19_200, [("gemm", 20_000, 21_000), ("rms_norm", 21_500, 22_000)])
    builder.span("perfgate.step.1", 30_000, 40_000)
    builder.launch("gemm", 30_500, 32_000, 33_000)
    builder.add("PROFILER_OVERHEAD", start=30_100, end=30_400, globalTid=builder.rows["NVTX_EVENTS"][0]["globalTid"],
                nameId=builder.string("CUPTI: Buffer flush"))  # fmt: skip

    trace = builder.read()
    found = figures(trace)

    assert found.launches.tolist() == [5, 1]
    assert found.graph_coverage.tolist() == [0.4, 0.0]
    assert found.kernel_ns.tolist() == [2000 + 3000 + 2000 + 1000 + 500, 1000]
    assert found.span_ns.tolist() == [12_000, 1000]
    assert found.busy_ns.tolist() == [2500 + 4000 + 1500, 1000]
    # 12500-13000 nothing; 17000-20000 500 nothing, 1500 waiting, 200 nothing, 800 launching; 21000-21500 in the graph.
    assert gaps(found) == {"nothing": 500 + 500 + 200, "synchronise": 1500, "launch": 800, "graph": 500}
    assert found.step_ns.tolist() == [22_000, NO_TIME]
    assert found.slack_ns.tolist() == [NO_TIME, 22_000 - 30_500]
    assert found.work_ns.tolist() == [30_000 - 1500, 10_000]
    assert (found.calls.tolist(), found.call_ns.tolist()) == ([4, 1], [5000, 1000])
    assert (found.syncs.tolist(), found.sync_ns.tolist()) == ([1, 0], [1500, 0])
    assert found.overhead_ns.tolist() == [0, 300]
    assert found.copies.sum(axis=1).tolist() == [1, 0]
    assert found.copy_bytes.sum() == 256
    assert found.communication_ns.tolist() == [3000, 0]
    assert found.hidden_ns.tolist() == [1000, 0]
    assert [caution.code for caution in trace.cautions] == ["trace-damaged"]


def test_a_host_that_never_waits_has_its_lead_to_spare() -> None:
    """The lead is how long before its predecessor's end a step's first kernel was launched, on each process's own."""
    builder = ExportBuilder()
    for pid, lag in ((100, 0), (200, 700)):
        for n in range(3):
            builder.span(f"perfgate.step.{n}", n * 1000, n * 1000 + 900, pid=pid)
            builder.launch("gemm", n * 1000 + 10, 5000 * n + 5000 + lag, 5000 * n + 9000 + lag, pid=pid)
    found = figures(builder.read())
    assert found.slack_ns.tolist() == [
        NO_TIME, 9000 - 1010, 14_000 - 2010,
        NO_TIME, 9700 - 1010, 14_700 - 2010,
    ]  # fmt: skip
    assert found.step_ns.tolist() == [5000, 5000, NO_TIME] * 2


STEP = 10_000


def asynchronous_steps(
    builder: ExportBuilder, *, before: int = 0, behind: int = 0, name: str = "perfgate.step.{}", pid: int = 100
) -> None:
    """Four steps of 10 us: launched after 1 us of work and ``before``, then 1 us and ``behind``, a wait, 2 us of work.

    Each wait ends with the device's step before; the first kernel ends at 15 us.
    """
    for n in range(4):
        begin = n * STEP
        waited = begin + 8000  # when the output of the step before arrives, whatever the host did until then
        builder.span(name.format(n), begin, begin + STEP, pid=pid)
        builder.launch("gemm", begin + 1000 + before, begin + 5000, begin + 5000 + STEP, pid=pid)
        builder.call("cudaEventSynchronize", begin + 3000 + before + behind, waited, pid=pid)


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (1500, 0), (0, 1500), (1000, 4000)])
def test_work_of_the_host_uses_up_its_wait(before: int, behind: int) -> None:
    """Before or after the launch, what is added to the host's work is what the wait, and so the slack, loses."""
    builder = ExportBuilder()
    asynchronous_steps(builder, before=before, behind=behind)

    found = figures(builder.read())

    # Launched at 1 us in each step, 4 us before its predecessor's end; waiting 5 us.
    lead, wait = 4000 - before, 5000 - before - behind
    assert found.slack_ns.tolist() == [NO_TIME, *[min(lead, wait)] * 3]
    assert found.work_ns.tolist() == [STEP - wait] * 4


def test_a_device_that_waits_has_a_negative_slack_though_the_host_waits_too() -> None:
    """A synchronous engine waits for each step and launches late: nothing is to spare."""
    builder = ExportBuilder()
    for n in range(3):
        begin = n * STEP
        builder.span(f"perfgate.step.{n}", begin, begin + STEP)
        builder.launch("gemm", begin + 1000, begin + 2000, begin + 8000)
        builder.call("cudaStreamSynchronize", begin + 2500, begin + 8000)
    found = figures(builder.read())
    assert found.slack_ns.tolist() == [NO_TIME, -3000, -3000]
    assert found.work_ns.tolist() == [4500] * 3


def test_each_process_waits_for_itself() -> None:
    """A process that never waits has its lead to spare, whatever another does; a step without a wait has none."""
    builder = ExportBuilder()
    asynchronous_steps(builder, pid=100)
    asynchronous_steps(builder, pid=200)
    calls = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    waits = [row for row in calls if row["nameId"] == builder.string("cudaEventSynchronize")]
    gone = {id(row) for row in (waits[2], *waits[4:])}  # the third step of the one, every step of the other
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] = [row for row in calls if id(row) not in gone]

    found = figures(builder.read())

    assert found.slack_ns.tolist() == [NO_TIME, 4000, 0, 4000, NO_TIME, 4000, 4000, 4000]
    assert found.work_ns.tolist() == [5000, 5000, STEP, 5000, *[STEP] * 4]


@pytest.mark.parametrize(("waits", "slack"), [
    (1, [4000, 4000, 4000, 4000]), (2, [4000, 4000, 4000, 4000]), (3, [10, 10, 0, 0]), (5, [10, 10, 10, 10]),
])  # fmt: skip
def test_a_host_that_seldom_waits_has_its_lead_to_spare(waits: int, slack: list[int]) -> None:
    """A wait of 10 ns in one step of five says nothing of the others; where most have a wait, its end is the slack's.

    Each step is launched 1 us after its begin, 4 us before its predecessor's work ends.
    """
    builder = ExportBuilder()
    for n in range(5):
        begin = n * STEP
        builder.span(f"perfgate.step.{n}", begin, begin + STEP)
        builder.launch("gemm", begin + 1000, begin + 5000, begin + 5000 + STEP)
        if n < waits:
            builder.call("cudaStreamSynchronize", begin + 3000, begin + 3010)
    found = figures(builder.read())
    assert found.slack_ns.tolist() == [NO_TIME, *slack]
    assert found.work_ns.tolist() == [STEP - 10 * (n < waits) for n in range(5)]


def test_waits_are_counted_once_and_within_their_step() -> None:
    """Two threads that wait at once make the host wait once; a wait that reaches into the next step counts in both."""
    builder = ExportBuilder()
    for n in range(2):
        builder.span(f"perfgate.step.{n}", n * STEP, (n + 1) * STEP)
        builder.launch("gemm", n * STEP + 100, n * STEP + 5000, n * STEP + 15_000)
    builder.call("cudaEventSynchronize", 4000, 9000)
    builder.call("cudaStreamSynchronize", 6000, 11_000)
    assert figures(builder.read()).work_ns.tolist() == [STEP - 6000, STEP - 1000]


def waiting_steps(launching: int, waiting: int, *, later: int = 0, began: int = 4000, **other: int) -> StepFigures:
    """Two steps of 10 us whose range is thread 1's, with a launch at 1 and 2 us and a wait up to 9 us.

    Args:
        launching: The thread that launches.
        waiting: The one that waits.
        later: Thread 1 launches a copy so late in each step, in ns.
        began: The wait begins so late, or in the step before.
        other: A copy that thread ``copying`` launches.
    """
    builder = ExportBuilder()
    for begin in (STEP, 2 * STEP):
        builder.span(f"perfgate.step.{begin // STEP}", begin, begin + STEP, pid=1)
        builder.launch("gemm", begin + 1000, begin + 5000, begin + 7000, pid=1, tid=launching)
        builder.launch("gemm", begin + 2000, begin + 9000, begin + 14_000, pid=1, tid=launching)
        builder.call("cudaEventSynchronize", begin + began, begin + 9000, pid=1, tid=waiting)
        if later:
            builder.call("cudaMemcpyAsync", begin + later, begin + later + 100, pid=1)
        if copying := other.get("copying"):
            builder.call("cudaMemcpyAsync", begin + 3500, begin + 3600, pid=1, tid=copying)
    return figures(builder.read())


@pytest.mark.parametrize(("launching", "waiting"), [(1, 1), (2, 2), (2, 1)])
def test_a_thread_that_launches_or_has_the_steps_is_the_host(launching: int, waiting: int) -> None:
    """Its waits count, whichever of both it does."""
    found = waiting_steps(launching, waiting, later=9500)
    assert found.work_ns.tolist() == [STEP - 5000] * 2
    assert found.slack_ns.tolist() == [NO_TIME, 3000]
    assert found.syncs.tolist() == [1, 1]
    assert gaps(found) == {"synchronise": 2000}


@pytest.mark.parametrize("more", [{}, {"began": -3000}, {"copying": 2}])
def test_a_wait_beside_a_host_that_goes_on_holds_up_nothing(more: dict[str, int]) -> None:
    """Wherever it began, and also where its thread copies."""
    found = waiting_steps(1, 2, later=9500, **more)
    assert found.work_ns.tolist() == [STEP] * 2
    assert found.slack_ns.tolist() == [NO_TIME, 3000]
    assert found.syncs.tolist() == [0, 0]
    assert gaps(found) == {"nothing": 2000}


@pytest.mark.parametrize(("began", "waited"), [(4000, 5000), (2500, 6000), (-3000, 6000)])
def test_a_host_may_wait_for_a_thread_that_waits(began: int, waited: int) -> None:
    """After its last call in a step nothing else shows what it does, and before that it was not waiting."""
    found = waiting_steps(1, 2, began=began)
    assert found.work_ns.tolist() == [STEP - waited] * 2
    assert found.syncs.tolist() == [1, 1]
    assert gaps(found) == {"synchronise": 2000}


def steps_beside(ends: Sequence[int], **more: int) -> StepFigures:
    """Steps of 10 us, in each a launch that ends at 2 us, a copy at 8 us, and a wait beside until then or later.

    Args:
        ends: When each step's wait ends, from its begin.
        more: ``launching`` and ``copying``, the thread if it is another one; ``length`` of the copy, in ns.
    """
    builder = ExportBuilder()
    for begin, end in enumerate(ends, start=1):
        begin *= STEP  # noqa: PLW2901
        builder.span(f"perfgate.step.{begin // STEP}", begin, begin + STEP, pid=1)
        correlation = builder.call(
            "cudaGraphLaunch_v10000", begin + 1000, begin + 2000, pid=1, tid=more.get("launching", 1)
        )
        builder.kernel("gemm", begin + 5000, begin + 14_000, correlation, pid=1, node=1 << 32)
        length = more.get("length", 100)
        builder.call("cudaMemcpyAsync", begin + 8000, begin + 8000 + length, pid=1, tid=more.get("copying", 1))
        builder.call("cudaEventSynchronize", begin + 2500, begin + end, pid=1, tid=2)
    return figures(builder.read())


def test_a_wait_that_outlasts_the_host_by_chance_is_none() -> None:
    """One of five would take the slack of every step away; three of five are no chance."""
    once, often = steps_beside([7000, 7000, 8101, 7000, 7000]), steps_beside([9000, 9000, 7000, 9000, 7000])
    assert once.work_ns.tolist() == [STEP] * 5
    assert once.slack_ns.tolist() == [NO_TIME, *[3000] * 4]
    assert often.work_ns.tolist() == [STEP - 900, STEP - 900, STEP, STEP - 900, STEP]


@pytest.mark.parametrize("early", [2, 3])  # the thread of the wait, another one
def test_short_waits_do_not_outvote_the_one_that_holds_the_host_up(early: int) -> None:
    """Two waits of 100 ns while the host goes on are no reason to leave out the one after its last call of a step."""
    builder = ExportBuilder()
    for n in range(4):
        begin = n * STEP
        builder.span(f"perfgate.step.{n}", begin, begin + STEP, pid=1)
        builder.launch("gemm", begin + 1000, begin + 5000, begin + 14_000, pid=1)
        for at in (3000, 4000):
            builder.call("cudaEventSynchronize", begin + at, begin + at + 100, pid=1, tid=early)
        builder.call("cudaMemcpyAsync", begin + 6000, begin + 6100, pid=1)
        builder.call("cudaEventSynchronize", begin + 6200, begin + 9200, pid=1, tid=2)
    found = figures(builder.read())
    assert found.work_ns.tolist() == [STEP - 3000] * 4
    assert found.syncs.tolist() == [1] * 4


def test_threads_that_take_turns_in_waiting_are_one_wait_a_step() -> None:
    """A pool's threads each wait in every third step; a single step of six with such a wait is chance."""
    for turns, work in ((6, [STEP - 2000] * 6), (1, [STEP] * 6)):
        builder = ExportBuilder()
        for n in range(6):
            begin = n * STEP
            builder.span(f"perfgate.step.{n}", begin, begin + STEP, pid=1)
            builder.launch("gemm", begin + 1000, begin + 5000, begin + 14_000, pid=1)
            if n < turns:
                builder.call("cudaEventSynchronize", begin + 6000, begin + 8000, pid=1, tid=2 + n % 3)
        assert figures(builder.read()).work_ns.tolist() == work


def test_a_call_that_begins_between_two_steps_and_lasts_into_one_is_no_wait() -> None:
    """The host is in it until it ends, wherever it began: before the first range, or between two."""
    builder = ExportBuilder()
    for n in range(3):
        begin = (n + 1) * STEP
        builder.call("cudaMemcpyAsync", begin - 200, begin + 6000, pid=1)
        builder.span(f"perfgate.step.{n}", begin, begin + 9000, pid=1)
        builder.launch("gemm", begin + 1000, begin + 5000, begin + 14_000, pid=1)
        builder.call("cudaEventSynchronize", begin + 2500, begin + 8000, pid=1, tid=2)
    builder.call("cudaMemcpyAsync", 5 * STEP, 6 * STEP, pid=1)  # after the last one
    assert figures(builder.read()).work_ns.tolist() == [9000 - 2000] * 3


def test_a_wait_that_ends_with_its_step_is_of_that() -> None:
    """And one that ends later held up nothing: the step was over before."""
    assert steps_beside([STEP, STEP]).work_ns.tolist() == [STEP - 1900] * 2
    assert steps_beside([STEP + 10, STEP + 10]).work_ns.tolist() == [STEP] * 2


def test_a_copy_of_a_third_thread_ends_no_wait() -> None:
    """It moves a cache, say; a thread that launches nothing but graphs is the host."""
    assert steps_beside([9000, 9000], copying=3).work_ns.tolist() == [STEP - 6500] * 2
    assert steps_beside([7000, 7000], launching=2).work_ns.tolist() == [STEP - 4500] * 2


def test_a_call_that_lasts_into_the_next_step_is_no_wait() -> None:
    """The host is in it and does not wait meanwhile."""
    assert steps_beside([9000, 9000], copying=1, length=9000).work_ns.tolist() == [STEP] * 2


def test_threads_of_two_processes_may_have_one_number() -> None:
    """What launches in one process is not what waits in the other."""
    builder = ExportBuilder()
    for pid, launching, waiting in ((7, 7, 8), (8, 8, 7)):
        builder.span("perfgate.step.0", 0, STEP, pid=pid)
        builder.launch("gemm", 1000, 5000, 7000, pid=pid, tid=launching)
        builder.call("cudaEventSynchronize", 2500, 7000, pid=pid, tid=waiting)
        builder.launch("gemm", 8000, 9000, 9500, pid=pid, tid=launching)
    assert figures(builder.read()).work_ns.tolist() == [STEP] * 2


def test_ranges_of_vllm_do_not_show_the_hosts_work() -> None:
    """They end before the sampler runs; the slack is bounded by the waits up to the next one nevertheless."""
    builder = ExportBuilder()
    asynchronous_steps(builder, name="execute_context_0(0)_generation_{}(8)")
    found = figures(builder.read())
    assert found.work_ns.tolist() == [NO_TIME] * 4
    assert found.slack_ns.tolist() == [NO_TIME, 4000, 4000, 4000]


def test_a_step_on_two_devices() -> None:
    """Each device has figures and sums of its own; what the host did stands with both."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 9000)
    builder.launch("gemm", 0, 10_000, 12_000, device=0)
    builder.launch("gemm", 1000, 10_000, 15_000, device=5)
    trace = builder.read()
    found = figures(trace)
    assert found.device.tolist() == [0, 5]
    assert [(one.device, one.time_ns) for one in by_step_and_kernel(select(trace))] == [(0, 2000), (5, 5000)]
    assert found.kernel_ns.tolist() == [2000, 5000]
    assert found.calls.tolist() == [2, 2]


def test_a_gap_between_two_graphs_is_the_hosts() -> None:
    """Only within one launch of a graph does the host play no part; and only calls of the gap's own process count."""
    builder = ExportBuilder()
    for pid in (100, 200):
        builder.span("perfgate.step.0", 0, 90_000, pid=pid)
    builder.graph(0, [("gemm", 10_000, 11_000)], pid=100)
    builder.graph(3000, [("gemm", 14_000, 15_000), ("gemm", 15_500, 16_000)], pid=100)
    builder.launch("gemm", 5000, 10_000, 11_000, pid=200, device=1)
    builder.call("cudaDeviceSynchronize", 11_000, 13_000, pid=200)
    found = figures(builder.read())
    assert gaps(found) == {"nothing": 3000, "graph": 500}


def test_a_copy_that_a_step_starts_early_leaves_the_device_busy() -> None:
    """While the step before computes, nothing is idle: the gap of 200 before the step's own kernels is all there is."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0", 0, 1000)
    builder.launch("gemm", 0, 10_000, 14_800)
    builder.span("perfgate.step.1", 1000, 2000)
    builder.copy(1, 1000, 10_320, 10_400, 256)
    builder.launch("gemm", 1100, 15_000, 19_000)
    builder.launch("gemm", 1200, 500, 12_000, pid=PID + 1)  # another process's device 0, which may be another device
    found = figures(builder.read())
    assert found.span_ns.tolist() == [4800, 19_000 - 10_320]
    assert found.idle_ns.tolist() == [0, 200]
    assert found.busy_ns.tolist() == [4800, 4480 + 4000]
    assert gaps(found, 1) == {"nothing": 200}


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), max_size=8)


KINDS = st.sampled_from(["launch", "copy", "synchronise", "other"])
HOST_CALLS = st.lists(st.tuples(KINDS, st.integers(-10, 90), st.integers(0, 30)), max_size=8)


def nanoseconds(spans: list[tuple[int, int]]) -> set[int]:
    """Every nanosecond that spans of (start, length) cover."""
    return {ns for start, length in spans for ns in range(start, start + length)}


@given(SPANS.filter(bool), SPANS, SPANS, SPANS, SPANS, HOST_CALLS)
def test_any_step_counted_out(
    compute: list[tuple[int, int]],
    communication: list[tuple[int, int]],
    copies: list[tuple[int, int]],
    memsets: list[tuple[int, int]],
    others: list[tuple[int, int]],
    calls: list[tuple[str, int, int]],
) -> None:
    """Span, busy, idle by cause, communication and its hidden part are what counting every nanosecond gives.

    ``others`` are kernels outside the step, beside it on its device.
    """
    builder = ExportBuilder()
    shift = 1000
    builder.span("perfgate.step.0", 0, 900)
    for name, spans in (("gemm", compute), ("ncclDevKernel", communication)):
        for n, (start, length) in enumerate(spans):
            correlation = builder.call("cudaLaunchKernel", 5, 6)
            builder.kernel(name, shift + start, shift + start + length, correlation, stream=n)
    for n, (start, length) in enumerate(others):
        builder.kernel("norm", shift + start, shift + start + length, None, stream=n)
    for start, length in copies:
        builder.copy(8, 5, shift + start, shift + start + length, 1)
    for start, length in memsets:
        correlation = builder.call("cudaMemsetAsync", 5, 6)
        times = {"start": shift + start, "end": shift + start + length}
        builder.add("CUPTI_ACTIVITY_KIND_MEMSET", **times, deviceId=0, streamId=7, correlationId=correlation, bytes=4,
                    globalPid=builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["globalPid"])  # fmt: skip
    words = {"launch": "cuLaunchKernelEx", "copy": "cudaMemcpyAsync", "synchronise": "cudaEventSynchronize",
             "other": "cudaEventQuery"}  # fmt: skip
    for kind, start, length in calls:
        builder.call(words[kind], shift + start, shift + start + length)

    found = figures(builder.read())

    work = [*compute, *communication, *copies, *memsets]
    busy = nanoseconds([*work, *others])
    stretch = range(min(start for start, _ in work), max(start + length for start, length in work))
    idle = set(stretch) - busy
    left, expected = set(idle), {}
    for kind in ("launch", "copy", "synchronise"):
        covered = left & nanoseconds([(start, length) for one, start, length in calls if one == kind])
        expected[kind], left = len(covered), left - covered
    assert found.span_ns[0] == len(stretch)
    assert found.busy_ns[0] == len(set(stretch) & busy)
    assert gaps(found) == {kind: count for kind, count in {**expected, "nothing": len(left)}.items() if count}
    assert found.communication_ns[0] == len(nanoseconds(communication))
    assert found.hidden_ns[0] == len(nanoseconds(communication) & nanoseconds(compute))


@pytest.mark.parametrize("rows", [1, 3, 700])
def test_large_tables_are_worked_on_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a table is cut between steps, the figures and the steps are the same."""
    capture = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"
    whole = read_trace(capture)
    expected = figures(whole)
    monkeypatch.setattr("perfgate.trace.breakdown._PART_ROWS", rows)
    monkeypatch.setattr("perfgate.trace.steps._PART_ROWS", 100 * rows)
    monkeypatch.setattr("perfgate.trace.nsys_export._CHUNK_ROWS", 300 * rows)
    again = read_trace(capture)
    assert (again.kernels.step == whole.kernels.step).all()
    found = figures(again)
    for name in vars(expected):
        assert (getattr(found, name) == getattr(expected, name)).all(), name


def test_long_captures_do_not_overflow() -> None:
    """Steps hours apart, on a clock of nanoseconds since 1970, are as exact as any."""
    builder = ExportBuilder()
    start = 1_790_000_000_000_000_000
    for n in range(3):
        begin = start + n * 3_600_000_000_000
        builder.span(f"perfgate.step.{n}", begin, begin + 1000)
        builder.launch("gemm", begin, begin + 2000, begin + 2001)
        builder.launch("gemm", begin + 10, begin + 2003, begin + 2004)
    found = figures(builder.read())
    assert found.busy_ns.tolist() == [2, 2, 2]
    assert found.idle_ns.tolist() == [2, 2, 2]
    assert np.diff(found.step_ns[:2]).tolist() == [0]
    assert found.step_ns[0] == 3_600_000_000_000
