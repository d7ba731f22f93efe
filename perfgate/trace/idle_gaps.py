"""Where a device stood idle, and what each gap goes with: a graph's own gaps, or what the host did meanwhile.

What the host did is told by its calls, of those that wait for a device only by what holds up its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import LAUNCHES, NONE, Calls, OnDevice, Steps, Trace
from perfgate.trace.steps import steps_at

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
        owned = calls.take(calls.process == owner)
        rows = np.flatnonzero(process == owner)
        if len(owned):
            until = np.maximum.accumulate(owned.start_ns + owned.duration_ns)
            opened = np.maximum(owned.start_ns, np.concatenate([owned.start_ns[:1], until[:-1]]))
            total = np.concatenate([[0], np.cumsum(until - opened)])
            length_ns[rows] = _until(end[rows], opened, until, total) - _until(begin[rows], opened, until, total)
    return length_ns


def _until(time_ns: Ints, opened: Ints, until: Ints, total: Ints) -> Ints:
    """How much of the time before ``time_ns`` disjoint intervals cover; ``total`` sums their lengths from 0."""
    index = np.searchsorted(opened, time_ns, side="right")
    beyond = np.where(index > 0, until[np.maximum(index - 1, 0)] - time_ns, 0)
    return np.asarray(total[index] - np.maximum(beyond, 0))


MOSTLY: Final = 0.5
"""The share of steps in which the host waits, or else what it waits in the others is chance."""


def host_calls(trace: Trace) -> Calls:
    """All calls, but of waits only what holds up the host.

    The host is the threads that launch kernels or have the steps' ranges. A thread beside them may wait for the outputs
    of a step while the host launches the next: so it is in the worker of vLLM that answers for all ranks. Or the host
    waits for that thread, which no trace records: so did the engine of one process in releases before 0.25.1
    (``UniProcExecutor``, asynchronous scheduling). Therefore such a wait counts in the step in which it ends, after the
    host's last call in that, and not where that is chance: one has to end so in :data:`MOSTLY` all steps with a wait of
    its thread, and over all these threads in :data:`MOSTLY` all steps that launch. Shorter waits of the same thread
    earlier in a step say nothing.
    """
    calls, steps = trace.calls, trace.steps
    beside, at_work = _beside_and_at_work(calls, steps)
    if not len(beside):
        return calls
    end_ns = calls.start_ns[beside] + calls.duration_ns[beside]
    step = steps_at(steps, calls.process[beside], end_ns - 1)  # a wait that ends with a step is not of the next
    begin_ns = np.maximum(calls.start_ns[beside], _busy_until_ns(calls.take(at_work), steps)[step])
    inside = step != NONE
    counts = inside & (begin_ns < end_ns)
    _without_chance(calls, beside, step, counts)
    return _trimmed(calls, beside, counts, {"start_ns": begin_ns, "duration_ns": end_ns - begin_ns, "step": step})


def _without_chance(calls: Calls, beside: Ints, step: NDArray[Any], counts: NDArray[np.bool_]) -> None:
    """Take from ``counts`` the waits of threads, and of processes, in too few of whose steps one counts."""
    process, of_process = np.unique(calls.process[beside], return_inverse=True)
    of_thread = np.unique(_threads(calls.process[beside], calls.thread[beside]), return_inverse=True)[1]
    launches = calls.of(*LAUNCHES) & np.isin(calls.process, process)
    launching = np.searchsorted(process, calls.process[launches])
    counted = np.where(counts, step, NONE)
    counts &= (_steps_by(of_thread, counted) >= MOSTLY * _steps_by(of_thread, step))[of_thread]
    counted = np.where(counts, step, NONE)
    launched = _steps_by(launching, calls.step[launches], len(process))
    counts &= (_steps_by(of_process, counted) >= MOSTLY * launched)[of_process]


def _steps_by(group: Ints, step: NDArray[Any], groups: int = 0) -> Ints:
    """How many different steps each group has, :data:`NONE` not counted."""
    inside = step != NONE
    pairs = np.unique(np.stack([group[inside], step[inside]]), axis=1)
    return np.bincount(pairs[0], minlength=max(groups, group.max(initial=NONE) + 1))


def _beside_and_at_work(calls: Calls, steps: Steps) -> tuple[Ints, Ints]:
    """The rows of waits of threads beside the host, and those of the host's calls; no rows where there are none.

    Where no thread of a process is known to have the steps, any that waits may be the one.
    """
    none = np.zeros(0, np.int64)
    waits = np.flatnonzero(calls.of("synchronise"))
    waiting = _threads(calls.process[waits], calls.thread[waits])
    threaded = steps.thread != NONE
    with_steps = _threads(steps.process[threaded], steps.thread[threaded])
    of_threaded = np.isin(calls.process[waits], steps.process[threaded])
    if np.isin(waiting[of_threaded], with_steps).all():
        return none, none
    every = _threads(calls.process, calls.thread)
    host = np.union1d(with_steps, every[calls.of(*LAUNCHES)])
    beside = waits[of_threaded & ~np.isin(waiting, host)]
    return (beside, np.flatnonzero(np.isin(every, host))) if len(beside) else (none, none)


def _threads(process: NDArray[np.int16], thread: NDArray[np.int32]) -> Ints:
    """Process and thread as one number."""
    return np.asarray((process.astype(np.int64) << 32) + thread)


def _busy_until_ns(calls: Calls, steps: Steps) -> Ints:
    """When the host's last call in each step ended, or one before that lasts longer; at least when the step began.

    A call that begins between two steps is one before the next.
    """
    until_ns = steps.start_ns.copy()
    end_ns = calls.start_ns + calls.duration_ns
    for process in np.unique(steps.process).tolist():
        first, beyond = (int(np.searchsorted(steps.process, process, side)) for side in ("left", "right"))
        rows = np.flatnonzero(calls.process == process)
        following = np.searchsorted(steps.start_ns[first:beyond], calls.start_ns[rows]) + first
        step = np.where(calls.step[rows] != NONE, calls.step[rows], following)
        inside = step < beyond
        np.maximum.at(until_ns, step[inside], end_ns[rows[inside]])
        until_ns[first:beyond] = np.maximum.accumulate(until_ns[first:beyond])
    return until_ns


def _trimmed(calls: Calls, rows: Ints, counts: NDArray[np.bool_], columns: dict[str, NDArray[Any]]) -> Calls:
    """The calls without some, and of those among them that count what the columns say; in order of start."""
    changed = {name: getattr(calls, name).copy() for name in columns}
    for name, column in columns.items():
        changed[name][rows[counts]] = column[counts]
    kept = np.ones(len(calls), bool)
    kept[rows[~counts]] = False
    order = np.argsort(changed["start_ns"], kind="stable")
    return replace(calls, **changed).take(order[kept[order]])
