"""What a step is made of: kernels by role, device time busy and idle, what the host did meanwhile, copies, overlap.

Figures are per step and device, in columns; a step that ran no kernel on a device has no row. Device time is a union of
intervals, so that streams side by side are not counted twice; kernel time is a sum, so that it adds up over roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.kernels import CALL_KINDS, COPY_KINDS, NO_TIME, NONE, Columns, Events, Kernels, Trace
from perfgate.roles import COMMUNICATION

GAPS = ("graph", "launch", "copy", "synchronise", "nothing")
"""What an idle gap goes with. ``graph``: it lies between two kernels of one graph launch, where the host plays no part.
Otherwise the CUDA calls that the host had open during it, the first of these where threads differ, or ``nothing``."""

_GAP_CALLS = (("launch", "graph-launch"), ("copy",), ("synchronise",))
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StepFigures(Columns):
    """Columns over steps and devices, in order of step, then device; durations in nanoseconds.

    What happens on the host (calls, syncs, overhead) belongs to the step and stands with each of its devices.

    Args:
        step: Row of the trace's steps.
        device: The device's number; -1 for operators on the CPU.
        launches: Kernels launched.
        graph_launches: Of these, from CUDA graphs.
        kernel_ns: Sum of the kernels' durations.
        span_ns: From the first start to the last end of kernels, copies and memsets.
        gap_ns: Idle time within the span, a column for each of :data:`GAPS`.
        step_ns: From the first kernel's start to that of the process's next step; :data:`NO_TIME` for its last.
        slack_ns: How far before the end of its predecessor's last kernel the step's first kernel was launched; negative
            where the device had to wait for the host; :data:`NO_TIME` without predecessor or launch.
        calls: Calls of the host that launch kernels or graphs.
        call_ns: Their duration.
        syncs: Calls in which the host waits for a device.
        sync_ns: Their duration.
        overhead_ns: The profiler's own work.
        copies: Copies, a column for each of :data:`COPY_KINDS`.
        copy_bytes: Bytes copied, likewise.
        memsets: Memsets.
        communication_ns: Union of the communication kernels.
        hidden_ns: The part of it during which another kernel ran.
        role_launches: Kernels, a column for each of the trace's roles.
        role_ns: Sum of their durations, likewise.
    """

    step: Ints
    device: Ints
    launches: Ints
    graph_launches: Ints
    kernel_ns: Ints
    span_ns: Ints
    gap_ns: Ints
    step_ns: Ints
    slack_ns: Ints
    calls: Ints
    call_ns: Ints
    syncs: Ints
    sync_ns: Ints
    overhead_ns: Ints
    copies: Ints
    copy_bytes: Ints
    memsets: Ints
    communication_ns: Ints
    hidden_ns: Ints
    role_launches: Ints
    role_ns: Ints

    @property
    def idle_ns(self) -> Ints:
        """Time within the span in which nothing ran on the device."""
        return np.asarray(self.gap_ns.sum(axis=1))

    @property
    def busy_ns(self) -> Ints:
        """Time within the span in which a kernel, a copy or a memset ran."""
        return np.asarray(self.span_ns - self.idle_ns)

    @property
    def graph_coverage(self) -> NDArray[np.float64]:
        """The share of kernels that CUDA graphs launched."""
        return np.asarray(self.graph_launches / self.launches)


def figures(trace: Trace) -> StepFigures:
    """The figures of every step and device with a kernel."""
    groups = _Groups.of(trace.kernels)
    kernels, group = trace.kernels.take(groups.rows), groups.of_row
    step, device = groups.keys >> _DEVICE_BITS, (groups.keys & _DEVICES) - 1
    columns: dict[str, Ints] = {"step": step, "device": device}
    columns["launches"] = groups.sums(group)
    columns["graph_launches"] = groups.sums(group, kernels.graph)
    columns["kernel_ns"] = groups.sums(group, kernels.duration_ns)
    role = trace.role_of_name()[kernels.name].astype(np.int64)
    columns["role_launches"] = groups.table(group, role, len(trace.roles))
    columns["role_ns"] = groups.table(group, role, len(trace.roles), kernels.duration_ns)
    columns |= _communication(trace, kernels, group, role, len(groups.keys))
    columns |= _copies(trace, groups)
    columns |= _host(trace, step)
    columns |= _neighbours(trace, kernels, group, step, device)
    work = _Work.of(trace, kernels, groups)
    columns["span_ns"] = work.span_ns(len(groups.keys))
    columns["gap_ns"] = _gaps(trace, work, step)
    return StepFigures(**columns)


_DEVICE_BITS = 16
_DEVICES = (1 << _DEVICE_BITS) - 1


def _key(step: NDArray[Any], device: NDArray[Any]) -> Ints:
    """Step and device as one number that sorts like both; the CPU counts as device -1."""
    return np.asarray((step.astype(np.int64) << _DEVICE_BITS) + device + 1)


@dataclass(frozen=True)
class _Groups:
    """The kernels inside steps, in order of step, device and start.

    Args:
        rows: Rows of the kernel table in that order.
        of_row: The group of each of ``rows``.
        keys: Step and device of each group, ascending.
    """

    rows: Ints
    of_row: Ints
    keys: Ints

    @classmethod
    def of(cls, kernels: Kernels) -> _Groups:
        rows = np.flatnonzero(kernels.step != NONE)
        key = _key(kernels.step[rows], kernels.device[rows])
        order = np.lexsort((kernels.start_ns[rows], key))
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=NONE))
        return cls(rows[order], np.repeat(np.arange(len(first)), np.diff(first, append=len(key))), key[first])

    def find(self, events: Events) -> tuple[NDArray[np.bool_], Ints]:
        """Which events fall into a group, and the groups of those."""
        key = _key(events.step, events.device)
        place = np.minimum(np.searchsorted(self.keys, key), max(len(self.keys) - 1, 0))
        known = self.keys[place] == key if len(self.keys) else np.zeros(len(key), bool)
        return known, place[known]

    def sums(self, group: Ints, values: NDArray[Any] | None = None) -> Ints:
        """How many rows each group has, or the sum of their values: exact below 2**53 ns, a hundred days."""
        found: Ints = np.bincount(group, values, len(self.keys)).astype(np.int64)
        return found

    def table(self, group: Ints, column: NDArray[Any], width: int, values: NDArray[Any] | None = None) -> Ints:
        """The same for each group and column."""
        counts: Ints = np.bincount(group * width + column, values, len(self.keys) * width).astype(np.int64)
        cells: Ints = np.reshape(counts, (len(self.keys), width))
        return cells


def _copies(trace: Trace, groups: _Groups) -> dict[str, Ints]:
    known, group = groups.find(trace.copies)
    kind = trace.copies.kind[known].astype(np.int64)
    return {
        "copies": groups.table(group, kind, len(COPY_KINDS)),
        "copy_bytes": groups.table(group, kind, len(COPY_KINDS), trace.copies.bytes[known]),
        "memsets": groups.sums(groups.find(trace.memsets)[1]),
    }


def _host(trace: Trace, step: Ints) -> dict[str, Ints]:
    """What the host did in each step."""
    columns = {}
    for count, total, kinds in (("calls", "call_ns", _GAP_CALLS[0]), ("syncs", "sync_ns", ("synchronise",))):
        wanted = np.isin(trace.calls.kind, [CALL_KINDS.index(kind) for kind in kinds])
        calls = trace.calls.take(wanted & (trace.calls.step != NONE))
        columns[count] = np.bincount(calls.step, minlength=len(trace.steps))[step]
        columns[total] = np.bincount(calls.step, calls.duration_ns, len(trace.steps)).astype(np.int64)[step]
    overhead = trace.overhead.take(trace.overhead.step != NONE)
    found = np.bincount(overhead.step, overhead.duration_ns, len(trace.steps))
    return columns | {"overhead_ns": found.astype(np.int64)[step]}


def _communication(trace: Trace, kernels: Kernels, group: Ints, role: Ints, count: int) -> dict[str, Ints]:
    """Time of communication, and how much of it other kernels hide: what the unions have in common."""
    if COMMUNICATION not in trace.roles:
        return {"communication_ns": np.zeros(count, np.int64), "hidden_ns": np.zeros(count, np.int64)}
    talks = role == trace.roles.index(COMMUNICATION)
    talking = _union_ns(kernels.take(talks), group[talks], count)
    computing = _union_ns(kernels.take(~talks), group[~talks], count)
    return {"communication_ns": talking, "hidden_ns": talking + computing - _union_ns(kernels, group, count)}


def _union_ns(kernels: Kernels, group: Ints, count: int) -> Ints:
    work = _Work(group, kernels.start_ns, kernels.start_ns + kernels.duration_ns, kernels.graph, kernels.correlation)
    idle = np.bincount(group, np.maximum(work.idle_ns(), 0), count)
    return work.span_ns(count) - idle.astype(np.int64)


def _neighbours(trace: Trace, kernels: Kernels, group: Ints, step: Ints, device: Ints) -> dict[str, Ints]:
    """Where a step lies to the one before and the one after it in its process, on the same device."""
    count = len(step)
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, group, kernels.start_ns)
    last = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(last, group, kernels.start_ns + kernels.duration_ns)
    launched = np.full(count, np.iinfo(np.int64).max)
    known = kernels.launched_ns != NO_TIME
    np.minimum.at(launched, group[known], kernels.launched_ns[known])
    step_ns, slack_ns = np.full(count, NO_TIME), np.full(count, NO_TIME)
    order = np.lexsort((step, trace.steps.process[step], device))
    one, other = order[:-1], order[1:]
    follows = (device[one] == device[other]) & (trace.steps.process[step[one]] == trace.steps.process[step[other]])
    one, other = one[follows], other[follows]
    step_ns[one] = first[other] - first[one]
    shown = launched[other] != np.iinfo(np.int64).max
    slack_ns[other[shown]] = last[one[shown]] - launched[other[shown]]
    return {"step_ns": step_ns, "slack_ns": slack_ns}


@dataclass(frozen=True)
class _Work:
    """Intervals of groups, in order of group and start, with the graph launch that each came from."""

    group: Ints
    start_ns: Ints
    end_ns: Ints
    graph: NDArray[np.bool_]
    correlation: Ints

    @classmethod
    def of(cls, trace: Trace, kernels: Kernels, groups: _Groups) -> _Work:
        """Everything that keeps a device busy: the kernels (already in order), copies and memsets."""
        parts = [(groups.of_row, kernels.start_ns, kernels.duration_ns, kernels.graph, kernels.correlation)]
        for events in (trace.copies, trace.memsets):
            known, group = groups.find(events)
            found = events.take(known)
            parts.append((group, found.start_ns, found.duration_ns, found.graph, found.correlation))
        group, start, duration, graph, correlation = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((start, group))
        start = start[order]
        return cls(group[order], start, start + duration[order], graph[order], correlation[order])

    def span_ns(self, count: int) -> Ints:
        """From the first start to the last end of each group."""
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, self.group, self.start_ns)
        np.maximum.at(last, self.group, self.end_ns)
        return np.where(first <= last, last - np.where(first <= last, first, 0), 0)

    def idle_ns(self) -> Ints:
        """Before each interval, how long nothing of its group had run; not positive where there was no gap."""
        if not len(self.group):
            return self.start_ns
        opens = np.diff(self.group, prepend=NONE) != 0
        origin = self.start_ns[np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))]
        # Lifted by a height each, no group reaches into the next, so that one running maximum serves all.
        height = int((self.end_ns - origin).max()) + 1
        reached = np.maximum.accumulate(self.end_ns - origin + self.group * height) - self.group * height
        idle = np.zeros(len(opens), np.int64)
        idle[1:] = np.where(opens[1:], 0, (self.start_ns - origin)[1:] - reached[:-1])
        return idle


def _gaps(trace: Trace, work: _Work, step: Ints) -> Ints:
    """The idle time of each group by what it goes with."""
    length = work.idle_ns()
    after = np.flatnonzero(length > 0)
    group, length, end = work.group[after], length[after], work.start_ns[after]
    one_graph = work.graph[after] & work.graph[after - 1] & (work.correlation[after] == work.correlation[after - 1])
    parts = np.zeros((len(after), len(GAPS)), np.int64)
    parts[one_graph, GAPS.index("graph")] = length[one_graph]
    free = np.flatnonzero(~one_graph)
    process = trace.steps.process[step[group[free]]]
    covered = np.zeros(len(free), np.int64)
    kinds: list[int] = []
    for column, words in enumerate(_GAP_CALLS, start=1):
        added = [CALL_KINDS.index(word) for word in words]
        kinds += added
        if np.isin(trace.calls.kind, added).any():
            before, covered = covered, _covered(trace, kinds, process, end[free] - length[free], end[free])
            parts[free, column] = covered - before
    parts[free, GAPS.index("nothing")] = length[free] - covered
    return np.stack([np.bincount(group, part, len(step)).astype(np.int64) for part in parts.T], axis=1)


def _covered(trace: Trace, kinds: list[int], process: NDArray[np.int16], begin: Ints, end: Ints) -> Ints:
    """How much of each interval some call of these kinds of its process covers."""
    found = np.zeros(len(begin), np.int64)
    wanted = np.isin(trace.calls.kind, kinds)
    for one in np.unique(process):
        calls = trace.calls.take(wanted & (trace.calls.process == one))
        rows = np.flatnonzero(process == one)
        if len(calls):
            until = np.maximum.accumulate(calls.start_ns + calls.duration_ns)
            opened = np.maximum(calls.start_ns, np.concatenate([calls.start_ns[:1], until[:-1]]))
            total = np.concatenate([[0], np.cumsum(until - opened)])
            found[rows] = _until(end[rows], opened, until, total) - _until(begin[rows], opened, until, total)
    return found


def _until(time_ns: Ints, opened: Ints, until: Ints, total: Ints) -> Ints:
    """How much of the time before ``time_ns`` disjoint intervals cover; ``total`` sums their lengths from 0."""
    place = np.searchsorted(opened, time_ns, side="right")
    beyond = np.where(place > 0, until[np.maximum(place - 1, 0)] - time_ns, 0)
    return np.asarray(total[place] - np.maximum(beyond, 0))
