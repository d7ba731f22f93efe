"""Where a device stood idle, and what each gap goes with: a graph's own gaps, or what the host did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import CALL_KINDS, Calls, Events, Kernels, Trace

Ints = NDArray[np.int64]

GAPS = ("graph", "launch", "copy", "synchronise", "nothing")
"""What an idle gap goes with. ``graph``: it is between two kernels of one graph launch, where the host plays no part.
Otherwise the CUDA calls that the host had open during it, the first of these where threads differ, or ``nothing``."""

GAP_CALLS = (("launch", "graph-launch"), ("copy",), ("synchronise",))


@dataclass(frozen=True)
class _Busy:
    """One sort of device work of the whole trace, in order of start, and its longest duration."""

    events: Kernels | Events
    longest_ns: int

    @classmethod
    def of(cls, events: Kernels | Events) -> _Busy:
        return cls(events, int(events.duration_ns.max(initial=0)))

    def around(self, first_ns: int, end_ns: int, process: int, device: int) -> tuple[NDArray[Any], ...]:
        """Start, end, whether from a graph, and launch, of a device's work that may run between two times."""
        start_ns = self.events.start_ns
        begin = np.searchsorted(start_ns, first_ns - self.longest_ns)
        near = slice(begin, np.searchsorted(start_ns, end_ns, side="right"))
        own = np.flatnonzero((self.events.device[near] == device) & (self.events.process[near] == process)) + begin
        start = start_ns[own]
        return start, start + self.events.duration_ns[own], self.events.graph[own], self.events.correlation[own]


@dataclass(frozen=True)
class Activity:
    """What kept the devices of a trace busy, and what the host did.

    Args:
        work: Kernels, copies and memsets.
        calls: Of the host, in order of start.
        reached_ns: For each call, the latest end up to it.
    """

    work: Sequence[_Busy]
    calls: Calls
    reached_ns: Ints

    @classmethod
    def of(cls, trace: Trace) -> Activity:
        """Of a whole trace."""
        work = [_Busy.of(events) for events in (trace.kernels, trace.copies, trace.memsets)]
        return cls(work, trace.calls, np.maximum.accumulate(trace.calls.start_ns + trace.calls.duration_ns))

    def gaps(self, process: NDArray[Any], device: Ints, first_ns: Ints, end_ns: Ints) -> Ints:
        """The idle time within each span of a process's device by what it goes with, a column for each of :data:`GAPS`.

        Work of other steps keeps a device as busy as the step's own: a copy that a step starts early on a side stream
        runs while its predecessor computes. Devices are told apart by process too, because each process numbers what it
        sees from 0.
        """
        found = np.zeros((len(first_ns), len(GAPS)), np.int64)
        for one, number in sorted(set(zip(process.tolist(), device.tolist(), strict=True))):
            groups = np.flatnonzero((process == one) & (device == number))
            first, end = first_ns[groups], end_ns[groups]
            work = [sort.around(int(first.min()), int(end.max()), one, number) for sort in self.work]
            gaps = _Gaps.between(*(np.concatenate(column) for column in zip(*work, strict=True)))
            kinds = _gap_kinds(gaps, self.calls, self.reached_ns, one)
            until = np.concatenate([np.zeros((1, len(GAPS)), np.int64), np.cumsum(kinds, axis=0)])
            # A span begins with work and ends with it, so that a gap is inside or outside as a whole.
            inside, beyond = np.searchsorted(gaps.begin_ns, first), np.searchsorted(gaps.end_ns, end, side="right")
            found[groups] = until[beyond] - until[inside]
        return found


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


def _gap_kinds(gaps: _Gaps, calls: Calls, reached_ns: Ints, process: int) -> Ints:
    """The time of each gap by what it goes with, a column for each of :data:`GAPS`."""
    length = gaps.end_ns - gaps.begin_ns
    parts = np.zeros((len(length), len(GAPS)), np.int64)
    parts[gaps.one_graph, GAPS.index("graph")] = length[gaps.one_graph]
    free = np.flatnonzero(~gaps.one_graph)
    begin, end = gaps.begin_ns[free], gaps.end_ns[free]
    calls = _calls_between(calls, reached_ns, begin, end)
    taken = np.zeros(len(free), np.int64)
    kinds: list[int] = []
    for column, words in enumerate(GAP_CALLS, start=1):
        added = [CALL_KINDS.index(word) for word in words]
        kinds += added
        if np.isin(calls.kind, added).any():
            chosen, owner = calls.take(np.isin(calls.kind, kinds)), np.full(len(free), process)
            before, taken = taken, covered(chosen, owner, begin, end)
            parts[free, column] = taken - before
    parts[free, GAPS.index("nothing")] = length[free] - taken
    return parts


def _calls_between(calls: Calls, reached_ns: Ints, begin: Ints, end: Ints) -> Calls:
    """The calls that may lie in one of these intervals: from the first one open at their first begin on."""
    if not len(begin):
        return calls.take(np.arange(0))
    first = np.searchsorted(reached_ns, begin.min(), side="right")
    return calls.take(np.arange(first, max(np.searchsorted(calls.start_ns, end.max()), first)))


def covered(calls: Calls, process: NDArray[Any], begin: Ints, end: Ints) -> Ints:
    """How much of each interval some call of its process covers."""
    found = np.zeros(len(begin), np.int64)
    for one in np.unique(process):
        own = calls.take(calls.process == one)
        rows = np.flatnonzero(process == one)
        if len(own):
            until = np.maximum.accumulate(own.start_ns + own.duration_ns)
            opened = np.maximum(own.start_ns, np.concatenate([own.start_ns[:1], until[:-1]]))
            total = np.concatenate([[0], np.cumsum(until - opened)])
            found[rows] = _until(end[rows], opened, until, total) - _until(begin[rows], opened, until, total)
    return found


def _until(time_ns: Ints, opened: Ints, until: Ints, total: Ints) -> Ints:
    """How much of the time before ``time_ns`` disjoint intervals cover; ``total`` sums their lengths from 0."""
    place = np.searchsorted(opened, time_ns, side="right")
    beyond = np.where(place > 0, until[np.maximum(place - 1, 0)] - time_ns, 0)
    return np.asarray(total[place] - np.maximum(beyond, 0))
