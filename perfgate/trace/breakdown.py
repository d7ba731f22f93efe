"""What a step is made of: kernels by role, device time busy and idle, what the host did meanwhile, copies, overlap.

Figures are per step and device, in columns; a step that ran no kernel on a device has no row. Device time is a union of
intervals, so that streams side by side are not counted twice; kernel time is a sum, so that it adds up over roles. A
device is idle where nothing ran on it, of this step or of another.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.families import COMMUNICATION
from perfgate.trace.idle_gaps import GAP_CALLS, Activity, covered
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    COPY_KINDS,
    NO_TIME,
    NONE,
    STEP_KINDS,
    Calls,
    Columns,
    Events,
    Kernels,
    Trace,
)

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
        gap_ns: Time within the span in which nothing ran on the device, whichever step's; a column for each of
            :data:`perfgate.trace.idle_gaps.GAPS`.
        step_ns: From the first kernel's start to that of the process's next step; :data:`NO_TIME` for its last.
        slack_ns: How much longer the host could have worked in the step before the device would have waited, see
            :func:`_slack_ns`; negative where it did; :data:`NO_TIME` without predecessor or launch.
        work_ns: How long the host worked in the step: its range less the waits in it; :data:`NO_TIME` on the CPU, where
            operators stand for kernels, and where the range is vLLM's own, which does not cover the sampler.
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
    work_ns: Ints
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

    def pure_decode(self, trace: Trace) -> NDArray[np.bool_]:
        """Which rows are of complete steps that do nothing but decode."""
        kinds, decode = trace.steps.kind[self.step], STEP_KINDS.index("decode")
        return np.asarray(trace.steps.complete[self.step] & (kinds == decode))

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
    activity = Activity.of(trace)
    parts = [_device_figures(_Part.of(trace, groups, *which), activity) for which in groups.parts()]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    step, device = groups.keys >> _DEVICE_BITS, (groups.keys & _DEVICES) - 1
    edges = (columns.pop(name) for name in ("first_ns", "last_ns", "launched_ns"))
    columns["step_ns"], lead_ns = _neighbours(trace, step, device, *edges)
    waited_ns = _waited_ns(trace)
    columns["slack_ns"] = _slack_ns(trace, step, lead_ns, waited_ns)
    columns["work_ns"] = _work_ns(trace, step, device, waited_ns)
    return StepFigures(step=step, device=device, **columns, **_host(trace, step))


_DEVICE_BITS = 16
_DEVICES = (1 << _DEVICE_BITS) - 1
_PART_ROWS = 1 << 18
_LATE, _EARLY = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def _key(step: NDArray[Any], device: NDArray[Any]) -> Ints:
    """Step and device as one number that sorts like both; the CPU counts as device -1."""
    return np.asarray((step.astype(np.int64) << _DEVICE_BITS) + device + 1)


@dataclass(frozen=True)
class _Groups:
    """The kernels inside steps, in order of step, device and start.

    Args:
        rows: Rows of the kernel table in that order.
        keys: Step and device of each group, ascending.
        edges: Where each group begins in ``rows``, and at last their number.
    """

    rows: NDArray[np.int32]
    keys: Ints
    edges: Ints

    @classmethod
    def of(cls, kernels: Kernels) -> _Groups:
        rows = np.flatnonzero(kernels.step != NONE).astype(np.int32)
        key = _key(kernels.step[rows], kernels.device[rows])
        if (np.diff(key) < 0).any():  # kernels are in order of start already, so a stable sort keeps that
            order = np.argsort(key, kind="stable")
            rows, key = rows[order], key[order]
        edges = np.flatnonzero(np.diff(key, prepend=NONE, append=_LATE))
        return cls(rows, key[edges[:-1]], edges)

    def parts(self) -> list[tuple[int, int]]:
        """Stretches of whole groups of about a quarter of a million kernels: what is worked on stays small."""
        beyond = np.flatnonzero(np.diff(self.edges[1:] // _PART_ROWS)) + 1
        cuts = [0, *beyond.tolist(), len(self.keys)]
        return list(itertools.pairwise(cuts))


@dataclass(frozen=True)
class _Part:
    """Some groups with their kernels.

    Args:
        trace: All of it.
        keys: Step and device of each group.
        kernels: Their kernels, in order of group and start.
        group: The group of each kernel, from 0.
    """

    trace: Trace
    keys: Ints
    kernels: Kernels
    group: Ints

    @classmethod
    def of(cls, trace: Trace, groups: _Groups, first: int, beyond: int) -> _Part:
        edges = groups.edges[first : beyond + 1]
        rows = groups.rows[edges[0] : edges[-1]]
        group = np.repeat(np.arange(beyond - first), np.diff(edges))
        return cls(trace, groups.keys[first:beyond], trace.kernels.take(rows), group)

    def find(self, events: Events) -> tuple[NDArray[np.bool_], Ints]:
        """Which events fall into a group, and the groups of those."""
        key = _key(events.step, events.device)
        place = np.searchsorted(self.keys, key)
        known = np.append(self.keys, _LATE)[place] == key
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


def _device_figures(part: _Part, activity: Activity) -> dict[str, Ints]:
    """Everything about a step that its own events on a device tell."""
    trace, kernels, group = part.trace, part.kernels, part.group
    role = trace.role_of_name()[kernels.name].astype(np.int64)
    copied, of_group = part.find(trace.copies)
    copy = trace.copies.kind[copied].astype(np.int64)
    first_ns, end_ns = _Work.of(part).edges_ns(len(part.keys))
    known = kernels.launched_ns != NO_TIME
    return {
        "launches": part.sums(group),
        "graph_launches": part.sums(group, kernels.graph),
        "kernel_ns": part.sums(group, kernels.duration_ns),
        "role_launches": part.table(group, role, len(trace.roles)),
        "role_ns": part.table(group, role, len(trace.roles), kernels.duration_ns),
        **_communication(part, role),
        "copies": part.table(of_group, copy, len(COPY_KINDS)),
        "copy_bytes": part.table(of_group, copy, len(COPY_KINDS), trace.copies.bytes[copied]),
        "memsets": part.sums(part.find(trace.memsets)[1]),
        "span_ns": end_ns - first_ns,
        "gap_ns": activity.gaps(
            trace.steps.process[part.keys >> _DEVICE_BITS], (part.keys & _DEVICES) - 1, first_ns, end_ns
        ),
        "first_ns": _first(group, kernels.start_ns, len(part.keys)),
        "last_ns": _last(group, kernels.start_ns + kernels.duration_ns, len(part.keys)),
        "launched_ns": _first(group[known], kernels.launched_ns[known], len(part.keys)),
    }


def _first(group: Ints, time_ns: Ints, count: int) -> Ints:
    """The earliest time of each group; the end of time where it has none."""
    found = np.full(count, _LATE)
    np.minimum.at(found, group, time_ns)
    return found


def _last(group: Ints, time_ns: Ints, count: int) -> Ints:
    """The latest time of each group."""
    found = np.full(count, _EARLY)
    np.maximum.at(found, group, time_ns)
    return found


def _host(trace: Trace, step: Ints) -> dict[str, Ints]:
    """What the host did in each step."""
    columns, calls = {}, trace.calls
    for count, total, kinds in (("calls", "call_ns", GAP_CALLS[0]), ("syncs", "sync_ns", ("synchronise",))):
        wanted = np.isin(calls.kind, [CALL_KINDS.index(kind) for kind in kinds]) & (calls.step != NONE)
        owner = calls.step[wanted]
        columns[count] = np.bincount(owner, minlength=len(trace.steps))[step]
        columns[total] = np.bincount(owner, calls.duration_ns[wanted], len(trace.steps)).astype(np.int64)[step]
    overhead = trace.overhead.take(trace.overhead.step != NONE)
    found = np.bincount(overhead.step, overhead.duration_ns, len(trace.steps))
    return columns | {"overhead_ns": found.astype(np.int64)[step]}


def _communication(part: _Part, role: Ints) -> dict[str, Ints]:
    """Time of communication, and how much of it other kernels hide: what the unions have in common."""
    roles, kernels, group, count = part.trace.roles, part.kernels, part.group, len(part.keys)
    if COMMUNICATION not in roles:
        return {"communication_ns": np.zeros(count, np.int64), "hidden_ns": np.zeros(count, np.int64)}
    talks = role == roles.index(COMMUNICATION)
    talking = _union_ns(kernels.take(talks), group[talks], count)
    computing = _union_ns(kernels.take(~talks), group[~talks], count)
    return {"communication_ns": talking, "hidden_ns": talking + computing - _union_ns(kernels, group, count)}


def _union_ns(kernels: Kernels, group: Ints, count: int) -> Ints:
    return _Work(group, kernels.start_ns, kernels.start_ns + kernels.duration_ns).union_ns(count)


def consecutive(trace: Trace, step: Ints, device: Ints) -> tuple[Ints, Ints]:
    """Rows of which the second is of the step after the first one's, in the same process and on the same device."""
    process = trace.steps.process[step]
    order = np.lexsort((step, device))
    one, other = order[:-1], order[1:]
    follows = (device[one] == device[other]) & (process[one] == process[other])
    return one[follows], other[follows]


def _neighbours(  # step and device, then three times of each
    trace: Trace, step: Ints, device: Ints, first_ns: Ints, last_ns: Ints, launched_ns: Ints
) -> tuple[Ints, Ints]:
    """Where a step lies to the one before and the one after it in its process, on the same device.

    Returns:
        From its first kernel to that of the next, and its lead: how far before the end of its predecessor's last kernel
        its own first one was launched.
    """
    step_ns, lead_ns = np.full(len(step), NO_TIME), np.full(len(step), NO_TIME)
    one, other = consecutive(trace, step, device)
    step_ns[one] = first_ns[other] - first_ns[one]
    shown = launched_ns[other] != _LATE
    lead_ns[other[shown]] = last_ns[one[shown]] - launched_ns[other[shown]]
    return step_ns, lead_ns


def _waits(trace: Trace) -> Calls:
    return trace.calls.take(trace.calls.kind == CALL_KINDS.index("synchronise"))


def _waited_ns(trace: Trace) -> Ints:
    """How much of each step's range its process spent in calls that wait for a device."""
    return covered(_waits(trace), trace.steps.process, trace.steps.start_ns, trace.steps.end_ns)


def _slack_ns(trace: Trace, step: Ints, lead_ns: Ints, waited_ns: Ints) -> Ints:
    """The smaller of a step's lead and the time that the host waits in it.

    With asynchronous scheduling the host launches a step and then waits for the output of the one before it. Work
    added before that wait only shortens the wait; the lead shrinks once there is no wait left (docs/decisions.md). A
    process that never waits in a call, as where it polls, shows its lead alone.
    """
    waits = _waits(trace)
    bounded = np.isin(trace.steps.process[step], waits.process[waits.step != NONE]) & (lead_ns != NO_TIME)
    return np.where(bounded, np.minimum(lead_ns, waited_ns[step]), lead_ns)


def _work_ns(trace: Trace, step: Ints, device: Ints, waited_ns: Ints) -> Ints:
    steps = trace.steps
    shown = steps.own[step] & (device != NONE)
    return np.where(shown, (steps.end_ns - steps.start_ns - waited_ns)[step], NO_TIME)


@dataclass(frozen=True)
class _Work:
    """Intervals of groups, in order of group and start."""

    group: Ints
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, part: _Part) -> _Work:
        """Everything of a step that keeps a device busy: kernels, copies and memsets."""
        parts = [(part.group, part.kernels.start_ns, part.kernels.duration_ns)]
        for events in (part.trace.copies, part.trace.memsets):
            known, group = part.find(events)
            found = events.take(known)
            parts.append((group, found.start_ns, found.duration_ns))
        group, start, duration = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((start, group))
        start = start[order]
        return cls(group[order], start, start + duration[order])

    def edges_ns(self, count: int) -> tuple[Ints, Ints]:
        """The first start and the last end of each group; zeros where it has no interval."""
        first, last = _first(self.group, self.start_ns, count), _last(self.group, self.end_ns, count)
        shown = first <= last
        return np.where(shown, first, 0), np.where(shown, last, 0)

    def union_ns(self, count: int) -> Ints:
        """How long at least one interval of each group runs."""
        first, last = self.edges_ns(count)
        return last - first - np.bincount(self.group, self._idle_ns(), count).astype(np.int64)

    def _idle_ns(self) -> Ints:
        """Before each interval, how long nothing of its group had run."""
        if not len(self.group):
            return self.start_ns
        opens = np.diff(self.group, prepend=NONE) != 0
        origin = self.start_ns[np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))]
        # Lifted by a height each, no group reaches into the next, so that one running maximum serves all.
        height = int((self.end_ns - origin).max()) + 1
        reached = np.maximum.accumulate(self.end_ns - origin + self.group * height) - self.group * height
        idle = np.zeros(len(opens), np.int64)
        idle[1:] = np.where(opens[1:], 0, (self.start_ns - origin)[1:] - reached[:-1])
        return np.maximum(idle, 0)
