"""What a step is made of: kernels by role, device time busy and idle, what the host did meanwhile, copies, overlap.

Figures are per step and device, in columns; a step that ran no kernel on a device has no row. Device time is a union of
intervals, so that streams side by side are not counted twice; kernel time is a sum, so that it adds up over roles. A
device is idle where nothing ran on it, of this step or of another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.kernel_names import COMMUNICATION, COPY_KINDS
from perfgate.trace.idle_gaps import MOSTLY, covered, host_calls, idle_ns
from perfgate.trace.kernel_table import (
    LAUNCHES,
    NO_TIME,
    NONE,
    Calls,
    Columns,
    Events,
    Kernels,
    OnDevice,
    Trace,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StepFigures(Columns):
    """Columns over steps and devices, in order of step, then device; durations in nanoseconds.

    What happens on the host (calls, syncs, overhead) belongs to the step and is repeated for each of its devices.

    Args:
        step: Row of the trace's steps.
        device: The device's number; -1 for operators on the CPU.
        launches: Kernels launched.
        graph_launches: Of these, from CUDA graphs.
        kernel_ns: Sum of the kernels' durations.
        begin_ns: The first start of its kernels, copies and memsets.
        first_ns: The start of its first kernel.
        span_ns: From the first start to the last end of kernels, copies and memsets.
        gap_ns: Time within the span in which nothing ran on the device, whichever step's; a column for each of
            :data:`perfgate.trace.idle_gaps.GAPS`.
        step_ns: From the first kernel's start to that of the process's next step; :data:`NO_TIME` for its last.
        slack_ns: How much longer the host could have worked in the step before the device would have waited, see
            :func:`_slack_ns`; negative where it did; :data:`NO_TIME` without predecessor or launch.
        work_ns: How long the host worked in the step: its range less the waits in it; :data:`NO_TIME` on the CPU, where
            operators take the place of kernels, and where the range is vLLM's own, which does not cover the sampler.
        calls: Calls of the host that launch kernels or graphs.
        call_ns: Their duration.
        syncs: Calls in which the host waits for a device.
        sync_ns: Their duration.
        overhead_ns: The profiler's own work.
        copies: Copies, a column for each of :data:`COPY_KINDS`.
        copy_ns: Sum of their durations, a column for each of :data:`COPY_KINDS`.
        copy_bytes: Bytes copied, a column for each of :data:`COPY_KINDS`.
        memsets: Memsets.
        memset_ns: Sum of their durations.
        memset_bytes: Bytes set.
        communication_ns: Union of the communication kernels.
        hidden_ns: The part of it during which another kernel ran.
        role_launches: Kernels, a column for each of the trace's roles.
        role_ns: Sum of their durations, a column for each of the trace's roles.
    """

    step: Ints
    device: Ints
    launches: Ints
    graph_launches: Ints
    kernel_ns: Ints
    begin_ns: Ints
    first_ns: Ints
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
    copy_ns: Ints
    copy_bytes: Ints
    memsets: Ints
    memset_ns: Ints
    memset_bytes: Ints
    communication_ns: Ints
    hidden_ns: Ints
    role_launches: Ints
    role_ns: Ints

    def complete_of(self, trace: Trace, kind: str) -> NDArray[np.bool_]:
        """Which rows are of complete steps of a kind in :data:`perfgate.trace.kernel_table.STEP_KINDS`."""
        return np.isin(self.step, trace.steps.complete_of(kind))

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
    trace = replace(trace, calls=host_calls(trace))
    parts = [_device_figures(part) for part in _parts(trace)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    step, device = columns["step"], columns["device"]
    edges = (columns.pop(name) for name in ("last_ns", "launched_ns"))
    columns["step_ns"], lead_ns = _neighbours(trace, step, device, columns["first_ns"], *edges)
    waited_ns = _waited_ns(trace)
    columns["slack_ns"] = _slack_ns(trace, step, lead_ns, waited_ns)
    columns["work_ns"] = _work_ns(trace, step, device, waited_ns)
    return StepFigures(**columns, **_host(trace, step))


_DEVICE_BITS = 16
_DEVICES = (1 << _DEVICE_BITS) - 1
_PART_ROWS = 1 << 18
_LATE, _EARLY = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def _key(step: NDArray[Any], device: NDArray[Any]) -> Ints:
    """Step and device as one number that sorts like both; the CPU counts as device -1."""
    return np.asarray((step.astype(np.int64) << _DEVICE_BITS) + device + 1)


@dataclass(frozen=True)
class _Part:
    """Some groups, each of a step's kernels on one device.

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

    @property
    def step(self) -> Ints:
        """The step of each group."""
        return self.keys >> _DEVICE_BITS

    @property
    def device(self) -> Ints:
        """The device of each group."""
        return (self.keys & _DEVICES) - 1

    def own(self, events: Events) -> tuple[Events, Ints]:
        """The events that fall into a group, and the groups of those."""
        key = _key(events.step, events.device)
        index = np.searchsorted(self.keys, key)
        inside = np.append(self.keys, _LATE)[index] == key
        return events.take(inside), index[inside]

    def sums(self, group: Ints, values: NDArray[Any] | None = None) -> Ints:
        """How many rows each group has, or the sum of their values: exact below 2**53 ns, a hundred days."""
        return np.bincount(group, values, len(self.keys)).astype(np.int64)

    def table(self, group: Ints, column: NDArray[Any], width: int, values: NDArray[Any] | None = None) -> Ints:
        """As :meth:`sums`, for each group and column."""
        counts = np.bincount(group * width + column, values, len(self.keys) * width)
        return counts.reshape(-1, width).astype(np.int64)


def _parts(trace: Trace) -> Iterator[_Part]:
    """The kernels inside steps, whole groups of about a quarter of a million: what is worked on stays small."""
    kernels = trace.kernels
    rows = np.flatnonzero(kernels.step != NONE).astype(np.int32)
    key = _key(kernels.step[rows], kernels.device[rows])
    if (np.diff(key) < 0).any():  # kernels are in order of start already, so a stable sort keeps that
        order = np.argsort(key, kind="stable")
        rows, key = rows[order], key[order]
    edges = np.flatnonzero(np.diff(key, prepend=NONE, append=_LATE))
    cuts = np.flatnonzero(np.diff(edges[1:] // _PART_ROWS)) + 1
    for first, beyond in itertools.pairwise([0, *cuts.tolist(), len(edges) - 1]):
        part = slice(edges[first], edges[beyond])
        group = np.repeat(np.arange(beyond - first), np.diff(edges[first : beyond + 1]))
        yield _Part(trace, key[edges[first:beyond]], kernels.take(rows[part]), group)


def _device_figures(part: _Part) -> dict[str, Ints]:
    """Everything about a step that its own events on a device tell."""
    trace, kernels, group, count = part.trace, part.kernels, part.group, len(part.keys)
    roles = trace.roles
    role = np.array([roles.index(role) for role in trace.names.role])[kernels.name]
    (copies, copied), (memsets, cleared) = part.own(trace.copies), part.own(trace.memsets)
    copy = copies.kind.astype(np.int64)
    first_ns, last_ns = _edges_ns(kernels, group, count)
    edges = [(first_ns, last_ns), _edges_ns(copies, copied, count), _edges_ns(memsets, cleared, count)]
    begin_ns, end_ns = np.min([begin for begin, _ in edges], axis=0), np.max([end for _, end in edges], axis=0)
    launched = kernels.launched_ns != NO_TIME
    return {
        "step": part.step,
        "device": part.device,
        "launches": part.sums(group),
        "graph_launches": part.sums(group, kernels.graph),
        "kernel_ns": part.sums(group, kernels.duration_ns),
        "role_launches": part.table(group, role, len(roles)),
        "role_ns": part.table(group, role, len(roles), kernels.duration_ns),
        **_communication(part, role),
        "copies": part.table(copied, copy, len(COPY_KINDS)),
        "copy_ns": part.table(copied, copy, len(COPY_KINDS), copies.duration_ns),
        "copy_bytes": part.table(copied, copy, len(COPY_KINDS), copies.bytes),
        "memsets": part.sums(cleared),
        "memset_ns": part.sums(cleared, memsets.duration_ns),
        "memset_bytes": part.sums(cleared, memsets.bytes),
        "begin_ns": begin_ns,
        "span_ns": end_ns - begin_ns,
        "gap_ns": idle_ns(trace, trace.steps.process[part.step], part.device, begin_ns, end_ns),
        "first_ns": first_ns,
        "last_ns": last_ns,
        "launched_ns": _first(group[launched], kernels.launched_ns[launched], count),
    }


def _edges_ns(events: OnDevice, group: Ints, count: int) -> tuple[Ints, Ints]:
    """The first start and the last end of each group; where it has no event the end and the beginning of time."""
    last = np.full(count, _EARLY)
    np.maximum.at(last, group, events.start_ns + events.duration_ns)
    return _first(group, events.start_ns, count), last


def _first(group: Ints, time_ns: Ints, count: int) -> Ints:
    first_ns = np.full(count, _LATE)
    np.minimum.at(first_ns, group, time_ns)
    return first_ns


def _host(trace: Trace, step: Ints) -> dict[str, Ints]:
    """What the host did in each step."""
    columns, calls = {}, trace.calls
    for count, total, kinds in (("calls", "call_ns", LAUNCHES), ("syncs", "sync_ns", ("synchronise",))):
        wanted = calls.of(*kinds) & (calls.step != NONE)
        owner = calls.step[wanted]
        columns[count] = np.bincount(owner, minlength=len(trace.steps))[step]
        columns[total] = np.bincount(owner, calls.duration_ns[wanted], len(trace.steps)).astype(np.int64)[step]
    overhead = trace.overhead.take(trace.overhead.step != NONE)
    spent_ns = np.bincount(overhead.step, overhead.duration_ns, len(trace.steps))
    return columns | {"overhead_ns": spent_ns.astype(np.int64)[step]}


def _communication(part: _Part, role: Ints) -> dict[str, Ints]:
    """Time of communication, and how much of it other kernels hide: what the unions have in common."""
    roles, kernels, count = part.trace.roles, part.kernels, len(part.keys)
    times = np.zeros((count, 3), np.int64)
    if COMMUNICATION in roles and count:
        talks = role == roles.index(COMMUNICATION)
        start_ns, end_ns = kernels.start_ns, kernels.start_ns + kernels.duration_ns
        for group, rows in enumerate(np.split(np.arange(len(kernels)), np.flatnonzero(np.diff(part.group)) + 1)):
            chosen = (rows[talks[rows]], rows[~talks[rows]], rows)
            times[group] = [_union_ns(start_ns[which], end_ns[which]) for which in chosen]
    talking, computing, either = times.T
    return {"communication_ns": talking, "hidden_ns": talking + computing - either}


def _union_ns(start_ns: Ints, end_ns: Ints) -> int:
    """How long at least one of these intervals runs; they are in order of start."""
    if not len(start_ns):
        return 0
    reached = np.maximum.accumulate(end_ns)
    return int(reached[-1] - start_ns[0] - np.maximum(start_ns[1:] - reached[:-1], 0).sum())


def consecutive(trace: Trace, step: Ints, device: Ints) -> tuple[Ints, Ints]:
    """Rows of which the second is of the step after the first one's, in the same process and on the same device."""
    process = trace.steps.process[step]
    order = np.lexsort((step, device))
    earlier, later = order[:-1], order[1:]
    follows = (device[earlier] == device[later]) & (process[earlier] == process[later])
    return earlier[follows], later[follows]


def _neighbours(  # step and device, then three times of each
    trace: Trace, step: Ints, device: Ints, first_ns: Ints, last_ns: Ints, launched_ns: Ints
) -> tuple[Ints, Ints]:
    """How a step follows the one before it and precedes the next one of its process, on the same device.

    Returns:
        From its first kernel to that of the next, and its lead: how far before the end of its predecessor's last kernel
        its own first one was launched.
    """
    step_ns, lead_ns = np.full(len(step), NO_TIME), np.full(len(step), NO_TIME)
    earlier, later = consecutive(trace, step, device)
    step_ns[earlier] = first_ns[later] - first_ns[earlier]
    shown = launched_ns[later] != _LATE
    lead_ns[later[shown]] = last_ns[earlier[shown]] - launched_ns[later[shown]]
    return step_ns, lead_ns


def _waits(trace: Trace) -> Calls:
    return trace.calls.take(trace.calls.of("synchronise"))


def _waited_ns(trace: Trace) -> Ints:
    """How much of each step's range its process spent in calls that wait for a device."""
    return covered(_waits(trace), trace.steps.process, trace.steps.start_ns, trace.steps.end_ns)


def _slack_ns(trace: Trace, step: Ints, lead_ns: Ints, waited_ns: Ints) -> Ints:
    """The smaller of a step's lead and the time that the host waits in it.

    With asynchronous scheduling the host launches a step and then waits for the output of the one before it. Work
    added before that wait only shortens the wait; the lead shrinks once there is no wait left (docs/decisions.md). A
    process that seldom waits in a call, as where it polls, shows its lead alone: in fewer steps than :data:`MOSTLY`.
    """
    began = _waits(trace).step
    waits = waited_ns > 0
    waits[began[began != NONE]] = True
    owner = np.unique(trace.steps.process[step], return_inverse=True)[1]
    mostly = np.bincount(owner, waits[step]) >= MOSTLY * np.bincount(owner)
    bounded = mostly[owner] & (lead_ns != NO_TIME)
    return np.where(bounded, np.minimum(lead_ns, waited_ns[step]), lead_ns)


def _work_ns(trace: Trace, step: Ints, device: Ints, waited_ns: Ints) -> Ints:
    steps = trace.steps
    shown = steps.own[step] & (device != NONE)
    return np.where(shown, (steps.end_ns - steps.start_ns - waited_ns)[step], NO_TIME)
