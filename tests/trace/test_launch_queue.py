"""Launches: a stream drawn by hand, and any streams followed event by event."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import PID, ExportBuilder

from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.kernel_table import Trace
from perfgate.trace.launch_queue import WORK, find_launches
from perfgate.trace.nsys import read_nsys
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"


def read(builder: ExportBuilder) -> Trace:
    """The table of what a builder holds."""
    with tempfile.TemporaryDirectory() as folder:
        return read_nsys(builder.write(Path(folder) / "export.sqlite"))


def test_a_stream_by_hand() -> None:
    """Three launches ahead of the device, a graph that counts once, and one that the device waited for."""
    builder = ExportBuilder()
    builder.launch("gemm", 0, 5000, 9000)
    builder.copy(1, 1000, 9000, 9500, 64)
    builder.graph(2000, [("gemm", 9500, 9600), ("norm", 9700, 9900)])
    builder.launch("norm", 20_000, 26_000, 27_000)
    builder.kernel("lost", 30_000, 31_000, None)

    found = find_launches(read(builder))

    assert [WORK[work] for work in found.work] == ["kernel", "copy", "graph", "kernel"]
    assert found.called_ns.tolist() == [0, 1000, 2000, 20_000]
    assert found.call_ns.tolist() == [1000, 500, 2000, 1000]
    assert found.delay_ns.tolist() == [5000, 8000, 7500, 6000]
    assert found.pieces.tolist() == [1, 1, 2, 1]
    assert found.queue.tolist() == [1, 2, 3, 1]
    assert found.late.tolist() == [True, False, False, True]
    assert found.name[1] == COPY_KINDS.index("h2d")


def test_work_that_begins_before_its_call_has_no_delay() -> None:
    """Clocks of host and device may disagree by some microseconds: a delay is never negative."""
    builder = ExportBuilder()
    builder.launch("gemm", 1000, 400, 900)
    builder.launch("gemm", 2500, 3000, 4000)
    found = find_launches(read(builder))
    assert found.delay_ns.tolist() == [0, 500]
    assert found.queue.tolist() == [1, 1]


def test_operators_have_no_launches() -> None:
    """On the CPU nothing is launched."""
    assert not len(find_launches(read_trace(FIXTURES / "cpu-tiny.torch-2.13.json.gz")))


TIMES = st.integers(0, 60)
LAUNCH = st.tuples(TIMES, TIMES, st.integers(1, 60), st.sampled_from([7, 9]), st.sampled_from([PID, PID + 1]))


@given(st.lists(LAUNCH, min_size=1, max_size=14))
def test_queues_are_those_of_a_walk_through_time(launches: list[tuple[int, int, int, int, int]]) -> None:
    """Counted by going from event to event: one up with a call, one down when its work begins."""
    builder = ExportBuilder()
    for called, delay, length, stream, pid in launches:
        builder.launch("gemm", called, called + delay, called + delay + length, stream=stream, pid=pid)

    found = find_launches(read(builder))

    expected = []
    for number, (called, _, _, stream, pid) in enumerate(launches):
        same = [(n, row) for n, row in enumerate(launches) if row[3:] == (stream, pid)]
        before = [row for n, row in same if (row[0], n) < (called, number)]
        queue = 1 + sum(row[0] + row[1] >= called for row in before)
        late = all(row[0] + row[1] + row[2] <= called for row in before)
        expected.append((called, pid, number, queue, late))
    columns = (found.called_ns, found.process, found.queue, found.late)
    pids = sorted({row[4] for row in launches})
    assert sorted(
        (called, pids[process], queue, late)
        for called, process, queue, late in zip(*(column.tolist() for column in columns), strict=True)
    ) == sorted((called, pid, queue, late) for called, pid, _, queue, late in expected)
