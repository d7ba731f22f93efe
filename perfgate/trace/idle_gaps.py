"""Where a device stood idle, and what each gap goes with: a graph's own gaps, or what the host did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import LAUNCHES, Calls, OnDevice, Trace

Ints = NDArray[np.int64]

GAPS = ("graph", "launch", "copy", "synchronise", "nothing")
"""What an idle gap goes with. ``graph``: it is between two kernels of one graph launch, where the host plays no part.
Otherwise the CUDA calls that the host had open during it, the first of these where threads differ, or ``nothing``."""

OTHER_RANKS = "ranks"
"""A further kind, for a rank that waits in a collective: its kernel runs, and does nothing until the others come."""

GAP_CALLS = (LAUNCHES, ("copy",), ("synchronise",))


def idle_ns(trace: Trace, process: NDArray[Any], device: Ints, first_ns: Ints, end_ns: Ints) -> Ints:
    """The idle time within each span of a process's device by what it goes with, a column for each of :data:`GAPS`.

    Work of other steps keeps a device as busy as the step's own: a copy that a step starts early on a side stream
    runs while its predecessor computes. Devices are told apart by process too, because each process numbers what it
    sees from 0.
    """
    idle = np.zeros((len(first_ns), len(GAPS)), np.int64)
    for owner, number in sorted(set(zip(process.tolist(), device.tolist(), strict=True))):
        spans = np.flatnonzero((process == owner) & (device == number))
        first, end = first_ns[spans], end_ns[spans]
        work = [
            _around(events, int(first.min()), int(end.max()), owner, number)
            for events in (trace.kernels, trace.copies, trace.memsets)
        ]
        gaps = _Gaps.between(*(np.concatenate(column) for column in zip(*work, strict=True)))
        until = np.concatenate(
            [np.zeros((1, len(GAPS)), np.int64), np.cumsum(_kinds(gaps, trace.calls, owner), axis=0)]
        )
        # A span begins with work and ends with it, so that a gap is inside or outside as a whole.
        inside, beyond = np.searchsorted(gaps.begin_ns, first), np.searchsorted(gaps.end_ns, end, side="right")
        idle[spans] = until[beyond] - until[inside]
    return idle


def _around(events: OnDevice, first_ns: int, end_ns: int, process: int, device: int) -> tuple[NDArray[Any], ...]:
    """Start, end, whether from a graph, and launch, of a device's work that may run between two times."""
    begin = np.searchsorted(events.start_ns, first_ns - events.duration_ns.max(initial=0))
    near = slice(begin, np.searchsorted(events.start_ns, end_ns, side="right"))
    rows = np.flatnonzero((events.device[near] == device) & (events.process[near] == process)) + begin
    start_ns = events.start_ns[rows]
    return start_ns, start_ns + events.duration_ns[rows], events.graph[rows], events.correlation[rows]


@dataclass(frozen=True)
class _Gaps:
    """Stretches in which nothing ran on a device, in order, and whether each is within one launch of a graph."""

    begin_ns: Ints
    end_ns: Ints
    one_graph: NDArray[np.bool_]

    @classmethod
    def between(cls, start_ns: Ints, end_ns: Ints, graph: NDArray[np.bool_], correlation: Ints) -> _Gaps:
        """The gaps that a device's work leaves."""
        order = np.lexsort((end_ns, start_ns))
        start_ns, end_ns, graph, correlation = start_ns[order], end_ns[order], graph[order], correlation[order]
        reached = np.maximum.accumulate(end_ns)
        after = np.flatnonzero(start_ns[1:] > reached[:-1]) + 1
        one_graph = graph[after] & graph[after - 1] & (correlation[after] == correlation[after - 1])
        return cls(reached[after - 1], start_ns[after], one_graph)


def _kinds(gaps: _Gaps, calls: Calls, process: int) -> Ints:
    """The time of each gap by what it goes with, a column for each of :data:`GAPS`."""
    length = gaps.end_ns - gaps.begin_ns
    parts = np.zeros((len(length), len(GAPS)), np.int64)
    parts[gaps.one_graph, GAPS.index("graph")] = length[gaps.one_graph]
    free = np.flatnonzero(~gaps.one_graph)
    if not len(free):
        return parts
    begin, end = gaps.begin_ns[free], gaps.end_ns[free]
    calls = calls.take((calls.start_ns < end.max()) & (calls.start_ns + calls.duration_ns > begin.min()))
    taken = np.zeros(len(free), np.int64)
    kinds: list[str] = []
    for column, added in enumerate(GAP_CALLS, start=1):
        kinds += added
        if calls.of(*added).any():
            chosen, owner = calls.take(calls.of(*kinds)), np.full(len(free), process)
            before, taken = taken, covered(chosen, owner, begin, end)
            parts[free, column] = taken - before
    parts[free, GAPS.index("nothing")] = length[free] - taken
    return parts


def covered(calls: Calls, process: NDArray[Any], begin: Ints, end: Ints) -> Ints:
    """How much of each interval some call of its process covers."""
    length_ns = np.zeros(len(begin), np.int64)
    for owner in np.unique(process):
        own = calls.take(calls.process == owner)
        rows = np.flatnonzero(process == owner)
        if len(own):
            until = np.maximum.accumulate(own.start_ns + own.duration_ns)
            opened = np.maximum(own.start_ns, np.concatenate([own.start_ns[:1], until[:-1]]))
            total = np.concatenate([[0], np.cumsum(until - opened)])
            length_ns[rows] = _until(end[rows], opened, until, total) - _until(begin[rows], opened, until, total)
    return length_ns


def _until(time_ns: Ints, opened: Ints, until: Ints, total: Ints) -> Ints:
    """How much of the time before ``time_ns`` disjoint intervals cover; ``total`` sums their lengths from 0."""
    index = np.searchsorted(opened, time_ns, side="right")
    beyond = np.where(index > 0, until[np.maximum(index - 1, 0)] - time_ns, 0)
    return np.asarray(total[index] - np.maximum(beyond, 0))
